"""DeepSpeed's ZeRO: partitions laid out by its rules, and its own engine where it is installed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from sharding.models import BUSY, Irregular, Small, named, whole
from torch import Tensor, nn

from layerwise.torch import flat
from layerwise.torch.sharding._flat import flat_of
from layerwise.torch.sharding._gathering import whole_of
from sharding import runs

STEPS = 3
SUB_GROUPS = 2  # of each group, in stage 3
AT_FIRST: dict[str, Any] = {}  # what DeepSpeed knew of process groups before its first use


def groups_of(params: Mapping[str, Any]) -> list[list[str]]:
    """Matrices and the others, which DeepSpeed flattens apart."""
    return [[n for n, p in params.items() if p.ndim > 1], [n for n, p in params.items() if p.ndim <= 1]]


def optimizer_of(front: Any, params: Mapping[str, Any]) -> Any:
    matrices, others = groups_of(params)
    extra = {"weight_decay": 0.0}
    groups = [{"params": [params[n] for n in matrices]}, {"params": [params[n] for n in others], **extra}]
    return front(groups, **BUSY[front])


def weights_of(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for p, x in zip(buffers, values, strict=True):
        found |= {name: whole(one) for name, one in whole_of(flat_of(p), x.detach()).items()}
    return found


# ---- partitions by the rules of its source


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


def by_rules(front: Any, stage: int) -> dict[str, Any]:
    """The weights after some steps, which DeepSpeed takes group by group and partition by partition."""
    params = named(Irregular(0, torch.float64))
    zero, contents = partitions(params, stage)
    inner = zero.optimizer = optimizer_of(front, params)
    flats = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
    _fill(flats, contents, {name: p.detach() for name, p in params.items()})
    for i, group in enumerate(inner.param_groups):
        group["params"] = [] if stage == 3 else [flats[i]]
    flat.from_deepspeed(zero)
    groups = inner.param_groups
    for grads in runs.gradients(None, torch.float64)[:STEPS]:
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
    return {"weights": weights_of(flats, flats), "state": states_of(inner), "stats": {}}


def _fill(buffers: Sequence[Tensor], contents: Any, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for buffer, content in zip(buffers, contents, strict=True):
            for name, start, end, at in content:
                buffer[at : at + end - start] = values[name].detach().reshape(-1)[start:end]


def states_of(inner: Any) -> dict[str, Any]:
    saved = flat.full_state_dict(inner)
    names = [name for group in saved["param_groups"] for name in group["param_names"]]
    return {f"{names[i]} {key}": whole(x) for i, one in saved["state"].items() for key, x in one.items()}


def alone(front: Any) -> dict[str, Any]:
    """The same of one process with the parameters whole."""
    params = named(Irregular(0, torch.float64))
    opt = optimizer_of(front, params)
    for grads in runs.gradients(None, torch.float64)[:STEPS]:
        runs.give(params, grads)
        opt.step()
    states = {f"{name} {key}": whole(x) for name, p in params.items() for key, x in opt.state[p].items()}
    return {"weights": {name: whole(p) for name, p in params.items()}, "state": states, "stats": {}}


def undescribed(front: Any) -> None:
    """A step of partitions that nobody described, where DeepSpeed is there."""
    import sys

    params = named(Irregular(0, torch.float64))
    zero, _ = partitions(params, 1)
    inner = optimizer_of(front, params)
    sys.modules.setdefault("deepspeed", SimpleNamespace())  # type: ignore[arg-type]
    try:
        for group, p in zip(inner.param_groups, zero.single_partition_of_fp32_groups, strict=True):
            group["params"], p.grad = [p], torch.ones_like(p)
        inner.step()
    finally:
        if isinstance(sys.modules["deepspeed"], SimpleNamespace):
            del sys.modules["deepspeed"]


# ---- its own engine


def trained(front: Any, stage: int, folder: str) -> tuple[dict[str, Any], list[dict[str, Any]], bool]:
    """The weights that an engine has in the end, its gradients, and whether its checkpoint brought all of the state."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", LOCAL_RANK=str(dist.get_rank()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__ = dict.fromkeys(deepspeed.ops.__compatible_ops__, False)  # nothing to compile
        _begin_again(deepspeed)
        deepspeed.init_distributed("gloo", verbose=False)
        model = Small(torch.float32)
        params = dict(model.named_parameters())
        inner = optimizer_of(front, params)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "sub_group_size": 200, "stage3_param_persistence_threshold": 0},
        }
        engine = deepspeed.initialize(model=model, optimizer=inner, config=config)[0]
        segments = flat.from_deepspeed(engine)
        grads: list[dict[str, Any]] = []
        buffers, step = segments.parameters(), inner.step
        for batch in runs.batches(STEPS):
            grads.append({})
            inner.step = partial(_spied, inner, step, grads[-1])
            engine.backward(engine(batch))
            engine.step()
        inner.step = step
        weights, before = weights_of(buffers, buffers), states_of(inner)
        engine.save_checkpoint(folder, tag="saved")
        flat.load_full_state_dict(inner, {**flat.full_state_dict(inner), "state": {}})
        engine.load_checkpoint(folder, tag="saved")
        after = states_of(inner)
    same = before.keys() == after.keys() and all((before[key] == after[key]).all() for key in before)
    return {"weights": weights}, grads, same


def _begin_again(deepspeed: Any) -> None:
    """Have it forget the process groups of earlier calls, which it keeps for as long as a process runs."""
    groups = deepspeed.utils.groups
    if not AT_FIRST:
        AT_FIRST.update(vars(groups))
    vars(groups).update(AT_FIRST)
    deepspeed.comm.comm.cdb = None


def _spied(inner: Any, step: Any, seen: dict[str, Any]) -> None:
    """Step, and note the gradients of what is stepped."""
    due = [p for group in inner.param_groups for p in group["params"]]
    seen.update(weights_of(due, [p.grad for p in due]))
    step()


def replayed(front: Any, grads: Sequence[Mapping[str, Any]], start: torch.dtype = torch.float32) -> dict[str, Any]:
    """The weights in float32 that begin as the model does in a dtype, and have these gradients."""
    model = Small(start).float()
    params: dict[str, nn.Parameter] = dict(model.named_parameters())
    opt = optimizer_of(front, params)
    for one in grads:
        for name, p in params.items():
            p.grad = torch.tensor(one[name]).to(p.dtype)
        opt.step()
    assert sum(prod(p.shape) for p in params.values())
    return {"weights": {name: whole(p) for name, p in params.items()}}
