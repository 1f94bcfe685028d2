"""Steps of named arrays: additions to the core's steps, the engines, and the memory that arrays of one step occupy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from operator import gt
from typing import Any

from numpy.lib.array_utils import byte_bounds

from layerwise.core.first_step import WaysOut
from layerwise.core.library import EPSILON
from layerwise.core.slots import PlannedTensor, StepScalars, TensorsToStep
from layerwise.engines import Candidate
from layerwise.engines.addresses import check_distinct
from layerwise.engines.compiled import candidate
from layerwise.engines.rule import RuleEngine
from layerwise.errors import HyperparameterError
from layerwise.numpy import _arrays
from layerwise.numpy._arrays import Array, memory_of
from layerwise.options.by_name import Name
from layerwise.options.settings import scheduled

STACK = 1 << 12  # the largest number of elements for which calls cost more than arithmetic
MATRIX = 1 << 15  # the same for products
RATES = ("lr", "weight_decay")
PLAIN = {str, int}  # the types in which names are kept
LIBRARY = _arrays.Arrays()
ENGINES = (candidate(), Candidate("rule", RuleEngine(LIBRARY, stack_size=STACK, matrix_size=MATRIX)))
WAYS_OUT = WaysOut(
    'Exempt them from the ratio, such as with adapt={"*.bias": False}.',
    'Pass master_weights="split", or rounding="stochastic".',
    'Keep their ratio, or give them a smaller rate, such as with lr_scale={"*.bias": 0.001}.',
    "Step them with a separate AdamW.",
    'Give each row a rate of its own with blocks="each", or pass `blocks` by name.',
)


class NumpyApi:
    """The work of an optimizer of named arrays, in a step of all or of one."""

    keeps_weights = False

    def __init__(self, optimizer: Any, whole: bool) -> None:
        self.optimizer, self.whole = optimizer, whole

    @property
    def has_blocks(self) -> bool:
        return bool(self.optimizer._options.by_name["blocks"].is_given)

    def step_dependencies(self, due: TensorsToStep) -> object:
        try:
            params = [(type(p), p.shape, p.dtype, p.strides, p.flags.writeable) for p in due.params]
            return params, [(type(g), g.shape, g.dtype) for g in due.grads]
        except AttributeError:  # for a value that is not an array, to be converted or refused
            return None

    def plan_tensors(self, due: TensorsToStep) -> list[PlannedTensor]:
        each = zip(due.names, due.params, strict=True)
        return [self.optimizer._planned(name, p.shape, EPSILON[_arrays.dtype_name(p.dtype)]) for name, p in each]

    def step_scalars(self, planned: Sequence[PlannedTensor], counts: Sequence[int]) -> StepScalars:
        """Return the numbers of these names' next step.

        With `shared_count`, all names of a call to step_all take the same step. With step(), a new step begins when a
        name arrives that has already taken the last one.
        """
        options, furthest = self.optimizer._options, self.optimizer._tensors.furthest
        t = [n + 1 for n in counts]
        if options.given["shared_count"]:
            t = [furthest + (self.whole or max(t) > furthest)] * len(t)
        taken = max(furthest, *t) - 1
        given = {name: getattr(options.h, name) for name in RATES}
        rates = {name: scheduled(x, name, taken) if callable(x) else x for name, x in given.items()}
        owns = [one.own for one in planned]
        found = {own: _rates(own, **rates) for own in dict.fromkeys(owns)}
        lr, weight_decay = zip(*map(found.__getitem__, owns), strict=True)
        return StepScalars(t, lr, weight_decay)

    def largest_lr(self, planned: PlannedTensor, lr: float) -> float | None:
        rate = getattr(self.optimizer._options.h.lr, "peak", self.optimizer._options.h.lr)
        return None if callable(rate) else rate * planned.own[0]


def _rates(factors: tuple[float, ...], lr: float, weight_decay: float) -> tuple[float, float]:
    found = lr * factors[0], weight_decay * factors[1]
    if inf in found:
        argument = "lr_scale" if found[0] == inf else "decay"
        raise HyperparameterError(f"`{argument}` times the rate that it multiplies is infinite. Pass a smaller factor.")
    return found


class OccupiedMemory:
    """Return the memory that the weights of a step occupy, as an ordered list of spans; raise if it is shared."""

    def __init__(self, names: Sequence[Name], weights: Sequence[Array]) -> None:
        spans = sorted([byte_bounds(array) for array in weights if array.size])
        self._starts = [start for start, _ in spans]
        # The furthest end so far: spans may lie inside one another.
        self._ends = list(accumulate([end for _, end in spans], max))
        if any(map(gt, self._ends, self._starts[1:])):
            each = zip(names, map(memory_of, weights), strict=True)
            check_distinct(each, "Keep one name, and pass the sum of the gradients.")

    def apart(self, grads: Sequence[Array]) -> list[Array]:
        """Return the gradients, with copies of those that would change while weights are stepped."""
        found = list(grads)
        for i, g in enumerate(found):
            low, high = byte_bounds(g)
            if g.size and bisect_left(self._starts, high) > bisect_right(self._ends, low):
                found[i] = g.copy()
        return found
