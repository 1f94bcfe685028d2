"""Shards of Megatron's distributed optimizer are stepped as one process steps the parameters."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from sharding.models import FRONTS, TOLERANCE, close, same

from layerwise.errors import HyperparameterError, ParameterError
from layerwise.torch import Adafactor, Lamb, flat
from sharding import megatron, zero

installed = pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="Megatron is not installed")


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.thinned(1, 3)
def test_shards_by_its_rules(ranks, front, world):
    """Buckets with padding, cut into equal parts: ranks lack parameters, and groups differ in length."""
    found = ranks.run(world, megatron.by_rules, front)
    for one, in_place in found:
        close(one, zero.alone(front), TOLERANCE[torch.float64])
        same(one, found[0][0])
        assert in_place


def test_several_instances(ranks):
    """Two pairs of ranks, each of which has all shards."""
    for one, _ in ranks.run(4, megatron.by_rules, Lamb, True):
        close(one, zero.alone(Lamb), TOLERANCE[torch.float64])


class Two:
    """A process group of two ranks."""

    def size(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("changes", "parallel", "told"),
    [
        ({"chained_optimizers": [1, 2]}, False, "HyperparameterError: `optimizer` .*chained_optimizers"),
        ({"without": "float32, on a rank"}, False, "HyperparameterError: .*use_precision_aware_optimizer=False"),
        ({"tp_group": Two()}, True, "ParameterError: .* is tensor parallel"),
        ({"tp_group": Two()}, False, "^$"),
    ],
)
def test_what_it_does_not_say(ranks, changes, parallel, told):
    for found in ranks.run(2, megatron.refused, changes, parallel):
        assert re.search(told, found), found


@pytest.mark.parametrize("given", [None, torch.nn.Linear(1, 1), Lamb([torch.nn.Parameter(torch.ones(2))])])
def test_something_else(given):
    with pytest.raises(HyperparameterError, match=r"a DistributedOptimizer of megatron\.core"):
        flat.from_megatron(given)


def test_shards_that_nobody_described(monkeypatch):
    """They are plain tensors, which would be stepped as if they were whole."""
    shard = torch.ones(4)
    shard.grad = torch.ones(4)
    monkeypatch.setitem(sys.modules, "megatron.core", SimpleNamespace())
    before = shard.clone()
    with pytest.raises(ParameterError, match=r"flat\.from_megatron\(optimizer\)"):
        Lamb([shard], lr=0.1).step()
    assert torch.equal(shard, before)


@installed
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("front", [Lamb, Adafactor])
def test_its_own(ranks, front, dtype):
    found = ranks.run(3, megatron.trained, front, dtype)
    weights, grads = found[0]
    close(weights, zero.replayed(front, grads, dtype), TOLERANCE[torch.float32])
    for other, _ in found[1:]:
        same(other, weights)
