"""How the reference reads the sources: doctests as code, and options by their defaults rather than by their checks."""

from __future__ import annotations

import re
from typing import Any

import griffe

DECLARED = ("option", "flag", "lr_option")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Reading(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if isinstance(attr.value, griffe.ExprCall) and attr.value.canonical_name in DECLARED:
            attr.value = attr.value.arguments[0]
