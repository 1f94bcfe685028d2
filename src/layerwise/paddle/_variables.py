"""Variables of the static graph as rules compute with them.

Paddle's own arithmetic makes float32 of a number beside a variable, and so do its functions. Here a number has the
dtype of the variable that it stands beside, and is in the program once. So are the numbers of a step that several
tensors share.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle

from layerwise.options.settings import Hyper
from layerwise.paddle._arrays import FUNCTIONS, Tensor, Variable, arithmetic_dtype, dtype_name
from layerwise.rules.requests import Coefficients, Functions, Now, Scalar, T
from layerwise.rules.scalars import Compute

Constants = dict[tuple[float, str, tuple[int, ...]], Variable]  # of a program, by their numbers, dtypes and shapes


class Array:
    """A variable with the arithmetic of arrays."""

    __hash__ = None  # type: ignore[assignment]  # `==` compares elements

    def __init__(self, variable: Variable, constants: Constants) -> None:
        self.variable, self.constants = variable, constants

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, which is known while the program is built."""
        return tuple(self.variable.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> paddle.dtype:
        """Paddle's dtype."""
        return self.variable.dtype

    def like(self, variable: Variable) -> Array:
        """Return another variable of the same program."""
        return Array(variable, self.constants)

    def as_operand(self, x: Scalar, shape: tuple[int, ...] = ()) -> Variable:
        """Return the variable of an array, or a number as one of this dtype and a shape."""
        if isinstance(x, Array):
            return x.variable
        key = float(x), dtype_name(self.variable), shape
        if key not in self.constants:
            self.constants[key] = paddle.full([*shape], *key[:2])
        return self.constants[key]

    def __getitem__(self, place: object) -> Array:
        return self.like(self.variable[place])

    def __iter__(self) -> Iterator[Array]:
        return map(self.like, paddle.unstack(self.variable))

    def __neg__(self) -> Array:
        return self.like(paddle.neg(self.variable))

    def __abs__(self) -> Array:
        return self.like(paddle.abs(self.variable))


def in_dtype(dtype: str, x: Variable) -> Variable:
    """Return a variable in a dtype."""
    return x if dtype_name(x) == dtype else paddle.cast(x, dtype)


def to_variables(x: Tensor) -> Tensor:
    """Return the variable of an array, or the variables of several; anything else as it is."""
    if isinstance(x, Array):
        return x.variable
    return [to_variables(one) for one in x] if isinstance(x, (list, tuple)) else x


def _operator(compute: Callable[..., Variable], reflected: bool = False) -> Callable[[Array, Scalar], Array]:
    def apply(self: Array, other: object) -> Array:
        pair = self.variable, self.as_operand(other)
        return self.like(compute(*(reversed(pair) if reflected else pair)))

    return apply


for name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Array, f"__{name}__", _operator(getattr(operator, name)))
    setattr(Array, f"__r{name}__", _operator(getattr(operator, name), reflected=True))
for name in ("lt", "le", "gt", "ge", "eq", "ne", "matmul"):
    setattr(Array, f"__{name}__", _operator(getattr(operator, name)))
for name, compute in (("and", paddle.logical_and), ("or", paddle.logical_or)):
    setattr(Array, f"__{name}__", _operator(compute))


def _lifted(function: Callable[..., Variable]) -> Callable[..., Array]:
    def apply(x: Tensor, *args: object, **options: object) -> Array:
        first: Array = x[0] if isinstance(x, (list, tuple)) else x
        return first.like(function(to_variables(x), *args, **options))

    return apply


def broadcast(x: Variable, shape: tuple[int, ...]) -> Variable:
    """Return a variable in a shape that it can be broadcast to."""
    if tuple(x.shape) == shape:
        return x
    x.stop_gradient = True  # what paddle.expand asks of booleans
    return paddle.expand(x, list(shape))


def _where(condition: Array, yes: Scalar, no: Scalar) -> Array:
    # paddle.where broadcasts by a dozen operations.
    like: Array = yes if isinstance(yes, Array) else no
    shape = np.broadcast_shapes(*(x.shape for x in (condition, yes, no) if isinstance(x, Array)))
    chosen = (broadcast(like.as_operand(x, shape), shape) for x in (yes, no))
    return like.like(paddle.where(broadcast(condition.variable, shape), *chosen))


def _clip(x: Array, low: float | None, high: float | None) -> Array:
    for bound, nearer in ((low, paddle.maximum), (high, paddle.minimum)):
        if bound is not None and abs(bound) < inf:
            x = x.like(nearer(x.variable, x.as_operand(bound)))
    return x


def _sqrt(x: Array) -> Array:
    infinite = x.like(x.variable == x.as_operand(inf))
    return _where(infinite, x, x.like(paddle.sqrt(x.variable)))  # as of tensors


def _ones_like(x: Array) -> Array:
    return x.like(x.as_operand(1.0, x.shape))


def _weighted(G: Tensor, a: float, b: float, c: float) -> Array:
    """Return a + b·G + c·G² of matrices, as of tensors, whose numbers keep all of their digits."""
    own, squared = arithmetic_dtype(G), G @ G
    one, G, squared = (
        G.like(x)
        for x in (paddle.eye(G.shape[-1], dtype=own), in_dtype(own, G.variable), in_dtype(own, squared.variable))
    )
    found: Array = a * one + (b * G + c * squared)
    return found


LIFTED = ("sum", "expm1", "concat", "reshape", "moveaxis", "stack", "squares", "asarray", "vanishes", "exists")
NAMESPACE: Functions = SimpleNamespace(
    **{name: _lifted(getattr(FUNCTIONS, name)) for name in LIFTED},
    sqrt=_sqrt,
    ones_like=_ones_like,
    where=_where,
    clip=_clip,
    length=_sqrt,  # of squares; nothing is differentiated here
    float64=FUNCTIONS.float64,
    multiplies=FUNCTIONS.multiplies,
    weighted=_weighted,
)


class SharedNumbers:
    """The numbers of a step of several tensors, each computed once: in an array of all tensors where they differ."""

    def __init__(self, counts: Variable) -> None:
        self.counts, self.constants = counts, Constants()
        self._known: dict[object, Any] = {}

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Return what is the same for several tensors."""
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found

    def number(self, x: Variable, dtype: str) -> Array:
        """Return the only number of a variable, in a dtype."""
        return self.once(
            ("number", hash(x), dtype), lambda: Array(paddle.reshape(in_dtype(dtype, x), []), self.constants)
        )

    def steps(self, dtype: str) -> Array:
        """Return the counts of all tensors, in a dtype."""
        return self.once(("steps", dtype), lambda: Array(in_dtype(dtype, self.counts), self.constants))

    def own(self, x: Tensor, place: int | slice) -> Tensor:
        """Return what of numbers is of the tensors at this place."""
        if isinstance(x, tuple):
            return type(x)(*(self.own(one, place) for one in x))
        if not isinstance(x, Array) or x.shape != tuple(self.counts.shape):
            return x
        if place == slice(0, x.shape[0]):
            return x
        if isinstance(place, slice):
            return x[place]
        return x.like(self.once(("apart", hash(x.variable)), lambda: paddle.unstack(x.variable))[place])

    def namespace(self, place: int | slice) -> Functions:
        """Return the functions for the tensors at this place."""

        def coefficients(of: Compute[Hyper], h: Hyper, now: Now) -> Coefficients:
            key = of, h, hash(now.lr.variable), hash(now.t.variable)
            found: Coefficients = self.own(self.once(key, lambda: of(NAMESPACE, h, now)), place)
            return found

        return SimpleNamespace(**vars(NAMESPACE), coefficients=coefficients)
