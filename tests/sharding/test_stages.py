"""Ranks that have whole tensors of one model clip by its norm, and skip its steps, together."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sharding.models import FRONTS

from layerwise.errors import ContradictionError, HyperparameterError
from sharding import stages

fronts = pytest.mark.parametrize("front", FRONTS)
CLIPPED = {"max_grad_norm": 0.5}


def check(found, alone):
    """The ranks' tensors together are those of the one that has all."""
    weights = {name: x for outcome, *_ in found for name, x in outcome["weights"].items()}
    assert weights.keys() == alone["weights"].keys()
    for name, x in alone["weights"].items():
        np.testing.assert_allclose(weights[name], x, 0, 1e-12 * np.abs(x).max())


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("world", [2, 4])
@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1)
def test_the_norm_of_all(ranks, front, world, fused):
    options = {**CLIPPED, "fused": fused}
    found = ranks.run(world, stages.stepped, front, options)
    alone, _, _ = stages.own(front, options, 0, 1)
    check(found, alone)
    unclipped, _, _ = stages.own(front, {"fused": fused}, 0, 1)
    if front.__name__ != "Adafactor":
        with pytest.raises(AssertionError):
            check(found, unclipped)


@fronts
@pytest.mark.needs("max_grad_norm")
def test_all_skip(ranks, front):
    options = {**CLIPPED, "skip_nonfinite": True}
    found = ranks.run(2, stages.stepped, front, options, 1)
    alone, _, _ = stages.own(front, options, 0, 1, 1)
    assert [skipped for _, skipped, _ in found] == [1, 1]
    check(found, alone)


@fronts
@pytest.mark.needs("max_grad_norm")
def test_what_one_cannot_step_none_does(ranks, front):
    found = ranks.run(2, stages.stepped, front, CLIPPED, None, 2)
    alone, _, errors = stages.own(front, CLIPPED, 0, 1, None, 2)
    assert errors == [(2, "GradientError")]
    assert sorted(errors for *_, errors in found) == [[(2, "GradientError")], [(2, "SynchronizationError")]]
    check(found, alone)


@fronts
def test_bad_groups(front):
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(HyperparameterError, match="model_group"):
        front([p], model_group=3)
    with pytest.raises(HyperparameterError, match="model_group"):
        front([{"params": [p], "model_group": 3}])


@fronts
def test_what_a_wrapper_says_again_is_heard_once(front):
    opt = front([{"params": [torch.nn.Parameter(torch.ones(2))], "model_group": None, "blocks": None, "fused": None}])
    assert not {"model_group", "blocks", "fused"} & opt.param_groups[0].keys()


def test_two_rounds_are_too_many(ranks):
    assert ranks.run(1, stages.contradiction) == [ContradictionError.__name__]


@pytest.mark.parametrize("default", [True, False], ids=["all ranks", "a group of its own"])
@pytest.mark.parametrize("how", ["copy", "pickle"])
@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1)
def test_copies_have_the_group(ranks, front, how, default):
    """Those in memory have the same one; a pickle knows the default group, and says that it lacks any other."""
    for said, same in ranks.run(2, stages.copied, front, how, default):
        assert same
        assert bool(said) == (how == "pickle" and not default)
        assert not said or "optimizer.model_group" in said


def test_an_optimizer_read_where_there_are_no_processes(ranks):
    """It says what it lacks, and goes on once it is told that the model is whole."""
    opt = pickle.loads(ranks.run(1, stages.pickled)[0])
    p = opt.param_groups[0]["params"][0]
    p.grad = torch.ones(2)
    with pytest.raises(ContradictionError, match=r"model_group.*all processes"):
        opt.step()
    assert p.tolist() == [1, 1]
    opt.model_group = None
    opt.step()
    assert p.tolist() != [1, 1]
