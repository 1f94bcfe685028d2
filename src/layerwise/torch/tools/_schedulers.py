"""Schedules as PyTorch's learning rate schedulers."""

from __future__ import annotations

import math

from torch import Tensor, optim
from torch.optim.lr_scheduler import LambdaLR

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options.checks import Check, RefusedValue
from layerwise.schedules import Schedule


def scheduler(optimizer: optim.Optimizer, schedule: Schedule, last_epoch: int = -1) -> LambdaLR:
    """Return a scheduler that sets the lr of every group by a schedule.

    Call its step() after each step of the optimizer. Groups with another lr keep their proportion to the schedule.
    Loading a state_dict restores the position in the schedule, not the schedule itself.

    Args:
        optimizer: torch.optim.Optimizer optimizer of PyTorch.
        schedule: A schedule of `layerwise.schedules`. The lr of at least one group has to be its peak.
        last_epoch: The number of the last step taken, counted from 0 as in PyTorch's schedulers; -1 begins a run.
    """
    if isinstance(optimizer, Schedule):
        way_out = "The optimizer comes first: scheduler(optimizer, schedule)."
        raise HyperparameterError(sentence("optimizer", "an optimizer", optimizer, way_out))
    SCHEDULE(
        "schedule", schedule, ("Pass a schedule of layerwise.schedules. For any other callable, use torch's LambdaLR.")
    )
    rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    if None in rates or not any(_same(rate, schedule.peak) for rate in rates):
        allowed = f"the lr of a group ({' or '.join(map(_shown, rates))})"
        way_out = f"Set the optimizer's lr to {schedule.peak:g}, or change the peak of the schedule."
        raise ContradictionError(sentence("schedule.peak", allowed, schedule.peak, way_out))

    def factor(step: int) -> float:  # a function, because LambdaLR saves and loads the attributes of other callables
        return float(schedule(step) / schedule.peak)

    return LambdaLR(optimizer, factor, last_epoch)


def _schedule(value: object) -> Schedule:
    if not isinstance(value, Schedule):
        raise RefusedValue
    return value


def _same(rate: float | Tensor, peak: float) -> bool:
    return math.isclose(float(rate), peak, rel_tol=1e-6)  # an lr may be a float32 tensor


def _shown(rate: float | Tensor) -> str:
    return "None" if rate is None else f"{float(rate):g}"


SCHEDULE = Check("a schedule of layerwise", _schedule)
