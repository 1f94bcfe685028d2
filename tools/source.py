"""Python source: parameters, signatures and docstrings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from layerwise.catalog.docstrings import WIDTH, entry
from layerwise.options.names import Spelling, is_pair
from layerwise.options.settings import Hyper


class Parameter(NamedTuple):
    """A parameter of a signature, with its meaning."""

    name: str
    type: str
    default: str | None
    means: str
    keyword: bool = True


def source_of(value: object) -> str:
    """Return a default as source."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def signature(parameters: Sequence[Parameter]) -> str:
    """Return parameters as source, one a line."""
    lines, keyword = [], False
    for one in parameters:
        if one.keyword and not keyword:
            lines.append("*,")
            keyword = True
        lines.append(f"{one.name}: {one.type}" + ("," if one.default is None else f" = {one.default},"))
    return "\n".join(lines)


def docstring(first: str, rest: str, parameters: Sequence[Parameter]) -> str:
    """Return a docstring with a section that describes every parameter."""
    entries = "\n".join(entry(one.name, one.means) for one in parameters)
    parts = [f"{first}.", textwrap.fill(rest, WIDTH - 4), f"Args:\n{entries}" if entries else ""]
    body = "\n\n".join(filter(None, parts))
    return f'"""{body}\n"""' if rest or entries else f'"""{body}"""'


def called(api: Spelling, h: type[Hyper], one: Parameter, of_pair: str) -> list[Parameter]:
    """Return the argument of an option as an API calls it, or the two of a pair, which are of the type `of_pair`."""
    names, means = api.of(h).get(one.name, (one.name,)), renamed(one.means, api.in_messages(h))
    if not is_pair(names):
        return [one._replace(name=names[0], means=means)]
    each = zip(names, ("first", "second"), h.__dataclass_fields__[one.name].default, strict=True)
    means = f"{means[0].lower()}{means[1:]}"
    return [
        one._replace(name=name, type=of_pair, default=repr(x), means=f"The {i} of the two: {means}")
        for name, i, x in each
    ]


def renamed(text: str, names: dict[str, str]) -> str:
    """Return a sentence with options called as optax calls them."""
    for own, other in names.items():
        text = re.sub(rf"(?<!\")\b{own}\b", other, text)
    return text


def wrapped(line: str, width: int) -> str:
    """Return a long line within parentheses in several, cut after commas."""
    kept = re.sub(r"(?<!,) ", "~", line)
    return "\n".join(textwrap.wrap(kept, width, subsequent_indent="    ", break_on_hyphens=False)).replace("~", " ")
