"""DeepSpeed's ZeRO of stages 1, 2 and 3 steps its partitions as one process steps the parameters."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharding.cells import DOUBLE, agree, gradients
from sharding.models import FRONTS, Irregular, named
from sharding.partitions import STEPS, alone, found, groups_of, optimizer_of
from torch import Tensor

from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.torch import Lamb, flat

fronts = pytest.mark.parametrize("front", FRONTS)
SUB_GROUPS = 2  # of each group, in stage 3


def partitions(params: Mapping[str, Tensor], stage: int) -> tuple[Any, list[list[tuple[str, int, int, int]]]]:
    """What the optimizer of a stage shows of these parameters, and of each partition what lies where."""
    world, rank = dist.get_world_size(), dist.get_rank()
    lists = groups_of(params)
    if stage == 3:
        lists = [one[i::SUB_GROUPS] for one in lists for i in range(SUB_GROUPS)]
    made = [(_in_parts if stage == 3 else _in_one)(params, one, world, rank) for one in lists]
    sizes, contents = zip(*made, strict=True)
    flats = [torch.zeros(n, dtype=torch.float64).requires_grad_() for n in sizes]
    groups = [[params[name] for name in one] for one in lists]
    everyone = [dist.group.WORLD] * len(flats)
    shown = {
        "param_names": {p: name for name, p in params.items()},
        **(
            {
                "fp32_partitioned_groups_flat": flats,
                "fp16_groups": groups,
                "sub_group_process_groups": everyone,
                "sub_group_to_group_id": {i: i // SUB_GROUPS for i in range(len(flats))},
            }
            if stage == 3
            else {
                "single_partition_of_fp32_groups": flats,
                "bit16_groups": groups,
                "real_dp_process_group": everyone,
            }
        ),
    }
    return SimpleNamespace(**shown), list(contents)


def _in_one(params: Mapping[str, Any], names: Sequence[str], world: int, rank: int) -> Any:
    """One buffer of all, padded to a multiple of twice the ranks, and cut into equal parts."""
    total = sum(params[name].numel() for name in names)
    size = -(-total // (2 * world)) * 2
    found, at = [], 0
    for name in names:
        p = params[name]
        start, end = max(at, rank * size), min(at + p.numel(), (rank + 1) * size)
        p._hp_mapping = None
        if start < end:
            address = SimpleNamespace(start=start - at, numel=end - start)
            there = SimpleNamespace(start=start - rank * size, numel=end - start)
            p._hp_mapping = SimpleNamespace(lp_fragment_address=address, hp_fragment_address=there)
            found.append((name, start - at, end - at, start - rank * size))
        at += p.numel()
    return size, found


def _in_parts(params: Mapping[str, Any], names: Sequence[str], world: int, rank: int) -> Any:
    """Each parameter padded to a multiple of the ranks and cut into equal parts, which lie side by side."""
    found, at = [], 0
    for name in names:
        p, numel = params[name], params[name].numel()
        part = -(-numel // world)
        p.ds_shape, p.ds_numel, p.partition_numel = p.shape, numel, lambda part=part: part
        start, end = min(rank * part, numel), min((rank + 1) * part, numel)
        found.append((name, start, end, at))
        at += part
    return at, found


def _by_rules(front: Any, stage: int, wanted: Any) -> Any:
    """DeepSpeed steps group by group and partition by partition."""
    params = named(Irregular(0, DOUBLE))
    zero, contents = partitions(params, stage)
    inner = zero.optimizer = optimizer_of(front, params)
    flats = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
    _fill(flats, contents, params)
    for i, group in enumerate(inner.param_groups):
        group["params"] = [] if stage == 3 else [flats[i]]
    segments = flat.from_deepspeed(zero)
    groups = inner.param_groups
    for grads in gradients(None)[:STEPS]:
        given = [torch.zeros_like(p) for p in flats]
        _fill(given, contents, grads)
        for i, (p, g) in enumerate(zip(flats, given, strict=True)):
            p.grad = g
            if stage == 3:
                groups[i // SUB_GROUPS]["params"] = [p]
                inner.step()
                groups[i // SUB_GROUPS]["params"] = []
            else:
                inner.param_groups = [groups[i]]
                inner.step()
                inner.param_groups = groups
            p.grad = None
    return found(inner, segments, wanted)


def _fill(buffers: Sequence[Tensor], contents: Any, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for buffer, content in zip(buffers, contents, strict=True):
            for name, start, end, at in content:
                buffer[at : at + end - start] = values[name].detach().reshape(-1)[start:end]


@fronts
@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize(("stage", "world"), [(1, 2), (3, 2), (2, 3), (3, 4)])
def test_partitions_are_stepped_as_one_process_steps_the_parameters(ranks, front, stage, world):
    """As its source lays them out, in the order in which it steps them."""
    wanted = alone(front)
    agree(ranks.run(world, _by_rules, front, stage, wanted), wanted)


def _undescribed() -> None:
    """A step of partitions that nobody described, where DeepSpeed is there."""
    params = named(Irregular(0, DOUBLE))
    zero, _ = partitions(params, 1)
    inner = optimizer_of(Lamb, params)
    there = "deepspeed" in sys.modules
    sys.modules.setdefault("deepspeed", SimpleNamespace())  # type: ignore[arg-type]
    try:
        for group, p in zip(inner.param_groups, zero.single_partition_of_fp32_groups, strict=True):
            group["params"], p.grad = [p], torch.ones_like(p)
        inner.step()
    finally:
        if not there:
            del sys.modules["deepspeed"]


def test_undescribed_partitions_are_refused(ranks):
    for one in ranks.outcomes(2, _undescribed):
        assert one.error == "ParameterError"
        assert "flat.from_deepspeed(engine)" in one.traceback


@pytest.mark.parametrize(
    ("options", "told"), [({"max_grad_norm": 1.0}, "gradient_clipping"), ({"skip_nonfinite": True}, "scales the loss")]
)
def test_options_that_need_all_gradients_are_refused(options, told):
    """DeepSpeed steps one group after the other, so no step sees them all."""
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    inner = Lamb([{"params": [p]} for p in params], **options)
    shown: dict[str, Any] = {"single_partition_of_fp32_groups": params, "bit16_groups": [[], []]}
    with pytest.raises(ContradictionError, match=told):
        flat.from_deepspeed(SimpleNamespace(**shown, real_dp_process_group=[None, None], optimizer=inner))


@pytest.mark.parametrize("given", [None, Lamb([torch.nn.Parameter(torch.ones(2))]), torch.nn.Linear(1, 1)])
def test_objects_that_are_not_engines_are_refused(given):
    with pytest.raises(HyperparameterError, match="an engine of DeepSpeed with ZeRO"):
        flat.from_deepspeed(given)
