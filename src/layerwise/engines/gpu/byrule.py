"""The rule in the place of kernels that failed their proof."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from layerwise.drive import Others
from layerwise.engines import Counter, Prepared, Stats
from layerwise.rules.asks import Now


class ByRule:
    """A prepared rule that takes step counts as tensors, and counts steps as the kernels would have."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def step(self, grads: Sequence[Tensor], nows: Sequence[Now], skip: Tensor | None, others: Others | None) -> None:
        counts = [now.t.step for now in nows if isinstance(now.t, Counter)]
        if counts:
            these = iter(torch._foreach_add(counts, 1))
            nows = [now._replace(t=next(these)) if isinstance(now.t, Counter) else now for now in nows]
        self._prepared.step(grads, nows, skip, others)
        if counts:
            # A list, because PyTorch may read a single tensor as a number, and wait for it.
            torch._foreach_add_(counts, 1 if skip is None else [(~skip).to(counts[0])] * len(counts))

    def stats(self) -> Sequence[Stats]:
        return self._prepared.stats()
