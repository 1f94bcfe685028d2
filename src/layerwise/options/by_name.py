"""Settings by name: one value for all, a mapping from names or patterns, or a callable of the name."""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from layerwise.errors import HyperparameterError, ParameterError, sentence
from layerwise.options.checks import numpy_to_python
from layerwise.options.misspellings import nearest


class optional(str):  # noqa: N801  # used as a function, as in [optional("*.bias")]
    """A name or pattern that is allowed to match nothing: `blocks={optional("*.qkv.weight"): 3}`."""

    __slots__ = ()


Name = str | int
"""The name of a parameter: a string, or an integer such as `id(array)`."""
INSTEAD = ("adapt", "decay", "l2")  # options that the NumPy API may take by name instead


def as_name(name: Any) -> Name:
    """Return the name of a parameter in its canonical form: a string, or a Python integer."""
    if isinstance(name, str) and name and "\0" not in name:
        return name
    if _is_id(name):
        return int(name)
    raise ParameterError(
        f"a parameter's name must be a non-empty string without NUL, or an integer, but is {name!r}. "
        "Pass str(...) of it."
    )


def _is_id(name: object) -> bool:
    return not isinstance(name, bool) and isinstance(name, numbers.Integral)


def check_twin(name: Name, *names: Container[object]) -> None:
    """Raise if another name differs from this one only in being an integer or a string."""
    twin: Name = str(name) if isinstance(name, int) else int(name) if re.fullmatch("0|-?[1-9][0-9]*", name) else name
    if twin != name and any(twin in some for some in names):
        raise ParameterError(
            f"both {name!r} and {twin!r} are names of parameters, but patterns and files cannot tell them apart. Use "
            "one of them."
        )


def matches(name: Name, pattern: Name) -> bool:
    """Return True if a name equals the pattern or matches it; an integer is matched by its digits."""
    return name == pattern or (isinstance(pattern, str) and fnmatchcase(str(name), pattern))


def check_matched(argument: str, patterns: Iterable[Any], names: Collection[Name], exact: bool = False) -> None:
    """Raise if a pattern, or an `exact` name, matches none of these and is not `optional`."""
    for pattern in patterns:
        found = pattern in names if exact else any(matches(name, pattern) for name in names)
        if isinstance(pattern, optional) or found:
            continue
        close = nearest(pattern, map(str, names), cutoff=0.5) or list(names)[:3]
        raise HyperparameterError(
            f"pattern {pattern!r} in `{argument}` matches no parameter. The nearest names are "
            f"{', '.join(map(repr, close)) or 'none'}. Pass layerwise.optional({str(pattern)!r}) if it need not "
            "match."
        )


def first_few(names: Iterable[object]) -> str:
    first = [repr(name) for name, _ in zip(names, range(6), strict=False)]
    return ", ".join([*first[:5], "…"] if len(first) > 5 else first) or "none"


def lacks_and_has(one: str, lacking: Collection[str], besides: Collection[str], other: str) -> str:
    """Return which names only one of two has, in words."""
    rows = ((lacking, "lacks", "has"), (besides, "has", "lacks"))
    return f"{one} " + ", and ".join(
        f"{here} {first_few(sorted(names))}, which {other} {there}" for names, here, there in rows if names
    )


def is_by_name(given: object) -> bool:
    return isinstance(given, Mapping) or callable(given)


@dataclass(frozen=True)
class ByName:
    """The values of an option by name. A name without a value, or with None, has the default.

    In a mapping an exact name takes precedence over patterns such as "*.bias"; patterns apply in their order.
    """

    argument: str
    given: Any
    default: object
    check: Callable[[str, Any], object]

    def __post_init__(self) -> None:
        if isinstance(self.given, Mapping):
            # Copy: later changes to the caller's dict must not affect us.
            object.__setattr__(self, "given", {name: numpy_to_python(x) for name, x in self.given.items()})
            for name, value in self.given.items():
                if not (isinstance(name, str) or _is_id(name)):
                    allowed, way_out = "a mapping from names or patterns", "Names are strings or integers."
                    raise HyperparameterError(sentence(self.argument, allowed, name, way_out))
                self._checked(name, value)
        elif not callable(self.given) and self.given is not None:
            self.check(self.argument, self.given)

    @property
    def is_given(self) -> bool:
        """True if the option was given, for all names or some."""
        return self.given is not None or self.default is not None

    @property
    def patterns(self) -> tuple[Name, ...]:
        """The names and patterns that have a value."""
        given = self.given.items() if isinstance(self.given, Mapping) else ()
        return tuple(pattern for pattern, value in given if value is not None)

    def __call__(self, name: Name) -> Any:
        return self.default if self.given is None else self._checked(name, self._look_up(name))

    def _checked(self, name: Name, value: object) -> object:
        return self.default if value is None else self.check(f"{self.argument}[{name!r}]", value)

    def _look_up(self, name: Name) -> object:
        if not isinstance(self.given, Mapping):
            return self.given(name) if callable(self.given) else self.given
        if name in self.given:
            return self.given[name]
        return next((value for pattern, value in self.given.items() if matches(name, pattern)), None)
