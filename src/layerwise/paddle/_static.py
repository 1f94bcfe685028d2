"""Paddle's static graph: the steps of an optimizer as operations of a program, and its state as variables of it.

A rule calls the same functions on variables as on tensors, and the same driver answers its requests. Everything that
depends on the count or the rate is a variable too. A run of the program is a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import paddle
from paddle.base import dygraph, unique_name
from paddle.nn.initializer import Constant
from paddle.pir.core import create_persistable_value

from layerwise.catalog.hidden_matrices import is_misplaced_vector, is_unsplit_matrix
from layerwise.core.first_step import FirstStep
from layerwise.core.slot import Slot
from layerwise.errors import ParameterError, StateError
from layerwise.layout.pieces import Piece
from layerwise.paddle._append import KeptVariables, ParameterStep, append_step, assign, joined_measurements
from layerwise.paddle._arrays import Tensor, Variable, all_finite, arithmetic_dtype, dtype_name, listed, shape_of
from layerwise.paddle._state import StateNames
from layerwise.rules.requests import Stepped
from layerwise.storage.sixteen_bits import MASTER


class Graph:
    """The steps of one optimizer in a program."""

    def __init__(self) -> None:
        self.program: Any = None
        self._kept: dict[str, KeptVariables] = {}
        self._last: dict[str, tuple[list[Stepped], tuple[Piece, ...], str]] = {}  # measurements of steps
        self._stats: dict[str, dict[str, Variable]] = {}
        self._skipped: Variable | None = None

    def begin(self, program: object) -> None:
        """Set the only program of this optimizer: in a second one, state would have the same names."""
        if self.program is not None and self.program != program:
            raise ParameterError("this optimizer already steps another program. Create an optimizer for each program.")
        self.program = program

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    # ---- building

    def skip(self, found_inf: object, grads: Sequence[Variable]) -> Variable | None:
        """Return whether a step is skipped: if a loss scaler, or these gradients, have nan or inf."""
        why = [paddle.any(paddle.cast(found_inf, "bool"))] if isinstance(found_inf, Variable) else []
        if (finite := all_finite(grads)) is not None:
            why.append(paddle.logical_not(finite))
        return reduce(paddle.logical_or, why) if why else None

    def append(
        self, dues: Sequence[ParameterStep], names: StateNames, skip: Variable | None
    ) -> list[paddle.pir.Operation]:
        """Append a step of these parameters, which is skipped if `skip` is true, and return its operations."""
        for due in dues:
            if due.p.name not in self._kept:
                self._kept[due.p.name] = _kept(due, names)
        if skip is not None and self._skipped is None:
            self._skipped = _variable(names.of_all("skipped"), [1], "int64")
        block = self.program.global_block()
        before = len(block.ops)
        for due, done in append_step(dues, self._kept, skip):
            self._last[due.p.name] = done, due.plan.layout.pieces, arithmetic_dtype(due.p)
        self._stats = {}
        if skip is not None:
            assign(self._skipped, self._skipped + paddle.cast(skip, "int64"))
        return list(block.ops[before:])

    def stats(self) -> dict[str, dict[str, Variable]]:
        """Return variables with the measurements of each parameter's step; programs contain them only if requested."""
        if len(self._stats) < len(self._last):
            with paddle.static.program_guard(self.program), paddle.amp.auto_cast(enable=False):
                self._stats = {name: joined_measurements(*one) for name, one in self._last.items()}
        return {name: dict(one) for name, one in self._stats.items()}

    # ---- results of runs

    @property
    def skipped(self) -> int:
        """The number of skipped steps."""
        return 0 if self._skipped is None or not _is_there(self._skipped) else int(_read(self._skipped)[0])

    def slots(self) -> dict[str, Slot]:
        """Return a copy of the state of each parameter that has been stepped."""
        found = {}
        with dygraph.guard():  # no tensor can be created in the static graph
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
        """Raise unless there are variables to load a state into."""
        if not self._kept or not all(_is_there(kept.step) for kept in self._kept.values()):
            raise StateError("the program has no state yet. First call minimize() and run the startup program.")

    def put(self, slots: Mapping[str, Slot]) -> None:
        """Continue with these slots; parameters without one start again."""
        with dygraph.guard():
            for name, kept in self._kept.items():
                slot = slots.get(name, Slot({}))
                for field, one in kept.arrays.items():
                    begun = kept.p if field == MASTER else one
                    new = paddle.Tensor(_found(begun)) if field not in slot.arrays else slot.arrays[field]
                    new = new if field in slot.arrays or field == MASTER else paddle.zeros_like(new)
                    _write(one, paddle.cast(new, dtype_name(one)).numpy())
                _write(kept.step, np.array([slot.step], np.int64))


# ---- parameters to step


def trainable(loss: Variable) -> list[Variable]:
    """Return all parameters of a loss's program that are not frozen."""
    return [p for p in loss.block.program.global_block().all_parameters() if not p.stop_gradient]


def gradient_stops(no_grad_set: object, known: Sequence[Variable]) -> list[Variable]:
    """Return the variables that stop gradients and are not parameters."""
    variables = (one for one in listed(no_grad_set) if isinstance(one, Variable))
    return [one for one in variables if not any(one.is_same(p) for p in known)]


# ---- knowledge before a program runs


def firsts_of(dues: Sequence[ParameterStep], startup: object, peak: float, has_blocks: bool) -> list[FirstStep]:
    """Return what is known of the first step of these parameters, whose values a startup program will make."""
    zero, firsts = _zeros_of(startup), []
    for due in dues:
        h = due.plan.h
        shape, measured = due.plan.shape, {"weight_norm": 0.0} if due.p.name in zero else {}
        kinds = is_misplaced_vector(h, shape), not has_blocks and is_unsplit_matrix(h, shape)
        firsts.append(FirstStep(due.p.name, h, measured, h.weight_decay, peak, None, *kinds))
    return firsts


def _zeros_of(startup: paddle.static.Program) -> set[str]:
    """Return the names of the parameters that are set to zero."""
    found = set()
    for operation in startup.global_block().ops:
        if operation.name() == "builtin.set_parameter":
            made = operation.operand_source(0).get_defining_op()
            if made.name() == "pd_op.full" and made.attrs()["value"] == 0:
                found.add(operation.attrs()["parameter_name"])
    return found


# ---- variables


def _variable(name: str, shape: Sequence[int], dtype: str) -> Variable:
    """Return a new variable of the program, which the startup program sets to 0."""
    return create_persistable_value(dtype, list(shape), unique_name.generate(name), initializer=Constant(0.0))


def _kept(due: ParameterStep, names: StateNames) -> KeptVariables:
    """Make the variables of a parameter's state, under the names that Paddle's optimizers give them."""
    dtypes, target = due.plan.h.state_dtypes(), due.p.name if due.master is None else due.master.name

    def made(field: str) -> Variable:
        shape: Any = due.plan.state_shapes[field]
        return _variable(f"{target}_{names.called(field)}", shape, dtypes.get(field) or arithmetic_dtype(due.p))

    arrays = {field: made(field) for field in due.plan.fields}
    if due.master is not None:
        arrays[MASTER] = due.master
    return KeptVariables(due.p, arrays, _variable(f"{target}_{names.steps}", [1], "int64"))


# ---- their numbers


def _found(one: Variable) -> Any:
    return paddle.static.global_scope().find_var(one.name).get_tensor()


def _is_there(one: Variable) -> bool:
    found = paddle.static.global_scope().find_var(one.name)
    return found is not None and found.get_tensor()._is_initialized()


def _read(one: Variable) -> Tensor:
    return np.array(_found(one))  # of bfloat16 its bits


def _write(one: Variable, numbers: object) -> None:
    tensor = _found(one)
    place = tensor._place()
    tensor.set(numbers, paddle.CUDAPlace(place.gpu_device_id()) if place.is_gpu_place() else paddle.CPUPlace())
