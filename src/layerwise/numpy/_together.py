"""Steps of named arrays, by one optimizer or several together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from layerwise.core.steps import Steps
from layerwise.engines import Candidate, choose
from layerwise.engines.compiled import candidate, signals_wait
from layerwise.engines.rule import RuleEngine
from layerwise.errors import GradientError, ParameterError
from layerwise.first import First, WaysOut, warn_of
from layerwise.keywords import needing_all
from layerwise.names import Name, few
from layerwise.numpy import _arrays
from layerwise.numpy._arrays import Array, lying
from layerwise.spans import check_distinct
from layerwise.threads import OneAtATime

STACK = 1 << 12  # elements up to which a step costs more in calls than in arithmetic
MATRIX = 1 << 15  # the same of products
LIBRARY = _arrays.Arrays()
ENGINES = (candidate(), Candidate("rule", RuleEngine(LIBRARY, stack_size=STACK, matrix_size=MATRIX)))
Given = tuple[Any, Mapping[Any, Any], Mapping[Any, Any]]  # an optimizer, and the weights and gradients by name
WAYS_OUT = WaysOut(
    'Exempt them from it, such as by adapt={"*.bias": False}.',
    'Pass master_weights="split", or rounding="stochastic".',
    'Leave them their ratio, or give them a smaller rate, such as by lr_scale={"*.bias": 0.001}.',
    "Leave them to AdamW, by Mixed.",
    'Give each row its own by blocks="each", or pass `blocks` by name.',
)


class Stepper:
    """What steps named arrays: one optimizer, or several together."""

    __slots__ = ()
    _steps: Steps
    _one_at_a_time: OneAtATime
    parameters: Any  # names and shapes

    @needing_all("It takes weights and their gradients, both by name.")
    def step_all(self, weights: Mapping[Any, Array], grads: Mapping[Any, Any]) -> None:
        """Update named arrays in place: all of them, or none if one of the arguments is wrong.

        Names without a gradient, or with None, keep their weights and their state.

        Args:
            weights: The arrays by name.
            grads: Their gradients by name, which are not changed.
        """
        both: dict[str, Any] = {"weights": weights, "grads": grads}
        for argument, given in both.items():
            if not isinstance(given, Mapping):
                shown = type(given).__name__
                raise ParameterError(f"`{argument}` must be a mapping from names to arrays, but is {shown}.")
        for name in grads:
            if name not in weights:
                raise GradientError(f"there is a gradient for {name!r}, but no weights. Known are: {few(weights)}.")
        with self._one_at_a_time, signals_wait:
            firsts = self._step_all(weights, grads)
        warn_of(firsts or (), WAYS_OUT)

    def _step_all(self, weights: Mapping[Any, Array], grads: Mapping[Any, Any]) -> list[First] | None:
        raise NotImplementedError

    def _take(
        self, given: Sequence[Given], whole: bool, skips: bool, engine: str | None, bound: float | None = None
    ) -> list[First] | None:
        """Step the names of these optimizers: all, or none if one cannot be stepped. Return what are first steps.

        Return None if the step was skipped because of nan or inf.
        """
        asked = [one for one in (optimizer._asked(*both, whole) for optimizer, *both in given) if one.names]
        memory = Occupied({name: p for one in asked for name, p in zip(one.names, one.params, strict=True)})
        memory.check_distinct()
        pairs = ((g, p) for one in asked for g, p in zip(one.grads, one.params, strict=True))
        skipped = skips and not all(_arrays.is_finite(g, p) for g, p in pairs)
        due = [one._replace(grads=list(map(memory.apart, one.grads))) for one in asked]
        with np.errstate(all="ignore"):
            firsts = self._steps.take(due, choose(engine, ENGINES), bound) if due and not skipped else []
        for optimizer, weights, _ in given:
            optimizer._note(weights, whole)
        return None if skipped else firsts

    @property
    def num_parameters(self) -> int:
        """The number of names seen: those given to step_all, or with a state."""
        return len(self.parameters)


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
