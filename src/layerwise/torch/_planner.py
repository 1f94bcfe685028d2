"""What comes before a step: gradients that can be read, checks, plans, state, and a turn that engines prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from layerwise.engines import compiled
from layerwise.errors import ParameterError, warn
from layerwise.first import warn_of
from layerwise.hyper import Hyper
from layerwise.names import ByName
from layerwise.torch._members import Members
from layerwise.torch._ranks import Ranks
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.step import _memory, _state
from layerwise.torch.step._due import Due, Work
from layerwise.torch.step._engines import engines_of, is_exact
from layerwise.torch.step._first import FINER, exempt, firsts
from layerwise.torch.step._plan import Plan, check_step, plan_of
from layerwise.torch.step._settings import Groups
from layerwise.torch.step._storage import storing
from layerwise.torch.step._tensors import is_usual
from layerwise.torch.step._turn import Turn


class Setup(NamedTuple):
    """What an optimizer was given once for all of its groups."""

    groups: Groups
    blocks: ByName
    skip_nonfinite: bool
    engine: str | None
    offload: bool = False


class Planner:
    """Plans and prepares the steps of an optimizer's parameters, and looks at the first that each takes."""

    def __init__(self, setup: Setup, members: Members, ranks: Ranks) -> None:
        self._setup, self._members, self._ranks = setup, members, ranks
        self.resolves = False
        """Whether the memory of a gradient of the last step did not hold its numbers."""
        self.forget()

    def forget(self) -> None:
        """Plan, check and look at everything again."""
        self._plans: dict[Tensor, Plan] = {}
        self._warned: set[tuple[str, str]] = set()
        self.first: dict[Tensor, None] = {}
        """Parameters whose first step is still to be looked at."""

    def readable(self, work: Work, always: bool = False) -> Work:
        """Return the same with copies of gradients whose memory does not hold their numbers.

        That is done before computing with gradients, and before they are checked; and from then on, for as long as some
        are replaced.
        """
        found = _memory.readable(work.grads_here, partial(self._members.names_of, work.dues))
        replaced = found is not work.grads_here
        self.resolves = replaced or (always and self.resolves)
        return work.with_grads(found) if replaced else work

    def plan_for(self, p: Tensor, group: Mapping[str, Any], h: Hyper, name: str) -> Plan:
        """Return the plan of a parameter's step in a group with these settings."""
        return plan_of(self._setup.groups.rule_of(group), p, h, name, self._setup.blocks, {})

    def planned(self, work: Work) -> tuple[Work, list[Plan]]:
        """Return the plan of each parameter, if all of them can be stepped, with gradients that can be read."""
        work, plans, known = self.readable(work, always=True), list[Plan](), dict[Any, Plan]()
        dues = work.dues
        names = self._members.names_of(dues)
        each = zip(work.params, work.stepped, work.grads, names, strict=True)
        usual = compiled.in_memory(work.params) and compiled.in_memory(work.grads) and not _memory.is_faking()
        for due in dues:
            plans += [self._checked(*next(each), due, usual, known) for _ in due.params]
        _memory.check_apart(names, work.params, self._members.optimizer.state)
        return work, plans

    def _checked(
        self, p: Tensor, stepped: Tensor, g: Any, name: str, due: Due, usual: bool, known: dict[Any, Plan]
    ) -> Plan:
        differentiable = due.group["differentiable"]
        if differentiable or not (usual and is_usual(p, g)):
            check_step(name, p if g.device == p.device else stepped, g, differentiable)
        self._ranks.check_own(name, p)
        plan = self._plans.get(p)
        if plan is not None and plan.shape != p.shape:
            raise ParameterError(
                f"{name} had the shape {tuple(plan.shape)}, now {tuple(p.shape)}. Make a new optimizer."
            )
        if plan is None or (plan.name, plan.h, plan.dtype, plan.lies) != (name, due.h, p.dtype, cuts.cut_of(name, p)):
            plan = plan_of(due.rule, p, due.h, name, self._setup.blocks, known)
        _state.check_kept(plan, stepped, self._members.optimizer.state.get(p, {}))
        return plan

    def prepare(self, work: Work, plans: Sequence[Plan], on_device: bool, agreement: Agreement | None) -> Turn:
        """Return the turn of planned parameters, whose state is there from now on, and in the wanted form."""
        self._warn_of_layouts(work, plans)
        states, differentiable = self._members.optimizer.state, self._setup.groups.differentiable
        each = zip(plans, work.stepped, strict=True)
        for due in work.dues:
            # Counts that once had to be on the device stay there, and those beside them go there as well.
            where = on_device or due.group["capturable"] or _state.counted_elsewhere(states, due.params)
            for p in due.params:
                plan, stepped = next(each)
                self._plans[p] = plan
                if p not in states and stepped.device.type == "cpu":  # elsewhere a step would have to wait for it
                    self.first[p] = None
                _state.ready(states[p], stepped, plan, due.want, where)
                if differentiable:
                    _state.apart(states[p])
        engine = self._setup.engine
        engines, together = engines_of(engine, differentiable), is_exact(engine)
        return Turn(work, plans, states, on_device, engines, agreement, together)

    def _warn_of_layouts(self, work: Work, plans: Sequence[Plan]) -> None:
        """Warn once of each parameter whose layout does not allow the requested storage of its state."""
        wants = [due.want for due in work.dues for _ in due.params]
        found = {
            (plan.name, key): stored
            for p, plan, want in zip(work.stepped, plans, wants, strict=True)
            for key in want.state
            if plan.state_shapes[key] is not None and (stored := storing(plan, p, want).chosen(key)).by_layout
        }
        new = {which: stored for which, stored in found.items() if which not in self._warned}
        for (name, key), stored in new.items():
            warn(f"{key!r} of {name} is stored in {stored.dtype} and not in 8 bits: {stored.why}.")
        self._warned.update(new)

    def look_at_first(self, turn: Turn, dues: Sequence[Due]) -> None:
        """Say what the first steps of parameters show of those to come."""
        found = list(firsts(turn, dues, self.first, self._members.optimizer.state))
        done = set(turn.params)
        self.first = {p: None for p in self.first if p not in done}
        names = {name for group in self._members.groups for name in group.get("param_names", ())}
        warn_of(found, exempt(found, names), FINER)
