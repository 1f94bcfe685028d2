"""Settings by name: one value for all, a mapping from names or patterns, or a callable of the name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from layerwise.errors import HyperparameterError, sentence


def is_by_name(given: object) -> bool:
    return isinstance(given, Mapping) or callable(given)


@dataclass(frozen=True)
class ByName:
    """The value of an option for a name. Where nothing is said of a name, or None, it has the default.

    In a mapping a name itself goes before patterns such as "*.bias", and these in their order.
    """

    argument: str
    given: Any
    default: Any
    check: Callable[[str, Any], Any]

    def __post_init__(self) -> None:
        if isinstance(self.given, Mapping):
            object.__setattr__(self, "given", dict(self.given))  # what the caller does to theirs is not meant for us
            for name, value in self.given.items():
                if not isinstance(name, str):
                    raise HyperparameterError(
                        sentence(self.argument, "a mapping from names or patterns", name, "Names are strings.")
                    )
                self._checked(name, value)
        elif not callable(self.given) and self.given is not None:
            self.check(self.argument, self.given)

    def __call__(self, name: str) -> Any:
        return self._checked(name, self._look_up(name))

    def _checked(self, name: str, value: Any) -> Any:
        return self.default if value is None else self.check(f"{self.argument}[{name!r}]", value)

    def _look_up(self, name: str) -> Any:
        if not isinstance(self.given, Mapping):
            return self.given(name) if callable(self.given) else self.given
        if name in self.given:
            return self.given[name]
        return next((value for pattern, value in self.given.items() if fnmatchcase(name, pattern)), None)
