"""The members of optimizers with what tools ask of each."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from layerwise.errors import HyperparameterError, sentence
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._stepper import Stepper, stepper_of


class Member(NamedTuple):
    """A parameter, with the steps of its optimizer and its group there."""

    stepper: Stepper
    group: dict[str, Any]
    p: Tensor
    name: str

    @property
    def state(self) -> dict[str, Any]:
        """What the optimizer keeps of it, if anything."""
        found: dict[str, Any] = self.stepper.optimizer.state.get(self.p, {})
        return found

    def plan(self) -> Plan:
        """Return the plan of its step."""
        return self.stepper.planner.plan_for(self.p, self.group, self.stepper.settings_of(self.group), self.name)


def checked(optimizer: Any) -> Optimizer:
    """Return the optimizer, or raise if it is none of ours."""
    if not isinstance(optimizer, Optimizer):
        way_out = "What wraps one, or steps parts of the model elsewhere, does not hold all of its state."
        raise HyperparameterError(sentence("optimizer", "one of layerwise.torch", optimizer, way_out))
    return optimizer


def members(optimizer: Optimizer) -> list[list[Member]]:
    """Return the parameters of each group."""
    stepper = stepper_of(optimizer)
    each = [(group, stepper.members.named(i)) for i, group in enumerate(optimizer.param_groups)]
    return [[Member(stepper, group, p, name) for p, name in own] for group, own in each]
