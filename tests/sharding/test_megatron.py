"""Shards of Megatron's distributed optimizer are stepped as one process steps the parameters."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharding.cells import DOUBLE, agree, gradients
from sharding.layouts import mesh_of
from sharding.models import BUSY, FRONTS, Irregular, named
from sharding.partitions import STEPS, alone, found, groups_of
from torch import Tensor, nn

from layerwise.errors import HyperparameterError, ParameterError
from layerwise.torch import Lamb, flat

START, END, BUCKET = 64, 128, 200  # multiples at which parameters begin and buckets end; elements of a bucket
HALF = "model_float16_groups", "shard_fp32_from_float16_groups"
FULL = "model_fp32_groups", "shard_fp32_groups"


def padded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def buckets_of(params: Mapping[str, Tensor], world: int) -> Iterator[tuple[int, int, dict[Tensor, tuple[int, int]]]]:
    """Where buckets begin and end in a buffer, and parameters in them, from the last to the first."""
    places: dict[Tensor, tuple[int, int]] = {}
    begin = at = 0
    multiple = math.lcm(END, world)
    for i, p in enumerate(reversed(params.values()), 1):
        at = padded(at, START)
        places[p] = at, at + p.numel()
        at += p.numel()
        if at - begin >= BUCKET or i == len(params):
            yield begin, padded(at, multiple), places
            begin = at = padded(at, multiple)
            places = {}


def ranges_of(group: Any, begin: int, end: int, places: Mapping[Tensor, tuple[int, int]]) -> dict[Tensor, Any]:
    """What a rank has of a bucket, which is cut into equal parts wherever parameters lie."""
    part = (end - begin) // dist.get_world_size(group)
    low = begin + dist.get_rank(group) * part
    found = {p: (max(start, low) - start, min(stop, low + part) - start) for p, (start, stop) in places.items()}
    return {p: {"param": SimpleNamespace(start=a, end=b)} for p, (a, b) in found.items() if a < b}


def distributed(params: Mapping[str, Tensor], model: nn.Module, group: Any = None) -> Any:
    """What a rank's DistributedOptimizer shows of these parameters, some of which are in bfloat16."""
    group = group or dist.group.WORLD
    buckets = list(buckets_of(params, dist.get_world_size(group)))
    lists = groups_of(params)
    shown: dict[str, Any] = {name: [[] for _ in lists] for name in (*HALF, *FULL)}
    maps = [{"param_map": ranges_of(group, *bucket)} for bucket in buckets]
    half = set(list(params.values())[::2])  # whose shards are copies; others are views
    for p, each in ((p, each) for one in maps for p, each in one["param_map"].items()):
        number = next(i for i, names in enumerate(lists) if any(params[name] is p for name in names))
        a, b = each["param"].start, each["param"].end
        models, shards = HALF if p in half else FULL
        shown[models][number].append(p)
        shown[shards][number].append(p.detach().view(-1)[a:b].clone() if p in half else p.view(-1)[a:b])
    groups = [{"params": [params[name] for name in names], "wd_mult": 1.0 - i} for i, names in enumerate(lists)]
    index = {p: (*at, i) for i, (_, _, places) in enumerate(buckets) for p, at in places.items()}
    return SimpleNamespace(
        **shown,
        optimizer=torch.optim.AdamW(groups),
        buffers=[SimpleNamespace(param_index_map=index)],
        gbuf_ranges=[{(torch.float64, torch.float64): maps}],
        model_param_group_index_map={},
        model_chunks=[model],
        data_parallel_group=group,
    )


def stepping(front: Any, optimizer: Any) -> tuple[Any, Any]:
    """Our optimizer in the place of Megatron's, and its segments."""
    segments = flat.from_megatron(optimizer)
    groups = segments.param_groups()
    for group in groups[1:]:
        group["weight_decay"] = 0.0
    optimizer.optimizer = front(groups, **BUSY[front])
    return optimizer.optimizer, segments


def given_gradients(optimizer: Any, grads: Mapping[Tensor, Tensor]) -> None:
    """Give shards their gradients, as Megatron does: empty ones get none."""
    [maps] = optimizer.gbuf_ranges[0].values()
    ranges = {p: each["param"] for bucket in maps for p, each in bucket["param_map"].items()}
    for models, shards in (HALF, FULL):
        for params, own in zip(getattr(optimizer, models), getattr(optimizer, shards), strict=True):
            for p, shard in zip(params, own, strict=True):
                shard.grad = grads[p].detach().flatten()[ranges[p].start : ranges[p].end].clone()


def _by_rules(front: Any, instances: bool, wanted: Any) -> tuple[Any, bool]:
    """What a rank has after some steps, with a checkpoint before the last; whether the map has each in its place.

    Of several instances of the optimizer each has all shards.
    """
    model: Any = Irregular(0, DOUBLE)
    params = named(model)
    group = None
    if instances:
        mesh = mesh_of(2, 2)
        group, model.inter_dist_opt_group = mesh["inner"].get_group(), mesh["outer"].get_group()
    optimizer = distributed(params, model, group)
    inner, segments = stepping(front, optimizer)
    for i, grads in enumerate(gradients(None)[:STEPS]):
        if i == STEPS - 1:
            saved = flat.full_state_dict(inner)
            inner, segments = stepping(front, optimizer)
            flat.load_full_state_dict(inner, saved)
        given_gradients(optimizer, {params[name]: g for name, g in grads.items()})
        inner.step()
    groups = inner.param_groups
    places = {groups[i]["param_names"][at]: p for p, (i, at) in optimizer.model_param_group_index_map.items()}
    return found(inner, segments, wanted), all(places[name] is p for name, p in params.items())


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.thinned(1, 3)
@pytest.mark.parametrize(("world", "instances"), [(2, False), (3, False), (4, False), (4, True)])
def test_shards_are_stepped_as_one_process_steps_the_parameters(ranks, front, world, instances):
    """Buckets with padding, cut into equal parts: ranks lack parameters, and groups differ in length."""
    wanted = alone(front)
    each, in_place = zip(*ranks.run(world, _by_rules, front, instances, wanted), strict=True)
    agree(each, wanted)
    assert all(in_place)


class Two:
    """A process group of two ranks."""

    def size(self) -> int:
        return 2


def _refused(changes: Mapping[str, Any], parallel: bool = False) -> str:
    """The error of an optimizer that differs in these attributes, and of tensor-parallel parameters."""
    model = Irregular(0, DOUBLE)
    optimizer = distributed(named(model), model)
    if "without" in changes and dist.get_rank() == 1:
        optimizer.shard_fp32_groups = [[None] * len(group) for group in optimizer.shard_fp32_groups]
    vars(optimizer).update(changes)
    for p in model.parameters() if parallel else ():
        p.tensor_model_parallel = True
    try:
        flat.from_megatron(optimizer)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


@pytest.mark.parametrize(
    ("changes", "parallel", "told"),
    [
        ({"chained_optimizers": [1, 2]}, False, "HyperparameterError: `optimizer` .*chained_optimizers"),
        ({"without": "float32, on a rank"}, False, "HyperparameterError: .*use_precision_aware_optimizer=False"),
        ({"tp_group": Two()}, True, "ParameterError: .* is tensor parallel"),
        ({"tp_group": Two()}, False, "^$"),
    ],
)
def test_what_shards_do_not_say_is_refused(ranks, changes, parallel, told):
    for said in ranks.run(2, _refused, changes, parallel):
        assert re.search(told, said), said


@pytest.mark.parametrize("given", [None, torch.nn.Linear(1, 1), Lamb([torch.nn.Parameter(torch.ones(2))])])
def test_objects_that_are_not_distributed_optimizers_are_refused(given):
    with pytest.raises(HyperparameterError, match=r"a DistributedOptimizer of megatron\.core"):
        flat.from_megatron(given)


def test_undescribed_shards_are_refused(monkeypatch):
    """They are plain tensors, which would be stepped as if they were whole."""
    shard = torch.ones(4)
    shard.grad = torch.ones(4)
    monkeypatch.setitem(sys.modules, "megatron.core", SimpleNamespace())
    before = shard.clone()
    with pytest.raises(ParameterError, match=r"flat\.from_megatron\(optimizer\)"):
        Lamb([shard], lr=0.1).step()
    assert torch.equal(shard, before)
