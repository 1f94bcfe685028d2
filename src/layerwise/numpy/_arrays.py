"""What the NumPy front accepts as a parameter and as a gradient, and how it reads and writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from layerwise.errors import GradientError, HyperparameterError, ParameterError, sentence

Array = np.ndarray[Any, Any]


def is_floating(dtype: np.dtype[Any]) -> bool:
    # bfloat16 comes to NumPy from outside, and is no np.floating there.
    return dtype.kind == "f" or dtype.name == "bfloat16"


def computing(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the arithmetic and of the state: at least float32."""
    return np.dtype(np.float32) if dtype.name in ("bfloat16", "float16") else dtype.newbyteorder("=")


def named_dtype(argument: str, name: str) -> np.dtype[Any]:
    """The floating dtype of that name, if this process knows it."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if not is_floating(dtype):
        way_out = "bfloat16 is known once ml_dtypes is imported." if name == "bfloat16" else 'Pass "float32".'
        raise HyperparameterError(sentence(argument, "the name of a floating dtype of numpy", name, way_out))
    return dtype


def machine_eps(dtype: np.dtype[Any]) -> float:
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


def read(array: Array, like: Array) -> Array:
    return array.astype(computing(like.dtype), copy=False)


def write(stored: Array, new: Array) -> None:
    stored[...] = new.astype(stored.dtype, copy=False)


def check_parameter(name: str, weights: Any) -> Array:
    """`weights` if it is an array that can be updated in place."""
    if not isinstance(weights, np.ndarray):
        raise ParameterError(
            f"weights of {name!r} must be a numpy array, to be updated in place, but are {type(weights).__name__}. "
            "Keep them as an array, such as np.asarray(weights, dtype=np.float32)."
        )
    if not is_floating(weights.dtype):
        raise ParameterError(
            f"weights of {name!r} must be real floating point, but are {weights.dtype}. "
            "Convert them once with .astype(np.float32); split complex weights into real and imaginary parts."
        )
    if not weights.flags.writeable:
        raise ParameterError(f"weights of {name!r} are read-only. Pass an array that owns its data: weights.copy().")
    if any(stride == 0 and n > 1 for stride, n in zip(weights.strides, weights.shape, strict=True)):
        raise ParameterError(
            f"weights of {name!r} share memory among their own elements (a broadcast view). Pass weights.copy()."
        )
    return weights


def check_gradient(name: str, grad: Any, weights: Array) -> Array:
    """`grad` as an array that fits `weights`."""
    if grad is None:
        raise GradientError(f"{name!r} has no gradient. Pass one, or leave the name out of this step.")
    if hasattr(grad, "tocoo"):
        raise GradientError(f"the gradient of {name!r} is sparse ({type(grad).__name__}). Pass grad.toarray().")
    array = np.asarray(grad)
    if not (is_floating(array.dtype) or array.dtype.kind in "iu"):
        raise GradientError(f"the gradient of {name!r} must be real numbers, but is {array.dtype}. Pass a float array.")
    if array.shape != weights.shape:
        raise GradientError(
            f"the gradient of {name!r} must have the shape of its weights, {weights.shape}, but has {array.shape}. "
            "Nothing is broadcast; reshape it, or pass the gradient of these weights."
        )
    return array


def check_distinct(arrays: dict[str, Array]) -> None:
    """Tied weights are one parameter: stepped under two names, they would move twice."""
    seen: dict[tuple[Any, ...], str] = {}
    for name, a in arrays.items():
        if a.size == 0:
            continue
        place = (a.__array_interface__["data"][0], a.shape, a.strides)
        if place in seen:
            raise ParameterError(
                f"{seen[place]!r} and {name!r} are the same array. Keep one name, and give it the sum of the gradients."
            )
        seen[place] = name
