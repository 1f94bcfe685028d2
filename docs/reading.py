"""How the reference reads the sources: doctests as code, options without their checks, and docstrings completed."""

from __future__ import annotations

import re
from typing import Any

import griffe

from layerwise.catalog.docstrings import completed, meanings

DECLARED = ("option", "flag", "lr")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Reading(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        made = cls.members.get("__init__")
        _complete(cls, [*cls.attributes] if made is None else [one.name for one in made.parameters][1:])

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        _complete(func, [one.name for one in func.parameters])

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if isinstance(attr.value, griffe.ExprCall) and attr.value.canonical_name in DECLARED:
            attr.value = attr.value.arguments[0]


def _complete(one: griffe.Class | griffe.Function, names: list[str]) -> None:
    if any(decorator.callable_path == "layerwise.catalog.docstrings.of_rule" for decorator in one.decorators):
        means = meanings(one.name, one.module.docstring.value)
        one.docstring.value = completed(one.name, one.docstring.value, means, names)
