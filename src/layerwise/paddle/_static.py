"""Paddle's static graph: the steps of an optimizer as operations of a program, and its state as variables of it.

A rule calls the same functions on variables as on tensors, and the same driver answers its requests. What follows the
count or the rate is a variable too. A run of the program is a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.base import dygraph, unique_name
from paddle.nn.initializer import Constant
from paddle.pir.core import create_persistable_value

from layerwise.core.plan import Plan
from layerwise.core.slot import Slot
from layerwise.drive import Run, local
from layerwise.errors import HyperparameterError, LayerwiseError, ParameterError, StateError
from layerwise.layout import Layout, Piece
from layerwise.paddle._arrays import Variable, all_finite, computing, dtype_name, listed, shape_of
from layerwise.paddle._state import Names
from layerwise.paddle._variables import NAMESPACE, Array, Constants, bare
from layerwise.rules.arrays import moved
from layerwise.rules.asks import Now, Stepped
from layerwise.storage.weights import MASTER
from layerwise.telemetry import with_both


class Due(NamedTuple):
    """A parameter that is to be stepped."""

    p: Variable
    g: Variable
    plan: Plan
    lr: Variable
    master: Variable | None  # its float32 copy


class Kept(NamedTuple):
    """What a program keeps of a parameter from run to run."""

    p: Variable
    arrays: dict[str, Variable]  # as in a slot
    step: Variable


class Graph:
    """The steps of one optimizer in a program."""

    def __init__(self) -> None:
        self.program: Any = None
        self._kept: dict[str, Kept] = {}
        self._last: dict[str, tuple[list[Stepped], tuple[Piece, ...], str]] = {}  # what steps have measured
        self._stats: dict[str, dict[str, Variable]] = {}
        self._skipped: Variable | None = None

    def begin(self, program: Any) -> None:
        """Take a program, which stays the only one: others would have state of the same names."""
        if self.program is not None and self.program != program:
            raise ParameterError("this optimizer steps another program already. Make an optimizer for each program.")
        self.program = program

    # ---- building

    def skip(self, found_inf: Any, grads: Sequence[Variable]) -> Variable | None:
        """Return whether a step is left out: if a scaler of losses has found nan or inf, or these gradients have."""
        why = [paddle.any(paddle.cast(found_inf, "bool"))] if isinstance(found_inf, Variable) else []
        if (finite := all_finite(grads)) is not None:
            why.append(paddle.logical_not(finite))
        return reduce(paddle.logical_or, why) if why else None

    def append(self, dues: Sequence[Due], names: Names, skip: Variable | None) -> list[Any]:
        """Append a step of these parameters, to be left out where `skip` is true, and return its operations."""
        for due in dues:
            if due.p.name not in self._kept:
                self._kept[due.p.name] = _kept(due, names)
        if skip is not None and self._skipped is None:
            self._skipped = _variable(names.of_all("skipped"), [1], "int64")
        block = self.program.global_block()
        before = len(block.ops)
        constants: Constants = {}
        tasks = [_Task(due, self._kept[due.p.name], constants) for due in dues]
        coupled = any(piece.h.asks_of_model for due in dues for piece in due.plan.layout.pieces)
        ends = local(NAMESPACE, [run for task in tasks for run in task.runs(coupled)])
        for task in tasks:
            done = [stepped for _ in task.due.plan.layout.pieces for stepped in next(ends)]
            task.write(done, skip)
            self._last[task.due.p.name] = done, task.due.plan.layout.pieces, computing(task.due.p)
        self._stats = {}
        if skip is not None:
            _assign(self._skipped, self._skipped + paddle.cast(skip, "int64"))
        return list(block.ops[before:])

    def stats(self) -> dict[str, dict[str, Variable]]:
        """Return variables with the measurements of each parameter's step: no program has them that nobody asked."""
        if len(self._stats) < len(self._last):
            with paddle.static.program_guard(self.program), paddle.amp.auto_cast(enable=False):
                self._stats = {name: _measured(*one) for name, one in self._last.items()}
        return {name: dict(one) for name, one in self._stats.items()}

    # ---- what runs have left

    @property
    def skipped(self) -> int:
        """The number of steps left out so far."""
        return 0 if self._skipped is None or not _is_there(self._skipped) else int(_read(self._skipped)[0])

    def slots(self) -> dict[str, Slot]:
        """Return a copy of the state of each parameter that has been stepped."""
        found = {}
        with dygraph.guard():  # no tensor is made in the static graph
            for name, kept in self._kept.items():
                if _is_there(kept.step) and (step := int(_read(kept.step)[0])):
                    arrays = {field: paddle.Tensor(_found(one)).clone() for field, one in kept.arrays.items()}
                    if MASTER in arrays:
                        arrays[MASTER].name = kept.arrays[MASTER].name
                    found[name] = Slot(arrays, step)
        return found

    def set_rate(self, rate: Variable | None, value: float) -> None:
        """Set the learning rate of the next run."""
        if rate is None or not _is_there(rate):
            raise StateError("the program has no learning rate yet. Run the startup program before set_lr().")
        _write(rate, np.full(shape_of(rate), value, _read(rate).dtype))

    def check_begun(self) -> None:
        """Raise unless there are variables to put a state into."""
        if not self._kept or not all(_is_there(kept.step) for kept in self._kept.values()):
            raise StateError("the program has no state yet. Call minimize(), and run the startup program, first.")

    def put(self, slots: Mapping[str, Slot]) -> None:
        """Go on with these slots; parameters without one begin again."""
        with dygraph.guard():
            for name, kept in self._kept.items():
                slot = slots.get(name, Slot({}))
                for field, one in kept.arrays.items():
                    begun = kept.p if field == MASTER else one
                    new = paddle.Tensor(_found(begun)) if field not in slot.arrays else slot.arrays[field]
                    new = new if field in slot.arrays or field == MASTER else paddle.zeros_like(new)
                    _write(one, paddle.cast(new, dtype_name(one)).numpy())
                _write(kept.step, np.array([slot.step], np.int64))


class _Task:
    """The step of one parameter, piece by piece."""

    def __init__(self, due: Due, kept: Kept, constants: Constants) -> None:
        self.due, self._kept, self._constants = due, kept, constants
        self._dtype = computing(due.p)

    def _read(self, x: Variable) -> Variable:
        return _in(self._dtype, x)

    def _array(self, x: Variable) -> Array:
        return Array(x, self._constants)

    def _number(self, x: Variable) -> Array:
        return self._array(paddle.reshape(self._read(x), []))

    def _now(self) -> Now:
        h: Any = self.due.plan.h
        t, lr = self._number(self._kept.step + 1), self._number(self.due.lr)
        try:
            beta2 = h.beta2_of(t.variable, lambda x, low: paddle.maximum(x, t.beside(low)))
        except LayerwiseError:
            raise
        except Exception as problem:
            raise HyperparameterError(
                f"`beta2` is a function of the step, which is a variable in the static graph: {problem}. Write it with "
                "Paddle's operations."
            ) from problem
        return Now(t, lr, h.weight_decay, beta2=self._number(beta2) if isinstance(beta2, Variable) else beta2)

    def runs(self, coupled: bool) -> Iterator[Run]:
        """Yield the rule on each piece, where the gradients may be coupled by the norm of all."""
        plan, kept, now = self.due.plan, self._kept.arrays, self._now()
        self._p, g = self._read(kept.get(MASTER, self.due.p)), self._read(self.due.g)
        state = [self._read(kept[field]) if field in kept else None for field in plan.rule.State._fields]
        for piece in plan.layout.pieces:
            h = piece.h.counting() if coupled else piece.h
            own = [None if x is None else self._array(piece.view(x)) for x in (self._p, g, *state)]
            rule = plan.rule.step(NAMESPACE, *own[:2], plan.rule.State(*own[2:]), h, now)
            yield Run((rule,), piece.shape, piece.block_dims, h.asks_of_model)

    def write(self, done: Sequence[Stepped], skip: Variable | None) -> None:
        """Append what writes the results of all pieces."""
        plan, kept, layout = self.due.plan, self._kept.arrays, self.due.plan.layout
        each = zip(layout.pieces, done, strict=True)
        moves = [moved(NAMESPACE, self._array(piece.view(self._p)), one.moves) for piece, one in each]
        new = _joined(layout, moves, plan.shape)
        state = zip(plan.rule.State._fields, zip(*(one.state for one in done), strict=True), strict=True)
        results = [
            (kept[field], _joined(layout, own, plan.state_shapes[field])) for field, own in state if field in kept
        ]
        if MASTER in kept:
            results.append((kept[MASTER], new))
        # All is computed before anything is written, after which a variable stands for what it has become.
        for place, result in (*results, (self.due.p, new), (self._kept.step, self._kept.step + 1)):
            result = _in(dtype_name(place), result)
            _assign(place, result if skip is None else paddle.where(skip, place, result))


def _joined(layout: Layout, pieces: Sequence[Array], shape: Any) -> Variable:
    part, variables = layout.pieces[0].part, bare(pieces)
    if part is not None and part.one is not None:
        return paddle.concat(variables, axis=part.axis)
    return variables[0] if pieces[0].shape == shape else paddle.reshape(variables[0], list(shape))


def _measured(done: Sequence[Stepped], pieces: Sequence[Piece], dtype: str) -> dict[str, Variable]:
    """Return the measurements of a parameter's pieces, joined: numbers, or arrays of one number a block."""
    each = [_of_piece(one.stats, piece, dtype) for one, piece in zip(done, pieces, strict=True)]
    if pieces[0].part is None:
        return {key: paddle.reshape(x, []) for key, x in each[0].items()}
    return {key: paddle.concat([one[key] for one in each]) for key in each[0]}


def _of_piece(stats: Mapping[str, Any], piece: Piece, dtype: str) -> dict[str, Variable]:
    blocks, constants = prod(piece.shape[d] for d in piece.block_dims), Constants()
    found = {}
    for key, x in stats.items():
        x = paddle.reshape(x.variable if isinstance(x, Array) else paddle.full([], x, dtype), [-1])
        found[key] = Array(x if shape_of(x) == (blocks,) else paddle.expand(x, [blocks]), constants)
    both = with_both(found, sqrt(max(1, prod(piece.shape) // max(1, blocks))))
    return {key: x.variable for key, x in both.items()}


# ---- what is stepped


def trainable(loss: Variable) -> list[Variable]:
    """Return all parameters of a loss's program that are not frozen."""
    return [p for p in loss.block.program.global_block().all_parameters() if not p.stop_gradient]


def others_in(no_grad_set: Any, known: Sequence[Variable]) -> list[Variable]:
    """Return the variables that stop gradients and are no parameters."""
    variables = (one for one in listed(no_grad_set) if isinstance(one, Variable))
    return [one for one in variables if not any(one.is_same(p) for p in known)]


# ---- variables


def _in(dtype: str, x: Variable) -> Variable:
    return x if dtype_name(x) == dtype else paddle.cast(x, dtype)


def _variable(name: str, shape: Sequence[int], dtype: str) -> Variable:
    """Return a new variable of the program, which the startup program sets to 0."""
    return create_persistable_value(dtype, list(shape), unique_name.generate(name), initializer=Constant(0.0))


def _kept(due: Due, names: Names) -> Kept:
    """Make the variables of a parameter's state, under the names that Paddle's optimizers give them."""
    dtypes, target = due.plan.h.state_dtypes(), due.p.name if due.master is None else due.master.name

    def made(field: str) -> Variable:
        shape: Any = due.plan.state_shapes[field]
        return _variable(f"{target}_{names.called(field)}", shape, dtypes.get(field) or computing(due.p))

    arrays = {field: made(field) for field in due.plan.fields}
    if due.master is not None:
        arrays[MASTER] = due.master
    return Kept(due.p, arrays, _variable(f"{target}_{names.steps}", [1], "int64"))


def _assign(place: Variable, new: Variable) -> None:
    paddle.assign(new, output=place)


# ---- their numbers


def _found(one: Variable) -> Any:
    return paddle.static.global_scope().find_var(one.name).get_tensor()


def _is_there(one: Variable) -> bool:
    found = paddle.static.global_scope().find_var(one.name)
    return found is not None and found.get_tensor()._is_initialized()


def _read(one: Variable) -> Any:
    return np.array(_found(one))  # of bfloat16 its bits


def _write(one: Variable, numbers: Any) -> None:
    tensor = _found(one)
    place = tensor._place()
    tensor.set(numbers, paddle.CUDAPlace(place.gpu_device_id()) if place.is_gpu_place() else paddle.CPUPlace())
