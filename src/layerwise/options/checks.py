"""Checks that hyperparameters declare: each names its range and converts a value to one form."""

from __future__ import annotations

import inspect
import math
import numbers
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options.arguments import MEANS

Convert = Callable[[object], Any]
Contradiction = tuple[object, str, str, str]  # whether it is one; the option, what is allowed, and the way out


class RefusedValue(Exception):
    """Raised by a conversion for a value that it cannot take; the option turns it into a message.

    Its argument, if there is one, is what to say instead, with the option's name in place of {}.
    """


@dataclass(frozen=True)
class Check:
    """The values that an option allows, in words, and the function that checks and converts one."""

    allowed: str
    convert: Convert
    members: tuple[Check, ...] = ()  # of the two entries, if this is a pair
    choices: tuple[object, ...] = ()  # the allowed values that are not numbers

    def __call__(self, argument: str, value: object, way_out: str) -> Any:
        try:
            return self.convert(value)
        except RefusedValue as why:
            if why.args:
                raise HyperparameterError(why.args[0].format(argument)) from None
            if way_out.startswith("Pass") and self._takes_as_number(value):
                way_out = f"Pass float({value!r})."
            raise HyperparameterError(sentence(argument, self.allowed, value, way_out)) from None

    def takes(self, value: object) -> bool:
        """Return True for an allowed value."""
        try:
            self.convert(value)
        except RefusedValue:
            return False
        return True

    def _takes_as_number(self, text: object) -> bool:
        """Return True for the text of an allowed number."""
        try:
            return isinstance(text, str) and self.takes(float(text))
        except ValueError:
            return False

    def __or__(self, other: Check) -> Check:
        def either(value: object) -> Any:
            try:
                return self.convert(value)
            except RefusedValue as first:
                try:
                    return other.convert(value)
                except RefusedValue as second:
                    raise RefusedValue(*(first.args or second.args)) from None

        return Check(f"{self.allowed} or {other.allowed}", either, choices=self.choices + other.choices)


def option(default: object, check: Check, way_out: str, shown: bool = True, **known: object) -> Any:
    """Return a dataclass field with its check, the way out of an error, and other metadata."""
    return field(default=default, repr=shown, metadata={"check": check, "way_out": way_out, **known})


class Checked:
    """The base of frozen dataclasses whose options are checked one by one, and then together."""

    def __post_init__(self) -> None:
        own: Any = self
        for spec in fields(own):
            check, way_out, value = spec.metadata["check"], spec.metadata["way_out"], getattr(self, spec.name)
            if value is spec.default is None and not check.takes(None):
                raise HyperparameterError(f"{type(self).__name__} is missing `{spec.name}`. {way_out}")
            object.__setattr__(self, spec.name, check(spec.name, value, way_out))
        for wrong, name, allowed, way_out in self.contradictions():
            if wrong:
                raise ContradictionError(sentence(name, allowed, getattr(self, name), way_out))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the combinations of options that contradict each other."""
        yield from ()


def to_python(value: Any, of_one: bool = False) -> Any:
    """Return a scalar or zero-dimensional array of any array library as a Python object.

    With `of_one`, also convert an array of one element with any number of dimensions.
    """
    dims = getattr(value, "ndim", None)
    if not isinstance(dims, int) or not hasattr(value, "item"):
        return value
    if dims and not (of_one and math.prod(value.shape) == 1):
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        raise RefusedValue  # a date or duration is not a number, although item() would return one
    try:
        return value.item()
    except Exception:  # an array without a value: traced, or without data
        raise RefusedValue from None


def numpy_to_python(value: object) -> Any:
    """Return a NumPy number or text as the Python object, which every file and process can hold."""
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and not value.ndim else value


def members_of_sequence(value: object) -> tuple[Any, ...]:
    """Return the members of a sequence or of a one-dimensional array, but not of text."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        try:
            return tuple(value.tolist())
        except Exception:  # an array without values, or one whose numbers cannot be taken out
            raise RefusedValue from None
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Sequence):
        raise RefusedValue
    return tuple(value)


def _patterns(value: object) -> tuple[str, ...]:
    found = members_of_sequence(value)
    try:
        for pattern in found:
            re.compile(pattern)
    except (re.error, TypeError):
        raise RefusedValue from None
    return found


PATTERNS = Check("a list of regular expressions", _patterns)


def all_matched(argument: str, patterns: Sequence[str], paths: Sequence[str]) -> None:
    """Raise if one of these regular expressions is found in none of the paths."""
    for pattern in patterns:
        if not any(re.search(pattern, path) for path in paths):
            first = ", ".join([*paths[:5], *["…"] * (len(paths) > 5)])
            way_out = f"The paths are {first}. Remove the pattern."
            raise HyperparameterError(sentence(argument, "patterns that each match a path", pattern, way_out))


def is_exhausted(value: object) -> bool:
    return inspect.isgenerator(value) and inspect.getgeneratorstate(value) == inspect.GEN_CLOSED


def as_float(value: object) -> float:
    """Return a finite number as a float: a Python number or an array of one element, but not a bool or text."""
    value = to_python(value, of_one=True)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise RefusedValue
    try:
        x = float(value)
    except OverflowError:
        raise RefusedValue from None
    if not math.isfinite(x):
        raise RefusedValue
    return x + 0.0  # -0.0 is 0


def as_int(value: object) -> int:
    value = to_python(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise RefusedValue
    return int(value)


def number(low: float, high: float = math.inf, *, above: bool = False, to: bool = False) -> Check:
    """Return a check for a finite number from `low` (excluded if `above`) to `high` (included if `to`)."""

    def convert(value: object) -> float:
        x = as_float(value)
        if (x <= low if above else x < low) or (x > high if to else x >= high):
            raise RefusedValue
        return x

    if low == -math.inf and high == math.inf:
        return Check("a finite number", convert)
    if low == -math.inf:
        return Check(f"a finite number ≤ {high:g}", convert)
    if high == math.inf:
        return Check(f"a finite number {'>' if above else '≥'} {low:g}", convert)
    return Check(f"a number in {'(' if above else '['}{low:g}, {high:g}{']' if to else ')'}", convert)


def integer(low: int, bits: int | None = None) -> Check:
    """Return a check for an integer ≥ `low`, which fits into `bits` bits if given."""

    def convert(value: object) -> int:
        n = as_int(value)
        if n < low or (bits is not None and n >> bits):
            raise RefusedValue
        return n

    return Check(f"an integer ≥ {low}" + ("" if bits is None else f" and < 2^{bits}"), convert)


def alternatives(words: Sequence[str], last: str = "or") -> str:
    """Return words joined by commas and a final "or"."""
    *most, end = words
    return f"{', '.join(most)}{',' * (len(most) > 1)} {last} {end}" if most else end


def one_of(*choices: object) -> Check:
    """Return a check for one of the given values. True does not equal 1."""

    def convert(value: object) -> Any:
        value = to_python(value)
        kind = str if isinstance(value, str) else type(value)
        for choice in choices:
            if kind is type(choice) and value == choice:
                return choice
        raise RefusedValue

    return Check(alternatives([*map(repr, choices)]), convert, choices=choices)


def pair(first: Check, second: Check, ordered: bool = False) -> Check:
    """Return a check for two values. If `ordered`, the first is at most the second, and None is no bound."""

    def convert(value: object) -> tuple[object, object]:
        values = members_of_sequence(value)
        if len(values) != 2:
            raise RefusedValue
        low, high = first.convert(values[0]), second.convert(values[1])
        if ordered and None not in (low, high) and low > high:
            raise RefusedValue
        return low, high

    words = f"a pair ({first.allowed}, {second.allowed})" + " with the first ≤ the second" * ordered
    if first.allowed == second.allowed:
        words = f"{'a pair (low, high) with low ≤ high' if ordered else 'two values'}, each {first.allowed}"
    return Check(words, convert, (first, second))


def schedule() -> Check:
    def convert(value: object) -> Any:
        if not callable(value) or isinstance(value, type):
            raise RefusedValue
        if not is_called_with(value, 0):
            raise RefusedValue(
                "`{0}` is called with the step, which this function does not take: {0}=lambda step: 0.1 does."
            )
        return value

    return Check("a function of the step", convert)


def is_called_with(function: object, *args: object) -> bool:
    """Return True for a function, no class, that can be called with these, as far as its signature shows."""
    if not callable(function) or isinstance(function, type):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have no signature
        return True
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def _dtype_name(value: Any) -> Any:
    if isinstance(value, (str, int, float, type(None))):
        return value
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    try:
        return np.dtype(value).name
    except Exception:  # an object may raise anything when it is asked for its dtype
        raise RefusedValue from None


def dtype(*names: str) -> Check:
    """Return the name of one of these dtypes, given by name or as a dtype of an array library."""
    named = one_of(*names)
    return Check(f"{named.allowed} (or such a dtype)", lambda value: named.convert(_dtype_name(value)))


NONE = one_of(None)
FLAG = one_of(True, False)


def true_means(means: str) -> str:
    """Return the way out of a switch from its meaning."""
    return f"True means: {means[0].lower()}{means[1:]}"


def flag(name: str, value: object) -> bool:
    """Return the checked value of a switch that is no option of a formula."""
    return bool(FLAG(name, value, true_means(MEANS[name])))
