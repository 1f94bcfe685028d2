"""MLX's functions as rules take them, with sums to the last digits of their dtype."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from layerwise.drive.scaled import Namespace, Scaled


class Norm(Scaled):
    """A sum of squares that the sums of other tensors are added to."""

    __slots__ = ()

    def __add__(self, other: Any) -> Norm:
        factor = mx.maximum(self.factor, other.factor)
        mine, theirs = self.factor / factor, other.factor / factor
        return Norm(factor, self.sum * mine * mine + other.sum * theirs * theirs)


class Functions(Namespace):
    """The functions of `mlx.core`."""

    amax = staticmethod(mx.max)
    asarray = staticmethod(mx.array)  # which is the older name

    def squares(self, terms: Any, dims: tuple[int, ...]) -> Scaled:
        """Sum the squares over these dimensions, as exactly as the device can."""
        return super().squares(_wide(terms), dims)

    def sum(self, terms: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        """Sum over these dimensions, to the last digits of the dtype."""
        return mx.sum(_wide(terms), axis=axis, keepdims=keepdims).astype(terms.dtype)

    def unless_off(self, a: Any, y: Any) -> Any:
        """Return y, and 0 where `a` is: rates are arrays, of which nobody knows before a step that they are 0."""
        return mx.where(a == 0, mx.zeros_like(y), y) if isinstance(a, mx.array) else y

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return an array, or a tensor's sum of squares in the shape of all tensors'."""
        return Norm(*(mx.reshape(one, shape) for one in x)) if isinstance(x, Scaled) else mx.reshape(x, shape)


FUNCTIONS = Functions(mx)


def _wide(terms: Any) -> Any:
    """Return the terms of a sum in float64 on a CPU, where MLX adds one number after the other.

    Sums of two million float32 numbers would have two digits. GPUs, most of which have no float64, add in a tree.
    """
    return terms.astype(mx.float64) if mx.default_device() == mx.Device(mx.cpu) else terms
