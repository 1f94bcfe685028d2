"""Optimizers whose groups name their rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerwise.torch._optimizer import Optimizer
from layerwise.torch.step._kinds import ByGroup, Kinds


class ByGroupOptimizer(Optimizer):
    """An optimizer with a rule for each group."""

    def _kinds(self, given: Mapping[str, Any]) -> Kinds:
        return ByGroup(given)
