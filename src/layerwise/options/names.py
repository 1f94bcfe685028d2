"""The names that options have in each API, where they are others than in the rules: the one table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

from layerwise.options.settings import Hyper

Names = tuple[str, ...]  # of an option's argument, or of the two of a pair


@dataclass(frozen=True)
class Spelling:
    """The names of options in one API."""

    of: Callable[[Any], Mapping[str, Names]]  # the names of the options that a rule has, by option

    def in_messages(self, h: type[Hyper]) -> dict[str, str]:
        """Return each option's name, if it differs."""
        return {option: ", ".join(names) for option, names in self.of(h).items()}

    def called(self, h: type[Hyper], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as arguments, under the names that these have."""
        found: dict[str, Any] = {}
        for option, value in options.items():
            names = self.of(h).get(option, (option,))
            found |= {names[0]: value} if len(names) == 1 else dict(zip(names, value, strict=True))
        return found

    def arguments(self, h: type[Hyper]) -> list[str]:
        """Return the names of all arguments that are options."""
        return [name for spec in fields(h) for name in self.of(h).get(spec.name, (spec.name,))]


def is_pair(names: Sequence[str]) -> bool:
    return len(names) > 1


def pair(
    h: type[Hyper], option: str, names: Names, given: Mapping[str, Any], is_free: Callable[[Any], bool] | None = None
) -> tuple[Any, ...]:
    """Return the pair of numbers that an option is, each checked by its own name, or the default where it is missing.

    `is_free` says of which values nothing is known yet.
    """
    spec: Any = h.__dataclass_fields__[option]
    found = []
    for name, check, usual in zip(names, spec.metadata["check"].members, spec.default, strict=True):
        value = given.get(name, usual)
        free = is_free is not None and is_free(value)
        found.append(value if free else check(name, value, f"Pass a number such as {name}={usual}."))
    return tuple(found)


@cache
def _optax(h: type[Hyper]) -> dict[str, Names]:
    called = {one.name: one.metadata["optax"] for one in fields(h)}
    return {option: (name,) if isinstance(name, str) else name for option, name in called.items() if name is not None}


@cache
def _of(rows: tuple[Names, ...], h: type[Hyper]) -> dict[str, Names]:
    """Return the names in those rows whose option a rule has, with a number for each name."""
    usual: dict[str, Any] = {spec.name: spec.default for spec in fields(h)}
    return {
        option: tuple(names)
        for option, *names in rows
        if option in usual and len(names) == (len(usual[option]) if isinstance(usual[option], tuple) else 1)
    }


# An option and its name, or the two of a pair.
_PADDLE = (("lr", "learning_rate"), ("betas", "beta1", "beta2"), ("eps", "epsilon"))
_PADDLE_OF = {"Lamb": (*_PADDLE, ("weight_decay", "lamb_weight_decay"))}
_BESIDE = (("betas", "beta_1", "beta_2"), ("beta2_decay", "beta_2_decay"))
_EPS = (("eps", "epsilon"), ("eps", "epsilon_1", "epsilon_2"))
_CLIPS = (
    ("max_grad_norm", "global_clipnorm"),
    ("max_grad_norm_per_tensor", "clipnorm"),
    ("max_grad_value", "clipvalue"),
)

OPTAX = Spelling(_optax)
PADDLE = Spelling(lambda h: _of(_PADDLE_OF.get(h.optimizer, _PADDLE), h))
# Arguments beside the options. The epsilon of rules for matrices is that of the AdamW beside them, as in Keras.
KERAS = Spelling(lambda h: _of(_BESIDE if h().of_matrices else _BESIDE + _EPS, h))
OF_KERAS = Spelling(lambda h: _of((("lr", "learning_rate"), *_CLIPS), h))  # arguments of Keras's own, in their place
PADDLE_PRESETS = {"Lamb": "paddle.Lamb"}  # the preset with the numbers of an optimizer that Paddle has


def optax_defaults(h: type[Hyper]) -> dict[str, Any]:
    """Return the options whose default in the JAX API is optax's, each with the default that it has elsewhere."""
    return {one.name: one.default for one in fields(h) if one.metadata["optax_default"] is not MISSING}
