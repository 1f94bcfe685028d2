"""Options under the names that their arguments have in Paddle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from layerwise import checks
from layerwise.errors import ContradictionError, sentence
from layerwise.hyper import Hyper
from layerwise.keywords import check_keywords
from layerwise.registry import ENTRIES
from layerwise.spelling import PADDLE, PADDLE_PRESETS, is_pair, pair
from layerwise.variants import find

RATE = checks.number(0)
LR_WAY_OUT = "Pass a number such as 1e-3, or an LRScheduler."
# What may change from step to step elsewhere, and here is a number, or follows a scheduler.
RATES = {"lr": LR_WAY_OUT, "weight_decay": "Pass a number such as 0.01, or 0 for none. To climb, use maximize=True."}


def arguments_of(h: type[Hyper]) -> list[str]:
    """Return the names of the arguments that are options."""
    found = PADDLE.arguments(h)
    return [*found, "always_adapt"] if h.optimizer in PADDLE_PRESETS else found


def decay_argument(h: type[Hyper]) -> str:
    """Return the name of the argument for λ."""
    [name] = PADDLE.of(h).get("weight_decay", ("weight_decay",))
    return name


def options_of(h: type[Hyper], given: Mapping[str, Any]) -> Any:
    """Return the checked options of a rule, given arguments by their names."""
    make: Any = h
    return make(**{spec.name: _option(h, spec.name, given) for spec in fields(h)})


def joined(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given with what a group says for itself, where one of two names for the same replaces both."""
    found = {**given, **own}
    if "always_adapt" in own and own.get("adapt") is None:
        found["adapt"] = None
    elif own.get("adapt") is not None and "always_adapt" not in own:
        found["always_adapt"] = False
    return found


def _option(h: type[Hyper], name: str, given: Mapping[str, Any]) -> Any:
    if name == "adapt" and "always_adapt" in given:
        return _adapt(h, given)
    names = PADDLE.of(h).get(name, (name,))
    if is_pair(names):
        return pair(h, name, names, given)
    [argument] = names
    if name in RATES:
        check = RATE | checks.NONE if h.__dataclass_fields__[name].default is None else RATE
        return check(argument, given[argument], RATES[name])
    return h.check(name, given[argument], argument, PADDLE.in_messages(h))


def _adapt(h: type[Hyper], given: Mapping[str, Any]) -> Any:
    """Return where the trust ratio is used: as `adapt` says, or without it `always_adapt`."""
    always = checks.FLAG("always_adapt", given["always_adapt"], "Pass True or False.")
    if given["adapt"] is None:
        return True if always else "decayed"
    adapt = h.check("adapt", given["adapt"])
    if always and adapt is not True:
        way_out = "adapt says the same and more: pass one of the two."
        raise ContradictionError(sentence("always_adapt", "False beside another adapt than True", always, way_out))
    return adapt


def preset(name: str, /, **overrides: Any) -> dict[str, Any]:
    """Return keyword arguments for its class here: `Lamb(1e-3, **preset("apex.FusedLAMB"), parameters=…)`.

    `Lamb.like("apex.FusedLAMB", 1e-3, parameters=…)` is the same, and takes arguments beside it.

    `overrides` are arguments in place of the preset's, or besides them.

    >>> preset("paddle.Lamb")
    {'lamb_weight_decay': 0.01, 'adapt': 'decayed'}
    """
    one = find(name)
    h = ENTRIES[one.optimizer].hyper
    check_keywords(f"preset({name!r})", overrides.keys() - {*arguments_of(h)}, arguments_of(h))
    return {**PADDLE.called(h, {**_defaults_elsewhere(h), **one.options}), **overrides}


def _defaults_elsewhere(h: type[Hyper]) -> dict[str, Any]:
    """Return the defaults of the other APIs, where the class here has Paddle's."""
    theirs = find(PADDLE_PRESETS[h.optimizer]).options if h.optimizer in PADDLE_PRESETS else {}
    return {option: h.__dataclass_fields__[option].default for option in theirs}
