"""The operations that a step of parameters appends to a program of the static graph.

Small equal tensors are stacked, as in the rule engine, and step by the operations of one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import paddle

from layerwise.core.plan import Plan
from layerwise.drivers import TensorRun, drive_whole
from layerwise.engines.measurements import with_norms_and_rms
from layerwise.engines.rule import in_stacks
from layerwise.errors import HyperparameterError, LayerwiseError
from layerwise.layout.pieces import Layout, Piece
from layerwise.options.settings import Hyper
from layerwise.paddle._arrays import Variable, arithmetic_dtype, dtype_name, shape_of
from layerwise.paddle._variables import NAMESPACE, Array, Constants, SharedNumbers, broadcast, in_dtype, to_variables
from layerwise.rules.arrays import apply_moves
from layerwise.rules.requests import Functions, Now, Scalar, Stepped
from layerwise.storage.sixteen_bits import MASTER


class ParameterStep(NamedTuple):
    """A parameter to step."""

    p: Variable
    g: Variable
    plan: Plan
    lr: Variable
    master: Variable | None  # its float32 copy


class KeptVariables(NamedTuple):
    """The variables that a program keeps for a parameter from run to run."""

    p: Variable
    arrays: dict[str, Variable]  # as in a slot
    step: Variable


class PieceToStep(NamedTuple):
    """A piece of a parameter to step."""

    due: ParameterStep
    kept: KeptVariables
    piece: Piece

    @property
    def dtype(self) -> str:
        return arithmetic_dtype(self.due.p)

    @property
    def kind(self) -> Hashable:
        """Pieces of one kind can be stacked; None steps alone."""
        h = self.piece.h
        if h.of_matrices or h.follows_step:
            return None
        return self.due.plan.rule, h, self.piece.shape, self.piece.block_dims, self.dtype, hash(self.due.lr)

    def arrays(self) -> Iterator[Variable | None]:
        """Yield the weights, the gradient and the state, in the dtype of the arithmetic."""
        kept = self.kept.arrays
        stored = (kept.get(MASTER, self.due.p), self.due.g, *map(kept.get, self.due.plan.rule.State._fields))
        return (None if x is None else in_dtype(self.dtype, self.piece.view(x)) for x in stored)


class PieceResult(NamedTuple):
    """The results of a piece's step."""

    p: Variable
    stepped: Stepped


def append_step(
    dues: Sequence[ParameterStep], known: Mapping[str, KeptVariables], skip: Variable | None
) -> Iterator[tuple[ParameterStep, list[Stepped]]]:
    """Append a step of these parameters, which is skipped if `skip` is true; yield the results of the pieces."""
    pieces = [PieceToStep(due, known[due.p.name], piece) for due in dues for piece in due.plan.layout.pieces]
    stacks = in_stacks([job.kind for job in pieces], [prod(job.piece.shape) for job in pieces])
    groups = [[pieces[i] for i in places] for places in stacks]
    jobs = [job for group in groups for job in group]
    counts = paddle.concat([job.kept.step for job in jobs]) + 1
    apart, numbers = paddle.split(counts, len(jobs)), SharedNumbers(counts)
    coupled = any(job.piece.h.needs_model_sum for job in jobs)
    tasks, first = [], 0
    for group in groups:
        tasks.append(_StackStep(group, numbers, first))
        first += len(group)
    ends = drive_whole(NAMESPACE, [task.run(coupled) for task in tasks])
    done = [one for task, (end,) in zip(tasks, ends, strict=True) for one in task.apart(end)]
    made: dict[str, list[tuple[PieceToStep, PieceResult, Variable]]] = {}
    for job, one, count in zip(jobs, done, apart, strict=True):
        made.setdefault(job.due.p.name, []).append((job, one, count))
    for due in dues:
        own = made[due.p.name]
        ordered = [next(one for job, one, _ in own if job.piece is piece) for piece in due.plan.layout.pieces]
        _write(due, known[due.p.name], ordered, own[0][2], skip)
        yield due, [one.stepped for one in ordered]


class _StackStep:
    """The step of one piece, or of several that are stacked along a new last dimension."""

    def __init__(self, jobs: Sequence[PieceToStep], numbers: SharedNumbers, first: int) -> None:
        self._jobs, self._numbers = jobs, numbers
        self._place = first if len(jobs) == 1 else slice(first, first + len(jobs))
        read = [None if x[0] is None else self._stacked(x) for x in zip(*(job.arrays() for job in jobs), strict=True)]
        self._p, self._g, *self._state = (None if x is None else self._array(x) for x in read)

    def _array(self, x: Variable) -> Array:
        return Array(x, self._numbers.constants)

    def _stacked(self, each: Sequence[object]) -> Variable:
        return each[0] if len(each) == 1 else paddle.stack(list(each), axis=-1)

    def run(self, coupled: bool) -> TensorRun:
        """Return the run of the rule; its gradients may be coupled by the global norm."""
        job = self._jobs[0]
        piece, rule = job.piece, job.due.plan.rule
        h = piece.h.counted_in_norm() if coupled else piece.h
        shape, block_dims = piece.shape, piece.block_dims
        if len(self._jobs) > 1:
            shape, block_dims = (*shape, len(self._jobs)), (*block_dims, len(shape))
        step = rule.step(self._xp(), self._p, self._g, rule.State(*self._state), h, self._now())
        return TensorRun((step,), shape, block_dims, h.needs_model_sum, alike=h if h.of_matrices else None)

    def _xp(self) -> Functions:
        return NAMESPACE if self._jobs[0].due.plan.h.follows_step else self._numbers.namespace(self._place)

    def _now(self) -> Now:
        due, dtype = self._jobs[0].due, self._jobs[0].dtype
        h = due.plan.h
        t, lr = self._numbers.steps(dtype), self._numbers.number(due.lr, dtype)
        if not h.follows_step:
            return Now(t, lr, h.weight_decay, beta2=h.beta2_of(t))
        t = self._numbers.own(t, self._place)
        return Now(t, lr, h.weight_decay, beta2=self._beta2(h, t))

    def _beta2(self, h: Hyper, t: Array) -> Scalar | None:
        try:
            beta2 = h.beta2_of(t.variable, lambda x, low: paddle.maximum(x, t.as_operand(low)))
        except LayerwiseError:
            raise
        except Exception as problem:
            raise HyperparameterError(
                f"`beta2` is a function of the step, but in the static graph the step is a variable: {problem}. "
                "Write the function with Paddle's operations."
            ) from problem
        if not isinstance(beta2, Variable):
            return beta2
        return self._array(paddle.reshape(in_dtype(self._jobs[0].dtype, beta2), []))

    def apart(self, end: Stepped) -> list[PieceResult]:
        """Return the results of each piece."""
        p = to_variables(apply_moves(NAMESPACE, self._p, end.moves))
        n = len(self._jobs)
        if n == 1:
            return [PieceResult(p, end)]
        state = [[None] * n if x is None else paddle.unstack(to_variables(x), axis=-1) for x in end.state]
        each = zip(*state, strict=True) if state else [()] * n
        found = zip(paddle.unstack(p, axis=-1), each, strict=True)
        return [
            PieceResult(new, Stepped((), own, {key: (x, i) for key, x in end.stats.items()}))
            for i, (new, own) in enumerate(found)
        ]


def _write(
    due: ParameterStep, kept: KeptVariables, done: Sequence[PieceResult], count: Variable, skip: Variable | None
) -> None:
    """Append operations that write the results of all pieces, after all are computed."""
    plan, arrays, layout = due.plan, kept.arrays, due.plan.layout
    new = _joined(layout, [one.p for one in done], plan.shape)
    state = zip(plan.rule.State._fields, zip(*(one.stepped.state for one in done), strict=True), strict=True)
    results = [
        (arrays[field], _joined(layout, to_variables(own), plan.state_shapes[field]))
        for field, own in state
        if field in arrays
    ]
    if MASTER in arrays:
        results.append((arrays[MASTER], new))
    for place, result in (*results, (due.p, new), (kept.step, count)):
        result = in_dtype(dtype_name(place), result)
        assign(place, result if skip is None else paddle.where(broadcast(skip, shape_of(place)), place, result))


def _joined(layout: Layout, pieces: Sequence[Variable], shape: Any) -> Variable:
    part = layout.pieces[0].part
    if part is not None and part.one is not None:
        return paddle.concat([*pieces], axis=part.axis)
    return pieces[0] if shape_of(pieces[0]) == tuple(shape) else paddle.reshape(pieces[0], list(shape))


def assign(place: Variable, new: Variable) -> None:
    paddle.assign(new, output=place)


# ---- measurements


def joined_measurements(done: Sequence[Stepped], pieces: Sequence[Piece], dtype: str) -> dict[str, Variable]:
    """Return the measurements of a parameter's pieces, joined: numbers, or arrays of one number per block."""
    each = [_of_piece(one.stats, piece, dtype) for one, piece in zip(done, pieces, strict=True)]
    if pieces[0].part is None:
        return {key: paddle.reshape(x, []) for key, x in each[0].items()}
    return {key: paddle.concat([one[key] for one in each]) for key in each[0]}


def _of_piece(stats: Mapping[str, object], piece: Piece, dtype: str) -> dict[str, Variable]:
    blocks, constants = prod(piece.shape[d] for d in piece.block_dims), Constants()
    found = {}
    for key, x in stats.items():
        x = paddle.reshape(_entry(x, dtype), [-1])
        found[key] = Array(x if shape_of(x) == (blocks,) else paddle.expand(x, [blocks]), constants)
    both = with_norms_and_rms(found, sqrt(max(1, prod(piece.shape) // max(1, blocks))))
    return {key: x.variable for key, x in both.items()}


def _entry(x: Scalar, dtype: str) -> Variable:
    """Return a measurement, which may be one of several along the last dimension."""
    if isinstance(x, tuple):
        x, i = x
        x = x[..., i] if isinstance(x, Array) and x.ndim else x
    return x.variable if isinstance(x, Array) else paddle.full([], x, dtype)
