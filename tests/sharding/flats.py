"""Flat buffers as ranks hold them: cut anywhere, with padding that no rank may read."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import nan, prod
from typing import Any

import torch
import torch.distributed as dist
from sharding.disagreements import Dying
from sharding.layouts import fsdp
from sharding.models import SHAPES, Irregular, Small, named, stats, whole
from sharding.storing import Model
from sharding.wrappings import fsdp1
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from layerwise.torch import AdamW, Lamb, Segments, Stretch, flat, set_bucket_size
from layerwise.torch.checkpoints._bytes import restored
from layerwise.torch.sharding._flat import flat_of
from layerwise.torch.sharding._gathering import whole_of
from sharding import counting, runs

TENSORS = {f"{part}.{name}": shape for part, shapes in SHAPES.items() for name, shape in shapes.items()}
Described = list[list[Stretch]]  # of each buffer


def cuts(world: int, seed: int, numel: int) -> list[int]:
    draw = random.Random(seed)
    return [0, *sorted(draw.randint(0, numel) for _ in range(world - 1)), numel]


def one_buffer(world: int, rank: int, seed: int = 0, padding: int = 3) -> Described:
    """All tensors one after the other, cut anywhere, with padding before each: ZeRO's first stages."""
    ends = cuts(world, seed, sum(map(prod, TENSORS.values())))
    found, at, place = [], 0, 0
    for name, shape in TENSORS.items():
        start, end = (min(max(x - at, 0), prod(shape)) for x in ends[rank : rank + 2])
        if start < end:
            place += padding
            found.append(Stretch(name, shape, start, end, place))
            place += end - start
        at += prod(shape)
    return [found]


def a_buffer_each(world: int, rank: int) -> Described:
    """A buffer for each tensor, empty where the rank holds nothing of it: FSDP1's own parameters, Megatron's."""
    [found] = one_buffer(world, rank, seed=1)
    here = {one.name: one._replace(offset=0) for one in found}
    return [[here.get(name, Stretch(name, shape, 0, 0, 0))] for name, shape in TENSORS.items()]


def equal_parts(world: int, rank: int) -> Described:
    """Each tensor cut into equal parts, the last shorter: ZeRO's third stage."""
    found, place = [], 0
    for name, shape in TENSORS.items():
        part = -(-prod(shape) // world)
        start, end = (min(x * part, prod(shape)) for x in (rank, rank + 1))
        found.append(Stretch(name, shape, start, end, place))
        place += part
    return [found]


def interleaved(world: int, rank: int) -> Described:
    """Stretches of 5 elements dealt out in turn: several of each tensor on each rank."""
    found, place = [], 0
    for name, shape in TENSORS.items():
        for i, start in enumerate(range(0, prod(shape), 5)):
            if i % world == rank:
                end = min(start + 5, prod(shape))
                found.append(Stretch(name, shape, start, end, place))
                place += end - start
    return [found]


# The number of ranks and what they hold, by name.
FLATS: dict[str, tuple[int, Callable[[int, int], Described]]] = {
    "one flat buffer": (2, one_buffer),
    "one flat buffer on 4": (4, one_buffer),
    "a flat buffer each": (3, a_buffer_each),
    "equal parts": (3, equal_parts),
    "interleaved": (2, interleaved),
}


def filled(described: Sequence[Stretch], values: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """A buffer with these numbers, and nan between them."""
    ends = [(one.offset or 0) + one.end - one.start for one in described]
    buffer = torch.full((max(ends, default=0) + (3 if len(described) > 1 else 0),), nan, dtype=dtype)
    for one in described:
        place = slice(one.offset, (one.offset or 0) + one.end - one.start)
        buffer[place] = values[one.name].detach().reshape(-1)[one.start : one.end].to(dtype)
    return buffer


def described(layout: str) -> Described:
    return FLATS[layout][1](dist.get_world_size(), dist.get_rank())


def begun(layout: str, dtype: torch.dtype, values: Mapping[str, Tensor]) -> tuple[Segments, list[list[Stretch]]]:
    stretches = described(layout)
    return Segments({nn.Parameter(filled(one, values, dtype)): one for one in stretches}), stretches


def given(segments: Segments, stretches: Described, values: Mapping[str, Tensor]) -> None:
    """Give the buffers that hold something their gradients."""
    for p, one in zip(segments.parameters(), stretches, strict=True):
        p.grad = filled(one, values, p.dtype) if p.numel() else None


def everything(opt: Any, segments: Segments) -> dict[str, dict[str, Any]]:
    """Weights, state and measurements, whole and by the tensors' names."""
    weights: dict[str, Tensor] = {}
    for p in segments.parameters():
        weights |= whole_of(flat_of(p), p.detach())
    saved = flat.full_state_dict(opt)
    names = {key: name for g in saved["param_groups"] for key, name in zip(g["params"], g["param_names"], strict=True)}
    states = {
        f"{names[key]} {field}": whole(x)
        for key, one in saved["state"].items()
        for field, x in restored(one, weights[names[key]].shape).items()
    }
    return {"weights": {name: whole(x) for name, x in weights.items()}, "state": states, "stats": stats(opt)}


def stepped(front: Any, layout: str, dtype: torch.dtype, options: Mapping[str, Any], steps: int = runs.STEPS) -> Any:
    values = {name: p.detach() for name, p in named(Irregular(0, dtype)).items()}
    segments, stretches = begun(layout, dtype, values)
    opt = runs.made(front, dict(segments.named_parameters()), options)
    for one in runs.gradients(None, dtype)[:steps]:
        given(segments, stretches, one)
        opt.step()
    return everything(opt, segments)


def flagged(layout: str) -> tuple[bool, bool]:
    values = {name: p.detach() for name, p in named(Irregular(0, torch.float32)).items()}
    segments, _ = begun(layout, torch.float32, values)
    return runs.flags(Lamb(segments.named_parameters()))


def in_buckets(front: Any, layout: str, size: int) -> Any:
    """The same by the rule in buckets, between whose tensors ranks hold other numbers of boxes."""
    set_bucket_size(size)
    try:
        return stepped(front, layout, torch.float64, {"fused": False})
    finally:
        set_bucket_size(1 << 27)


# ---- from one layout to another


def saved(front: Any, layout: str, dtype: torch.dtype, steps: int) -> tuple[Any, Any]:
    """The whole state after some steps of flat buffers, and the weights."""
    values = {name: p.detach() for name, p in named(Irregular(0, dtype)).items()}
    segments, stretches = begun(layout, dtype, values)
    opt = runs.made(front, dict(segments.named_parameters()), {})
    for one in runs.gradients(None, dtype)[:steps]:
        given(segments, stretches, one)
        opt.step()
    return flat.full_state_dict(opt), everything(opt, segments)["weights"]


def resumed(front: Any, layout: str | None, dtype: torch.dtype, state: Any, weights: Any, step: int) -> Any:
    """What comes of one more step: flat, or under FSDP2, or whole."""
    values = {name: torch.tensor(x, dtype=dtype) for name, x in weights.items()}
    if layout in FLATS:
        segments, stretches = begun(str(layout), dtype, values)
        opt = runs.made(front, dict(segments.named_parameters()), {})
        flat.load_full_state_dict(opt, state)
        given(segments, stretches, runs.gradients(None, dtype)[step])
        opt.step()
        return everything(opt, segments)
    model = Irregular(0, dtype)
    with torch.no_grad():
        for name, p in named(model).items():
            p.copy_(values[name])
    grads = runs.gradients("fsdp on 2" if layout else None, dtype)[step]
    if layout:
        fsdp([model])
    params = named(model)
    opt = runs.made(front, params, {})
    opt.load_state_dict(state)
    runs.give(params, grads)
    opt.step()
    found: dict[str, Any] = runs.everything(opt, params)
    return found


def asked_by_pytorch(front: Any, orig: bool) -> list[str]:
    """What FSDP1 and torch.distributed.checkpoint say, asked for the whole state; our own has all tensors."""
    model = fsdp1(Small(torch.float32), use_orig_params=orig)
    opt = front(flat.from_fsdp1(model).named_parameters(), lr=0.01)
    model(runs.batches(1)[0]).backward()
    opt.step()
    asked = (
        lambda: FullyShardedDataParallel.optim_state_dict(model, opt),
        lambda: FullyShardedDataParallel.full_optim_state_dict(model, opt),
        lambda: get_optimizer_state_dict(model, opt),
    )
    found = []
    for ask in asked:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                ask()
        except Exception as problem:
            found.append(f"{type(problem).__name__}: {problem}")
    # As a Stateful object does that calls it when PyTorch asks for its state.
    within = {"__name__": "torch.distributed.checkpoint", "ask": lambda: flat.full_state_dict(opt)}
    names = eval("ask()", within)["param_groups"][0]["param_names"]  # noqa: S307
    return [*found, str(sorted(names) == sorted(named(Small(torch.float32)))), str(len(opt.state_dict()["state"]) > 0)]


# ---- mistakes


def mistaken(which: str) -> Any:
    """The error of a rank where rank 1 describes something else, and whether anything was described then."""
    shape = (4, 6)
    mine = dist.get_rank() == 1
    stretches = [Stretch("a", shape, 0, 10), Stretch("b", (3,), 0, 3)]
    if mine:
        stretches = [Stretch("a", shape, 10, 24), Stretch("c", (2,), 0, 2)]
    changes: dict[str, Any] = {
        "overlap": [stretches[0]._replace(start=8), stretches[1]],
        "a gap": [stretches[0]._replace(start=12), stretches[1]],
        "another shape": [stretches[0]._replace(shape=(6, 4)), stretches[1]],
        "another order": [Stretch("b", (3,), 0, 0), stretches[0]],
        "beyond the tensor": [stretches[0]._replace(end=25), stretches[1]],
        "beyond the buffer": [stretches[0]._replace(offset=9), stretches[1]],
        "no shape": [("a", 3), stretches[1]],
    }
    buffer = nn.Parameter(torch.ones(20))
    buffers = {buffer: changes[which] if mine and which in changes else stretches}
    if mine and which == "another buffer":
        buffers[nn.Parameter(torch.ones(2))] = [Stretch("d", (2,), 0, 2)]
    try:
        Segments(buffers)
    except Exception as problem:
        return type(problem).__name__, str(problem), flat_of(buffer) is not None
    return "", "", True


def skipping(where: str) -> tuple[int, list[bool]]:
    """How many steps were left out, and whether weights stayed, where there is a nan on one rank."""
    dtype = torch.float64
    values = {name: p.detach() for name, p in named(Irregular(0, dtype)).items()}
    segments, stretches = begun("one flat buffer", dtype, values)
    opt = runs.made(Lamb, dict(segments.named_parameters()), {"skip_nonfinite": True})
    given(segments, stretches, runs.gradients(None, dtype)[0])
    if where == "a stretch" and dist.get_rank() == 1:
        for p in segments.parameters():
            p.grad[stretches[0][0].offset] = nan
    before = [p.detach().clone() for p in segments.parameters()]
    opt.step()
    return opt.skipped, [
        torch.equal(p.nan_to_num(), x.nan_to_num()) for p, x in zip(segments.parameters(), before, strict=True)
    ]


# ---- what a step sends, and what ends it


def sent(front: Any, layout: str) -> Any:
    """The collectives of each of some steps."""
    dtype, found = torch.float64, []
    values = {name: p.detach() for name, p in named(Irregular(0, dtype)).items()}
    segments, stretches = begun(layout, dtype, values)
    opt = runs.made(front, dict(segments.named_parameters()), {})
    for one in runs.gradients(None, dtype):
        given(segments, stretches, one)
        with counting.Collectives() as collectives:
            opt.step()
        found.append(collectives.seen)
    return found


def dying(layout: str) -> None:
    """Steps, before the third of which rank 1 ends."""
    dtype = torch.float64
    values = {name: p.detach() for name, p in named(Irregular(0, dtype)).items()}
    segments, stretches = begun(layout, dtype, values)
    opt = runs.made(Lamb, dict(segments.named_parameters()), {})
    for i, one in enumerate(runs.gradients(None, dtype)):
        given(segments, stretches, one)
        with Dying(1) if i == 2 and dist.get_rank() == 1 else nullcontext():
            opt.step()


def with_nothing() -> tuple[int, int]:
    """Returns how many steps the optimizer and its parameter have taken, where the last rank holds nothing."""
    rank = dist.get_rank()
    buffer = nn.Parameter(torch.ones(0 if rank else 4))
    opt = Lamb(Segments({buffer: [Stretch("w", (2, 2), 0, 0 if rank else 4)]}).named_parameters(), lr=0.1)
    for _ in range(2):
        buffer.grad = None if rank else torch.ones(4)
        opt.step()
    return 2, int(opt.state[buffer]["step"])


def in_bits(options: Mapping[str, Any], layout: str | None) -> tuple[Any, list[str]]:
    """Weights and state in few bits after some steps, and what was warned of."""
    model = Model(0)
    values = dict(model.named_parameters())
    params, stretches = list(values.items()), []
    if layout:
        world, rank = dist.get_world_size(), dist.get_rank()
        stretches = [[one] for one in equal(world, rank, {name: tuple(p.shape) for name, p in values.items()})]
        segments = Segments({nn.Parameter(filled(one, values, torch.bfloat16)): one for one in stretches})
        params = segments.named_parameters()
    opt = AdamW(params, lr=0.01, **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for t in range(3):
            grads = dict(Model(100 + t).named_parameters())
            if layout:
                given(segments, stretches, grads)
            for name, p in () if layout else params:
                p.grad = grads[name].detach().clone()
            opt.step()
    if layout:
        return everything(opt, segments), [str(one.message) for one in warned]
    return runs.everything(opt, dict(params)), []


def equal(world: int, rank: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Stretch]:
    """The same parts of each tensor, in buffers of their own."""
    found = []
    for name, shape in shapes.items():
        ends = [i * prod(shape) // world for i in (rank, rank + 1)]
        found.append(Stretch(name, shape, *ends, 0))
    return found
