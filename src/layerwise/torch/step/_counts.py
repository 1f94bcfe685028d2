"""Step counts on the host or the device, and the numbers that a step takes from those on the device."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

import torch
from torch import Tensor

from layerwise.core.step import Nows
from layerwise.engines import Changed, Counter, compiled
from layerwise.errors import HyperparameterError, sentence
from layerwise.options.settings import Hyper
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


class OfGroup:
    """Step counts that are read as numbers, or on the device by calls that do not wait; or `by_engine`."""

    def __init__(self, steps: list[Tensor], on_device: bool, by_engine: bool) -> None:
        # What once had to be on the device stays there: to read it would mean waiting. All of them are there then.
        self.steps, self.on_device = steps, on_device or bool({step.device.type for step in steps} - {"cpu"})
        self.by_engine = by_engine and self.on_device
        self._counters = [Counter(step) for step in steps] if self.by_engine else []
        self._of: tuple[Any, ...] = ()  # what these were made of
        self._nows: list[Now] = []

    def nows(self, h: Hyper, rates: Rates) -> Sequence[Now]:
        """Return each parameter's numbers of the step from these settings and rates."""
        if not self.on_device:
            lr, weight_decay, scale = rates
            return Nows([h], [len(self.steps)]).of([n + 1 for n in counts(self.steps)], [lr], [weight_decay], scale)
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
