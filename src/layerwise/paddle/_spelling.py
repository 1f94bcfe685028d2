"""Options under the names of their arguments in Paddle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from layerwise.catalog.presets import find_preset
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError, sentence
from layerwise.options import checks
from layerwise.options.misspellings import check_keywords
from layerwise.options.names import PADDLE, PADDLE_PRESETS, checked_pair, is_pair
from layerwise.options.settings import Hyper

RATE = checks.number(0)
LR_WAY_OUT = "Pass a number such as 1e-3, or an LRScheduler."
# Options that may be functions of the step in other APIs; here they are numbers, or follow a scheduler.
RATES = {
    "lr": LR_WAY_OUT,
    "weight_decay": ("Pass a number such as 0.01, or 0 for none. To maximize, use maximize=True."),
}


def arguments_of(h: type[Hyper]) -> list[str]:
    """Return the names of the arguments that are options."""
    found = PADDLE.arguments(h)
    return [*found, "always_adapt"] if h.optimizer in PADDLE_PRESETS else found


def decay_argument(h: type[Hyper]) -> str:
    """Return the name of the argument for λ."""
    [name] = PADDLE.renamed_options(h).get("weight_decay", ("weight_decay",))
    return name


def as_rate(value: object) -> float:
    """Return a learning rate, if it is a number that can be one."""
    found: float = RATE("learning_rate", value, LR_WAY_OUT)
    return found


def options_of(h: type[Hyper], given: Mapping[str, object]) -> Hyper:
    """Return the checked options of a rule, given arguments by their names."""
    make: Any = h
    names, found = PADDLE.renamed_options(h), dict[str, object]()
    for spec in fields(h):
        called = names.get(spec.name, (spec.name,))
        if spec.name == "adapt" and "always_adapt" in given:
            found["adapt"] = _adapt(h, given)
        elif is_pair(called):
            found[spec.name] = checked_pair(h, spec.name, called, given)
        elif spec.name in RATES:
            check = RATE | checks.NONE if spec.default is None else RATE
            found[spec.name] = check(called[0], given[called[0]], RATES[spec.name])
        else:
            found[spec.name] = h.check(spec.name, given[called[0]], called[0], PADDLE.in_messages(h))
    made: Hyper = make(**found)
    return made


def joined(given: Mapping[str, object], own: Mapping[str, object]) -> dict[str, Any]:
    """Return the given arguments with a group's own, which replace arguments of either name for the same option."""
    found = {**given, **own}
    if "always_adapt" in own and own.get("adapt") is None:
        found["adapt"] = None
    elif own.get("adapt") is not None and "always_adapt" not in own:
        found["always_adapt"] = False
    return found


def _adapt(h: type[Hyper], given: Mapping[str, object]) -> object:
    """Return where the trust ratio is used, from `adapt`, or without it from `always_adapt`."""
    always = checks.FLAG("always_adapt", given["always_adapt"], "Pass True or False.")
    if given["adapt"] is None:
        return True if always else "decayed"
    adapt = h.check("adapt", given["adapt"])
    if always and adapt is not True:
        way_out = "adapt includes it: pass only one of the two."
        raise ContradictionError(sentence("always_adapt", "False if adapt is not True", always, way_out))
    return adapt


def preset(name: str, /, **overrides: object) -> dict[str, Any]:
    """Return keyword arguments for the preset's class: `Lamb(1e-3, **preset("apex.FusedLAMB"), parameters=…)`.

    `Lamb.like("apex.FusedLAMB", 1e-3, parameters=…)` does the same, and also takes arguments.

    `overrides` are arguments in place of the preset's, or besides them.

    >>> preset("paddle.Lamb")
    {'lamb_weight_decay': 0.01, 'adapt': 'decayed'}
    """
    one = find_preset(name)
    h = ENTRIES[one.optimizer].hyper
    check_keywords(f"preset({name!r})", overrides.keys() - {*arguments_of(h)}, arguments_of(h))
    # Defaults of the other APIs, for options whose default here is Paddle's.
    theirs = find_preset(PADDLE_PRESETS[h.optimizer]).options if h.optimizer in PADDLE_PRESETS else {}
    usual = {option: h.__dataclass_fields__[option].default for option in theirs}
    return {**PADDLE.as_arguments(h, {**usual, **one.options}), **overrides}
