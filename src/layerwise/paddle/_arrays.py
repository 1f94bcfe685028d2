"""Paddle as the rules and their engine use it, and the tensors that the Paddle API accepts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import inf, prod
from types import SimpleNamespace
from typing import Any

import paddle
from paddle.base.framework import EagerParamBase

from layerwise.core.library import FLOATING, UnshardedArrays
from layerwise.core.library import arithmetic_dtype as computing_name
from layerwise.engines.addresses import StridedMemory, check_distinct
from layerwise.engines.compiled import register_plain
from layerwise.errors import GradientError, ParameterError
from layerwise.rules.requests import Functions

Tensor = Any  # a paddle.Tensor, whose type hints are incomplete, or a variable of the static graph
Variable = paddle.pir.Value
TENSORS = (paddle.Tensor, Variable)

register_plain(paddle.Tensor, EagerParamBase)


def dtype_name(x: Tensor) -> str:
    """Return the name of a tensor's dtype, such as "float32"."""
    return str(x.dtype).rpartition(".")[2]


def arithmetic_dtype(x: Tensor) -> str:
    """Return the dtype of the arithmetic and of the state: at least float32."""
    return computing_name(dtype_name(x))


def shape_of(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


# ---- the namespace of the rules


def _sum(x: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    return paddle.sum(x, axis=list(axis), keepdim=keepdims)


def _squares(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return Σx² in float64: the square of a smaller dtype's number neither overflows nor vanishes there."""
    terms = paddle.square(paddle.cast(x, "float64"))
    return _sum(terms, dims, True) if dims else terms


def _sqrt(x: Tensor) -> Tensor:
    """Return √x; Paddle's own gives nan for infinite numbers on some CPUs."""
    return paddle.where(x == inf, x, paddle.sqrt(x))


def _clip(x: Tensor, low: float | None, high: float | None) -> Tensor:
    return paddle.clip(x, -inf if low is None else low, inf if high is None else high)


def _where(condition: Tensor, yes: object, no: object) -> Tensor:
    """Return a choice in the dtype of the array among the two; a number has no dtype."""
    like = yes if isinstance(yes, TENSORS) else no
    yes, no = (x if isinstance(x, TENSORS) else paddle.full_like(like, x) for x in (yes, no))
    return paddle.where(condition, *paddle.broadcast_tensors([yes, no]))


def _asarray(x: Tensor, dtype: object) -> Tensor:
    return paddle.cast(x, dtype) if isinstance(x, TENSORS) else paddle.to_tensor(x, dtype=dtype)


def _exists(x: Tensor) -> Tensor:
    return paddle.cast(x, "bool")


def fast_product_dtype(dtype: str) -> str | None:
    """Return the dtype in which the device multiplies faster than in float32, or None."""
    return "float16" if dtype != "float64" and _on_gpu() else None


def _on_gpu() -> bool:
    return bool(paddle.device.get_device().startswith("gpu"))


def _multiplies(x: Tensor, dtype: str) -> str | None:
    """Return a 16-bit dtype if the device has products of it."""
    return dtype if _on_gpu() else None


def _weighted(G: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return a + b·G + c·G² of matrices, summed before rounding."""
    own, squared = arithmetic_dtype(G), paddle.matmul(G, G)
    return a * paddle.eye(G.shape[-1], dtype=own) + (b * paddle.cast(G, own) + c * paddle.cast(squared, own))


FUNCTIONS: Any = SimpleNamespace(
    sqrt=_sqrt,
    sum=_sum,
    where=_where,
    clip=_clip,
    ones_like=paddle.ones_like,
    expm1=paddle.expm1,
    asarray=_asarray,
    concat=paddle.concat,
    reshape=paddle.reshape,
    moveaxis=paddle.moveaxis,
    stack=paddle.stack,
    vanishes=paddle.logical_not,  # Paddle's == takes numbers for equal that are 1e-15 apart
    exists=_exists,
    float64=paddle.float64,
    squares=_squares,
    multiplies=_multiplies,
    weighted=_weighted,
)


class Arrays(UnshardedArrays):
    """Tensors as the rule engine reads and writes them, and as the core creates them."""

    xp: Functions = FUNCTIONS
    pure: Functions = FUNCTIONS
    dtype = staticmethod(dtype_name)
    bits: Any = None  # tensors are always stored as their numbers

    def read(self, array: Tensor, like: Tensor) -> Tensor:
        return paddle.cast(array, arithmetic_dtype(like))

    def copy(self, array: Tensor) -> Tensor:
        return array.clone()

    def write(self, stored: Tensor, new: Tensor) -> None:
        stored.copy_(paddle.cast(new, stored.dtype), False)

    def zeros(self, shape: tuple[int, ...], dtype: str, beside: Tensor) -> Tensor:
        found = paddle.zeros(list(shape), dtype)
        return found if str(found.place) == str(beside.place) else found.to(beside.place)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        with paddle.no_grad():
            return paddle.cast(x, dtype)

    def kind(self, array: Tensor) -> Hashable:
        return shape_of(array), array.dtype, str(array.place)

    def stack(self, arrays: Sequence[Tensor]) -> Tensor:
        return paddle.stack(list(arrays), axis=-1)

    def write_stack(self, stored: Sequence[Tensor], new: Tensor) -> None:
        for place, one in zip(stored, paddle.unstack(new, axis=-1), strict=True):
            self.write(place, one)


# ---- accepted tensors


def memory_of(x: Tensor) -> StridedMemory:
    size = x.element_size()
    return StridedMemory(x.data_ptr(), shape_of(x), tuple(n * size for n in x.strides), size)


def why_unreadable(x: Tensor) -> str:
    """Return the reason why a tensor has no values to read, or an empty string."""
    if isinstance(x, Variable):
        return ""
    if not x._is_initialized():
        return "has no values"
    try:
        x.data_ptr()
    except RuntimeError:  # its memory is too short
        return "has less memory than elements"
    return ""


def is_dense(x: Tensor) -> bool:
    return bool(x.is_dense_tensor_type() if isinstance(x, Variable) else x.is_dense())


def listed(which: Any) -> list[Tensor]:
    """Return the items of an argument: several, one, or none."""
    return [] if which is None else [which] if isinstance(which, (str, *TENSORS)) else list(which)


def is_same(one: Tensor, p: Tensor) -> bool:
    """Return True if two objects are the same tensor or variable."""
    return one is p or (isinstance(one, Variable) and isinstance(p, Variable) and bool(one.is_same(p)))


def check_loss(loss: object) -> None:
    """Raise unless this is a loss: a tensor, or in the static graph a variable, of one number."""
    if not isinstance(loss, paddle.Tensor if paddle.in_dynamic_mode() else Variable):
        allowed = "a tensor, after its backward()" if paddle.in_dynamic_mode() else "a variable of the program"
        raise ParameterError(f"`loss` must be {allowed}, but is of type {type(loss).__name__}. Pass the loss.")
    if isinstance(loss, Variable) and prod(shape_of(loss)) != 1:
        raise ParameterError(f"`loss` must be one number, but has the shape {shape_of(loss)}. Pass its mean().")


def check_parameter(p: Tensor) -> None:
    """Raise unless `p` can be stepped: a tensor that can be changed in place, or in the static graph a variable."""
    wanted = paddle.Tensor if paddle.in_dynamic_mode() else Variable
    if not isinstance(p, wanted):
        kind = "tensors of Paddle" if wanted is paddle.Tensor else "variables of the static graph"
        raise ParameterError(
            f"`parameters` must contain {kind}, but one has the type {type(p).__name__}. Pass model.parameters() of a "
            "model created in the same mode."
        )
    if p.is_dist():
        raise ParameterError(
            f"{p.name} is a distributed tensor, which layerwise.paddle cannot step. Use layerwise.torch for sharded "
            "parameters, or paddle.DataParallel, whose parameters are whole."
        )
    if not is_dense(p):
        raise ParameterError(f"{p.name} must be a dense tensor. Pass p.to_dense() as the parameter.")
    if dtype_name(p) not in FLOATING:
        raise ParameterError(f"{p.name} must have a floating-point dtype of 16 to 64 bits, but has {dtype_name(p)}.")
    if why := why_unreadable(p):
        raise ParameterError(f"{p.name} {why}. Initialize it before creating the optimizer, and before each step.")
    if isinstance(p, paddle.Tensor) and memory_of(p).overlaps_itself:
        raise ParameterError(f"{p.name} is expanded: its elements share memory. Pass p.clone() as the parameter.")


def check_apart(params: Iterable[Tensor]) -> None:
    """Raise if parameters share memory. Variables always have memory of their own."""
    tensors = (p for p in params if isinstance(p, paddle.Tensor))
    check_distinct(((p.name, memory_of(p)) for p in tensors), "Pass one of them, or give the other its own memory.")


def dense(g: Tensor) -> Tensor:
    """Return all rows of a gradient that has only some, such as that of nn.Embedding(sparse=True).

    Rows without a gradient are stepped with zeros, as in Paddle's Lamb and Momentum.
    """
    rows, wide = g.rows(), arithmetic_dtype(g)
    with paddle.no_grad():
        found = paddle.zeros([g.get_selected_rows().height(), *g.shape[1:]], wide).to(g.place)
        if not rows:
            return found
        places = paddle.to_tensor(rows, "int64", place=g.place).unsqueeze(1)
        values = g._get_tensor_from_selected_rows()
        return paddle.scatter_nd_add(found, places, paddle.cast(values, wide))


def check_gradient(p: Tensor, g: Tensor) -> None:
    """Raise unless `g` is a gradient that fits `p`."""
    if not is_dense(g):
        raise GradientError(
            f"the gradient of {p.name} is sparse in a format without rows. Pass one of nn.Embedding(sparse=True), or "
            "g.to_dense()."
        )
    if why := why_unreadable(g):
        raise GradientError(f"the gradient of {p.name} {why}. Run the backward pass again, or set it to None.")
    if dtype_name(g) not in FLOATING:
        raise GradientError(f"the gradient of {p.name} must have a floating-point dtype, but has {dtype_name(g)}.")
    if shape_of(g) != shape_of(p):
        raise GradientError(
            f"the gradient of {p.name} has the shape {shape_of(g)}, but its parameter has {shape_of(p)}."
        )
    if isinstance(p, paddle.Tensor) and str(g.place) != str(p.place):
        raise GradientError(
            f"the gradient of {p.name} is on {g.place}, but its parameter is on {p.place}. Move one of them."
        )


def all_finite(grads: Sequence[Tensor]) -> Tensor | None:
    """Return whether all gradients are finite, as a tensor; they are read once, on their device."""
    found = [paddle.isfinite(g).all() for g in grads if prod(shape_of(g))]
    return paddle.stack(found).all() if found else None
