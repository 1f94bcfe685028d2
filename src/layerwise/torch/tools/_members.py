"""The parameters of optimizers with what tools ask of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.errors import HyperparameterError, sentence
from layerwise.storage.options import Wanted
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.step._plan import Plan

Optimizers = Optimizer | Iterable[Optimizer]
"""An optimizer of `layerwise.torch`, or several that hold parts of one model."""


class Member(NamedTuple):
    """A parameter, with its optimizer and its group there."""

    optimizer: Optimizer
    group: dict[str, Any]
    p: Tensor
    name: str

    @property
    def state(self) -> dict[str, Any]:
        """What the optimizer keeps of it, if anything."""
        found: dict[str, Any] = self.optimizer.state.get(self.p, {})
        return found

    @property
    def want(self) -> Wanted:
        """Its wanted storage."""
        return self.optimizer._groups.wanted(self.group)

    def plan(self) -> Plan:
        """Return the plan of its step."""
        own = self.optimizer
        return own._plan_for(self.p, self.group, own._settings_of(self.group), self.name)


def checked(optimizer: Any, wanted: str, way_out: str) -> Optimizer:
    """Return the optimizer, or raise if it is none of ours."""
    if not isinstance(optimizer, Optimizer):
        raise HyperparameterError(sentence("optimizer", wanted, optimizer, way_out))
    return optimizer


def each_of(optimizer: Any, wanted: str, way_out: str) -> list[Optimizer]:
    """Return the optimizer, or several, as a list."""
    found = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    return [checked(one, wanted, way_out) for one in found]


def members(optimizer: Optimizer) -> list[list[Member]]:
    """Return the parameters of each group."""
    groups = enumerate(optimizer.param_groups)
    return [[Member(optimizer, group, p, name) for p, name in optimizer._named(i)] for i, group in groups]
