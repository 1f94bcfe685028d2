"""The program of a job, what engines request for it, and the numbers that its kernels take.

`engines/printed.py` lists all programs; `make generate` writes it beside the kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np

from layerwise.drive import TensorRequest, dims_of, once_of
from layerwise.engines.printed import RULES
from layerwise.engines.structures import Printed, Program, form_of, presence_of
from layerwise.rules.asks import Mean, MeanSquare, ModelSum, Now, Squares, Sum
from layerwise.rules.parts import bounds_of, is_number, is_on

UNBOUNDED = float("inf")
PLAIN = {int, float, type(None)}
RATES = ("lr", "weight_decay")
REQUESTS: dict[str, type[Any]] = {one.__name__: one for one in (Sum, Mean, MeanSquare, Squares)}
MEASURED = 2  # the stage of the first round: the norms that bound gradients come before it
STATISTICS = 4  # requests in the first round where a second moment is factored, before those of the program


def names_of(k: Any) -> list[str]:
    """Return the names of a rule's coefficients, those in a group after the group's."""
    *own, last = k._fields
    group = getattr(k[-1], "_fields", None)
    return [*own, last] if group is None else [*own, *(f"{last}_{name}" for name in group)]


def printed_for(h: type[Any]) -> tuple[ModuleType, Printed] | None:
    """Return the rule of these options, or of their base class, and its printed programs."""
    if h not in _found:
        rules = (cls.__module__ for cls in h.__mro__ if cls.__module__ in RULES)
        module = next(rules, None)
        _found[h] = None if module is None else (sys.modules[module], RULES[module])
    return _found[h]


_found: dict[type[Any], tuple[ModuleType, Printed] | None] = {}


def missing(job: Any) -> str:
    """Return the reason why a job has no printed kernels, or an empty string."""
    found = printed_for(type(job.h))
    if found is None:
        return f"there are no kernels for {type(job.h).__name__}"
    rule, printed = found
    if job.rule is not rule:  # another formula with the same options
        return f"there are no kernels for {job.rule.__name__}"
    own: Any = next(cls for cls in type(job.h).__mro__ if cls.__module__ == rule.__name__)
    known = {spec.name for spec in fields(own)}
    for spec in fields(job.h):
        if spec.name not in known and (value := getattr(job.h, spec.name)) != spec.default:
            return f"its kernels do not know the option `{spec.name}` of {type(job.h).__name__}, which is {value!r}"
    if _key(job, printed) not in printed.programs:
        settings = ", ".join(f"{name}={getattr(job.h, name)!r}" for name in printed.options)
        return f"there are no kernels for {type(job.h).__name__} with {settings} and such a state"
    return ""


def program_for(job: Any) -> Program:
    """Return the program of a job that has one."""
    found = printed_for(type(job.h))
    if found is None:
        raise LookupError(missing(job))
    return found[1].programs[_key(job, found[1])]


def requests_of(job: Any) -> list[tuple[Any, ...]]:
    """Return what engines request of a job in each stage, in the order of their sums.

    First come the norm of its gradient and that of all, if they are bounded, and then the rounds of its program. A
    factored second moment takes two: its statistics with all that is known without it, and then the square of its
    update, which is the program's last total.
    """
    own, model = clips(job.h)
    norms = [(Squares(None),) * own, (ModelSum(None),) * model]
    rounds = [tuple(REQUESTS[name](None) for name in one) for one in program_for(job).rounds]
    if factored := getattr(job.h, "factored", None):
        rows, cols = factored
        *others, update = rounds[0]
        means = Mean(None, cols), Mean(None, rows), Mean(None, rows + cols), Mean(None, rows, once=cols)
        rounds = [(*means, *others), (update,)]
    return norms + rounds


def tensor_request(i: int, job: Any, request: Any, length: int, digits: int = 1) -> TensorRequest:
    """Return the request of the job with this number as other ranks get it."""
    dims = dims_of(request, len(job.p.shape), job.block_dims)
    return TensorRequest(i, type(request), dims, length, digits, once_of(request))


def _key(job: Any, printed: Printed) -> tuple[Any, ...]:
    return presence_of(job.state), *(form_of(getattr(job.h, name)) for name in printed.options)


def numbers(h: Any, now: Now) -> tuple[float, ...] | None:
    """Return the numbers of a step: of the gradient, then the rule's. None if `now` is not all numbers yet."""
    if not {*map(type, now)} <= PLAIN:
        known = [x if x is None else _known(x) for x in now]
        if known.count(None) > sum(x is None for x in now):
            return None
        now = Now(*known)
    return values(np, h, now)


def values(xp: Any, h: Any, now: Now) -> tuple[Any, ...] | None:
    """Return the same for a `now` that may have arrays, and then arrays of the namespace; None without kernels."""
    found = printed_for(type(h))
    if found is None:
        return None
    rule, printed = found
    coefficients = _flat(rule.coefficients(xp, h, now)) if hasattr(rule, "coefficients") else ()
    return (*of_gradient(h, now), *coefficients, *(_number(name, h, now) for name in printed.numbers))


def numbers_by_rates(h: Any, nows: Sequence[Now]) -> list[tuple[float, ...]] | None:
    """Return the numbers of steps that differ in rates alone, computed as arrays; None if rates are not plain floats.

    A rate of 0 is off, so either all have it or none.
    """
    first = nows[0]
    rates = {
        name: np.array(each) if each[0] else each[0]
        for name in RATES
        for each in [[getattr(now, name) for now in nows]]
        if set(map(type, each)) == {float}
    }
    if len(rates) < len(RATES) or (found := values(np, h, first._replace(**rates))) is None:
        return None
    columns = [x.tolist() if isinstance(x, np.ndarray) else [x] * len(nows) for x in found]
    return list(zip(*columns, strict=True))


def of_gradient(h: Any, now: Now) -> tuple[float, ...]:
    """Return scale, sign, low and high of the gradient's elements, and the bounds of its own norm and that of all."""
    own, model = _bounds_of_norms(h)
    return now.g_scale, -1.0 if h.maximize else 1.0, *bounds_of(h.value_bounds), own or UNBOUNDED, model or UNBOUNDED


def clips(h: Any) -> tuple[bool, bool]:
    """Return True for the gradient's own norm, and for that of all, if the step needs it; unclipped gradients may
    count.
    """
    own, model = _bounds_of_norms(h)
    return is_on(own), is_on(model)


def _bounds_of_norms(h: Any) -> tuple[float | None, float | None]:
    return getattr(h, "max_grad_norm_per_tensor", None), h.model_bound


def _flat(k: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return coefficients without groups, of which there is at most one, at the end."""
    *own, last = k
    return (*own, *last) if isinstance(last, tuple) else k


def _known(x: Any) -> float | None:
    """Return the number of an array in this machine's memory; None if autograd may need its derivative."""
    if is_number(x):
        return float(x)
    if getattr(x, "requires_grad", False) or getattr(getattr(x, "device", None), "type", "cpu") != "cpu":
        return None
    try:
        return float(x)
    except (TypeError, ValueError, RuntimeError):
        return None


def _number(path: str, h: Any, now: Now) -> Any:
    """Return a number by its path, such as `h.betas.0`."""
    source, name, *place = path.split(".")
    value = getattr(h if source == "h" else now, name)
    value = value[int(place[0])] if place else value
    return float(value) if is_number(value) else value
