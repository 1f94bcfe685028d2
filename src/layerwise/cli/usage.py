"""Usage errors, each in one line with the way out, and the names that a shell can complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import typer

# The class has no public name of its own since typer brought its own copy of click along.
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
    return f"{name}: {message[0].lower()}{message[1:]}{ending} '{name} --help' shows what there is."


def known(what: str, value: str, names: Sequence[str]) -> str:
    """Return the name that is meant, whatever its case; a mistake that suggests one otherwise."""
    found = {name.lower(): name for name in names}
    if value.lower() in found:
        return found[value.lower()]
    near = get_close_matches(value.lower(), found, 1)
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    hint = f"Did you mean {found[near[0]]}?" if near else f"There are {', '.join(names[:SHOWN])}{rest}."
    raise typer.BadParameter(f"there is no {what} {value!r}. {hint}")


def one_of(what: str, names: Callable[[], Iterable[str]]) -> dict[str, Any]:
    """Return the callback and the completion of an option or argument that takes one of these names, or several."""

    def check(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [known(what, one, list(names())) for one in value]
        return value if value is None else known(what, value, list(names()))

    return {"callback": check, "autocompletion": completing(names)}


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return the completion by these names, in lower case if they fit only so: shells want what was typed first."""

    def complete(incomplete: str) -> list[str]:
        found = [name if name.startswith(incomplete) else name.lower() for name in names()]
        return [name for name in found if name.startswith(incomplete)]

    return complete
