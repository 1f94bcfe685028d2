"""What the optimizers' classes and functions of all APIs take from their rules: formula, options, their meanings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from inspect import cleandoc, signature
from typing import Any, TypeVar

from layerwise.hyper import Hyper
from layerwise.keywords import explained
from layerwise.registry import BY_LOWER, ENTRIES

M = TypeVar("M", bound=Callable[..., Any])

WIDTH = 116
ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def of_rule(module: str | None) -> Callable[[M], M]:
    """Return a decorator of an optimizer, which has its rule's name, and so its options; a class also gets its rule.

    It also explains unknown keywords, and completes the docstring.

    Args:
        module: The docstring of its module, with arguments of its classes or functions.
    """

    def done(made: Any) -> Any:
        _, rule, h = ENTRIES[BY_LOWER[made.__name__.lower()]]
        if isinstance(made, type):
            cls: Any = made
            cls._rule, cls._hyper, cls.__init__ = rule, h, explained(cls.__init__)
            _, *names = signature(cls.__init__).parameters
        else:
            made = explained(made)
            names = [*signature(made).parameters]
        if made.__doc__ and module:  # Python -OO has neither
            made.__doc__ = completed(made.__doc__, module, h, names)
        return made

    return done


def completed(written: str, module: str, h: type[Hyper], names: Iterable[str]) -> str:
    """Return the docstring of an optimizer's class or function with each argument, in their order.

    What it says itself counts, then what the module's docstring says of them all, then the options' declarations.
    """
    text, _, listed = cleandoc(written).partition("\n\nArgs:\n")
    options = {spec.name: spec.metadata["means"] for spec in fields(h)}
    means = {**options, **dict(ENTRY.findall(module)), **dict(ENTRY.findall(listed))}
    rows = (entry(name, " ".join(means[name].split())) for name in names)
    return "\n".join([f"{text}\n\nArgs:", *rows, ""])


@cache  # most are the same in many optimizers
def entry(name: str, means: str) -> str:
    """Return the lines of a docstring that describe an argument."""
    first, rest = " " * 4, " " * 8
    text = f"{name}: {means}"
    return textwrap.fill(text, WIDTH - 4, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
