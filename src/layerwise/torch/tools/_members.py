"""The parameters of optimizers with what tools ask of each."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from layerwise.errors import HyperparameterError, sentence
from layerwise.storage.options import Wanted
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.sharding._owner import stepper_of
from layerwise.torch.step._plan import Plan


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
        found: Wanted = stepper_of(self.optimizer).groups.wanted(self.group)
        return found

    def stepped(self) -> Tensor:
        """Return what is stepped in its place: on the host, if it is offloaded."""
        found: Tensor = stepper_of(self.optimizer).in_place_of(self.p)
        return found

    def was_set(self) -> None:
        """Take over what was written to that."""
        stepper_of(self.optimizer).take_over(self.p)

    def plan(self) -> Plan:
        """Return the plan of its step."""
        own = stepper_of(self.optimizer)
        found: Plan = own.planner.plan_for(self.p, self.group, own.settings_of(self.group), self.name)
        return found


def checked(optimizer: Any) -> Optimizer:
    """Return the optimizer, or raise if it is none of ours."""
    if not isinstance(optimizer, Optimizer):
        way_out = "What wraps one, or steps parts of the model elsewhere, does not hold all of its state."
        raise HyperparameterError(sentence("optimizer", "one of layerwise.torch", optimizer, way_out))
    return optimizer


def members(optimizer: Optimizer) -> list[list[Member]]:
    """Return the parameters of each group."""
    each = [(group, stepper_of(optimizer).members.named(i)) for i, group in enumerate(optimizer.param_groups)]
    return [[Member(optimizer, group, p, name) for p, name in own] for group, own in each]
