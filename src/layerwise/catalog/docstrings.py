"""Docstrings of the optimizers of all APIs, made from the rules: formula, options and their meanings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from inspect import cleandoc, signature
from typing import Any, TypeVar

from layerwise.catalog.registry import BY_LOWER, ENTRIES
from layerwise.options.misspellings import explained

M = TypeVar("M", bound=Callable[..., Any])

WIDTH = 116
ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
STATE = {  # fields that every state in the JAX API has besides its trees
    "count": "The number of steps taken, an int32 that stays at its largest value.",
    "stats": "The measurements of the last step, a tree of dicts; None unless stats=True.",
}


def of_rule(module: str | None) -> Callable[[M], M]:
    """Return a decorator for an optimizer: it attaches the rule's name and options, and to a class also its rule.

    It also explains unknown keywords and completes the docstring. For a state of the JAX API it only does the latter.

    Args:
        module: The docstring of its module, with arguments of its classes or functions.
    """

    def done(made: Any) -> Any:
        names: Iterable[str]
        if made.__name__.endswith("State"):
            names = made._fields
        elif isinstance(made, type):
            cls: Any = made
            _, cls._rule, cls._hyper = ENTRIES[made.__name__]
            cls.__init__ = explained(cls.__init__)
            _, *names = signature(cls.__init__).parameters
        else:
            made = explained(made)
            names = signature(made).parameters
        if made.__doc__ and module:  # Python -OO has neither
            made.__doc__ = completed(made.__name__, made.__doc__, meanings(made.__name__, module), names)
        return made

    return done


def meanings(name: str, module: str) -> dict[str, str]:
    """Return what the arguments of an optimizer mean, or the parts of a state in the JAX API.

    The module's docstring takes precedence over the options' declarations.
    """
    _, rule, h = ENTRIES[BY_LOWER[name.removesuffix("State").lower()]]
    if name.endswith("State"):
        parts = {h.optax_state.get(part, part): part for part in rule.State._fields}
        return {**STATE, **{here: f"A tree, called `{part}` in the other APIs." for here, part in parts.items()}}
    return {**{spec.name: spec.metadata["means"] for spec in fields(h)}, **dict(ENTRY.findall(module))}


def completed(name: str, written: str, means: Mapping[str, str], names: Iterable[str]) -> str:
    """Return a docstring with each argument, in order. Its own text precedes the given meanings."""
    heading = "Attributes" if name.endswith("State") else "Args"
    text, _, listed = cleandoc(written).partition("\n\nArgs:\n")
    found = {**means, **dict(ENTRY.findall(listed))}
    rows = (entry(name, " ".join(found[name].split())) for name in names)
    return "\n".join([f"{text}\n\n{heading}:", *rows, ""])


@cache  # most are identical in many optimizers
def entry(name: str, means: str) -> str:
    """Return the lines of a docstring that describe an argument."""
    first, rest = " " * 4, " " * 8
    text = f"{name}: {means}"
    return textwrap.fill(text, WIDTH - 4, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
