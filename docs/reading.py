"""How the reference reads the sources: doctests as code, options without their checks, and docstrings completed."""

from __future__ import annotations

import re
from typing import Any

import griffe

from layerwise.of_rule import completed
from layerwise.registry import ENTRIES

DECLARED = ("option", "flag", "lr")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Reading(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if any(one.callable_path == "layerwise.of_rule.of_rule" for one in cls.decorators):
            names = [one.name for one in cls.members["__init__"].parameters][1:]
            hyper = ENTRIES[cls.name].hyper
            cls.docstring.value = completed(cls.docstring.value, cls.module.docstring.value, hyper, names)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if isinstance(attr.value, griffe.ExprCall) and attr.value.canonical_name in DECLARED:
            attr.value = attr.value.arguments[0]
