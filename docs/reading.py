"""How the reference reads the sources: doctests as code, options without their checks, and stubs of what is made."""

from __future__ import annotations

import re
from typing import Any

import griffe

from layerwise.catalog import docstrings
from layerwise.catalog.registry import BY_LOWER, ENTRIES
from layerwise.catalog.signatures import APIS

DECLARED = ("option", "flag", "lr")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Reading(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_module_members(self, *, mod: griffe.Module, agent: Any, **_: Any) -> None:
        """Take what a module makes from its stub, as if it stood there: griffe shows nothing that a stub alone has."""
        stub = mod.filepath.with_suffix(".pyi")
        if mod.filepath.suffix == ".py" and stub.exists():
            there = griffe.visit(
                mod.name, stub, stub.read_text("utf-8"), extensions=agent.extensions, parent=mod.parent
            )
            for name, member in there.members.items():
                mod.set_member(name, member)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        _complete(cls)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        _complete(func)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if isinstance(attr.value, griffe.ExprCall) and attr.value.canonical_name in DECLARED:
            attr.value = attr.value.arguments[0]


def _complete(one: griffe.Class | griffe.Function) -> None:
    """Give an optimizer the docstring that it has when its API is imported."""
    _, api, *module = one.module.path.split(".") if one.module.path.count(".") == 2 else ("", "", "")
    name = one.name.removesuffix("State").lower()
    if module == ["optimizers"] and one.parent.is_module and name in BY_LOWER:
        entry = ENTRIES[BY_LOWER[name]]
        is_state = one.name.endswith("State")
        made = docstrings.state_doc(entry) if is_state else docstrings.optimizer_doc(entry, api, APIS[api](entry))
        one.docstring.value = made
