"""The parameters and gradients that the NumPy API accepts, and how they are read and written."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from types import SimpleNamespace

import numpy as np

from layerwise.core.library import FLOATING, UnshardedArrays
from layerwise.core.library import arithmetic_dtype as computing_name
from layerwise.engines.addresses import StridedMemory
from layerwise.engines.processor import available_processors
from layerwise.errors import GradientError, HyperparameterError, ParameterError, sentence
from layerwise.options.by_name import Name
from layerwise.rules.products import worth_halving
from layerwise.rules.requests import Functions
from layerwise.storage.bit_views import BitFunctions
from layerwise.storage.bits import WORD
from layerwise.storage.index import Index

Array = np.ndarray
"""A NumPy array of any shape and dtype."""


@cache  # called for every array of every step, and NumPy computes a dtype's name slowly
def dtype_name(dtype: np.dtype) -> str:
    return str(dtype.name)


@cache
def arithmetic_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the arithmetic and of the state: at least float32."""
    return np.dtype(computing_name(dtype.name))


def named_dtype(argument: str, name: str) -> np.dtype:
    """Return the dtype of that name, if this process knows it: bfloat16 needs another package."""
    try:
        return np.dtype(name)
    except TypeError:
        raise HyperparameterError(
            sentence(argument, "a dtype that NumPy knows", name, "NumPy knows bfloat16 only after `import ml_dtypes`.")
        ) from None


def squares(x: Array, dims: tuple[int, ...]) -> Array:
    """Return Σx² in float64: the square of a smaller dtype's number neither overflows nor vanishes there."""
    terms = np.square(x, dtype=np.float64)
    found: Array = np.sum(terms, axis=dims, keepdims=True) if dims else terms
    return found


PLAIN = "sqrt sum where clip ones_like expm1 asarray concat reshape moveaxis stack float64 eye"


def _indices(index: Index, like: Array) -> tuple[Array, Array]:
    numbers = np.asarray(index.numbers(np.arange, np.asarray), np.int64)
    return numbers & WORD, numbers >> 32


BITS = SimpleNamespace(
    xp=np,
    word=lambda x: x & WORD,
    integers=lambda x: x.astype(np.int64),
    as_floats=lambda x: x.astype(np.float32),
    bits=lambda x: x.view(np.uint32).astype(np.int64),
    floats=lambda u: u.astype(np.uint32).view(np.float32),
    shifted=lambda x, by: x << by,
    where=np.where,
    dtype=lambda array: dtype_name(array.dtype),
    indices=_indices,
    empty=lambda x: np.empty(x.shape, np.float32),
    written=lambda arrays: None,
)


class Arrays(UnshardedArrays):
    """Arrays as the rule engine reads and writes them, and as the core creates them."""

    bits: BitFunctions = BITS
    xp: Functions = SimpleNamespace(
        **{name: getattr(np, name) for name in PLAIN.split()},
        squares=squares,
        halves=lambda x: worth_halving(x.shape[-2], available_processors()),
    )
    pure: Functions = xp

    def read(self, array: Array, like: Array) -> Array:
        with np.errstate(over="ignore"):
            return array.astype(arithmetic_dtype(like.dtype), copy=False)

    def copy(self, array: Array) -> Array:
        return np.array(array)

    def write(self, stored: Array, new: Array) -> None:
        stored[...] = new.astype(stored.dtype, copy=False)

    def dtype(self, x: Array) -> str:
        return dtype_name(x.dtype)

    def zeros(self, shape: tuple[int, ...], dtype: str, beside: Array) -> Array:
        return np.zeros(shape, named_dtype("state_dtype", dtype))

    def cast(self, x: Array, dtype: str) -> Array:
        return np.array(x, named_dtype("state_dtype", dtype))

    def kind(self, array: Array) -> Hashable:
        return array.shape, array.dtype

    def stack(self, arrays: Sequence[Array]) -> Array:
        # Each stays in one piece: that is the fastest way to read and write it.
        return np.moveaxis(np.stack(arrays), 0, -1)

    def write_stack(self, stored: Sequence[Array], new: Array) -> None:
        for place, one in zip(stored, np.moveaxis(new, -1, 0), strict=True):
            self.write(place, one)


def is_finite(grad: Array, weights: Array) -> bool:
    """Return True if the gradient is finite in the dtype of the arithmetic."""
    return bool(np.isfinite(Arrays().read(grad, weights)).all())


def memory_of(array: Array) -> StridedMemory:
    return StridedMemory(array.ctypes.data, array.shape, array.strides, array.itemsize)


def check_parameter(name: Name, weights: object) -> Array:
    """Return `weights` if it is an array that can be updated in place."""
    if not isinstance(weights, np.ndarray) or isinstance(weights, np.ma.MaskedArray):
        raise ParameterError(
            f"weights of {name!r} must be a NumPy array, which is updated in place, but are a "
            f"{type(weights).__name__}. Keep them as an array, such as np.asarray(weights, dtype=np.float32)."
        )
    if dtype_name(weights.dtype) not in FLOATING:
        raise ParameterError(
            f"weights of {name!r} must have a floating-point dtype ({', '.join(FLOATING)}), but have "
            f"{weights.dtype}. Convert them once with .astype(np.float32); split complex weights into real and "
            "imaginary parts."
        )
    if not weights.flags.writeable:
        raise ParameterError(f"weights of {name!r} are read-only. Pass an array that owns its data: weights.copy().")
    if not weights.flags.forc and memory_of(weights).overlaps_itself:
        raise ParameterError(f"weights of {name!r} share memory among their own elements. Pass weights.copy().")
    return weights


def check_gradient(name: Name, grad: object, weights: Array) -> Array:
    """Return `grad` as an array that fits `weights`."""
    if grad is None:
        raise GradientError(f"{name!r} has no gradient. Pass one, or leave the name out of this step.")
    if hasattr(grad, "tocoo"):
        raise GradientError(f"the gradient of {name!r} is sparse ({type(grad).__name__}). Pass grad.toarray().")
    if isinstance(grad, np.ma.MaskedArray):
        raise GradientError(
            f"the gradient of {name!r} is masked. Pass grad.filled(0), or the values that masked elements should have."
        )
    try:
        array = np.asarray(grad)
    except Exception as problem:  # a foreign array may raise anything when it is read
        raise GradientError(f"the gradient of {name!r} cannot be read as an array of numbers: {problem}") from None
    if array.dtype.kind not in "fiu" and dtype_name(array.dtype) not in FLOATING:
        raise GradientError(f"the gradient of {name!r} must be real numbers, but is {array.dtype}. Pass a float array.")
    if array.shape != weights.shape:
        raise GradientError(
            f"the gradient of {name!r} must have the shape of its weights, {weights.shape}, but has {array.shape}. "
            "Gradients are not broadcast: reshape it, or pass the gradient of these weights."
        )
    return array
