"""Muon is for hidden matrices: what else it is given is named, and a partition leaves the rest to AdamW."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

from layerwise.jax import adamw, muon

PARAMS = {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}, "scale": jnp.ones(())}


def test_vectors_are_named():
    with pytest.warns(UserWarning, match=r"also steps other parameters: 'dense/bias', 'scale'\. Step them with AdamW"):
        muon(0.02).init(PARAMS)


def test_a_partition_leaves_the_rest_to_adamw_and_says_nothing():
    labels = jax.tree.map(lambda p: "muon" if p.ndim == 2 else "rest", PARAMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt = optax.partition({"muon": muon(0.02), "rest": adamw(1e-3)}, labels)
        state = opt.init(PARAMS)
        updates, _ = opt.update(PARAMS, state, PARAMS)
    bias, *_ = adamw(1e-3).update(PARAMS["scale"], adamw(1e-3).init(PARAMS["scale"]), PARAMS["scale"])
    assert updates["scale"] == bias
