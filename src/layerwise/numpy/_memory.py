"""Which arrays lie in the same memory: tied weights, and gradients that are somebody's weights."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

import numpy as np
from numpy.lib.array_utils import byte_bounds

from layerwise.errors import ParameterError
from layerwise.names import Name
from layerwise.numpy._arrays import Array


class Occupied:
    """The memory that the weights of a step occupy, as an ordered list of spans."""

    def __init__(self, weights: Mapping[Name, Array]) -> None:
        spans = [(*byte_bounds(array), name) for name, array in weights.items() if array.size]
        spans.sort(key=lambda span: span[0])
        self._weights = weights
        self._starts = [start for start, _, _ in spans]
        # The furthest end so far: spans may lie inside one another.
        self._ends: list[int] = []
        for _, end, _ in spans:
            self._ends.append(max(end, self._ends[-1]) if self._ends else end)
        self._spans = spans

    def check_distinct(self) -> None:
        """Tied weights are one parameter: stepped under two names, they would move twice."""
        if all(end <= start for (end, start) in zip(self._ends, self._starts[1:], strict=False)):
            return
        for i, (_, end, one) in enumerate(self._spans):
            for other in (name for start, _, name in self._spans[i + 1 :] if start < end):
                if np.shares_memory(self._weights[one], self._weights[other]):
                    raise ParameterError(
                        f"{one!r} and {other!r} share memory: they are one parameter, and would move twice. "
                        "Keep one name, and give it the sum of the gradients."
                    )

    def apart(self, grad: Array) -> Array:
        """The gradient, or a copy of it where stepping some weights could change it underway."""
        if not grad.size or not self._starts:
            return grad
        low, high = byte_bounds(grad)
        reached = bisect_left(self._starts, high)
        return grad.copy() if reached > bisect_right(self._ends, low) else grad
