"""Options under the names that their arguments have in Paddle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from layerwise import checks
from layerwise.arguments import PADDLE_PRESETS, paddle_names, paddle_pairs
from layerwise.errors import HyperparameterError, sentence
from layerwise.hyper import Hyper
from layerwise.keywords import check_keywords
from layerwise.presets import find
from layerwise.registry import ENTRIES

RATES = ("lr", "weight_decay")


def arguments_of(h: type[Hyper]) -> list[str]:
    """Return the names of the arguments that are options."""
    names, pairs = paddle_names(h), paddle_pairs(h)
    found = [one for spec in fields(h) for one in pairs.get(spec.name, (names.get(spec.name, spec.name),))]
    return [*found, "always_adapt"] if h.optimizer in PADDLE_PRESETS else found


def decay_argument(h: type[Hyper]) -> str:
    """Return the name of the argument for λ."""
    return paddle_names(h).get("weight_decay", "weight_decay")


def options_of(h: type[Hyper], given: Mapping[str, Any]) -> Any:
    """Return the checked options of a rule, given arguments by their names."""
    make: Any = h
    return make(**{spec.name: _option(h, spec.name, given) for spec in fields(h)})


def _option(h: type[Hyper], name: str, given: Mapping[str, Any]) -> Any:
    names, pairs = paddle_names(h), paddle_pairs(h)
    if name in pairs:
        return _pair(h, name, given)
    if name == "adapt" and "always_adapt" in given and given["adapt"] is None:
        always = checks.FLAG("always_adapt", given["always_adapt"], "Pass True or False.")
        return True if always else "decayed"
    argument = names.get(name, name)
    value = given[argument]
    if name in RATES and callable(value):
        way_out = "Pass an LRScheduler." if name == "lr" else "Pass a number such as 0.01, or 0 for none."
        raise HyperparameterError(sentence(argument, "a number", value, way_out))
    return h.check(name, value, argument, names)


def _pair(h: type[Hyper], name: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
    spec: Any = h.__dataclass_fields__[name]
    each = zip(paddle_pairs(h)[name], spec.metadata["check"].members, spec.default, strict=True)
    return tuple(check(one, given[one], f"Pass a number such as {one}={usual}.") for one, check, usual in each)


def preset(name: str, /, **overrides: Any) -> dict[str, Any]:
    """Return keyword arguments for its class here: `Lamb(1e-3, **preset("apex.FusedLAMB"), parameters=…)`.

    `overrides` are arguments in place of the preset's, or besides them.

    >>> preset("paddle.Lamb")
    {'lamb_weight_decay': 0.01, 'adapt': 'decayed'}
    """
    one = find(name)
    h = ENTRIES[one.optimizer].hyper
    check_keywords(f"preset({name!r})", overrides.keys() - {*arguments_of(h)}, arguments_of(h))
    return {**called(h, {**_defaults_elsewhere(h), **one.options}), **overrides}


def called(h: type[Hyper], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as arguments, under the names that these have here."""
    found: dict[str, Any] = {}
    for option, value in options.items():
        both = paddle_pairs(h).get(option)
        found |= dict(zip(both, value, strict=True)) if both else {paddle_names(h).get(option, option): value}
    return found


def _defaults_elsewhere(h: type[Hyper]) -> dict[str, Any]:
    """Return the defaults of the other APIs, where the class here has Paddle's."""
    theirs = find(PADDLE_PRESETS[h.optimizer]).options if h.optimizer in PADDLE_PRESETS else {}
    return {option: h.__dataclass_fields__[option].default for option in theirs}
