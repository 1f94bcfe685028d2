"""The preparation of a step: readable gradients, checks, plans, state, and what engines prepare."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from layerwise.core.plan import with_names
from layerwise.core.slot import own_entries
from layerwise.core.storage_plan import StoragePlan
from layerwise.errors import ParameterError, warn
from layerwise.options.by_name import ByName
from layerwise.torch.groups._members import Members, State
from layerwise.torch.groups._options import CheckedGroup, GroupOptions
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.sharding._ranks import Ranks
from layerwise.torch.step._checks import check_apart, check_step, kinds_of, readable
from layerwise.torch.step._engines import engines_of
from layerwise.torch.step._first_steps import FirstSteps
from layerwise.torch.step._plan import (
    Plan,
    check_kept,
    copy_storage,
    counted_elsewhere,
    make_missing,
    plan_of,
)
from layerwise.torch.step._prepared import TensorStep
from layerwise.torch.step._work import DueGroup, Work


class Setup(NamedTuple):
    """The arguments of an optimizer that apply to all of its groups."""

    groups: GroupOptions
    skip_nonfinite: bool
    engine: str | None
    offload: bool = False


class PlannedWork(NamedTuple):
    """The work of a step with gradients that can be read, its groups, and the plan of each parameter."""

    work: Work
    dues: Sequence[DueGroup]
    plans: Sequence[Any]


class Planner:
    """Plans and prepares the steps of an optimizer's parameters, and checks the first step of each."""

    def __init__(self, setup: Setup, members: Members, ranks: Ranks) -> None:
        self._setup, self._members, self._ranks, self.firsts = setup, members, ranks, FirstSteps(setup.groups, members)
        self.resolves = False
        """Whether a gradient of the last step did not have its values in memory."""
        self.forget()

    def forget(self) -> None:
        """Plan, check and warn again from now on."""
        self._plans: dict[Tensor, tuple[ByName, Plan]] = {}  # with the blocks they were made for
        self._warned: set[tuple[str, str]] = set()
        self.firsts.waiting.clear()

    def readable(self, work: Work, always: bool = False) -> Work:
        """Return the work with copies of gradients that do not have their values in memory.

        This is done when gradients first have to be checked or read, and from then on as long as some need it.
        """
        found = readable(work.grads_here, lambda: self._members.names_of(work.dues))
        replaced = found is not work.grads_here
        self.resolves = replaced or (always and self.resolves)
        return work.with_grads(found) if replaced else work

    def plan_for(self, p: Tensor, checked: CheckedGroup, name: str, division: cuts.Division | None = None) -> Plan:
        """Return the plan of a parameter's step in a group with these settings; its division may be known."""
        division = division or cuts.cut_of(name, p)
        return plan_of(checked.rule, p, checked.h, name, checked.blocks, division, copies=self._ranks.copies)

    def planned(self, work: Work) -> PlannedWork:
        """Return the plan of each parameter, if all of them can be stepped.

        Equal parameters are checked and planned once, for the first of them.
        """
        work, alike, known = self.readable(work, always=True), list[Plan](), dict[object, Plan]()
        dues, params, states = work.dues, work.params, self._members.optimizer.state
        kept = {p: own_entries(state) for p in params if (state := states.get(p))}
        names = self._members.names_of(dues)
        cuts_here, kinds = cuts.cuts_of(params, names), kinds_of(params, work.grads)
        each = zip(params, work.stepped, work.grads, names, cuts_here, kinds, strict=True)
        for due in dues:
            differentiable, blocks = due.group["differentiable"], due.blocks
            by_name = blocks.given is not None
            for p, stepped, g, name, division, kind in islice(each, len(due.params)):
                shared = division is cuts.WHOLE and kind is not None and not differentiable
                own_blocks = blocks(name) if by_name else blocks.default
                key = (id(due.h), own_blocks, kind) if shared else id(p)  # names may repeat
                made_for, before = self._plans.get(p, (blocks, None))
                found = known.get(key)
                if found is None:
                    check_step(name, p if g.device == p.device else stepped, g, differentiable)
                if before is not None and before.shape != p.shape:
                    raise ParameterError(
                        f"{name} had the shape {tuple(before.shape)} and now has {tuple(p.shape)}. Create a new "
                        "optimizer."
                    )
                if found is None:
                    found = before if made_for == blocks else None
                    made_of = name, due.h, p.dtype, division
                    if found is None or found.settings != (*made_of, cuts.replicas_of(division, self._ranks.copies)):
                        found = plan_of(due.rule, p, due.h, name, blocks, division, stepped.device, self._ranks.copies)
                    known[key] = found
                alike.append(found)
        plans = with_names(alike, names)
        for p, stepped, plan in zip(params, work.stepped, plans, strict=True) if kept else ():
            if p in kept:
                check_kept(plan, stepped, kept[p])
        check_apart(names, params, kept)
        return PlannedWork(work, dues, plans)

    def prepare(self, planned: PlannedWork, on_device: bool, agreement: Agreement | None) -> TensorStep:
        """Return the step of planned parameters, after their state was created and converted to the wanted format."""
        states, differentiable = self._members.optimizer.state, self._setup.groups.differentiable
        work, dues, plans = planned
        storage_plans = _storage_plans(work.stepped, dues, plans)
        self._warn_of_layouts(plans, storage_plans)
        self.firsts.look_at_new(dues, plans)
        owns, end = list[State](), 0
        for due in dues:
            own, some = [states[p] for p in due.params], slice(end, end := end + len(due.params))
            # Counts that once had to be on the device stay there, and others that step with them move there as well.
            where = on_device or due.group["capturable"] or counted_elsewhere(own)
            begun = [bool(state) for state in own]
            for state, p, stepped, plan in zip(own, due.params, work.stepped[some], plans[some], strict=True):
                self._plans[p] = due.blocks, plan
                # On another device the step would wait for these measurements.
                if stepped.device.type == "cpu" and not (state and own_entries(state)):
                    self.firsts.waiting[id(p)] = p
            make_missing(own, work.stepped[some], plans[some], storage_plans[some], where)
            if differentiable:
                for state in own:
                    copy_storage(state)
            # What was empty has nothing of other programs.
            owns += [own_entries(state) if old else dict(state) for state, old in zip(own, begun, strict=True)]
        engines = engines_of(self._setup.engine, differentiable)
        return TensorStep(work, plans, storage_plans, states, owns, on_device, engines, agreement)

    def _warn_of_layouts(self, plans: Sequence[Plan], storage_plans: Sequence[StoragePlan]) -> None:
        """Warn once about each parameter whose layout does not allow the requested storage of its state."""
        for plan, own in zip(plans, storage_plans, strict=True):
            for key, stored in own.dtype_per_field.items() if own.want.state else ():
                if stored.by_layout and (plan.name, key) not in self._warned:
                    warn(f"{key!r} of {plan.name} is stored in {stored.dtype} instead of 8 bits: {stored.why}.")
                    self._warned.add((plan.name, key))


def _storage_plans(stepped: Sequence[Tensor], dues: Sequence[DueGroup], plans: Sequence[Plan]) -> list[StoragePlan]:
    """Return everything that determines the storage of each parameter: the same object for equal plans."""
    known, found = dict[object, StoragePlan](), list[StoragePlan]()
    wants = [due.want for due in dues for _ in due.params]
    for p, plan, want in zip(stepped, plans, wants, strict=True):
        key = id(plan.held), id(want)
        if key not in known:
            known[key] = plan.storage_plan(p, want)
        found.append(known[key])
    return found
