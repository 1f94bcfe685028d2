"""Step counts of parameters, on host or device, and the numbers that a step takes from them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

import torch
from torch import Tensor

from layerwise.core.nows import Nows
from layerwise.engines import Changed, Counter, compiled
from layerwise.errors import HyperparameterError, sentence
from layerwise.hyper import Hyper
from layerwise.rules.asks import Now
from layerwise.torch.step._memory import unreadable
from layerwise.torch.step._tensors import alike

Rates = tuple[Any, Any, Any]  # lr, weight decay, and the scale of gradients


def counts(steps: list[Tensor]) -> list[int]:
    """Return the number of steps that each of these has counted."""
    found = compiled.counts(steps)
    if found is None and any(unreadable(step) or step.numel() != 1 for step in steps):
        raise Changed
    return [int(step.item()) for step in steps] if found is None else found


def count(steps: list[Tensor], skip: Tensor | None) -> None:
    """Count the step in each of these, unless it was skipped."""
    if skip is None and compiled.count(steps):
        return
    for (some,) in alike(steps):
        # As a list, because PyTorch may read a single tensor as a number, and wait for it.
        torch._foreach_add_(some, 1 if skip is None else [(~skip).to(some[0])] * len(some))


class Counts:
    """The step counts of parameters that step together, group by group."""

    def __init__(self, groups: Sequence[OfGroup]) -> None:
        self._groups, self._elsewhere = groups, any(group.on_device for group in groups)
        self._steps = [step for group in groups for step in group.steps]
        self._uncounted = [step for group in groups if not group.by_engine for step in group.steps]

    def nows(self, each: Sequence[tuple[Hyper, Rates]]) -> list[Now]:
        """Return each parameter's numbers of the step, from the settings and rates of the groups."""
        if self._elsewhere:
            pairs = zip(self._groups, each, strict=True)
            return [now for group, (h, rates) in pairs for now in group.nows(h, rates)]
        taken = counts(self._steps)
        return _made(taken, [(len(group.steps), *one) for group, one in zip(self._groups, each, strict=True)])

    def count(self, skip: Tensor | None) -> None:
        """Count the step, where engines do not."""
        if self._uncounted and not (skip is None and compiled.count(self._uncounted)):
            count(self._uncounted, skip)


def _made(taken: Sequence[int], each: Sequence[tuple[int, Hyper, Rates]]) -> list[Now]:
    """Return the numbers of parameters that have taken so many steps; so many in each group."""
    made, nows = Nows(), list[Now]()
    alike = taken.count(taken[0]) == len(taken) if taken else True  # as good as always
    for n, h, rates in each:
        own = taken[len(nows) : len(nows) + n]
        nows += [made.of(h, own[0] + 1, *rates)] * n if alike else [made.of(h, t + 1, *rates) for t in own]
    return nows


class OfGroup:
    """Step counts that are read as numbers, or on the device by calls that do not wait; or `by_engine`."""

    def __init__(self, steps: list[Tensor], on_device: bool, by_engine: bool) -> None:
        # What once had to be on the device stays there: to read it would mean waiting. All of them are there then.
        self.steps, self.on_device = steps, on_device or any(step.device.type != "cpu" for step in steps)
        self.by_engine = by_engine and self.on_device
        self._counters = [Counter(step) for step in steps] if self.by_engine else []
        self._of: tuple[Any, ...] = ()  # what these were made of
        self._nows: list[Now] = []

    def nows(self, h: Hyper, rates: Rates) -> list[Now]:
        """Return each parameter's numbers of the step from these settings and rates."""
        if not self.on_device:
            return _made(counts(self.steps), [(len(self.steps), h, rates)])
        if not self.by_engine:
            return [Now(t, *rates, beta2=_beta2(h, t)) for t in torch._foreach_add(self.steps, 1)]
        if h.follows_step:
            steps = torch._foreach_add(self.steps, 1)
            return [Now(c, *rates, beta2=_beta2(h, t)) for c, t in zip(self._counters, steps, strict=True)]
        if not self._of or any(map(is_not, self._of, (h, *rates))):
            self._of = h, *rates
            self._nows = [Now(counter, *rates, beta2=h.beta2_of(1)) for counter in self._counters]
        return self._nows


def _beta2(h: Hyper, t: Tensor) -> Any:
    """Return β₂ at the step t, which only the device knows: a user's function computes with tensors there."""
    if not h.follows_step:
        return h.beta2_of(1)
    exact = torch.float32 if t.device.type == "mps" else torch.float64
    found = h.beta2_of(t.to(exact), torch.clamp_min)
    if isinstance(found, Tensor) and found.numel() != 1:
        way_out = "A function must return one for every step."
        raise HyperparameterError(sentence("beta2(step)", "one number", found, way_out))
    return found.reshape(()) if isinstance(found, Tensor) else found
