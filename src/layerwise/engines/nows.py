"""The numbers of one step of tensors whose rates differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerwise.rules.asks import Now

MANY = 4  # from so many rates on what follows from them is computed as arrays


class ByRates(Sequence[Now]):
    """The numbers of tensors whose steps differ in rates alone: columns of rates, and a `Now` for each if asked."""

    def __init__(self, first: Now, lr: Sequence[float], weight_decay: Sequence[float]) -> None:
        self.first, self.lr, self.weight_decay = first, lr, weight_decay
        self._each: list[Now] = []

    def __len__(self) -> int:
        return len(self.lr)

    def __getitem__(self, i: Any) -> Any:
        if not self._each:  # once: engines tell steps that they know by these objects
            t, _, _, *rest = self.first
            self._each = [Now(t, lr, lam, *rest) for lr, lam in zip(self.lr, self.weight_decay, strict=True)]
        return self._each[i]
