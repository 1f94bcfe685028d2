"""The parameters of optimizers, with the data that tools need of each."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from layerwise.errors import HyperparameterError, sentence
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.groups._members import GroupDict, stepper_of
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._stepper import Stepper


class Member(NamedTuple):
    """A parameter, with the steps of its optimizer and its group."""

    stepper: Stepper
    group: GroupDict
    p: Tensor
    name: str

    @property
    def state(self) -> dict[str, Any]:
        """The optimizer's state for it, if any."""
        found: dict[str, Any] = self.stepper.optimizer.state.get(self.p, {})
        return found

    def plan(self) -> Plan:
        """Return the plan of its step."""
        return self.stepper.planner.plan_for(self.p, self.stepper.settings_of(self.group), self.name)


def checked(optimizer: Any) -> Optimizer:
    """Return the optimizer; raise if it is not one of ours."""
    if not isinstance(optimizer, Optimizer):
        way_out = "Pass the layerwise optimizer itself, not a wrapper: a wrapper need not hold all of its state."
        raise HyperparameterError(sentence("optimizer", "one of layerwise.torch", optimizer, way_out))
    return optimizer


def members(optimizer: Optimizer) -> list[list[Member]]:
    """Return the parameters of each group."""
    stepper = stepper_of(optimizer)
    each = [(group, stepper.members.named(i)) for i, group in enumerate(optimizer.param_groups)]
    return [[Member(stepper, group, p, name) for p, name in own] for group, own in each]
