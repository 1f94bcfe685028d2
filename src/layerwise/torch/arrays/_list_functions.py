"""The functions of a namespace that rules use, for lists of tensors as well as single ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from layerwise.rules.requests import Array, Functions, Scalar
from layerwise.torch.arrays import _library as of_one
from layerwise.torch.arrays._library import PURE, Tensors, in_range_of, multiplies, wide_dtype
from layerwise.torch.arrays._lists import Dims, TensorList, apply_in_rows


def _added(x: TensorList, y: TensorList | Scalar, a: float = 1.0) -> TensorList:
    """Return x + a·y, overwriting x."""
    if isinstance(y, TensorList) and y.layout is not x.layout:
        return _many(x + a * y)
    if x.is_flat and (y.is_flat if isinstance(y, TensorList) else True):
        x.flat.add_(y.flat if isinstance(y, TensorList) else y, alpha=a)
    elif isinstance(y, TensorList):
        torch._foreach_add_(x.each, y.each, alpha=a)
    else:
        torch._foreach_add_(x.each, a * y)
    return x


def _many(x: Array) -> TensorList:
    """Return the result of arithmetic, which has any type."""
    found: TensorList = x
    return found


def add_scaled(x: Scalar, a: Scalar, y: Scalar) -> TensorList:
    """Return x + a·y."""
    if not isinstance(y, TensorList):  # one number for all, combined with one of each tensor
        return _many(x + a * y)
    if not (isinstance(x, TensorList) and isinstance(a, (int, float)) and x.layout is y.layout):
        return _added(_many(y * a), x)
    a = in_range_of(a, x.dtype)
    if x.is_flat and y.is_flat:
        return apply_in_rows(partial(torch.add, alpha=a), x, y)
    return x.like(list(torch._foreach_add(x.each, y.each, alpha=a)))


def add_overwriting(x: TensorList, a: Scalar, y: TensorList) -> TensorList:
    """Return x + a·y, overwriting x."""
    return _added(x, y, in_range_of(a, x.dtype)) if isinstance(a, (int, float)) else _added(x, y * a)


def mix(b: Scalar, x: TensorList, y: TensorList) -> TensorList:
    """Return b·x + (1 − b)·y, overwriting x."""
    if isinstance(b, TensorList):
        x = _many(x * b)
    elif x.is_flat:
        x.flat.mul_(b)
    else:
        torch._foreach_mul_(x.each, b)
    return add_overwriting(x, 1 - b, y)


def clip(x: TensorList, low: float | None, high: float | None) -> TensorList:
    """Return the numbers between bounds."""
    if x.is_flat:
        return apply_in_rows(torch.clip, x, low, high)
    for bound, function in ((low, torch._foreach_clamp_min), (high, torch._foreach_clamp_max)):
        x = x if bound is None else x.like(list(function(x.each, in_range_of(bound, x.dtype))))
    return x


def asarray(x: TensorList, dtype: torch.dtype) -> TensorList:
    """Return an array of this dtype."""
    return x if x.dtype == dtype else x.like(x.flat.to(dtype))


def sum_along(x: TensorList, axis: Dims, keepdims: bool) -> TensorList:
    """Return the sums of each tensor along some dimensions."""
    return _along(x, axis, x.dtype, partial(torch.sum, keepdim=keepdims))


def _along(x: TensorList, dims: Dims, dtype: torch.dtype, function: Callable[..., object]) -> TensorList:
    layout = x.of.layout(tuple(tuple(1 if d in dims else n for d, n in enumerate(shape)) for shape in x.layout.shapes))
    if layout is x.layout:  # their sizes are already 1
        return x
    buffer = layout.buffer(dtype)
    for batch, found in zip(x.batches, buffer.batches, strict=True):
        within = [d + 1 for d in dims if d + 1 < batch.ndim]
        if within:
            function(batch, within, out=found)
        else:
            found.copy_(batch)
    return TensorList(x.of, layout, buffer)


def squares(x: TensorList, dims: Dims) -> Array:
    """Return sums of squares in float64: of all tensors together if `dims` has the dimension that counts them."""
    wide, last = wide_dtype(x.of.device), len(x.of.shape) - 1
    if all(d in dims for d in range(last)):
        norms = TensorList(x.of, x.of.numbers, torch.stack(list(torch._foreach_norm(x.each, 2, wide))).unsqueeze(1))
    else:  # of each block
        norms = asarray(_along(x, dims, wide, partial(_norm, dtype=wide)), wide)
    found = _many(norms * norms)
    return found.flat.sum() if last in dims else found


def _norm(x: Tensor, dims: list[int], dtype: torch.dtype, out: Tensor) -> None:
    torch.linalg.vector_norm(x, 2, dims, True, dtype=dtype, out=out)


def _either(function: Callable[..., Array], of_lists: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function of tensors, or of lists of them."""

    def found(*args: object, **options: object) -> Array:
        return (of_lists if any(isinstance(x, TensorList) for x in args) else function)(*args, **options)

    return found


OF_LISTS: dict[str, Callable[..., Array]] = {
    "sqrt": TensorList.sqrt,
    "expm1": TensorList.expm1,
    "sum": sum_along,
    "where": partial(apply_in_rows, torch.where),
    "clip": clip,
    "ones_like": lambda x: x.like(torch.ones_like(x.flat)),
    "asarray": asarray,
    "multiplies": lambda x, dtype: multiplies(x.of.device, dtype),
    "reshape": lambda x, shape: x.flat.reshape(shape),  # of numbers: one tensor of them all
    "squares": squares,
    "add_scaled": add_scaled,
}
EITHER = {**PURE, **{name: _either(PURE[name], function) for name, function in OF_LISTS.items()}}
EITHER["length"] = _either(torch.sqrt, TensorList.sqrt)  # the derivative at 0, for which `root` exists, is not needed


class ListsOfTensors(Tensors):
    """Tensors as the rule engine reads and writes them, and operations of rules on lists of them."""

    pure: Functions = SimpleNamespace(**EITHER)
    xp: Functions = SimpleNamespace(
        **EITHER, mix=_either(of_one.mix, mix), add_overwriting=_either(of_one.add_overwriting, add_overwriting)
    )
