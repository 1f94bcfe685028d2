"""The state of each parameter, and its names in Paddle's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.optimizer.lr import LambdaDecay, LRScheduler

from layerwise.catalog.registry import ENTRIES
from layerwise.core.library import FLOATING
from layerwise.core.plan import Plan
from layerwise.core.slot import Slot
from layerwise.errors import StateError, warn
from layerwise.options.by_name import first_few
from layerwise.options.checks import RefusedValue, alternatives
from layerwise.options.settings import Hyper
from layerwise.paddle._arrays import Tensor, Variable, arithmetic_dtype, dtype_name, shape_of, why_unreadable
from layerwise.paddle._spelling import as_rate
from layerwise.storage.options import COUNT

ACCUMULATORS = {"exp_avg": "moment1", "exp_avg_sq": "moment2", "momentum_buffer": "velocity"}
POWERS = ("beta1_pow_acc", "beta2_pow_acc")
WITH_POWERS = ("Lamb", "AdamW")  # whose states Paddle's own optimizers have, with powers of β in place of a count
WITHOUT_COUNT = ("Lars", "SGD")  # a rule whose state Paddle's own has too, and only the first step differs from others
MOST_POWERS = 1 << 22
SCHEDULER, MASTERS = "LR_Scheduler", "master_weights"
BESIDE = (SCHEDULER, MASTERS, "StructuredToParameterName@@")  # the last is added by Paddle when it loads
MASTER_KEY = "fp32_master"  # the prefix of a master weight that is a variable of a program
# Other variables of programs: rates, loss scales, and counts.
OF_PROGRAM = ("learning_rate", "loss_scaling", "num_good_steps", "num_bad_steps")
NUMBERED = re.compile(r"(?:fp32_master_\d+_)?(.*)_\d+", re.DOTALL)  # the suffix of a parameter's name


def rename_master(p: Tensor, master: Tensor, name: str | None = None) -> Tensor:
    """Return the float32 copy of a parameter, under the given name or Paddle's."""
    master.name = name or f"{p.name}_fp32_master_0"
    return master


@lru_cache(maxsize=8)
def powers(beta: float, dtype: str) -> np.ndarray:
    """Return β, β², … as Paddle carries them from step to step, rounded each time, until no bias is left."""
    kind = np.float64 if dtype == "float64" else np.float32
    count = int(np.log(np.finfo(kind).tiny) / np.log(beta)) if 0 < beta < 1 else 1
    factors = np.full(max(1, min(count, MOST_POWERS)), np.float32(beta), kind)  # a kernel takes it in float32
    factors[0] = beta
    return np.multiply.accumulate(factors)


def power(beta: float, count: int, dtype: str) -> np.ndarray:
    """Return Paddle's power after this many steps, as an array of one number; 0 when no bias is left."""
    known = powers(beta, dtype)
    return known[count : count + 1].copy() if count < len(known) else np.zeros(1, known.dtype)


def steps_from_power(found: float, beta: float, dtype: str) -> int | None:
    """Return the number of steps after which Paddle has this power, or None if it has vanished."""
    known = powers(beta, dtype)
    return None if found < known[-1] or beta == 0 else int(np.argmin(np.abs(known.astype(np.float64) - found)))


def check_not_freed(name: str, slot: Slot) -> None:
    """Raise if the memory of a parameter's state was freed."""
    for field, tensor in slot.arrays.items():
        if why := why_unreadable(tensor):
            called = "master weight" if tensor is slot.master else field
            raise StateError(
                f"{called!r} of {name} {why}. Load a state, or call clear_state({name!r}) to start it over."
            )


# ---- writing


class StateNames(NamedTuple):
    """The names of a parameter's state."""

    optimizer: str  # the class's name
    prefix: str  # the part added by the optimizer's own name

    def called(self, field: str) -> str:
        return self.prefix + ACCUMULATORS.get(field, field)

    @property
    def steps(self) -> str:
        """The name of the count, which distinguishes the states of classes: Paddle's names do not."""
        return self.of_all("step")

    def of_all(self, what: str) -> str:
        """Return a name that only this class uses."""
        return f"{self.prefix}{self.optimizer.lower()}_{what}"


def dump(names: StateNames, settings: Mapping[str, Hyper], slots: Mapping[str, Slot]) -> dict[str, object]:
    """Return the state under the names that Paddle's optimizers give it."""
    found: dict[str, object] = {}
    for p, slot in slots.items():
        target = p if slot.master is None else slot.master.name
        for key, tensor in _written(names, settings[p], slot):
            tensor.name = f"{target}_{key}_0"
            found[tensor.name] = tensor
    if not slots:  # so that it differs from an empty dict, which is not a state
        found[f"{names.of_all('fresh')}_0"] = paddle.to_tensor(np.array([0], np.int64), place=paddle.CPUPlace())
    masters = masters_of(slots)
    return {**found, MASTERS: masters} if masters else found


def masters_of(slots: Mapping[str, Slot]) -> dict[str, Tensor]:
    """Return the master weights by their parameters."""
    return {p: slot.master for p, slot in slots.items() if slot.master is not None}


def _written(names: StateNames, h: Any, slot: Slot) -> Iterator[tuple[str, Tensor]]:
    for field, tensor in slot.arrays.items():
        if tensor is not slot.master:
            yield names.called(field), tensor
    if names.optimizer in WITH_POWERS:
        dtype = dtype_name(slot.arrays["exp_avg_sq"])
        for key, beta in zip(POWERS, h.betas, strict=True):
            yield names.prefix + key, paddle.to_tensor(power(beta, slot.step, dtype), place=paddle.CPUPlace())
    yield names.steps, paddle.to_tensor(np.array([slot.step], np.int64), place=paddle.CPUPlace())


# ---- reading


def by_parameter(
    names: StateNames, fields: tuple[str, ...], known: Mapping[str, Tensor], saved: Mapping[str, object]
) -> dict[str, dict[str, Tensor]]:
    """Return a checkpoint's entries for each parameter, by their keys without numbers."""
    keys = [*map(names.called, fields), *(names.prefix + key for key in POWERS), names.steps, MASTER_KEY]
    others = {names._replace(optimizer=one).steps: one for one in ENTRIES if one != names.optimizer}
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        p, own = _parsed(key, known)
        if p is None and str(key).rpartition("_")[0] in (*OF_PROGRAM, names.of_all("skipped"), names.of_all("fresh")):
            continue
        if p is None:
            raise StateError(
                f"the state has {key!r}, which matches no parameter. The parameters are {first_few(known)}. Paddle "
                "numbers parameters in the order of their creation, so create the model in a new process, or under "
                "paddle.utils.unique_name.guard()."
            )
        if own in others:
            raise StateError(f"the state is of {others[own]}, not of {names.optimizer}. Load it into the same class.")
        of_p = found.setdefault(p, {})
        if own in of_p and own in keys:
            raise StateError(f"the state has {own!r} of {p} twice. Keep one of them: {key!r} is the second.")
        of_p[own] = value  # paddle.Model adds others when it loads
    return found


def _parsed(key: object, known: Mapping[str, Tensor]) -> tuple[str | None, str]:
    parts = key.split("_") if isinstance(key, str) else []
    for i in range(len(parts) - 1, 0, -1):
        p = "_".join(parts[:i])
        numbered = NUMBERED.fullmatch("_".join(parts[i:]))
        if p in known and numbered:
            return p, numbered[1]
    return None, ""


def slot_of(names: StateNames, plan: Plan, p: Tensor, found: Mapping[str, object]) -> Slot:
    """Return the state of one parameter, given a checkpoint's entries for it."""
    arrays = {}
    for field, shape in plan.state_shapes.items():
        key, there = names.called(field), f"of {p.name}"
        if shape is None:
            if key in found:
                raise StateError(
                    f"the state has {key!r} {there}, which these options do not use. Use the options it was saved with."
                )
        elif key not in found:
            raise StateError(f"the state has no {key!r} {there}. {_where_it_fits(names, found)}")
        else:
            dtype = plan.h.state_dtypes().get(field) or arithmetic_dtype(p)
            arrays[field] = copy_of_saved(f"{key!r} {there}", found[key], p, shape, dtype)
    return Slot(arrays, _count(names, plan.h, p, found))


def _where_it_fits(names: StateNames, found: Mapping[str, object]) -> str:
    """Return the way out for a state that lacks a part: other optimizers that keep what it has, if there are any."""
    each = {name: {*map(names.called, entry.rule.State._fields)} for name, entry in ENTRIES.items()}
    has = found.keys() & set[str]().union(*each.values())
    if not has or has <= each[names.optimizer]:
        return "Pass the state of an optimizer with these options."
    fit = alternatives([name for name, fields in each.items() if has <= fields])
    return f"It has {alternatives(sorted(map(repr, has)), 'and')}: load it into {fit}."


def copy_of_saved(what: str, value: object, p: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a copy of a saved array in this shape and dtype, on the parameter's device.

    16-bit integers are bfloat16, as in Paddle's files.
    """
    if not isinstance(value, (paddle.Tensor, np.ndarray)):
        raise StateError(f"{what} must be a tensor, but is {type(value).__name__}.")
    if shape_of(value) != shape:
        raise StateError(f"{what} has the shape {shape_of(value)}, but should have {shape}.")
    if isinstance(value, np.ndarray) and value.dtype == np.uint16:
        value = (value.astype(np.uint32) << 16).view(np.float32)
    if dtype_name(value) not in FLOATING and str(value.dtype) not in FLOATING:
        raise StateError(f"{what} must hold floating-point numbers, but holds {value.dtype}.")
    if isinstance(value, paddle.Tensor) and (why := why_unreadable(value)):
        raise StateError(f"{what} {why}. Load it again.")
    with paddle.no_grad():
        tensor = value if isinstance(value, paddle.Tensor) else paddle.to_tensor(value)
        copied = paddle.cast(tensor, dtype).clone().detach()
    # A variable has no place; its loaded value is copied to the variable later.
    return copied if isinstance(p, Variable) or str(copied.place) == str(p.place) else copied.to(p.place)


def load_scheduler(scheduler: object, state: Mapping[str, object]) -> None:
    """Load the saved state of a scheduler, if there is one, or change nothing."""
    saved = state.get(SCHEDULER)
    if not (saved is None or isinstance(saved, Mapping)):
        raise StateError(
            f"{SCHEDULER!r} must be a dict, but is a {type(saved).__name__}. Leave it out, or load it again."
        )
    if not isinstance(scheduler, LRScheduler):
        if saved:
            warn(f"{SCHEDULER} of the state is dropped: this optimizer has no scheduler.")
        return
    if saved is None and not isinstance(scheduler, LambdaDecay):
        raise StateError(f"the state has no {SCHEDULER!r}. Pass the state of an optimizer with a scheduler.")
    before = deepcopy({key: x for key, x in vars(scheduler).items() if not callable(x)})
    try:
        if saved:
            scheduler.set_state_dict(saved)
        as_rate(scheduler())
    except Exception as problem:
        vars(scheduler).update(before)
        raise StateError(f"{SCHEDULER!r} does not fit this optimizer's scheduler: {problem}") from None


def _count(names: StateNames, h: Any, p: Tensor, found: Mapping[str, object]) -> int:
    """Return the number of steps: as counted, or from the powers of β that Paddle keeps."""
    if names.steps in found:
        return _counted(f"{names.steps!r} of {p.name}", found[names.steps])
    pairs = list(zip(POWERS, h.betas, strict=True)) if names.optimizer in WITH_POWERS else []
    if names.optimizer in WITHOUT_COUNT:
        return 1
    if (missing := [key for key, _ in pairs if names.prefix + key not in found]) or not pairs:
        raise StateError(f"the state does not count the steps of {p.name}: {missing or [names.steps]} is missing.")
    counts = {n for n in (_of_power(names.prefix + key, p, beta, found) for key, beta in pairs) if n is not None}
    if len(counts) > 1:
        raise StateError(
            f"the powers of β of {p.name} belong to different step counts: {' and '.join(map(str, sorted(counts)))}. "
            "Pass the betas with which the state was saved."
        )
    # If both have vanished, any count without bias will do.
    return counts.pop() if counts else max(len(powers(beta, arithmetic_dtype(p))) for _, beta in pairs)


def _of_power(key: str, p: Tensor, beta: float, found: Mapping[str, object]) -> int | None:
    what = f"{key!r} of {p.name}"
    value = _number(what, found[key])
    if not 0 <= value <= max(beta, float(np.float32(beta))):
        raise StateError(f"{what} must be a power of {beta}, but is {value}. Pass the betas it was saved with.")
    return steps_from_power(value, beta, arithmetic_dtype(p))


def _counted(what: str, value: object) -> int:
    number = _number(what, value)
    try:
        count: int = COUNT.convert(int(number) if isinstance(number, float) and number.is_integer() else number)
    except RefusedValue:
        raise StateError(f"{what} must be {COUNT.allowed}, but is {number}.") from None
    return count


def _number(what: str, value: object) -> Any:
    array = np.asarray(None if isinstance(value, paddle.Tensor) and why_unreadable(value) else value)
    if array.size != 1 or array.dtype.kind not in "iuf":
        raise StateError(f"{what} must be one number, but is {value!r}.")
    return array.item()
