"""The making of optimizers' classes and functions from what their rules declare, when an API is imported."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import FunctionType, new_class
from typing import Any, Literal, NamedTuple, TypeVar, cast

from layerwise.catalog import docstrings
from layerwise.catalog.registry import ALL_OPTIONS, ENTRIES, Entry
from layerwise.catalog.signatures import APIS
from layerwise.options.arguments import REQUIRED, Argument, ByName, StateDtype
from layerwise.options.misspellings import argument_binder
from layerwise.options.settings import Adapt, Bounds, Scheduled

# What names stand for in the types of arguments, in all APIs.
TYPES: Mapping[str, object] = {
    "__builtins__": builtins,
    "Adapt": Adapt,
    "Any": Any,
    "Bounds": Bounds,
    "ByName": ByName,
    "Callable": Callable,
    "Literal": Literal,
    "Mapping": Mapping,
    "Scheduled": Scheduled,
    "Sequence": Sequence,
    "StateDtype": StateDtype,
}
C = TypeVar("C")
State = type[tuple[object, ...]]


@dataclass(frozen=True)
class TargetModule:
    """The module that classes and functions are made for, and what names stand for in the types of its arguments."""

    module: str
    types: Mapping[str, object]

    def classes(self, api: str, base: type[C]) -> dict[str, type[C]]:
        """Return the classes of all optimizers, by name."""
        found = {}
        for entry in ENTRIES.values():
            declared = APIS[api](entry)
            doc = docstrings.optimizer_doc(entry, api, declared)
            found[entry.name] = self.class_of(entry.name, base, doc, declared, _rule=entry.rule, _hyper=entry.hyper)
        return found

    def class_of(self, name: str, base: type[C], doc: str, declared: Sequence[Argument], **members: object) -> type[C]:
        """Return a class whose `__init__` takes these arguments, and hands them to its base in a mapping."""
        of_groups = () if "_rule" in members else ALL_OPTIONS
        bind = argument_binder(name, declared, getattr(base, "_way_out", ""), of_groups)

        def initialize(self: object, /, *args: object, **kwargs: object) -> None:
            parent: Any = super(made, self)
            parent.__init__(bind(args, kwargs))

        own = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *parameters(declared)]
        of_class = self.function(initialize, f"{name}.__init__", None, Signature(own, return_annotation="None"))
        made: Any = type(name, (base,), {"__module__": self.module, "__doc__": doc, "__init__": of_class, **members})
        return cast("type[C]", made)

    def functions(self, make: Callable[[str, State, dict[str, Any]], object], returned: str) -> dict[str, object]:
        """Return the functions of all optimizers and their states, by name, as the JAX API has them.

        Args:
            make: What a function calls with the name of its optimizer, its state, and all arguments.
            returned: The type of what that returns.
        """
        found: dict[str, object] = {}
        for entry in ENTRIES.values():
            state = found[f"{entry.name}State"] = self.state_of(entry)
            found[entry.name.lower()] = self.function_of(entry, state, make, returned)
        return found

    def function_of(self, entry: Entry, state: State, make: Callable[..., object], returned: str) -> object:
        name, declared = entry.name.lower(), APIS["jax"](entry)
        bind = argument_binder(name, declared)

        def optimizer(*args: object, **kwargs: object) -> object:
            return make(entry.name, state, bind(args, kwargs))

        doc = docstrings.optimizer_doc(entry, "jax", declared)
        return self.function(optimizer, name, doc, Signature(parameters(declared), return_annotation=returned))

    def state_of(self, entry: Entry) -> State:
        """Return the named tuple of an optimizer's state, under optax's names."""
        parts = dict.fromkeys(("count", *docstrings.fields_of_state(entry), "stats"), "Any")
        members = {"__module__": self.module, "__doc__": docstrings.state_doc(entry), "__annotations__": parts}
        made = new_class(f"{entry.name}State", (NamedTuple,), {}, lambda space: space.update(members, stats=None))
        return cast("State", made)

    def function(self, body: Callable[..., object], name: str, doc: str | None, signature: Signature) -> object:
        """Return a function as if it had been written in the module, where its types have their meaning."""
        of: Any = body
        space = {**TYPES, **self.types, "__name__": self.module}
        made: Any = FunctionType(of.__code__, space, name.rpartition(".")[2], None, of.__closure__)
        made.__qualname__, made.__doc__, made.__signature__ = name, doc, signature
        typed = {one.name: one.annotation for one in signature.parameters.values() if one.name != "self"}
        made.__annotations__ = {**typed, "return": signature.return_annotation}
        return made


def parameters(declared: Sequence[Argument]) -> list[Parameter]:
    """Return arguments as `inspect` has them."""
    return [
        Parameter(
            one.name,
            Parameter.KEYWORD_ONLY if one.keyword else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if one.default is REQUIRED else one.default,
            annotation=one.type,
        )
        for one in declared
    ]
