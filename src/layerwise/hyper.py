"""The hyperparameters of LAMB, LARS and Adafactor: frozen, and checked by themselves.

Every front builds one of these first, so the same mistake gets the same message everywhere.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

from layerwise import factoring
from layerwise.checks import FLAG, NONE, Check, checked, dtype, integer, number, one_of, option, pair, schedule
from layerwise.errors import ContradictionError, sentence
from layerwise.rules.parts import is_on

Scheduled = float | Callable[[int], float]
Shape = tuple[int, ...]
Adapt = bool | Literal["decayed"]
Bounds = tuple[float | None, float | None]
H = TypeVar("H", bound="Hyper")

RATE = number(0) | schedule()
OFF = number(0) | NONE
LR = "Pass a number such as lr=1e-3, or a callable of the step; to stop a tensor from moving, lr=0 is allowed."
WEIGHT_DECAY = "Pass a number such as weight_decay=0.01, or 0 for none. To climb, use maximize=True."
SWITCH = "Pass True or False."
ADAPT = 'Pass True, False, or "decayed" to adapt only where weight_decay is not 0.'
CLIP = "Pass (low, high) with low ≤ high, None for a side without bound, or None for no clipping."
GRAD = "Pass a number > 0, or None (or 0) for no clipping."


@dataclass(frozen=True, kw_only=True)
class Hyper:
    """What all three share: how the gradient is prepared."""

    optimizer: ClassVar[str]
    settled_here: ClassVar[tuple[str, ...]] = ()  # options that get a definite value as soon as they are given

    max_grad_norm: float | None = option(None, OFF, GRAD)
    max_grad_norm_per_tensor: float | None = option(None, OFF, GRAD)
    max_grad_value: float | None = option(None, OFF, GRAD)
    maximize: bool = option(False, FLAG, SWITCH)

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, checked(spec, getattr(self, spec.name)))

    @property
    def asks_of_model(self) -> bool:
        """Whether a step asks for a sum over every tensor of the model."""
        return is_on(self.max_grad_norm)

    def state_dtypes(self) -> dict[str, str]:
        """Names of dtypes asked for in parts of the state; the others have that of the arithmetic."""
        return {}

    def fit(self: H, shape: Shape, block_dims: Shape, machine_eps: float) -> H:
        """The same settings with everything settled that depends on the tensor: its shape and its dtype's epsilon."""
        return self

    def settled(self: H, **values: Any) -> H:
        """A copy with these values, which are ours and not judged as the user's would be."""
        settled = copy(self)
        for name, value in values.items():
            object.__setattr__(settled, name, value)
        return settled

    def form(self) -> tuple[Any, ...]:
        """The settings without their numbers, of which only whether they are 0 decides how a step is laid out."""
        return tuple(_form(getattr(self, spec.name)) for spec in fields(self))

    @classmethod
    def check(cls, name: str, value: Any, argument: str | None = None, called: Mapping[str, str] | None = None) -> Any:
        """Return one option's value, checked alone.

        `argument` is what the message calls it, and `called` are names that options have where it was given.
        """
        spec = next(spec for spec in fields(cls) if spec.name == name)
        way_out = spec.metadata["way_out"]
        for own, other in (called or {}).items():
            way_out = re.sub(rf"\b{own}\b", other, way_out)
        return spec.metadata["check"](argument or name, value, way_out)


def _form(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_form, value))
    return (value == 0,) if isinstance(value, float) else value


def _warn_of_swap(first: str, second: str, given: tuple[float, float]) -> None:
    """Say that two numbers look swapped, which the formula allows all the same."""
    warnings.warn(f"{first}={given[0]:g} and {second}={given[1]:g} are taken as they are. Swapped?", stacklevel=2)


@dataclass(frozen=True)
class Lamb(Hyper):
    """LAMB; docs/optimizers/lamb.md gives the formula and each option's place in it."""

    optimizer: ClassVar[str] = "Lamb"

    lr: Scheduled = option(1e-3, RATE, LR)
    betas: tuple[float, float] = option(
        (0.9, 0.999), pair(number(0, 1), number(0, 1)), "Pass two numbers such as betas=(0.9, 0.999)."
    )
    eps: float = option(1e-6, number(0), "Pass a small number such as eps=1e-6.")
    weight_decay: Scheduled = option(0.0, RATE, WEIGHT_DECAY)
    _: KW_ONLY
    eps_root: float = option(0.0, number(0), "Pass a small number such as eps_root=1e-12, or 0.")
    bias_correction: bool | Literal["lr"] = option(
        True, one_of(True, False, "lr"), 'Pass True, False, or "lr" to correct the step instead of the direction.'
    )
    decay: Literal["ratio", "decoupled", "l2"] = option(
        "ratio",
        one_of("ratio", "decoupled", "l2"),
        'Pass "ratio" for decay inside the trust ratio, "decoupled" as in AdamW, or "l2" for the gradient.',
    )
    adapt: Adapt = option(True, one_of(True, False, "decayed"), ADAPT)
    trust_clip: Bounds | None = option(None, pair(OFF, OFF, ordered=True) | NONE, CLIP)
    max_weight_norm: float | None = option(None, number(0, above=True) | NONE, "Pass a bound such as 10, or None.")
    grad_averaging: bool = option(True, FLAG, SWITCH)
    zero_norm_ratio: float = option(1.0, number(0), "Pass the ratio for tensors or gradients of norm 0, such as 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        b1, b2 = self.betas
        if b1 >= 0.995 and b2 <= 0.9:  # (0.99, 0.9) is used
            _warn_of_swap("b1", "b2", self.betas)


@dataclass(frozen=True)
class Lars(Hyper):
    """LARS; docs/optimizers/lars.md gives the formula and each option's place in it."""

    optimizer: ClassVar[str] = "Lars"

    lr: Scheduled = option(1.0, RATE, LR)
    momentum: float = option(0.9, number(0, 1), "Pass a number such as momentum=0.9, or 0 for none.")
    weight_decay: Scheduled = option(0.0, RATE, WEIGHT_DECAY)
    trust_coefficient: float = option(1e-3, number(0, above=True), "Pass a number such as trust_coefficient=0.001.")
    _: KW_ONLY
    eps: float = option(0.0, number(0), "Pass a small number such as eps=1e-8, or 0.")
    nesterov: bool = option(False, FLAG, SWITCH)
    dampening: float = option(0.0, number(0, 1, to=True), "Pass a number such as dampening=0.1, or 0 for none.")
    norm: Literal["split", "decayed"] = option(
        "split", one_of("split", "decayed"), 'Pass "split" for ‖g‖ + λ‖p‖ (the paper) or "decayed" for ‖g + λp‖.'
    )
    lr_in_momentum: bool = option(True, FLAG, SWITCH)
    adapt: Adapt = option(True, one_of(True, False, "decayed"), ADAPT)
    trust_clip: tuple[float | None, float] | None = option(None, pair(OFF, number(0), ordered=True) | NONE, CLIP)
    zero_norm_ratio: float = option(1.0, number(0), "Pass the ratio for tensors or gradients of norm 0, such as 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ContradictionError(
                sentence(
                    "nesterov",
                    f"False with momentum={self.momentum} and dampening={self.dampening}",
                    True,
                    "It needs momentum > 0 and dampening=0.",
                )
            )


def _eps1(value: Any) -> float | None:
    # 0 would make 0/0 of every gradient that is zero from the start.
    return None if value is None else float(number(0, above=True).convert(value))


EPS1 = Check("a finite number > 0 or None", _eps1)


@dataclass(frozen=True)
class Adafactor(Hyper):
    """Adafactor; docs/optimizers/adafactor.md gives the formula and each option's place in it."""

    optimizer: ClassVar[str] = "Adafactor"
    settled_here: ClassVar[tuple[str, ...]] = ("lr", "relative_step", "scale_parameter", "momentum_dtype")

    lr: Scheduled | None = option(None, RATE | NONE, LR + " None asks for the relative step.")
    _: KW_ONLY
    eps: tuple[float | None, float] = option(
        (1e-30, 1e-3),
        pair(EPS1, number(0)),
        "Pass eps=(eps1, eps2) such as (1e-30, 1e-3); None as eps1 is the dtype's own epsilon.",
    )
    eps_mode: Literal["add", "clamp"] = option(
        "add", one_of("add", "clamp"), 'Pass "add" for g² + eps1 (the paper) or "clamp" for max(√V, eps1).'
    )
    clip_threshold: float | None = option(1.0, number(0, above=True) | NONE, "Pass a number such as 1.0; None is off.")
    beta2_decay: float = option(
        -0.8, number(-float("inf"), 0, to=True), "It is the exponent of t in 1 - beta2: pass -0.8, not 0.8."
    )
    beta2_cap: float | None = option(None, number(0, 1) | NONE, "Pass a bound such as 0.999, or None.")
    decay_offset: int = option(0, integer(0), "Pass the number of steps trained before, or 0.")
    beta1: float | None = option(None, number(0, 1) | NONE, "Pass a number such as beta1=0.9, or None for none.")
    momentum_dtype: str | None = option(
        None,
        NONE | dtype("float16", "bfloat16", "float32", "float64"),
        "Pass the dtype, or its name, in which to keep the momentum, or None for that of the other state.",
    )
    lr_in_momentum: bool = option(True, FLAG, SWITCH)
    weight_decay: Scheduled = option(0.0, RATE, WEIGHT_DECAY)
    decay_scale: Literal["lr", "step", "none"] = option(
        "lr", one_of("lr", "step", "none"), 'Pass "lr" for lr·λ, "step" for the whole step size·λ, or "none" for λ.'
    )
    scale_parameter: bool | None = option(None, FLAG | NONE, "Pass True, False, or None: on with a relative step.")
    relative_step: bool | Literal["factor", "cap"] | None = option(
        None,
        one_of(True, False, "factor", "cap", None),
        'Pass True, False, "factor" where lr multiplies the relative step, "cap" where it bounds it, '
        "or None: on when lr is None.",
    )
    lr_cap: float = option(1e-2, number(0, above=True), "Pass the relative step's upper bound, such as 1e-2.")
    warmup_init: bool = option(False, FLAG, SWITCH)
    factored: Any = option("last", factoring.CHECK, factoring.WAY_OUT)
    min_dim_size_to_factor: int = option(0, integer(0), "Pass the smallest size worth factoring, such as 128, or 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        eps1, eps2 = self.eps
        if self.eps_mode == "add" and eps1 is not None and eps1 > 1e6 * eps2 > 0:
            _warn_of_swap("eps1", "eps2", (eps1, eps2))
        self._settle_rates()
        if self.warmup_init and not self.relative_step:
            raise ContradictionError(
                sentence(
                    "warmup_init",
                    "False without a relative step",
                    True,
                    "Ask for one with relative_step, or warm lr up by a schedule.",
                )
            )

        if self.momentum_dtype is not None and self.beta1 is None:
            raise ContradictionError(
                sentence("momentum_dtype", "None without momentum", self.momentum_dtype, "Pass beta1, such as 0.9.")
            )

    def _settle_rates(self) -> None:
        """Settle what lr is: the rate itself, the relative step's factor, or its cap; and what that implies."""
        if self.lr is not None and self.relative_step is True:
            way_out = (
                'Drop one of them, or say what lr is: relative_step="cap" bounds the step by it, "factor" scales it.'
            )
            raise ContradictionError(sentence("lr", "None when relative_step=True", self.lr, way_out))
        if self.lr is None and self.relative_step is False:
            raise ContradictionError(
                sentence("lr", "given when relative_step=False", None, "Pass lr, such as 1e-3, or drop relative_step.")
            )
        role = self.relative_step
        if role is None or role is True:
            role = "factor" if self.lr is None else False
        lr = self.lr
        if lr is None:
            lr = self.lr_cap if role == "cap" else 1.0
        scaled = role is not False if self.scale_parameter is None else self.scale_parameter
        for name, value in (("lr", lr), ("relative_step", role), ("scale_parameter", scaled)):
            object.__setattr__(self, name, value)

    def state_dtypes(self) -> dict[str, str]:
        return {} if self.momentum_dtype is None else {"exp_avg": self.momentum_dtype}

    def fit(self, shape: Shape, block_dims: Shape, machine_eps: float) -> Adafactor:
        eps1, eps2 = self.eps
        return self.settled(
            eps=(machine_eps if eps1 is None else eps1, eps2),
            factored=factoring.dims(self.factored, shape, self.min_dim_size_to_factor, block_dims) or False,
        )


Settings = Lamb | Lars | Adafactor


def scheduled(value: Scheduled, name: str, step: int) -> float:
    """The number that an option has at `step` (counted from 0), where a schedule's answer is held to be one."""
    if not callable(value):
        return value
    return float(number(0)(f"{name}({step})", value(step), "A schedule must return such a number for every step."))
