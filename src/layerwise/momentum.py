"""The options of rules with momentum, their checks, and the dtype that stores it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from layerwise.checks import NONE, Contradiction, dtype, number
from layerwise.hyper import Hyper, flag, option


def momentum_option(default: float) -> Any:
    way_out = "Pass a number such as momentum=0.9, or 0 for none."
    return option(default, number(0, 1), "Decay rate of the momentum buffer; 0 means no buffer.", way_out)


def dampening_option() -> Any:
    return option(
        0.0,
        number(0, 1, to=True),
        "From the second step on, multiply what enters the momentum buffer by 1 - dampening.",
        "Pass a number such as dampening=0.1, or 0 for none.",
    )


def nesterov_option() -> Any:
    """Declare Nesterov's momentum; `HeavyBall` checks it against momentum and dampening."""
    return flag(False, "Use Nesterov's momentum; needs momentum > 0 and dampening = 0.")


def momentum_dtype_option(optax: str) -> Any:
    """Declare the dtype that stores the momentum; `StoredMomentum` hands it to the fronts."""
    return option(
        None,
        NONE | dtype("float16", "bfloat16", "float32", "float64"),
        "The dtype that stores the momentum, or its name; None uses the dtype of the other state.",
        "Pass the dtype, or its name, in which to keep the momentum, or None for that of the other state.",
        optax=optax,
    )


@dataclass(frozen=True, kw_only=True)
class HeavyBall(Hyper):
    """The options `momentum`, `dampening` and `nesterov` of a rule, checked together."""

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        own: Any = self
        allowed = f"False with momentum={own.momentum} and dampening={own.dampening}"
        none = own.momentum == 0 or own.dampening != 0
        yield own.nesterov and none, "nesterov", allowed, "It needs momentum > 0 and dampening=0."


@dataclass(frozen=True, kw_only=True)
class StoredMomentum(Hyper):
    """The option `momentum_dtype` of a rule: the dtype of the part of its state named `momentum_field`."""

    momentum_field: ClassVar[str]
    settled_here: ClassVar[tuple[str, ...]] = ("momentum_dtype",)

    def state_dtypes(self) -> dict[str, str]:
        own: Any = self
        return {} if own.momentum_dtype is None else {self.momentum_field: own.momentum_dtype}
