"""Steps of some parameters by themselves: in the backward pass, or one by one for a trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from layerwise.engines.compiled import signals_wait
from layerwise.errors import ContradictionError, ParameterError, sentence
from layerwise.options.settings import Hyper
from layerwise.torch.groups._members import Group, Members
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.sharding._wrapped_modules import alive
from layerwise.torch.step._stepper import Stepper
from layerwise.torch.step._work import Work

Member = tuple[int, Tensor]  # the number of a group, and a parameter of it
SET_HOOKS = "Take it from optimizer.param_groups. Loading a checkpoint creates new groups, so set hooks after that."


class PartialSteps:
    """The steps of some parameters of an optimizer."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    @torch._disable_dynamo  # type: ignore[attr-defined]  # as `Stepper.step`
    def step(self, p: Tensor, group: Group | None, i: int | None) -> None:
        """Step one parameter; its group and its index there may be given."""
        number = self._number_of(p, group, i)
        if p.grad is None:
            return
        work = self._work_of([(number, p)])
        if self._stepper.ranks.agreement() is not None:
            raise ContradictionError(
                "step_parameter cannot step a parameter when other processes hold parts or copies of it: each "
                "parameter would need a collective of its own. Use layerwise.torch.step_in_backward, which steps "
                "modules of fully_shard as their gradients are reduced, or call optimizer.step() after the backward "
                "pass."
            )
        self.check_reduced("step_parameter")
        self._stepper.step_due(work, None)

    @torch._disable_dynamo  # type: ignore[attr-defined]  # as `Stepper.step`
    def step_and_free(self, members: Iterable[Member], agreement: Agreement | None) -> None:
        """Step these parameters together, and free their gradients."""
        members = list(members)
        with self._stepper.one_at_a_time, signals_wait:
            self._stepper.step_due(self._work_of(members), agreement)
            for _, p in members:
                p.grad = None

    def refuse(self, h: Hyper) -> None:
        """Raise if a step with these settings needs more than the gradients of a few parameters."""
        group = self._stepper.ranks.model_group
        if group is not None:
            way_out = "Other pipeline stages run at other times. Call optimizer.step() after the backward pass."
            allowed = "None when parameters are stepped one by one"
            raise ContradictionError(sentence("model_group", allowed, group.group, way_out))
        if h.needs_model_sum:
            way_out = (
                "Clipping by the global norm needs all gradients at once; max_grad_norm_per_tensor needs only one."
            )
            allowed = "None when parameters are stepped one by one, as in the backward pass"
            raise ContradictionError(sentence("max_grad_norm", allowed, h.model_bound, way_out))

    def check_reduced(self, what: str, steps: bool = True) -> None:
        """Raise if gradients belong to this process alone, because DistributedDataParallel adds them up later.

        This is checked until parameters step, because a model may be wrapped until then.
        """
        if not cuts.in_group():
            return
        ranks = self._stepper.ranks
        if not ranks.searched_ddp and _in_ddp(self._stepper.members):
            raise ContradictionError(
                f"{what} would step before DistributedDataParallel has reduced the gradients. It keeps them in "
                "buckets, so no memory would be freed either. Call optimizer.step() after the backward pass."
            )
        ranks.searched_ddp = steps

    def _work_of(self, members: Iterable[Member]) -> Work:
        """Return the work of these parameters."""
        asked: dict[int, list[Tensor]] = {}
        for number, p in members:
            asked.setdefault(number, []).append(p)
        numbers = tuple(sorted(asked))
        work = self._stepper.work_of([asked[i] for i in numbers], numbers)
        for checked in work.settings.each:
            self.refuse(checked.h)
        return work

    def _number_of(self, p: Tensor, group: Group | None, i: int | None) -> int:
        """Return the number of the parameter's group; raise if this is not its group."""
        for number, own in enumerate(self._stepper.members.groups):
            if (group is None or own is group) and _has(own["params"], p, i):
                return number
        raise ParameterError(_misplaced(self._stepper.members, p, group, i))


def _misplaced(members: Members, p: object, group: object, i: object) -> str:
    groups = members.groups
    if not isinstance(p, Tensor) or not any(_has(own["params"], p, None) for own in groups):
        shown = f"a tensor of shape {tuple(p.shape)}" if isinstance(p, Tensor) else repr(p)
        return f"`p` must be a parameter of this optimizer, but is {shown}. Add it with add_param_group()."
    name = next(name for own, name in members.all() if own is p)
    if group is not None and not any(own is group and _has(own["params"], p, None) for own in groups):
        which = next((n for n, own in enumerate(groups) if own is group), None)
        shown = "not in param_groups" if which is None else f"param_groups[{which}]"
        return f"`group` must be the entry of param_groups that contains {name!r}, but is {shown}. {SET_HOOKS}"
    way_out = (
        "Leave it out, or bind it as a default argument of the hook: when the hook runs, a loop variable has its "
        "last value."
    )
    return sentence("i", f"the index of {name!r} in its group", i, way_out)


def _has(params: Any, p: Tensor, i: int | None) -> bool:
    """Return whether this list has the parameter, at index `i` if given."""
    if i is None:
        return any(own is p for own in params)
    return type(i) is int and 0 <= i < len(params) and params[i] is p


def _in_ddp(members: Members) -> bool:
    """Return whether a living DistributedDataParallel holds one of the parameters."""
    own = {id(p) for group in members.groups for p in group["params"]}
    return any(id(p) in own for ddp in list(alive(DistributedDataParallel)) for p in ddp.parameters())
