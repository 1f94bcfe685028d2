"""What the first step of a parameter shows of those to come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from layerwise.catalog.hidden import is_called_otherwise, is_vector, is_whole
from layerwise.core.first_step import FirstStep, WaysOut, warn_of
from layerwise.core.step import Step
from layerwise.engines.measurements import adapts
from layerwise.errors import HyperparameterError
from layerwise.torch.groups._members import Members
from layerwise.torch.groups._options import GroupOptions
from layerwise.torch.groups._rules import RULE
from layerwise.torch.groups._settings import is_on_device
from layerwise.torch.step._plan import Plan
from layerwise.torch.step._prepared import Ready, on_host
from layerwise.torch.step._work import DueGroup

FINER = 'Pass master_weights="split", or rounding="stochastic".'
SLOWER = 'Leave them their ratio by param_groups(model, rule="lars"), or give their group an lr of its own.'
OTHERS = 'Leave them to AdamW: Mixed(param_groups(model, rule="{}", lr=…)).'
BLOCKS = 'Give each row its own by AdamMini(param_groups(model, rule="adammini")), or pass `blocks` by name.'
PEAKS = ("lr", "initial_lr", "max_lr")  # the last two are of schedulers, which may begin with a smaller one


def exempt(found: Sequence[FirstStep], groups: Sequence[Mapping[str, Any]]) -> str:
    """Return how to exempt tensors that began at zero.

    If they alone have no weight decay, as biases and norms in trainers' groups, an option does. By `param_groups`,
    biases are exempt by default, others by the names that were given.
    """
    stuck = [one for one in found if one.starts_at_zero]
    if stuck and all(map(_has_none_if_decayed, stuck)) and any(_number(group["weight_decay"]) for group in groups):
        return (
            'Pass adapt="decayed", with which what has no weight decay has no trust ratio, or use param_groups(model).'
        )
    names = {name for group in groups for name in group.get("param_names", ())}
    way_out = "Exempt biases and norms from it by param_groups(model)"
    others = [one.name for one in stuck if one.name in names and "bias" not in one.name]
    if not others:
        return f"{way_out}; its no_adapt names others."
    shown = "".join(f', "{name}"' for name in others[:5]) + ", …" * (len(others) > 5)
    return f'{way_out}, others by its no_adapt=["bias", "norm"{shown}].'


def _has_none_if_decayed(one: FirstStep) -> bool:
    """Return True if adapt="decayed" is an option of the tensor's rule, and turns off its trust ratio."""
    try:
        return not one.weight_decay and one.h.adapt is True and bool(type(one.h).check("adapt", "decayed"))
    except HyperparameterError:
        return False


def firsts(step: Step, dues: Sequence[DueGroup], which: Collection[int]) -> Iterator[FirstStep]:
    """Yield the first steps of parameters of these ids that were just taken, but for those that show nothing."""
    own: Ready = step.own
    each = zip(step.plans, own.params, own.storage_plans, own.states, step.of_plans(), strict=False)
    for due in dues:
        peak, lam = _peak(due.group), _number(due.group["weight_decay"])
        adapted = adapts(due.h, lam)
        for plan, p, storage_plan, state, measured in islice(each, len(due.params)):
            if not adapted or id(p) not in which:
                continue
            dtype = storage_plan.rounds_to(state) if storage_plan.is_low else None
            if p.numel() and (dtype is not None or any(map(_began_at_zero, measured))):
                for name, found in plan.measured(map(on_host, measured)):
                    yield FirstStep(name, plan.h, found, lam, peak, dtype)


def without_ratio(dues: Sequence[DueGroup], plans: Sequence[Plan], new: Collection[int]) -> Iterator[FirstStep]:
    """Yield the first steps that parameters of these ids are to take without a trust ratio, which are not measured."""
    each = iter(plans)
    for due in dues:
        names = [plan.name for p, plan in zip(due.params, islice(each, len(due.params)), strict=True) if id(p) in new]
        if not names or any(is_on_device(due.group.get(key)) for key in (*PEAKS, "weight_decay")):
            continue  # nobody waits for a device
        lam, peak = _number(due.group["weight_decay"]), _peak(due.group)
        if not adapts(due.h, lam):
            yield from (FirstStep(name, due.h, {}, lam, peak) for name in names)


def not_hidden(dues: Sequence[DueGroup], plans: Sequence[Plan], new: Collection[int]) -> Iterator[FirstStep]:
    """Yield the first steps that a rule for hidden matrices is to take of parameters of these ids that are none.

    Names tell embeddings and the head, unless the group named its rule: then they were meant.
    """
    each = iter(plans)
    for due in dues:
        of_matrices = due.h.of_matrices
        for p, plan in zip(due.params, islice(each, len(due.params)), strict=True):
            if of_matrices and id(p) in new:
                for one in plan.members:
                    if is_vector(one.h, one.shape) or (RULE not in due.group and is_called_otherwise(one.name)):
                        yield FirstStep(one.name, due.h, {}, 0.0, misplaced=True)


def uncut(dues: Sequence[DueGroup], plans: Sequence[Plan], new: Collection[int]) -> Iterator[FirstStep]:
    """Yield the first steps of matrices of these ids that are one block each, by a rule that is for smaller ones."""
    each = iter(plans)
    for due in dues:
        own = list(islice(each, len(due.params)))
        if due.h.by_row:
            found = (one for p, plan in zip(due.params, own, strict=True) if id(p) in new for one in plan.members)
            yield from (
                FirstStep(one.name, due.h, {}, 0.0, is_whole=True) for one in found if is_whole(one.h, one.shape)
            )


def _peak(group: Mapping[str, Any]) -> float:
    """Return the largest learning rate of a group that is known."""
    return max((_number(group[key]) for key in PEAKS if group.get(key) is not None), default=0.0)


def _began_at_zero(measured: Mapping[str, Any]) -> bool:
    """Return True if the weights, or those of a block, are measured to be all zero."""
    found = measured.get("weight_norm")
    found = measured.get("weight_rms", 1.0) if found is None else found
    return 0.0 in np.ravel(found.detach().numpy() if isinstance(found, Tensor) else found).tolist()


def _number(x: Any) -> float:
    """Return a rate, which may be a tensor through which a gradient flows."""
    return float(x.detach() if isinstance(x, Tensor) else x)


class FirstSteps:
    """The first steps of an optimizer's parameters, and the warnings of what they show."""

    def __init__(self, groups: GroupOptions, members: Members) -> None:
        self._groups, self._members = groups, members
        self.waiting: dict[int, Tensor] = {}
        """Parameters whose first step is still to be looked at, by id."""
        self.odd: list[FirstStep] = []  # first steps that are too long, or of what is not for the rule
        self._warned = False  # of some of these

    def look_at_new(self, dues: Sequence[DueGroup], plans: Sequence[Plan]) -> None:
        """Note, once, parameters that step too far without a trust ratio, or are not for their rule."""
        states = self._members.optimizer.state
        new = set() if self._warned else {id(p) for due in dues for p in due.params if p not in states}
        fast = [one for one in without_ratio(dues, plans, new) if one.rushes]
        some = any(self._groups.blocks_of(group).is_given for group in self._members.groups)
        self.odd = [*fast, *not_hidden(dues, plans, new), *([] if some else uncut(dues, plans, new))]

    def warn(self, step: Step, dues: Sequence[DueGroup], skip: Tensor | None) -> None:
        """Warn of what the step shows of those to come, if it is the first of some parameters."""
        if self.odd:
            odd, self.odd, self._warned = self.odd, [], True
            warn_of(odd, WaysOut("", FINER, SLOWER, OTHERS.format(odd[-1].h.optimizer.lower()), BLOCKS))
        if self.waiting and not (skip is not None and skip):
            found = list(firsts(step, dues, self.waiting))
            for p in step.own.params:
                self.waiting.pop(id(p), None)
            warn_of(found, WaysOut(exempt(found, self._members.groups), FINER, SLOWER))
