"""Usage errors, each in one line with the way out, and completion of names in a shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from layerwise.options.checks import Check, RefusedValue
from layerwise.options.misspellings import nearest

# The class has no public name of its own since typer includes its own copy of click.
UsageError: Any = typer.BadParameter.__mro__[1]
SHOWN = 6  # names in a message


def in_one_line(problem: Any) -> str:
    """Return the message of a usage error, which click spreads over several lines."""
    name = problem.ctx.command_path if problem.ctx is not None else "layerwise"
    possible = getattr(problem, "possibilities", None)
    if possible and "Did you mean" not in problem.message:
        message = f"{problem.message.rstrip('.')}. Did you mean {possible[0]}?"
    else:
        message = " ".join(problem.format_message().split())
    ending = "" if message.endswith((".", "?")) else "."
    return f"{name}: {message[0].lower()}{message[1:]}{ending} See '{name} --help'."


def in_shell(message: str, called: Mapping[str, str]) -> str:
    """Return a message with the command's options in place of Python's arguments, which stand in backticks."""
    return re.sub("`([a-z_]+)`", lambda found: f"--{called.get(found[1], found[1]).replace('_', '-')}", message)


def number_parser(kind: type, check: Check) -> dict[str, Any]:
    """Return the parser of an option or argument that is a number."""

    def parse(text: object) -> object:
        try:
            return check.convert(kind(text))
        except (ValueError, RefusedValue):
            raise typer.BadParameter(f"it must be {check.allowed}, but is {text}.") from None

    parse.__name__ = kind.__name__  # the name of its values in --help
    return {"parser": parse}


def matching_name(what: str, value: str, names: Sequence[str], listed: str = "") -> str:
    """Return the name with this spelling, ignoring case; otherwise raise a usage error with suggestions."""
    found = {name.lower(): name for name in names}
    if value.lower() in found:
        return found[value.lower()]
    of_package = [found[one] for one in found if one.startswith(f"{value.lower()}.")]
    near = of_package or nearest(value, names, 1)
    shown = near or list(names)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    words = ", ".join(shown[:SHOWN]) + more
    hint = f"Did you mean {words}?" if near else f"Known are {words}."
    raise typer.BadParameter(f"{value!r} is not a known {what}. {hint}{more and listed and f' {listed}'}")


def one_of(what: str, names: Callable[[], Iterable[str]], listed: str = "") -> dict[str, Any]:
    """Return the callback and the completion of an option or argument that takes one of these names.

    `listed` tells where to find all of them, if a message cannot show them.
    """

    def check(value: str | None) -> str | None:
        return value if value is None else matching_name(what, value, list(names()), listed)

    def complete(incomplete: str) -> list[str]:
        # In lower case if only that matches: shells expect what was typed as prefix.
        found = [name if name.startswith(incomplete) else name.lower() for name in names()]
        return [name for name in found if name.startswith(incomplete)]

    return {"callback": check, "autocompletion": complete}
