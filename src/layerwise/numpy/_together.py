"""What steps named arrays: the library, its engines, and the memory that arrays of one step occupy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate

from numpy.lib.array_utils import byte_bounds

from layerwise.engines import Candidate
from layerwise.engines.compiled import candidate
from layerwise.engines.rule import RuleEngine
from layerwise.first import WaysOut
from layerwise.names import Name
from layerwise.numpy import _arrays
from layerwise.numpy._arrays import Array, lying
from layerwise.spans import check_distinct

STACK = 1 << 12  # elements up to which a step costs more in calls than in arithmetic
LIBRARY = _arrays.Arrays()
ENGINES = (candidate(), Candidate("rule", RuleEngine(LIBRARY, stack_size=STACK)))
WAYS_OUT = WaysOut(
    'Exempt them from it, such as by adapt={"*.bias": False}.',
    'Pass master_weights="split", or rounding="stochastic".',
    'Leave them their ratio, or give them a smaller rate, such as by lr_scale={"*.bias": 0.001}.',
    "Leave them to an AdamW of their own.",
    'Give each row its own by blocks="each", or pass `blocks` by name.',
)


class Occupied:
    """The memory that the weights of a step occupy, as an ordered list of spans."""

    def __init__(self, weights: Mapping[Name, Array]) -> None:
        spans = sorted(byte_bounds(array) for array in weights.values() if array.size)
        self._weights, self._starts = weights, [start for start, _ in spans]
        # The furthest end so far: spans may lie inside one another.
        self._ends = list(accumulate((end for _, end in spans), max))

    def check_distinct(self) -> None:
        if all(end <= start for (end, start) in zip(self._ends, self._starts[1:], strict=False)):
            return
        each = ((name, lying(array)) for name, array in self._weights.items())
        check_distinct(each, "Keep one name, and give it the sum of the gradients.")

    def apart(self, grad: Array) -> Array:
        """Return the gradient, or a copy of it if stepping some weights could change it underway."""
        if not grad.size or not self._starts:
            return grad
        low, high = byte_bounds(grad)
        return grad.copy() if bisect_left(self._starts, high) > bisect_right(self._ends, low) else grad
