"""The docstrings of the optimizers' classes and functions in all APIs, made of what their rules declare."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from functools import cache

from layerwise.catalog.registry import Entry
from layerwise.options.arguments import OPTAX_ORDER, Argument

WIDTH = 112
MIXED = """\
One optimizer for parameter groups with different rules. Each group names its rule and has that rule's options.

Options that a group leaves out have the defaults of its rule. The arguments here mean the same in every rule,
and hold for the groups that do not set them. Examples are on the page "PyTorch API"."""
STATE = {  # fields that every state in the JAX API has besides its trees
    "count": "The number of steps taken, an int32 that stays at its largest value.",
    "stats": "The measurements of the last step, a tree of dicts; None unless stats=True.",
}


def first_line(entry: Entry) -> str:
    """Return the first line of a rule's docstring, which says what it is and where it comes from."""
    written = entry.rule.__doc__ or entry.name  # python -OO drops docstrings
    return written.partition("\n")[0].rstrip(":.") + "."


def optimizer_doc(entry: Entry, api: str, declared: Iterable[Argument]) -> str:
    """Return the docstring of an optimizer, with the meaning of each argument."""
    return documented(doc_beginning(entry, api), "Args", {one.name: one.means for one in declared})


def mixed_doc(declared: Iterable[Argument]) -> str:
    """Return the docstring of the optimizer whose groups name their rules."""
    return documented(MIXED, "Args", {one.name: one.means for one in declared})


def doc_beginning(entry: Entry, api: str) -> str:
    """Return what a docstring says before it lists the arguments."""
    if api != "jax" or entry.name not in OPTAX_ORDER:
        return first_line(entry)
    first = len(OPTAX_ORDER[entry.name].partition(" *")[0].split())
    return f"{first_line(entry)}\n\nThe first {first} arguments are those of optax.{entry.name.lower()}."


def state_doc(entry: Entry) -> str:
    called = "A tree, called `{}` in the other APIs."
    kept = {here: called.format(part) for here, part in fields_of_state(entry).items()}
    return documented(state_doc_beginning(entry), "Attributes", {"count": STATE["count"], **kept, **STATE})


def state_doc_beginning(entry: Entry) -> str:
    """Return what the docstring of a state says before it lists its parts."""
    return (
        f"State of `{entry.name.lower()}`, under optax's names. Its trees are like the parameters'; None is what is "
        "not kept."
    )


def fields_of_state(entry: Entry) -> dict[str, str]:
    """Return the parts of the state by their names in the JAX API, which are optax's where it has them."""
    called = entry.hyper.optax_state
    return {called.get(part, part): part for part in entry.rule.State._fields}


def documented(text: str, heading: str, means: dict[str, str]) -> str:
    """Return a docstring with a section that describes arguments or attributes."""
    return "\n".join([text, "", f"{heading}:", *(argument_lines(name, said) for name, said in means.items()), ""])


@cache  # most are identical in many optimizers
def argument_lines(name: str, means: str) -> str:
    """Return the lines of a docstring that describe an argument."""
    first, rest = " " * 4, " " * 8
    return textwrap.fill(
        f"{name}: {means}", WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
