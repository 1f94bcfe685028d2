"""Arrays that lie in the same memory: tied weights, and gradients that are weights of another name."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from numpy.lib.array_utils import byte_bounds

from layerwise.errors import ParameterError
from layerwise.names import Name
from layerwise.numpy._arrays import Array, lying
from layerwise.spans import shared


class Occupied:
    """The memory that the weights of a step occupy, as an ordered list of spans."""

    def __init__(self, weights: Mapping[Name, Array]) -> None:
        spans = sorted(byte_bounds(array) for array in weights.values() if array.size)
        self._weights = weights
        self._starts = [start for start, _ in spans]
        # The furthest end so far: spans may lie inside one another.
        self._ends: list[int] = []
        for _, end in spans:
            self._ends.append(max(end, self._ends[-1]) if self._ends else end)

    def check_distinct(self) -> None:
        """Raise if weights are tied: stepped under two names, one parameter would move twice."""
        if all(end <= start for (end, start) in zip(self._ends, self._starts[1:], strict=False)):
            return
        if found := shared((name, lying(array)) for name, array in self._weights.items()):
            one, other = found
            raise ParameterError(
                f"{one!r} and {other!r} share memory: they are one parameter, and would move twice. "
                "Keep one name, and give it the sum of the gradients."
            )

    def apart(self, grad: Array) -> Array:
        """Return the gradient, or a copy of it if stepping some weights could change it underway."""
        if not grad.size or not self._starts:
            return grad
        low, high = byte_bounds(grad)
        reached = bisect_left(self._starts, high)
        return grad.copy() if reached > bisect_right(self._ends, low) else grad
