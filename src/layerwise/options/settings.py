"""The base class of every optimizer's options: frozen dataclasses that check themselves.

Each module of `rules` derives its own class from `Hyper` and from the groups of options that rules share. Every front
builds this object first, so a mistake gives the same message everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, Literal, TypeVar

from layerwise.options.checks import NONE, Checked, Contradiction, number, one_of, pair
from layerwise.options.fields import OFF, flag, option
from layerwise.options.fields import adapt as whether_adapted
from layerwise.options.values import is_on

Shape = tuple[int, ...]
Scheduled = float | Callable[[int], float]
"""A number, or a function of the number of steps taken so far, which is 0 in the first."""
Adapt = bool | Literal["decayed"]
"""Use of the trust ratio: everywhere, nowhere, or only where weight_decay is not 0."""
Bounds = tuple[float | None, float | None]
"""A pair (low, high); None on a side is no bound."""
H = TypeVar("H", bound="Hyper")

BOUND = number(-inf, inf) | NONE
VALUE_BOUNDS = pair(BOUND, BOUND, ordered=True)
GRAD = "Pass a number > 0, or None (or 0) for no clipping."
GRAD_VALUE = "Pass a number > 0, (low, high) with low ≤ high, or None (or 0) for no clipping."


@dataclass(frozen=True, kw_only=True)
class Hyper(Checked):
    """Options of every rule, and the machinery of all options."""

    optimizer: ClassVar[str]
    settled_here: ClassVar[tuple[str, ...]] = ()  # options that get a definite value as soon as they are given
    # The learning rate from which steps without a trust ratio tend to diverge, if a rule's rates are as large; and then
    # options for biases and norms, which are not exempt from the ratio.
    large_without_ratio: ClassVar[float] = inf
    of_small: ClassVar[Mapping[str, Any]] = {}
    of_matrices: ClassVar[bool] = False  # True if a step multiplies matrices: no slice of one is stepped by itself
    by_row: ClassVar[bool] = False  # True if matrices are best blocks of one row each, beside which a whole one is poor
    # Names of parts of the state in the JAX API, as optax has them, where those are others.
    optax_state: ClassVar[Mapping[str, str]] = {"exp_avg": "mu", "exp_avg_sq": "nu", "momentum_buffer": "trace"}

    max_grad_value: float | Bounds | None = option(
        None,
        OFF | VALUE_BOUNDS,
        "Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns this off.",
        GRAD_VALUE,
    )
    maximize: bool = flag(False, "Maximize the objective: negate the gradient first.")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.optimizer = cls.__name__
        for name in ("__eq__", "__hash__"):  # which a dataclass would generate from its options alone
            setattr(cls, name, vars(Hyper)[name])

    def __eq__(self, other: object) -> bool:
        """Return True if both compute the same: options of the same types, and what is set beside them."""
        if type(self) is not type(other):
            return NotImplemented
        own, others = vars(self), vars(other)
        return own.keys() == others.keys() and all(_is_same(x, others[name]) for name, x in own.items())

    def __hash__(self) -> int:
        return hash((type(self), frozenset(vars(self).items())))

    @property
    def value_bounds(self) -> Bounds | None:
        """The bounds of each element of the gradient; None where it is left as it is."""
        bound = self.max_grad_value
        if isinstance(bound, tuple):
            return None if bound == (None, None) else bound
        return (-bound, bound) if bound is not None and is_on(bound) else None

    def beta2_of(self, t: Any, at_least: Callable[[Any, int], Any] = max) -> Any:
        """Return the decay of the second moment at step t, where that does not follow t by the rule's formula."""
        return None

    @property
    def follows_step(self) -> bool:
        """True if `beta2_of` differs from step to step."""
        return False

    @property
    def model_bound(self) -> float:
        """The bound of the norm of all gradients, a sum over every tensor of the model; 0 for none."""
        bound: float | None = getattr(self, "max_grad_norm", None)  # an option of some; `counting` gives it to all
        return 0.0 if bound is None else bound

    @property
    def asks_of_model(self) -> bool:
        """True if a step asks for a sum over every tensor of the model."""
        return is_on(self.model_bound)

    @property
    def reads_weights(self) -> bool:
        """False if a step without weight decay depends on gradients and state alone."""
        return True

    @property
    def whole_step(self) -> float | None:
        """The length of a whole step at lr=1, momentum and all, as a share of the weights' norm, if that is fixed."""
        return None

    @property
    def has_kernels(self) -> bool:
        """False where no kernels are printed, because the settings are too rare for that."""
        return True

    def counting(self: H) -> H:
        """Return settings with which the gradient counts towards the norm of all, which need not bound it."""
        return self if self.asks_of_model else settled(self, max_grad_norm=inf)

    def state_dtypes(self) -> dict[str, str]:
        """Return names of dtypes asked for in parts of the state; the others have that of the arithmetic."""
        return {}

    def on(self: H, quick: str | None) -> H:
        """Return the settings for a device that multiplies matrices faster in this dtype, or in none."""
        return self

    def fit(self: H, shape: Shape, block_dims: Shape, machine_eps: float) -> H:
        """Return the settings with everything settled that depends on the tensor: its shape and its dtype's epsilon."""
        return self

    def divided(self: H, shape: Shape, parts: Shape | None, replicas: int) -> H:
        """Return the fitted settings for a tensor in so many parts along each dimension, or cut anywhere (None).

        What is asked for as a whole is brought to one of those that hold parts, of which there are so many `replicas`,
        or to all of them (0).
        """
        return self

    def settled(self: H, **values: Any) -> H:
        """Return a copy with these values, which are ours and not judged as the user's would be."""
        settled = copy(self)
        for name, value in values.items():
            object.__setattr__(settled, name, value)
        return settled

    def form(self) -> tuple[Any, ...]:
        """Return the settings without their numbers; only whether one is 0 decides how a step is laid out."""
        return (self.asks_of_model, *(_form(getattr(self, spec.name)) for spec in fields(self)))

    @classmethod
    def check(cls, name: str, value: Any, argument: str | None = None, called: Mapping[str, str] | None = None) -> Any:
        """Return one option's value, checked alone.

        `argument` is its name in the message, and `called` are names that options have where it was given.
        """
        spec = next(spec for spec in fields(cls) if spec.name == name)
        way_out = spec.metadata["way_out"]
        for own, other in (called or {}).items():
            way_out = re.sub(rf"\b{own}\b", other, way_out)
        return spec.metadata["check"](argument or name, value, way_out)


@dataclass(frozen=True, kw_only=True)
class ClippedByNorm(Hyper):
    """Clipping by norm, for rules whose step depends on the gradient's length."""

    max_grad_norm: float | None = option(
        None, OFF, "Scale all gradients down together so that their global norm is at most this; None is off.", GRAD
    )
    max_grad_norm_per_tensor: float | None = option(
        None, OFF, "Scale the gradient of each tensor or block down to at most this norm; None is off.", GRAD
    )


@dataclass(frozen=True, kw_only=True)
class NumberOfLayer(Hyper):
    """Options of rules whose state has one number for each layer."""

    block_dims: ClassVar[Shape] = ()  # of the tensor that these are fitted to

    def fit(self: H, shape: Shape, block_dims: Shape, machine_eps: float) -> H:
        return settled(self, block_dims=block_dims)

    def layer_shape(self, shape: Shape) -> Shape:
        """Return the shape of one number for each layer of a tensor of this shape."""
        return tuple(n if d in self.block_dims else 1 for d, n in enumerate(shape))


@dataclass(frozen=True, kw_only=True)
class TrustRatio(Hyper):
    """A ratio of norms that scales the step of each tensor."""

    adapt: Adapt = whether_adapted(True)
    trust_clip: Bounds | None = option(
        None,
        pair(OFF, OFF, ordered=True) | NONE,
        "Bounds (low, high) of the trust ratio; None on a side leaves it unbounded.",
        "Pass (low, high) with low ≤ high, None for a side without bound, or None for no clipping.",
    )
    zero_norm_ratio: float = option(
        1.0,
        number(0),
        "The trust ratio of a tensor if either norm is 0.",
        "Pass the ratio for tensors or gradients of norm 0, such as 1.",
    )
    min_norm: float = option(
        0.0,
        number(0),
        "Lower bound of both norms in the trust ratio.",
        "Pass the norm below which none counts, such as 1e-3, or 0 for no floor.",
    )


@dataclass(frozen=True, kw_only=True)
class BoundedTrustRatio(TrustRatio):
    """A trust ratio with an upper bound of the weights' norm."""

    max_weight_norm: float | None = option(
        None,
        number(0, above=True) | NONE,
        "Upper bound of the weights' norm in the trust ratio; None is no bound.",
        "Pass a bound such as 10, or None.",
    )

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        bound = self.max_weight_norm
        above = bound is not None and self.min_norm > bound
        yield above, "min_norm", f"at most max_weight_norm={bound}", "Lower one of them."


@dataclass(frozen=True, kw_only=True)
class L2Penalty(Hyper):
    """A second kind of decay, on the gradient."""

    l2: float = option(
        0.0,
        number(0),
        "L2 penalty, added to the gradient in addition to weight_decay.",
        "Pass a number such as l2=1e-4, or 0 for none; weight_decay is another, and both may be given.",
    )


@dataclass(frozen=True, kw_only=True)
class StepLength(TrustRatio, NumberOfLayer):
    """How long the step of a tensor is, once its direction is known."""

    keep_norm: bool | Literal["first"] = option(
        False,
        one_of(True, False, "first"),
        "Rescale the weights after each step to their norm before that step (True) or before the first step "
        '("first"); arXiv 2606.16899.',
        'Pass True for the norm before each step, "first" for that before the first step, or False.',
    )
    radial: float | None = option(
        None,
        number(0, 1) | NONE,
        "The factor on the part of a step that is along the weights, and so changes their norm; None leaves it.",
        "Pass 0 to take that part out, a number below 1 to make it smaller, or None.",
    )

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        both = bool(self.keep_norm) and self.radial is not None
        yield both, "radial", f"None with keep_norm={self.keep_norm!r}", "Drop one of them: both hold the norm."
        own: Any = self
        apart = bool(self.keep_norm) and getattr(own, "decay", None) == "decoupled" and is_on(own.weight_decay)
        way_out = "Drop one of them: such decay changes the norm alone."
        yield apart, "keep_norm", f'False with decay="decoupled" and weight_decay={own.weight_decay!r}', way_out

    def fit(self: H, shape: Shape, block_dims: Shape, machine_eps: float) -> H:
        needed: Any = self
        return super().fit(shape, block_dims, machine_eps) if needed.keep_norm == "first" else self

    def shape_of_norm(self, shape: Shape) -> Shape | None:
        """Return the shape of the norms that a tensor of this shape keeps."""
        return self.layer_shape(shape) if self.keep_norm == "first" else None

    @property
    def has_kernels(self) -> bool:
        return self.radial is None


@dataclass(frozen=True, kw_only=True)
class Caution(Hyper):
    """Cautious steps: only elements whose direction agrees with the gradient move."""

    caution: bool = flag(
        False,
        "Move only elements whose direction and gradient have the same sign, and scale the step up to make up for the "
        "others (arXiv 2411.16085).",
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
    """The option `momentum_dtype` of a rule: the dtype of its buffer, where it has `momentum`, or of its average."""

    settled_here: ClassVar[tuple[str, ...]] = ("momentum_dtype",)

    def state_dtypes(self) -> dict[str, str]:
        own: Any = self
        field = "momentum_buffer" if hasattr(own, "momentum") else "exp_avg"
        return {} if own.momentum_dtype is None else {field: own.momentum_dtype}


def settled(h: H, **values: Any) -> H:
    """Return the settings with these values: one object for all tensors alike, so that numbers are computed once."""
    try:
        found: H = _settled(h, **values)
    except TypeError:  # numbers that are traced have no hash
        found = h.settled(**values)
    return found


@lru_cache(maxsize=256, typed=True)
def _settled(h: Any, **values: Any) -> Any:
    return h.settled(**values)


def options_in_order(h: type[Hyper]) -> list[str]:
    """Return the names of a rule's options: its own as it declares them, then those that it shares with others."""
    own = [name for one in h.__mro__ for name in vars(one).get("__annotations__", ())]
    there = {spec.name for spec in fields(h)}
    return [name for name in dict.fromkeys(own) if name in there]


def in_words(value: Any) -> Any:
    """Return a setting as other processes and checkpoints see it: a function by its name alone."""
    if not callable(value):
        return value
    return f"<function {getattr(value, '__qualname__', type(value).__qualname__)}>"


def scheduled(value: Scheduled, name: str, step: int) -> float:
    """Return the number that an option has at `step` (counted from 0), and refuse a schedule that returns none."""
    if not callable(value):
        return value
    return float(number(0)(f"{name}({step})", value(step), "A schedule must return such a number for every step."))


def _form(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_form, value))
    return (value == 0,) if isinstance(value, float) else value


def _is_same(x: Any, other: Any) -> bool:
    """Return True for equal values of the same type: True is not 1, and 1 is not 1.0."""
    if x is other:
        return True
    if type(x) is not type(other):
        return False
    if isinstance(x, tuple):
        return len(x) == len(other) and all(map(_is_same, x, other))
    return bool(x == other)
