"""The signatures of the JAX front: optax's own, where it has the optimizer, and then what it does not have."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING

import optax
from front_arguments import JAX_MASK, OWN_FORM
from source import Parameter, called, source_of

from layerwise.catalog.registry import Entry
from layerwise.options.names import OPTAX, optax_defaults

MASKS = ("mask", "weight_decay_mask")


def there_is(entry: Entry) -> bool:
    return hasattr(optax, entry.name.lower())


def parameters(entry: Entry, own: Sequence[Parameter], of_front: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters of the function: those that optax has first, in its order."""
    options = {one.name: one for parameter in own for one in _here(entry, parameter)}
    theirs = inspect.signature(getattr(optax, entry.name.lower())).parameters if there_is(entry) else {}
    known = {**options, **{one.name: one for one in of_front}}
    if not theirs:
        mask = Parameter("mask", "ByLeaf", "None", JAX_MASK)
        first = [one for one in options.values() if not one.keyword]
        rest = [mask, *(one for one in options.values() if one.keyword), *of_front]
        return [first[0]._replace(default=None), *first[1:], *rest]
    named = [_theirs(entry, one, known) for one in theirs.values()]
    mask = [] if {*MASKS} & theirs.keys() else [_mask("mask", "None")._replace(keyword=True)]
    rest = [one._replace(keyword=True) for name, one in known.items() if name not in theirs]
    return [*named, *mask, *rest]


def _mask(name: str, default: str | None) -> Parameter:
    return Parameter(name, "ByLeaf", default, JAX_MASK, keyword=False)


def _here(entry: Entry, one: Parameter) -> list[Parameter]:
    """Return the argument of an option, or the two of a pair, as they are called and typed here."""
    found = called(OPTAX, entry.hyper, one, "Number")
    if len(found) > 1:
        return found
    other = entry.hyper.__dataclass_fields__[one.name].metadata["optax_default"]
    type_ = re.sub(r"\bfloat\b", "Number", one.type).replace("Scheduled", "Rate")
    return [found[0]._replace(type=type_, default=one.default if other is MISSING else source_of(other))]


def _theirs(entry: Entry, theirs: inspect.Parameter, known: dict[str, Parameter]) -> Parameter:
    """Return an argument of optax's, with its default there."""
    name = theirs.name
    default = None if theirs.default is theirs.empty else _source(theirs.default)
    keyword = theirs.kind is theirs.KEYWORD_ONLY
    if name in MASKS:
        return _mask(name, default)._replace(keyword=keyword)
    if name not in known:
        raise SystemExit(
            f"optax.{entry.name.lower()} takes {name!r}, and no option of {entry.rule.__name__} is called so. "
            f"Say which is meant, option(..., optax={name!r}), or declare one."
        )
    own = known[name]._replace(default=default, keyword=keyword)
    special = {one.name: one for one in OWN_FORM.get(entry.name, ())}.get(name)
    return own if special is None else own._replace(type=special.type, means=special.means)


def defaults(entry: Entry) -> str:
    """Return a sentence about the options whose default in the JAX API is optax's; empty if there are none."""
    specs = entry.hyper.__dataclass_fields__
    each = [
        f"{name}={specs[name].metadata['optax_default']!r} ({own!r})"
        for name, own in optax_defaults(entry.hyper).items()
    ]
    return f"{entry.name} has optax's defaults in the JAX API (in brackets, others'): {', '.join(each)}" if each else ""


def _source(value: object) -> str:
    return f"jnp.{value.__name__}" if getattr(value, "__module__", "") == "jax.numpy" else source_of(value)
