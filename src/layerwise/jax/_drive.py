"""The drivers under JAX: one device, or a mesh seen as one, and `shard_map`, where each device has a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from types import ModuleType

import jax
import jax.numpy as jnp

from layerwise.drivers.partial_sums import MEANS, PLAIN, apply_works, partial_sum, request_dims
from layerwise.engines.measurements import with_norms_and_rms
from layerwise.jax._dtypes import real
from layerwise.jax._norms import Root, sum_squares
from layerwise.jax._recompute import RunningRule
from layerwise.jax._storage import Shape, Unread, numbers
from layerwise.jax._types import Array, Dtype
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Asking, Functions, Gram, ModelSquares, Now, Request, Stepped, Sum, WholeMatrices

# The number of entries from which a tensor's intermediate results are recomputed instead of kept.
LARGE = 1 << 16
Axes = tuple[str, ...]
Cut = tuple[Axes, ...]  # the mesh axes that shard each dimension of a tensor; empty if it is whole


@dataclass(frozen=True)
class PieceStep:
    """One piece of a parameter to step: arrays with the dimensions that the rule sees, in the dtypes in which they are
    stored.
    """

    rule: ModuleType
    h: Hyper
    shape: Shape  # of the local part
    block_dims: Shape
    arrays: tuple[Array, ...]  # p, g and the fields of the state
    now: Now
    dtype: Dtype  # of the arithmetic
    cut: Cut = ()

    def start(self, xp: Functions) -> Asking[Stepped]:
        p, g, *state = (None if x is None else self._read(x) for x in self.arrays)
        asking: Asking[Stepped] = self.rule.step(xp, p, g, self.rule.State(*state), self.h, self.now)
        return asking

    def _read(self, x: Array) -> Array:
        x = jnp.asarray(x.view(numbers(x.array)) if isinstance(x, Unread) else x)
        # The second moments of complex parameters are real.
        return x.astype(self.dtype if jnp.iscomplexobj(x) else real(self.dtype))

    def dims_of(self, request: Request) -> Shape:
        """Return the dimensions that a request runs over."""
        return request_dims(request, len(self.shape), self.block_dims)

    def axes_of(self, request: Request) -> Axes:
        """Return the axes of the mesh over which a request adds up."""
        if isinstance(request, WholeMatrices):
            return ()
        cuts = (axes for d in self.dims_of(request) for axes in self.cut[d : d + 1])
        return tuple(sorted({axis for axes in cuts for axis in axes}))

    def entries(self, request: Request) -> int:
        """Return the number of entries that a request runs over: of the tensor, or of each of its blocks."""
        return prod(self.shape[d] for d in self.dims_of(request)) * prod(map(size, self.axes_of(request)))

    def recomputes(self) -> bool:
        """Return True if intermediate results should be recomputed instead of kept."""
        large = prod(self.shape) >= LARGE and not self.h.of_matrices  # products are slow, and read their arrays anyway
        if not large or any(self.cut) or jax.default_backend() != "cpu":
            return False
        return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((self.arrays, self.now)))

    def measured(self, stepped: Stepped) -> dict[str, Array]:
        """Return the measurements of a step, with one number for each block."""
        blocks, dtype = prod(self.shape[d] for d in self.block_dims), real(self.dtype)
        each = {key: jnp.ravel(jnp.asarray(x, dtype)) for key, x in stepped.stats.items()}
        found = {key: jnp.broadcast_to(x, (blocks,)) for key, x in each.items()}
        return with_norms_and_rms(found, sqrt(max(1, self.entries(Sum(None)))))


Place = tuple[int, int]  # a task, and one of its requests
Round = dict[int, tuple[Request, ...]]  # the pending requests of each task


def drive_rules(tasks: Sequence[PieceStep]) -> list[Stepped]:
    """Drive the rules of all tasks to their end, side by side, and return their results.

    Under jit an array is whole, however it is laid out over devices. Under shard_map each device has a part of it, and
    the sums of all tensors are added up together.
    """
    rules = [RunningRule(task, i) for i, task in enumerate(tasks)]
    done: dict[int, Stepped] = {}
    answers: dict[int, tuple[Array, ...] | None] = dict.fromkeys(range(len(tasks)))
    while answers:
        requests: Round = {}
        for i, answer in answers.items():
            try:
                requests[i] = rules[i].advance(answer)
            except StopIteration as end:
                done[i] = end.value
        asked = {(i, k): one for i, own in requests.items() for k, one in rules[i].to_be_summed(own)}
        wholes = {place: one for place, one in asked.items() if isinstance(one, WholeMatrices)}
        sums = {place: _partial_sum(tasks[place[0]], one) for place, one in asked.items() if place not in wholes}
        sums |= zip(wholes, _of_wholes([tasks[i] for i, _ in wholes], [*wholes.values()]), strict=True)
        answers = _answers(tasks, requests, _totals(tasks, requests, sums))
    return [done[i] for i in range(len(tasks))]


def _partial_sum(task: PieceStep, request: Request) -> Array:
    if isinstance(request, (*PLAIN, Gram)):
        return partial_sum(jnp, request, task.dims_of(request))
    goes_on = isinstance(request, ModelSquares) or task.axes_of(request)
    return sum_squares(request.terms, task.dims_of(request), None if goes_on else _divisor(task, request))


def _of_wholes(tasks: Sequence[PieceStep], wholes: Sequence[WholeMatrices]) -> list[Array]:
    """Return what works make of whole tensors, and of that what is here: each device does all of it."""
    cuts = [_cuts(*each) for each in zip(tasks, wholes, strict=True)]
    brought = [one._replace(terms=_brought(one.terms, own)) for one, own in zip(wholes, cuts, strict=True)]
    made = zip(apply_works(jnp, brought, jax.typeof), wholes, cuts, strict=True)
    return [_taken(x, one.terms.shape, own) for x, one, own in made]


def _cuts(task: PieceStep, request: WholeMatrices) -> list[tuple[int, Axes]]:
    """Return the dimensions that have to be whole and are cut, and the axes that cut them."""
    return [(d, task.cut[d]) for d in sorted(request.kept + request.summed) if task.cut and task.cut[d]]


def _brought(x: Array, cuts: Sequence[tuple[int, Axes]]) -> Array:
    for d, axes in cuts:
        x = jax.lax.all_gather(x, axes, axis=d, tiled=True)
    return x


def _taken(x: Array, shape: Shape, cuts: Sequence[tuple[int, Axes]]) -> Array:
    for d, axes in cuts:
        x = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * shape[d], shape[d], d)
    return x


def _totals(tasks: Sequence[PieceStep], requests: Round, sums: dict[Place, Array]) -> dict[Place, Array]:
    by_axes: dict[Axes, dict[Place, Array]] = {}
    for (i, k), value in sums.items():
        by_axes.setdefault(tasks[i].axes_of(requests[i][k]), {})[i, k] = value
    for axes, values in by_axes.items():
        sums |= jax.lax.psum(values, axes) if axes else values
    return sums


def _answers(
    tasks: Sequence[PieceStep], requests: Round, totals: dict[Place, Array]
) -> dict[int, tuple[Array, ...] | None]:
    of_model = [
        jax.tree.map(lambda x: jnp.reshape(x, ()), total)  # tensors of any number of dimensions are added to it
        for (i, k), total in totals.items()
        if isinstance(requests[i][k], ModelSquares)
    ]
    model: Array = sum(of_model[1:], of_model[0]) if of_model else None

    def answer(i: int, k: int, request: Request) -> Array:
        total, n = model if isinstance(request, ModelSquares) else totals[i, k], _divisor(tasks[i], request)
        return total if n == 1 or isinstance(total, Root) else total / n

    return {i: tuple(answer(i, k, one) for k, one in enumerate(own)) for i, own in requests.items()}


def _divisor(task: PieceStep, request: Request) -> int:
    return max(1, task.entries(request)) if isinstance(request, MEANS) else 1


def varying(x: Array) -> Axes:
    """Return the mesh axes along which JAX knows an array to vary."""
    kind = jax.typeof(x)
    known = getattr(kind, "manual_axis_type", None)  # its name since JAX 0.10
    return tuple(sorted(known.varying if known is not None else getattr(kind, "vma", ())))


def size(axis: str) -> int:
    """Return the number of devices along a mesh axis."""
    return int(jax.lax.psum(1, axis))  # a Python number: the sum of a constant is known at once
