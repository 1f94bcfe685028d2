"""The program of ranks behind the table of layouts: a model lies in some way, takes steps, and is compared at once.

Ranks compare their parts with those of one process that has everything, so that nothing need be gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from cases import case_of
from sharding.models import BLOCKS, BUSY, FRONTS, Irregular, local, measured, named, numbers, off, place_of, state_of
from torch.distributed.tensor import DTensor, Partial

import layerwise.torch
from layerwise.engines import Candidate
from layerwise.torch.step import _engines
from sharding import flats, layouts

ODD = 1  # the rank that is otherwise
NAME = "first.qkv"  # the parameter that is
DOUBLE = torch.float64
# By how much numbers may differ that were rounded in another order, as a part of the largest of a tensor.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 2**-7}
Layout = str | int | None  # a name of a table; the number of a drawn one; whole


def world_of(layout: Layout) -> int:
    row = {**layouts.LAYOUTS, **flats.FLATS}.get(layout, (4 if isinstance(layout, int) else 1, None))  # type: ignore[arg-type, call-overload]
    return int(row[0])


def sharded(layout: Layout, models: list[Irregular]) -> list[Irregular]:
    if isinstance(layout, int):
        layouts.drawn(layout, models)
    elif layout is not None:
        layouts.LAYOUTS[layout][1](models)
    return models


@cache
def gradients(layout: Layout, dtype: torch.dtype = DOUBLE, steps: int = 4) -> list[dict[str, Any]]:
    """Gradients for each step: a model's numbers, so that whatever shards a model shards them too."""
    models = sharded(layout, [Irregular(1 + i, dtype) for i in range(steps)])
    return [{name: p.detach() for name, p in named(model).items()} for model in models]


class Lying:
    """The parameters as a layout has them on this rank."""

    def __init__(self, layout: Layout, dtype: torch.dtype = DOUBLE, seed: int = 0, values: Any = None) -> None:
        self.dtype, self.layout, self.segments = dtype, layout, None
        self.model = Irregular(seed, dtype)
        if values:
            self.model.load_state_dict(values)
        if layout in flats.FLATS:
            self.segments, self.stretches = flats.begun(str(layout), dtype, named(self.model))
            self.params = dict(self.segments.named_parameters())
        else:
            sharded(layout, [self.model])
            self.params = named(self.model)

    def optimizer(self, front: Any, options: Mapping[str, Any] | None = None) -> Any:
        return front(list(self.params.items()), **{**BUSY[front], "blocks": BLOCKS, **(options or {})})

    def give(self, i: int, without: Sequence[str] = ()) -> None:
        """Let each have its gradient of that step, and those of these names none."""
        if self.segments is not None:
            flats.given(self.segments, self.stretches, gradients(None, self.dtype)[i])
            return
        grads = gradients(self.layout, self.dtype)[i]
        for name, p in self.params.items():
            p.grad = None if name in without else grads[name]

    def in_partial_sums(self) -> None:
        """Let gradients be sums that are still to be made, as some styles of tensor parallelism leave them."""
        for p in self.params.values():
            if isinstance(p.grad, DTensor):
                whole, mesh = p.grad.full_tensor(), p.grad.device_mesh
                here = torch.zeros_like(whole) if any(mesh.get_coordinate()) else whole
                p.grad = DTensor.from_local(here, mesh, [Partial()] * mesh.ndim)

    def parts(self, opt: Any) -> dict[str, Any]:
        """Weights and state by name; of flat buffers they are whole."""
        if self.segments is not None:
            return flats.whole(opt, self.segments)
        return {**self.params, **state_of(opt, self.params)}

    def found(self, opt: Any, wanted: Wanted) -> Found:
        parts = self.parts(opt)
        assert parts.keys() == wanted.parts.keys(), parts.keys() ^ wanted.parts.keys()
        unlike = [name for name, x in parts.items() if off(x, wanted.parts[name], wanted.tolerance)]
        prints = {f"{name} {place_of(x)}": numbers(x).tobytes() for name, x in parts.items()}
        return Found(unlike, prints, measured(opt), int(opt.skipped))


class Found(NamedTuple):
    """What a rank says: which parts are not as wanted, the bits of each, measurements, and skipped steps."""

    unlike: list[str]
    prints: dict[str, bytes]
    stats: dict[str, Any]
    skipped: int


class Wanted(NamedTuple):
    """What one process has in the end, and how close ranks must be to it."""

    parts: dict[str, Any]
    stats: dict[str, Any]
    tolerance: float


class Event(NamedTuple):
    """What happens before each step, by its number, and what one process does in its place."""

    act: Callable[[Lying, Any, int], None] = lambda lying, opt, i: None
    skipped: int | None = None  # the step that is left out because of it
    missing: Sequence[str] = ()  # gradients that the second step lacks
    options: Mapping[str, Any] = {}
    steps: int = 4


def with_nan(lying: Lying, opt: Any, i: int) -> None:
    """In what one rank has of a gradient."""
    if i != 2 or dist.get_rank() != ODD:
        return
    if lying.segments is None:
        p = lying.params[NAME]
        p.grad = p.grad.clone()
        local(p.grad).view(-1)[0] = torch.nan
    else:
        [[one, *_]] = lying.stretches
        next(iter(lying.params.values())).grad[one.offset] = torch.nan


def with_inf_found(lying: Lying, opt: Any, i: int) -> None:
    """As a GradScaler says it: each rank what it has found in its own part."""
    for name in ("grad_scale", "found_inf"):
        opt.__dict__.pop(name, None)
    if i == 2:
        opt.grad_scale, opt.found_inf = torch.tensor(2.0), torch.tensor(float(dist.get_rank() == ODD))


def in_partial_sums_at_times(lying: Lying, opt: Any, i: int) -> None:
    if i in (1, 3):
        lying.in_partial_sums()


def loading(lying: Lying, opt: Any, i: int, in_partial_sums: bool = False) -> None:
    """One rank loads the state that it has. Only its layout is made again."""
    if in_partial_sums:
        lying.in_partial_sums()
    if i == 2 and dist.get_rank() == ODD:
        opt.load_state_dict(opt.state_dict())


CLIP = {"max_grad_norm": 0.5}
MAY_SKIP = {"skip_nonfinite": True}
EVENTS = {
    "step": Event(steps=3),  # the first makes state, the second a plan, by which the third is one of all others
    "some gradients are missing": Event(missing=("first.embed", "second.narrow", "bare.scalar")),
    "gradients are partial sums at times": Event(in_partial_sums_at_times),
    "nan on one rank": Event(with_nan, 2, options=MAY_SKIP),
    "inf found on one rank": Event(with_inf_found, 2),
    "nan is nowhere": Event(options=MAY_SKIP),  # but in the padding of flat buffers, where it always is
    "one rank loads its state": Event(loading),
    "one rank loads its state while gradients are partial sums": Event(partial(loading, in_partial_sums=True)),
}


class Row(NamedTuple):
    """A cell of the table."""

    layout: Layout
    event: str = "step"
    dtype: torch.dtype = DOUBLE
    options: Mapping[str, Any] = {}
    steps: int = 0  # or else as many as its event takes
    buckets: int = 1 << 27  # elements of each
    by_kernels: bool = False  # of the GPU engine, in Triton's interpreter

    def __str__(self) -> str:
        options = [f"{key}={value}" for key, value in self.options.items()]
        return ", ".join([str(self.layout), self.event, str(self.dtype).removeprefix("torch."), *options])


def cell(front: Any, row: Row, wanted: Wanted) -> Found:
    """The steps on a rank, of which others may hold other parts."""
    event, lying = EVENTS[row.event], Lying(row.layout, row.dtype)
    opt = lying.optimizer(front, {**row.options, **event.options})
    flag = opt._step_supports_amp_scaling  # which a GradScaler reads before any step
    with in_buckets_of(row.buckets), kernels() if row.by_kernels else nullcontext():
        for i in range(row.steps or event.steps):
            lying.give(i % 4, event.missing if i == 1 else ())
            event.act(lying, opt, i)
            opt.step()
    assert flag is (opt._stepper.ranks.agreement() is not None)
    return lying.found(opt, wanted)


def alone(front: Any, row: Row) -> Wanted:
    """What one process has in the end that has everything whole."""
    options = {**row.options, **EVENTS[row.event].options}
    for how in ("fused", "foreach"):
        options.pop(how, None)
    return _alone(front, row.event, row.dtype, tuple(sorted(options.items())), row.steps or EVENTS[row.event].steps)


@cache
def _alone(front: Any, event: str, dtype: torch.dtype, options: tuple[tuple[str, Any], ...], steps: int) -> Wanted:
    lying, like = Lying(None, dtype), EVENTS[event]
    opt = lying.optimizer(front, dict(options))
    for i in range(steps):
        lying.give(i % 4, like.missing if i == 1 else ())
        if i != like.skipped:
            opt.step()
    parts = {name: numbers(x).copy() for name, x in lying.parts(opt).items()}
    return Wanted(parts, measured(opt), tolerance_of(front, dtype))


def tolerance_of(front: Any, dtype: torch.dtype) -> float:
    """The difference that another order of sums may make."""
    magnifies = case_of(front.__name__).magnifies if front in FRONTS and dtype == torch.float32 else 1.0
    return TOLERANCE[dtype] * magnifies


def check(ranks: Any, front: Any, row: Row) -> None:
    """Compare a cell with one process, and ranks that have the same part of a tensor with each other."""
    wanted, world = alone(front, row), world_of(row.layout)
    agree(ranks.run(world, cell, front, row, wanted), wanted, EVENTS[row.event].skipped is not None)


def agree(found: Sequence[Found], wanted: Wanted, skipped: int = 0) -> None:
    assert [one.unlike for one in found] == [[]] * len(found)
    assert [one.skipped for one in found] == [skipped] * len(found)
    seen: dict[str, bytes] = {}
    for one in found:
        assert [key for key, bits in one.prints.items() if seen.setdefault(key, bits) != bits] == []
        assert one.stats.keys() == wanted.stats.keys()
    for name, numbers_ in wanted.stats.items():
        each = np.stack([one.stats[name] for one in found])  # of blocks that are elsewhere a rank knows nothing
        assert not np.isnan(each).all(0).any(), name
        size = max(wanted.tolerance * np.max(np.abs(numbers_), initial=0), 0.0)
        np.testing.assert_allclose(each, np.where(np.isnan(each), np.nan, numbers_), 0, size, err_msg=name)


@contextmanager
def in_buckets_of(elements: int) -> Iterator[None]:
    layerwise.torch.set_bucket_size(elements)
    try:
        yield
    finally:
        layerwise.torch.set_bucket_size(1 << 27)


@contextmanager
def kernels(proven: bool = False) -> Iterator[None]:
    """Let the GPU engine take the steps, in Triton's interpreter."""
    from unittest.mock import patch

    from gpu.interpreting import faithfully
    from gpu.world import ENGINE, proving

    table = (Candidate("gpu", proving() if proven else ENGINE), _engines.ENGINES[-1])
    with faithfully(), patch.object(_engines, "ENGINES", table):
        yield
