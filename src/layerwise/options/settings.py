"""The base class of every optimizer's options: frozen dataclasses that check themselves.

Each module of `rules` derives its own class from `Hyper` and from the groups of shared options. Every API builds this
object first, so a mistake gives the same message everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from layerwise.options.checks import NONE, Checked, Contradiction, number, one_of, pair
from layerwise.options.fields import OFF, flag, option
from layerwise.options.fields import adapt as whether_adapted
from layerwise.options.values import Scalar, is_on

Shape = tuple[int, ...]
Scheduled = float | Callable[[int], float]
"""A number, or a function of the number of steps taken so far, which is 0 in the first."""
Adapt = bool | Literal["decayed"]
"""Use of the trust ratio: everywhere, nowhere, or only where weight_decay is not 0."""
Bounds = tuple[float | None, float | None]
"""A pair (low, high); None means no bound."""
H = TypeVar("H", bound="Hyper")

BOUND = number(-inf, inf) | NONE
VALUE_BOUNDS = pair(BOUND, BOUND, ordered=True)
GRAD = "Pass a number > 0, or None (or 0) for no clipping."
GRAD_VALUE = "Pass a number > 0, (low, high) with low ≤ high, or None (or 0) for no clipping."


@dataclass(frozen=True, kw_only=True)
class Hyper(Checked):
    """The options of every rule, and the common machinery."""

    optimizer: ClassVar[str]
    settled_here: ClassVar[tuple[str, ...]] = ()  # options that get a definite value as soon as they are set
    # The learning rate above which steps without a trust ratio tend to diverge, if a rule's rates are as large; and
    # options for biases and norms that keep their ratio.
    large_without_ratio: ClassVar[float] = inf
    of_small: ClassVar[Mapping[str, float]] = {}
    of_matrices: ClassVar[bool] = False  # True if a step multiplies matrices, so that none is sliced
    by_row: ClassVar[bool] = False  # True if each row of a matrix should be a block: one block for all works poorly
    # Names of parts of the state in the JAX API, if optax's differ.
    optax_state: ClassVar[Mapping[str, str]] = {"exp_avg": "mu", "exp_avg_sq": "nu", "momentum_buffer": "trace"}

    max_grad_value: float | Bounds | None = option(
        None,
        OFF | VALUE_BOUNDS,
        "Clip each element of the gradient: to [-c, c] for a number c, or to (low, high). None turns this off.",
        GRAD_VALUE,
    )
    maximize: bool = flag(False, "Maximize the objective: negate the gradient first.")

    if TYPE_CHECKING:  # every rule declares them

        @property
        def lr(self) -> Scalar: ...
        @property
        def weight_decay(self) -> Scalar: ...

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.optimizer = cls.__name__
        for name in ("__eq__", "__hash__"):  # a dataclass would generate these from its options alone
            setattr(cls, name, vars(Hyper)[name])

    def __eq__(self, other: object) -> bool:
        """Return True if both compute the same: options of the same types, and equal attributes besides options."""
        if type(self) is not type(other):
            return NotImplemented
        own, others = vars(self), vars(other)
        return own.keys() == others.keys() and all(_is_same(x, others[name]) for name, x in own.items())

    def __hash__(self) -> int:
        return hash((type(self), frozenset(vars(self).items())))

    @property
    def value_bounds(self) -> Bounds | None:
        """The bounds of each element of the gradient, or None if there are none."""
        bound = self.max_grad_value
        if isinstance(bound, tuple):
            return None if bound == (None, None) else bound
        return (-bound, bound) if bound is not None and is_on(bound) else None

    def beta2_of(self, t: Scalar, at_least: Callable[[Scalar, int], Scalar] = max) -> Scalar | None:
        """Return the decay of the second moment at step t, if it does not follow the rule's formula."""
        return None

    @property
    def follows_step(self) -> bool:
        """True if `beta2_of` differs from step to step."""
        return False

    @property
    def model_bound(self) -> float:
        """The bound of the global gradient norm, a sum over every tensor of the model; 0 for no bound."""
        bound: float | None = getattr(self, "max_grad_norm", None)  # of some rules; `counted_in_norm` gives it to all
        return 0.0 if bound is None else bound

    @property
    def needs_model_sum(self) -> bool:
        """True if a step requests a sum over every tensor of the model."""
        return is_on(self.model_bound)

    @property
    def adds_products(self) -> bool:
        """True if processes with parts of a tensor add up products of matrices."""
        return False

    @property
    def reads_weights(self) -> bool:
        """False if a step without weight decay depends only on gradients and state."""
        return True

    @property
    def step_per_lr(self) -> float | None:
        """The length of a whole step at lr=1, including momentum, as a fraction of the weights' norm, if it is
        fixed.
        """
        return None

    @property
    def has_kernels(self) -> bool:
        """False for settings that are too rare for printed kernels."""
        return True

    def counted_in_norm(self: H) -> H:
        """Return settings whose gradient counts towards the global norm, even if they do not clip."""
        return self if self.needs_model_sum else with_values(self, max_grad_norm=inf)

    def state_dtypes(self) -> dict[str, str]:
        """Return the dtypes requested for parts of the state, by name; the other parts have the dtype of the
        arithmetic.
        """
        return {}

    def with_fast_dtype(self: H, quick: str | None) -> H:
        """Return the settings for a device that multiplies matrices faster in this dtype (None if in no dtype)."""
        return self

    def fit(self: H, shape: Shape, block_dims: Shape, machine_eps: float) -> H:
        """Return the settings fitted to a tensor: to its shape, and to its dtype's epsilon."""
        return self

    def for_shards(self: H, shape: Shape, parts: Shape | None, replicas: int) -> H:
        """Return the fitted settings for a tensor that is divided into this many parts along each dimension, or
        anywhere (None).

        A request for a whole tensor brings it to one of the ranks that hold parts, which are `replicas` in number, or
        to all of them (0).
        """
        return self

    def settled(self: H, **values: object) -> H:
        """Return a copy with these values, without validating them."""
        settled = copy(self)
        for name, value in values.items():
            object.__setattr__(settled, name, value)
        return settled

    def without_numbers(self) -> tuple[object, ...]:
        """Return the settings without their numbers; the layout of a step depends only on whether a number is 0."""
        return (self.needs_model_sum, *(_form(getattr(self, spec.name)) for spec in fields(self)))

    @classmethod
    def check(
        cls, name: str, value: object, argument: str | None = None, called: Mapping[str, str] | None = None
    ) -> Any:
        """Return one option's value, checked alone.

        `argument` is its name in the message; `called` maps options to their names in the caller's API.
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
class OneNumberPerLayer(Hyper):
    """Options of rules whose state has one number per layer."""

    block_dims: ClassVar[Shape] = ()  # the shape of the tensor that these settings are fitted to

    def fit(self: H, shape: Shape, block_dims: Shape, machine_eps: float) -> H:
        return with_values(self, block_dims=block_dims)

    def layer_shape(self, shape: Shape) -> Shape:
        """Return the shape of one number for each layer of a tensor of this shape."""
        return tuple(n if d in self.block_dims else 1 for d, n in enumerate(shape))


@dataclass(frozen=True, kw_only=True)
class TrustRatio(Hyper):
    """A ratio of norms that scales the step of each tensor."""

    adapt: Adapt = whether_adapted(True)
    trust_clip: Bounds | None = option(
        None,
        NONE | pair(OFF, OFF, ordered=True),
        "Bounds (low, high) of the trust ratio; None on a side leaves it unbounded.",
        "Pass (low, high) with low ≤ high, None for an unbounded side, or None for no clipping.",
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
        "Pass a lower bound such as 1e-3, or 0 for none.",
    )


@dataclass(frozen=True, kw_only=True)
class WeightNormBound(TrustRatio):
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
    """A second weight decay, on the gradient."""

    l2: float = option(
        0.0,
        number(0),
        "L2 penalty, added to the gradient in addition to weight_decay.",
        "Pass a number such as l2=1e-4, or 0 for none. It is independent of weight_decay: both may be given.",
    )


@dataclass(frozen=True, kw_only=True)
class StepLength(TrustRatio, OneNumberPerLayer):
    """The length of a tensor's step, once its direction is known."""

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
        "Pass 0 to remove that part, a number below 1 to shrink it, or None.",
    )

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        both = bool(self.keep_norm) and self.radial is not None
        yield both, "radial", f"None with keep_norm={self.keep_norm!r}", "Drop one of them: both hold the norm."
        apart = bool(self.keep_norm) and getattr(self, "decay", None) == "decoupled" and is_on(self.weight_decay)
        way_out = "Drop one of them: such decay only changes the norm."
        yield apart, "keep_norm", f'False with decay="decoupled" and weight_decay={self.weight_decay!r}', way_out

    def fit(self: H, shape: Shape, block_dims: Shape, machine_eps: float) -> H:
        needed: Any = self
        return super().fit(shape, block_dims, machine_eps) if needed.keep_norm == "first" else self

    def shape_of_norm(self, shape: Shape) -> Shape | None:
        """Return the shape of the norms that are kept for a tensor of this shape."""
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
    """The option `momentum_dtype` of a rule: the dtype of its momentum buffer or average."""

    settled_here: ClassVar[tuple[str, ...]] = ("momentum_dtype",)

    def state_dtypes(self) -> dict[str, str]:
        own: Any = self
        field = "momentum_buffer" if hasattr(own, "momentum") else "exp_avg"
        return {} if own.momentum_dtype is None else {field: own.momentum_dtype}


def with_values(h: H, **values: object) -> H:
    """Return settings with these values: the same object for all equal tensors, so that their coefficients are computed
    once.
    """
    try:
        found: H = _settled(h, **values)
    except TypeError:  # traced numbers are not hashable
        found = h.settled(**values)
    return found


@lru_cache(maxsize=256, typed=True)
def _settled(h: H, **values: object) -> H:
    return h.settled(**values)


def options_in_order(h: type[Hyper]) -> list[str]:
    """Return the names of a rule's options: first its own in order, then those that it shares with others."""
    own = [name for one in h.__mro__ for name in vars(one).get("__annotations__", ())]
    there = {spec.name for spec in fields(h)}
    return [name for name in dict.fromkeys(own) if name in there]


def as_plain_value(value: object) -> object:
    """Return a setting as other processes and checkpoints see it: a function by its name."""
    if not callable(value):
        return value
    return f"<function {getattr(value, '__qualname__', type(value).__qualname__)}>"


def scheduled(value: Scheduled, name: str, step: int) -> float:
    """Return the value of an option at `step` (counted from 0); raise if a schedule returns an invalid value."""
    if not callable(value):
        return value
    return float(number(0)(f"{name}({step})", value(step), "A schedule must return such a number for every step."))


def _form(value: object) -> object:
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
