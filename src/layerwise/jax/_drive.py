"""Who answers the rules under JAX: one device or a mesh seen as one, and `shard_map`, where each device has a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from layerwise.drive import MEANS, Request, Run, dims_of, local, next_requests, partial_sum
from layerwise.hyper import Hyper
from layerwise.jax._recompute import Namespace, recomputed
from layerwise.rules.asks import Asking, ModelSum, Now, Stepped

# From how many entries on a tensor's intermediate results are computed again rather than kept.
LARGE = 1 << 16
Shape = tuple[int, ...]
Axes = tuple[str, ...]


class Cut(NamedTuple):
    """Which axes of a mesh cut a tensor: each dimension, or None where only the whole is known of."""

    axes: Axes
    dims: tuple[Axes, ...] | None

    def along(self, dims: Shape) -> Axes:
        return self.axes if self.dims is None else tuple(axis for d in dims for axis in self.dims[d])


XP = Namespace()
WHOLE = Cut((), None)


@dataclass(frozen=True)
class Task:
    """One piece of a parameter, to be stepped: arrays as the rule sees their dimensions, in the dtypes as stored."""

    rule: Any
    h: Hyper
    shape: Shape  # of what is here of it
    block_dims: Shape
    arrays: tuple[Any, ...]  # p, g and the parts of the state
    now: Now
    dtype: Any  # of the arithmetic
    cut: Cut = WHOLE
    number: int = 0  # among the tasks of a step

    def start(self, xp: Any = XP) -> Asking[Stepped]:
        p, g, *state = (None if x is None else self._read(x) for x in self.arrays)
        asking: Asking[Stepped] = self.rule.step(xp, p, g, self.rule.State(*state), self.h, self.now)
        return asking

    def _read(self, x: Any) -> Any:
        # The second moments of complex parameters are real.
        return jnp.asarray(x).astype(self.dtype if jnp.iscomplexobj(x) else jnp.finfo(self.dtype).dtype)

    def run(self) -> Run:
        again = prod(self.shape) >= LARGE and jax.default_backend() == "cpu"
        rule = recomputed(self) if again else self.start()
        return Run((rule,), self.shape, self.block_dims, self.h.asks_of_model)


def whole(tasks: Sequence[Task]) -> Iterator[Stepped]:
    """Under jit an array is the whole array, however it is laid out over devices, and a sum the whole sum."""
    for (stepped,) in local(jnp, [replace(task, number=i).run() for i, task in enumerate(tasks)]):
        yield stepped


def in_parts(tasks: Sequence[Task]) -> Iterator[Stepped]:
    """Under shard_map each device has a part of each tensor: a round of sums of all tensors is added up at once."""
    rules = [task.start() for task in tasks]
    done: dict[int, Stepped] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(tasks)))
    while answers:
        asked: dict[int, Any] = {}
        for i, answer in answers.items():
            try:
                asked[i] = next_requests(rules[i], answer)
            except StopIteration as end:
                done[i] = end.value
        answers = _added_up(tasks, asked)
    return iter([done[i] for i in range(len(tasks))])


def _added_up(tasks: Sequence[Task], asked: dict[int, Any]) -> dict[int, Any]:
    sums = {
        (i, k): partial_sum(jnp, ask, _dims(tasks[i], ask)) for i, asks in asked.items() for k, ask in enumerate(asks)
    }
    by_axes: dict[Axes, dict[Any, Any]] = {}
    for (i, k), value in sums.items():
        by_axes.setdefault(_axes(tasks[i], asked[i][k]), {})[i, k] = value
    for axes, values in by_axes.items():
        sums |= jax.lax.psum(values, axes) if axes else values
    of_model = [value for (i, k), value in sums.items() if isinstance(asked[i][k], ModelSum)]
    total = sum(of_model[1:], of_model[0]) if of_model else None
    return {
        i: tuple(total if isinstance(ask, ModelSum) else _mean(tasks[i], ask, sums[i, k]) for k, ask in enumerate(asks))
        for i, asks in asked.items()
    }


def _dims(task: Task, ask: Request) -> Shape:
    return dims_of(ask, len(task.shape), task.block_dims)


def _axes(task: Task, ask: Any) -> Axes:
    return tuple(sorted(set(task.cut.along(_dims(task, ask)))))


def _mean(task: Task, ask: Request, total: Any) -> Any:
    if not isinstance(ask, MEANS):
        return total
    return total / max(1, entries(task, _dims(task, ask)))


def entries(task: Task, dims: Shape | None = None) -> int:
    """How many entries the tensor has along these dimensions, or each of its blocks has, wherever they are."""
    if dims is None:
        dims = tuple(d for d in range(len(task.shape)) if d not in task.block_dims)
    return prod(task.shape[d] for d in dims) * prod(size(axis) for axis in set(task.cut.along(dims)))


def size(axis: str) -> int:
    """How many devices an axis of the mesh has."""
    return int(jax.lax.psum(1, axis))  # a Python number: of a constant it is known at once
