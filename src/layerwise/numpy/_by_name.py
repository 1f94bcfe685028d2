"""The settings that the NumPy front takes by name, and the values of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from layerwise import checks
from layerwise.blocks import as_blocks
from layerwise.hyper import Hyper
from layerwise.names import ByName

SCALE = checks.number(0)
AS_FACTOR = checks.FLAG | SCALE


def _check_lr_scale(argument: str, value: Any) -> float:
    return float(SCALE(argument, value, "Pass the factor on lr, such as 0.1, by name."))


def _check_option(h: type[Hyper], option: str, argument: str, value: Any) -> Any:
    return h.check(option, value, argument)


@dataclass(frozen=True)
class Decay:
    """The `decay` of a name: a factor on weight_decay, and for LAMB an optional place in the formula."""

    factor: float = 1.0
    place: str | None = None


def _check_decay(h: type[Hyper], argument: str, value: Any) -> Decay:
    own = h.__dataclass_fields__.get("decay")
    allowed = AS_FACTOR if own is None else AS_FACTOR | own.metadata["check"]
    found = allowed(argument, value, "True and False turn weight_decay on and off, a number multiplies it.")
    return Decay(place=found) if isinstance(found, str) else Decay(float(found))


def settings_by_name(h: type[Hyper], given: Mapping[str, Any]) -> dict[str, ByName]:
    """Return the options given by name, each with its check: without lambdas, so that an optimizer can be pickled."""
    checked: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
        "lr_scale": (1.0, _check_lr_scale),
        "adapt": (None, partial(_check_option, h, "adapt")),
        "l2": (None, partial(_check_option, h, "l2")),
        "decay": (Decay(), partial(_check_decay, h)),
        "blocks": (None, as_blocks),
    }
    return {name: ByName(name, given[name], default, check) for name, (default, check) in checked.items()}
