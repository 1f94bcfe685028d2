"""The program of a job, the engines' requests for it, the numbers that its kernels take, and their measurements.

`engines/printed_programs.py` lists all programs; `make generate` writes it beside the kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from functools import cache
from itertools import repeat
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from layerwise.drivers import SharedRequest, counted_once_dims, request_dims
from layerwise.drivers.partial_sums import Dims
from layerwise.engines import Job
from layerwise.engines.printed_programs import RULES
from layerwise.engines.program_types import PrintedRule, Program, option_forms, present_state
from layerwise.options.settings import Hyper
from layerwise.options.values import Scalar, is_number, is_on
from layerwise.rules.requests import (
    Array,
    Coefficients,
    Functions,
    Mean,
    MeanSquare,
    ModelSquares,
    Now,
    Request,
    Squares,
    Sum,
    T,
)
from layerwise.rules.scalars import bounds_of

UNBOUNDED = float("inf")
PLAIN = {int, float, type(None)}
RATES = ("lr", "weight_decay")
REQUESTS: dict[str, Callable[..., Request]] = {
    **{one.__name__: lambda rows, cols, one=one: one(None) for one in (Sum, Mean, MeanSquare, Squares)},
    "RowMean": lambda rows, cols: Mean(None, cols),
    "ColumnMean": lambda rows, cols: Mean(None, rows),
    "MatrixMean": lambda rows, cols: Mean(None, rows + cols),
    "MeanOfRows": lambda rows, cols: Mean(None, rows, once=cols),  # of the state by rows
}
MEASURED = 2  # the stage of the first round: the norms that bound gradients come before it
MANY = 4  # the number of rates from which coefficients are computed as arrays
OfStep = Now | tuple[float, ...]  # what a job's step is given: what changes, or the numbers that kernels take


def coefficient_names(k: Coefficients) -> list[str]:
    """Return the names of a rule's coefficients; those of a group follow the group's name."""
    *own, last = k._fields
    group = getattr(k[-1], "_fields", None)
    return [*own, last] if group is None else [*own, *(f"{last}_{name}" for name in group)]


def printed_for(h: type[Hyper]) -> tuple[ModuleType, PrintedRule] | None:
    """Return the rule of these options, or of their base class, and its printed programs."""
    if h not in _found:
        rules = (cls.__module__ for cls in h.__mro__ if cls.__module__ in RULES)
        module = next(rules, None)
        _found[h] = None if module is None else (sys.modules[module], RULES[module])
    return _found[h]


_found: dict[type[Hyper], tuple[ModuleType, PrintedRule] | None] = {}


def why_not_printed(job: Job) -> str:
    """Return the reason why a job has no printed kernels, or an empty string."""
    found = printed_for(type(job.h))
    if found is None:
        return f"there are no kernels for {type(job.h).__name__}"
    rule, printed = found
    if job.rule is not rule:  # another formula with the same options
        return f"there are no kernels for {job.rule.__name__}"
    kind: Any = type(job.h)
    for spec in _added(kind, rule.__name__):
        if (value := getattr(job.h, spec.name)) != spec.default:
            return f"its kernels do not support the option `{spec.name}` of {type(job.h).__name__}, which is {value!r}"
    if _key(job, printed) not in printed.programs:
        settings = ", ".join(f"{name}={getattr(job.h, name)!r}" for name in printed.options)
        return f"there are no kernels for {type(job.h).__name__} with {settings} and such state"
    return ""


@cache
def _added(h: type[Hyper], rule: str) -> list[Field[object]]:
    """Return the options of a class that are not options of the class in the rule's own module."""
    own = next(cls for cls in h.__mro__ if cls.__module__ == rule)
    known = {spec.name for spec in fields(own)}
    return [spec for spec in fields(h) if spec.name not in known]


def rows_and_columns(job: Job) -> tuple[Dims, Dims]:
    """Return the dimensions that a factored tensor has as rows and as columns, or none."""
    return getattr(job.h, "factored", None) or ((), ())


def program_for(job: Job) -> Program:
    found = printed_for(type(job.h))
    if found is None:
        raise LookupError(why_not_printed(job))
    return found[1].programs[_key(job, found[1])]


def requests_of(job: Job) -> list[tuple[Request, ...]]:
    """Return the engines' requests for a job in each stage, in the order of their sums.

    First come the norm of its gradient and the global norm, if they are bounded, and then the rounds of its program.
    """
    own, model = norms_needed(job.h)
    rounds = [tuple(REQUESTS[name](*rows_and_columns(job)) for name in one) for one in program_for(job).rounds]
    return [(Squares(None),) * own, (ModelSquares(None),) * model, *rounds]


class IndexedRequest(NamedTuple):
    """A request of a job by its index, and in the form that other ranks get."""

    stage: int
    which: int  # within the stage
    request: SharedRequest


def requests_by_stage(jobs: Sequence[Job]) -> list[list[IndexedRequest]]:
    """Return the engines' requests for jobs in each stage, in the order of their sums."""
    stages: list[list[IndexedRequest]] = []
    for i, job in enumerate(jobs):
        for stage, requests in enumerate(requests_of(job)):
            if stage == len(stages):
                stages.append([])
            stages[stage] += (
                IndexedRequest(stage, which, _as_others_get(i, job, one)) for which, one in enumerate(requests)
            )
    return stages


def _as_others_get(i: int, job: Job, request: Request) -> SharedRequest:
    dims, once = request_dims(request, len(job.p.shape), job.block_dims), counted_once_dims(request)
    length = prod(n for d, n in enumerate(job.p.shape) if d not in (*dims, *once))
    return SharedRequest(i, type(request), dims, length, once)


def once_per_kind(make: Callable[[Job], T], jobs: Sequence[Job]) -> list[T]:
    """Return a value made from each job's settings, storage and existing parts of the state.

    It is computed once for all jobs that share these.
    """
    known, found = dict[tuple[object, ...], T](), []
    for job in jobs:
        key = id(job.rule), id(job.h), id(job.storage), *map(type, job.state)
        if key not in known:
            known[key] = make(job)
        found.append(known[key])
    return found


def _key(job: Job, printed: PrintedRule) -> tuple[object, ...]:
    return present_state(job.state), *option_forms([getattr(job.h, name) for name in printed.options])


def kernel_numbers(h: Hyper, now: Now) -> tuple[float, ...] | None:
    """Return the numbers of a step: of the gradient, then the rule's. None if `now` is not all numbers yet."""
    return None if (found := settings_numbers(h)) is None else found.at_known(now)


def kernel_numbers_in(xp: Any, h: Hyper, now: Now) -> tuple[Scalar, ...] | None:
    """Return the same for a `now` that may have arrays: then arrays of the namespace; None without kernels."""
    return None if (found := settings_numbers(h)) is None else found.in_namespace(xp, now)


def settings_numbers(h: Hyper) -> SettingsNumbers | None:
    """Return the object that computes the numbers of steps with these settings; None without kernels."""
    found = printed_for(type(h))
    return None if found is None else SettingsNumbers(h, *found)


class SettingsNumbers:
    """The numbers that kernels take from settings, step by step; those that no step changes are computed once."""

    def __init__(self, h: Hyper, rule: ModuleType, printed: PrintedRule) -> None:
        self._h, self._coefficients, self._paths = h, getattr(rule, "coefficients", None), printed.numbers
        self._of_gradient = gradient_numbers(h)

    def at_known(self, now: Now) -> tuple[float, ...] | None:
        """Return the numbers of a step; None if `now` is not all numbers yet."""
        if not {*map(type, now)} <= PLAIN:
            known = [x if x is None else _known(x) for x in now]
            if known.count(None) > sum(x is None for x in now):
                return None
            now = Now(*known)
        return self.in_namespace(np, now)

    def in_namespace(self, xp: Functions, now: Now) -> tuple[Scalar, ...]:
        k = () if self._coefficients is None else self._coefficients(xp, self._h, now)
        if k and isinstance(k[-1], tuple):  # a group, of which there is at most one
            k = (*k[:-1], *k[-1])
        others = [_number(path, self._h, now) for path in self._paths] if self._paths else ()
        return (now.g_scale, *self._of_gradient, *k, *others)

    def columns_by_rates(self, now: Now, lr: Sequence[float], weight_decay: Sequence[float]) -> list[list[float]]:
        """Return the columns of numbers of steps that differ from this one only in rates, computed as arrays.

        A rate of 0 is off, so either all have it or none.
        """
        rates = {name: np.array(each) if each[0] else 0.0 for name, each in zip(RATES, (lr, weight_decay), strict=True)}
        found = self.in_namespace(np, now._replace(**rates))
        return [x.tolist() if isinstance(x, np.ndarray) else [x] * len(lr) for x in found]


class NowsByRates(Sequence[Now]):
    """The numbers of tensors whose steps differ only in rates: columns of rates, and a `Now` for each if asked."""

    def __init__(self, first: Now, lr: Sequence[float], weight_decay: Sequence[float]) -> None:
        self.first, self.lr, self.weight_decay = first, lr, weight_decay
        self._each: list[Now] = []

    def __len__(self) -> int:
        return len(self.lr)

    def __getitem__(self, i: Any) -> Any:
        if not self._each:  # once: engines recognize known steps by these objects
            t, _, _, *rest = self.first
            self._each = [Now(t, lr, lam, *rest) for lr, lam in zip(self.lr, self.weight_decay, strict=True)]
        return self._each[i]


class KernelNumbers:
    """The numbers of a step, computed once for all jobs with the same settings and `now`."""

    def __init__(self, hs: Sequence[Hyper] = ()) -> None:
        self.fit(hs)

    def fit(self, hs: Sequence[Hyper]) -> None:
        """Compute those of jobs with these settings from now on."""
        self._hs, self._ids = hs, list(map(id, hs))
        self._of = {id(h): settings_numbers(h) for h in {id(h): h for h in hs}.values()}
        self._found: dict[tuple[int, int], tuple[float, ...] | None] = {}  # by their ids, while a step keeps them alive

    def __call__(self, h: Hyper, now: Any) -> tuple[float, ...] | None:
        """Return the step's own number, and the numbers of its settings that kernels take."""
        if type(now) is tuple:  # they themselves
            return now
        key = id(h), id(now)
        if key not in self._found:
            of = self._of[id(h)]
            found = None if of is None else of.at_known(now)
            self._found[key] = None if found is None else (now.t, *found)
        return self._found[key]

    def begin(self, nows: Sequence[Now]) -> list[OfStep]:
        """Begin a step. Return for each job its `now`, or its numbers, which are computed as arrays if rates differ."""
        self._found.clear()
        return self._by_rates(nows) if isinstance(nows, NowsByRates) else list(nows)

    def _by_rates(self, nows: NowsByRates) -> list[OfStep]:
        keys = list(zip(self._ids, map(bool, nows.lr), map(bool, nows.weight_decay), strict=True))
        if keys.count(keys[0]) == len(keys) >= MANY and (of := self._of[keys[0][0]]) is not None:
            return list(
                zip(repeat(nows.first.t), *of.columns_by_rates(nows.first, nows.lr, nows.weight_decay), strict=False)
            )
        alike: dict[Hashable, list[int]] = {}
        for i, key in enumerate(keys):
            alike.setdefault(key, []).append(i)
        found: list[Any] = [None] * len(keys)
        for places in alike.values():
            made: Iterable[Any] = map(nows.__getitem__, places)
            if len(places) >= MANY and (of := self._of[self._ids[places[0]]]) is not None:
                lr, lam = ([column[i] for i in places] for column in (nows.lr, nows.weight_decay))
                made = zip(repeat(nows.first.t), *of.columns_by_rates(nows.first, lr, lam), strict=False)
            for i, one in zip(places, made, strict=False):
                found[i] = one
        return found


def gradient_numbers(h: Hyper) -> tuple[float, ...]:
    """Return sign, low and high of the gradient's elements, and the bounds of its own norm and of the global norm."""
    own, model = _bounds_of_norms(h)
    return -1.0 if h.maximize else 1.0, *bounds_of(h.value_bounds), own or UNBOUNDED, model or UNBOUNDED


def norms_needed(h: Hyper) -> tuple[bool, bool]:
    """Return True for the gradient's own norm, and for the global norm, if the step needs it; unclipped gradients may
    count.
    """
    own, model = _bounds_of_norms(h)
    return is_on(own), is_on(model)


def _bounds_of_norms(h: Hyper) -> tuple[float | None, float | None]:
    return getattr(h, "max_grad_norm_per_tensor", None), h.model_bound


def _known(x: Scalar) -> float | None:
    """Return the number in an array in CPU memory; None if autograd may need its derivative."""
    if is_number(x):
        return float(x)
    if getattr(x, "requires_grad", False) or getattr(getattr(x, "device", None), "type", "cpu") != "cpu":
        return None
    try:
        return float(x)
    except (TypeError, ValueError, RuntimeError):
        return None


def _number(path: str, h: Hyper, now: Now) -> Scalar:
    """Return a number by its path, such as `h.betas.0`."""
    source, name, *place = path.split(".")
    value = getattr(h if source == "h" else now, name)
    value = value[int(place[0])] if place else value
    return float(value) if is_number(value) else value


class JobMeasurements(Mapping[str, Array]):
    """The measurements of one job in the last step; each is read on access, by its index."""

    __slots__ = ("_places", "_read")

    def __init__(self, read: Callable[[int], list[float]], names: tuple[str, ...]) -> None:
        self._read, self._places = read, _places(names)

    def __getitem__(self, name: str) -> Array:
        return np.array(self._read(self._places[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)  # a copy has the numbers


@cache
def _places(names: tuple[str, ...]) -> dict[str, int]:
    return {name: i for i, name in enumerate(names)}
