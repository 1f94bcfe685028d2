"""What the optimizers' classes of all APIs take from their rules: formula, options, and the meanings of these."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields
from inspect import cleandoc, signature
from typing import Any, TypeVar

from layerwise.hyper import Hyper
from layerwise.keywords import explained
from layerwise.registry import ENTRIES

C = TypeVar("C", bound=type[Any])

WIDTH = 116
ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def of_rule(module: str | None) -> Callable[[C], C]:
    """Return a decorator of an optimizer's class, which has its rule's name, and so its rule and its options.

    It also explains unknown keywords, and completes the docstring.

    Args:
        module: The docstring of its module, with arguments of its classes.
    """

    def done(cls: C) -> C:
        _, cls._rule, cls._hyper = ENTRIES[cls.__name__]
        cls.__init__ = explained(cls.__init__)
        if cls.__doc__ and module:  # Python -OO has neither
            cls.__doc__ = _Described(cls.__doc__, module)  # type: ignore[assignment]  # which a descriptor may give
        return cls

    return done


class _Described:
    """A docstring that is completed when somebody reads it: importing a package takes no time for it."""

    def __init__(self, written: str, module: str) -> None:
        self._written, self._module = written, module

    def __get__(self, _: object, of: Any) -> str:
        return completed(self._written, self._module, of._hyper, list(signature(of.__init__).parameters)[1:])


def completed(written: str, module: str, h: type[Hyper], names: Iterable[str]) -> str:
    """Return the docstring of an optimizer's class with each argument, in their order.

    What it says itself counts, then what the module's docstring says of its classes, then the options' declarations.
    """
    text, _, listed = cleandoc(written).partition("\n\nArgs:\n")
    options = {spec.name: spec.metadata["means"] for spec in fields(h)}
    means = {**options, **dict(ENTRY.findall(module)), **dict(ENTRY.findall(listed))}
    rows = (entry(name, " ".join(means[name].split())) for name in names)
    return "\n".join([f"{text}\n\nArgs:", *rows, ""])


def entry(name: str, means: str) -> str:
    """Return the lines of a docstring that describe an argument."""
    first, rest = " " * 4, " " * 8
    text = f"{name}: {means}"
    return textwrap.fill(text, WIDTH - 4, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
