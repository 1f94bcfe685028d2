"""Usage errors, each in one line with the way out, and the names that a shell can complete."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand

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
    return f"{name}: {message[0].lower()}{message[1:]}{ending} See '{name} --help'."


def in_flags(message: str, names: Iterable[str]) -> str:
    """Return a message of the library in the words of the command line: flags for these arguments, and no None."""
    for name in sorted(names, key=len, reverse=True):
        flag = f"--{name.replace('_', '-')}"
        message = message.replace(f"`{name}`", flag)
        if "_" in name:
            message = re.sub(rf"\b{name}\b", flag, message)
    message = re.sub(r"must be None\b", "must be left out", message)
    return re.sub(r"(, | or )None\b", "", message).replace("but is None", "but is missing")


class WithNumbers(TyperCommand):
    """A command whose arguments may be negative numbers, which are no options.

    The parser takes what begins with a dash for an option. A space before it is skipped when the number is read.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        follows = ["", *args]
        return super().parse_args(
            ctx,
            [
                f" {one}" if re.match(r"-[.\d]", one) and before not in takes_value else one
                for before, one in zip(follows, args, strict=False)
            ],
        )


def whole(low: int, high: int | None = None) -> dict[str, Any]:
    """Return the parser of an option or argument that takes an integer in this range."""
    allowed = f"an integer ≥ {low}" if high is None else f"an integer from {low} to {high}"

    def parse(text: Any) -> int:
        try:
            found = int(text)
        except ValueError:
            found = low - 1
        if found < low or (high is not None and found > high):
            raise _refused(allowed, text)
        return found

    parse.__name__ = "int"  # as --help calls what it takes
    return {"parser": parse}


def number(low: float = -math.inf) -> dict[str, Any]:
    """Return the parser of an option that takes a finite number from `low`."""
    allowed = "a finite number" if low == -math.inf else f"a finite number ≥ {low:g}"

    def parse(text: Any) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not math.isfinite(found) or found < low:
            raise _refused(allowed, text)
        return found

    parse.__name__ = "float"
    return {"parser": parse}


def _refused(allowed: str, value: Any) -> Exception:
    return typer.BadParameter(f"it must be {allowed}, but is {str(value).strip()}.")


def known(what: str, value: str, names: Sequence[str], listed: str = "") -> str:
    """Return the name that is meant, whatever its case; a mistake that suggests some otherwise."""
    found = {name.lower(): name for name in names}
    if value.lower() in found:
        return found[value.lower()]
    of_package = [one for one in found if one.startswith(f"{value.lower()}.")]
    near = of_package or get_close_matches(value.lower(), found, 1)
    shown = [found[one] for one in near] or list(names)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    words = ", ".join(shown[:SHOWN]) + more
    hint = f"Did you mean {words}?" if near else f"There are {words}."
    raise typer.BadParameter(f"there is no {what} {value!r}. {hint}{more and listed and f' {listed}'}")


def one_of(what: str, names: Callable[[], Iterable[str]], listed: str = "") -> dict[str, Any]:
    """Return the callback and the completion of an option or argument that takes one of these names, or several.

    `listed` says where all of them are, if a message cannot show them.
    """

    def check(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [known(what, one, list(names()), listed) for one in value]
        return value if value is None else known(what, value, list(names()), listed)

    return {"callback": check, "autocompletion": completing(names)}


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return the completion by these names, in lower case if they fit only so: shells want what was typed first."""

    def complete(incomplete: str) -> list[str]:
        found = [name if name.startswith(incomplete) else name.lower() for name in names()]
        return [name for name in found if name.startswith(incomplete)]

    return complete
