"""Steps of some parameters, prepared to be taken again and again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import paddle

from layerwise.core.nows import Nows
from layerwise.core.slot import Slot
from layerwise.core.storing import Storing
from layerwise.core.turn import Turn
from layerwise.engines import Candidate, Job
from layerwise.engines.compiled import candidate
from layerwise.engines.distributor import prepare
from layerwise.engines.rule import RuleEngine
from layerwise.paddle._arrays import Arrays, Tensor
from layerwise.paddle._groups import Settings

LIBRARY = Arrays()
ENGINES = (candidate(), Candidate("rule", RuleEngine(LIBRARY, stack_size=1 << 12)))


class Due(NamedTuple):
    """A parameter that is to be stepped."""

    storing: Storing
    settings: Settings
    slot: Slot

    @property
    def p(self) -> Tensor:
        return self.storing.p

    @property
    def name(self) -> str:
        return str(self.storing.plan.name)

    def jobs(self, counts: bool) -> list[Job]:
        """Return the jobs, which may have to count in the norm of all gradients."""
        found = list(self.storing.jobs(self.slot.arrays))
        return [job._replace(h=job.h.counting()) for job in found] if counts else found


class Turns:
    """Parameters that are stepped together: a turn for all, and one for each group that is clipped by its own norm."""

    def __init__(self, engines: Sequence[Any], dues: Sequence[Due], before: Turns | None) -> None:
        self.dues = list(dues)
        self._viewed = [due.p for due in dues if not due.storing.plan.itself]
        self._places = self._addresses()
        by_norm: dict[int | None, list[int]] = {}
        for i, due in enumerate(dues):
            by_norm.setdefault(due.settings.clipped_with, []).append(i)
        self._members = by_norm
        self._turns: dict[int | None, Turn] = {}
        for own, members in by_norm.items():
            some = [dues[i] for i in members]
            counts = own is None and any(due.settings.h.asks_of_model for due in some)
            jobs, plans = [job for due in some for job in due.jobs(counts)], [due.storing.plan for due in some]
            layouts = None if before is None or own not in before._turns else before._turns[own].prepared.layouts
            self._turns[own] = Turn(plans, jobs, partial(prepare, engines), layouts)

    def _addresses(self) -> list[int]:
        """Return where parameters lie that engines see through views, which would not follow them elsewhere."""
        return [p.data_ptr() for p in self._viewed]

    def holds(self) -> bool:
        """Return whether views still show the parameters that they were made of."""
        return self._places == self._addresses()

    def step(self, grads: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Step all parameters, or raise with none of them changed."""
        made = Nows()
        nows = [
            made.of(due.settings.h, due.slot.step + 1, rate, due.settings.weight_decay)
            for due, rate in zip(self.dues, rates, strict=True)
        ]
        each = [(self._turns[own], [grads[i] for i in m], [nows[i] for i in m]) for own, m in self._members.items()]
        if len(each) > 1:
            for turn, some, own_nows in each:
                turn.check(some, own_nows)
        for turn, some, own_nows in each:
            turn.step(some, own_nows)
        for due in self.dues:
            due.slot.step += 1
            if due.slot.master is not None:
                due.p.copy_(paddle.cast(due.slot.master, due.p.dtype), False)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return what the last step measured, by parameter."""
        return {str(name): one for turn in self._turns.values() for found in turn.stats() for name, one in found}
