"""Variables of the static graph as rules compute with them.

Paddle's own arithmetic makes float32 of a number beside a variable, and so do its functions. Here a number has the
dtype of the variable that it stands beside, and is in the program once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

import paddle

from layerwise.paddle._arrays import FUNCTIONS, Variable, dtype_name

Constants = dict[tuple[float, str], Variable]  # of a program, by their numbers and dtypes


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
    def dtype(self) -> Any:
        """Paddle's dtype."""
        return self.variable.dtype

    def like(self, variable: Variable) -> Array:
        """Return another variable of the same program."""
        return Array(variable, self.constants)

    def beside(self, x: Any) -> Variable:
        """Return the variable of an array, or a number as one of this dtype."""
        if isinstance(x, Array):
            return x.variable
        key = float(x), dtype_name(self.variable)
        if key not in self.constants:
            self.constants[key] = paddle.full([], *key)
        return self.constants[key]

    def __getitem__(self, place: Any) -> Array:
        return self.like(self.variable[place])

    def __neg__(self) -> Array:
        return self.like(paddle.neg(self.variable))


def bare(x: Any) -> Any:
    """Return the variable of an array, or the variables of several; anything else as it is."""
    if isinstance(x, Array):
        return x.variable
    return [bare(one) for one in x] if isinstance(x, (list, tuple)) else x


def _operator(compute: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Array, Any], Array]:
    def apply(self: Array, other: Any) -> Array:
        pair = self.variable, self.beside(other)
        return self.like(compute(*(reversed(pair) if reflected else pair)))

    return apply


for name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Array, f"__{name}__", _operator(getattr(operator, name)))
    setattr(Array, f"__r{name}__", _operator(getattr(operator, name), reflected=True))
for name in ("lt", "le", "gt", "ge", "eq", "ne", "matmul"):
    setattr(Array, f"__{name}__", _operator(getattr(operator, name)))
for name, compute in (("and", paddle.logical_and), ("or", paddle.logical_or)):
    setattr(Array, f"__{name}__", _operator(compute))


def _lifted(function: Callable[..., Any]) -> Callable[..., Array]:
    def apply(x: Any, *args: Any, **options: Any) -> Array:
        first: Array = x[0] if isinstance(x, (list, tuple)) else x
        return first.like(function(bare(x), *args, **options))

    return apply


def _where(condition: Array, yes: Any, no: Any) -> Array:
    like: Array = yes if isinstance(yes, Array) else no
    return like.like(paddle.where(condition.variable, like.beside(yes), like.beside(no)))


def _clip(x: Array, low: float | None, high: float | None) -> Array:
    for bound, nearer in ((low, paddle.maximum), (high, paddle.minimum)):
        if bound is not None and abs(bound) < inf:
            x = x.like(nearer(x.variable, x.beside(bound)))
    return x


LIFTED = ("sqrt", "sum", "ones_like", "expm1", "concat", "reshape", "moveaxis", "squares", "asarray")
NAMESPACE: Any = SimpleNamespace(
    **{name: _lifted(getattr(FUNCTIONS, name)) for name in LIFTED},
    where=_where,
    clip=_clip,
    float64=FUNCTIONS.float64,
)
