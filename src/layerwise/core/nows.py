"""The numbers that change from step to step, made once for all tensors that share them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from layerwise.engines.programs import MANY, ByRates
from layerwise.hyper import Hyper
from layerwise.rules.asks import Now, Scalar


class Nows:
    """The numbers of tensors that step together, so many in each group with settings and rates of its own.

    An engine computes coefficients once for each object that it is given.
    """

    def __init__(self, hs: Sequence[Hyper], sizes: Sequence[int]) -> None:
        self._hs, self._sizes = hs, sizes
        known = {None if h.follows_step else h.beta2_of(1) for h in hs}
        self._by_step = len(known) > 1 or any(h.follows_step for h in hs)
        self._beta2 = next(iter(known), None)

    def of(
        self, t: Sequence[int], lr: Sequence[Any], weight_decay: Sequence[Any], g_scale: Scalar = 1.0
    ) -> Sequence[Now]:
        """Return the numbers of each tensor, given the step that it takes, and the rates of each group."""
        if not t:
            return []
        if self._by_step or t.count(t[0]) < len(t):
            return self._one_by_one(t, lr, weight_decay, g_scale)
        first, n = Now(t[0], lr[0], weight_decay[0], g_scale, self._beta2), len(lr)
        floats = n > 1 and {*map(type, lr), *map(type, weight_decay)} == {float}
        if n == 1 or (floats and lr.count(lr[0]) == n and weight_decay.count(weight_decay[0]) == n):
            return [first] * len(t)
        if floats and n >= MANY:
            return ByRates(first, self._of_each(lr), self._of_each(weight_decay))
        return self._of_each([Now(t[0], *rates, g_scale, self._beta2) for rates in zip(lr, weight_decay, strict=True)])

    def _of_each(self, of_groups: Sequence[Any]) -> list[Any]:
        return list(chain.from_iterable(map(repeat, of_groups, self._sizes)))

    def _one_by_one(self, t: Sequence[int], lr: Sequence[Any], weight_decay: Sequence[Any], scale: Scalar) -> list[Now]:
        found: dict[tuple[Any, ...], Now] = {}
        beta2: dict[tuple[int, int], Any] = {}  # a user's function is asked once for each step
        nows = []
        for own, (h, *rates) in zip(t, self._of_each([*zip(self._hs, lr, weight_decay, strict=True)]), strict=True):
            key = id(h), own, *rates
            if key not in found:
                if key[:2] not in beta2:
                    beta2[key[:2]] = h.beta2_of(own)
                found[key] = Now(own, rates[0], rates[1], scale, beta2[key[:2]])
            nows.append(found[key])
        return nows
