"""Steps of tensors that have slots: prepared once, and again when something has changed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from layerwise.core.library import Array
from layerwise.core.nows import Nows
from layerwise.core.tensors import Asked, Due, Numbers, Tensors
from layerwise.core.turn import MOST_TURNS, Turn
from layerwise.engines import Changed, Engine
from layerwise.engines.distributor import prepare
from layerwise.engines.places import places_of
from layerwise.first import First
from layerwise.hyper import ClippedByNorm, settled
from layerwise.storage.options import MASTER


class Steps:
    """The prepared steps of one optimizer, or of several that step together; a copy prepares its own."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Together] = {}  # by the names of the tensors, the last taken at the end

    def __reduce__(self) -> Any:
        return Steps, ()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, asked: Sequence[Asked], engines: Sequence[Engine], bound: float | None = None) -> list[First]:
        """Step all of these tensors, or raise with none of them changed. Return the first steps of tensors.

        `bound` is of the norm of all gradients, in place of the optimizers' own.
        """
        try:
            return self._take(asked, engines, bound)
        except Changed:
            for one in asked:
                one.tensors.forget(one.given)
            return self._take(asked, engines, bound)

    def _take(self, asked: Sequence[Asked], engines: Sequence[Engine], bound: float | None) -> list[First]:
        each = [[one.tensors.due(name, p, one.plan) for name, (p, _) in one.given.items()] for one in asked]
        dues = [due for own in each for due in own]
        key = bound, *(due.name for due in dues)
        found = self._kept.get(key)
        if found is None or found.dues != dues:
            for check in (one.check for one in asked if one.check is not None):
                check()
            found = Together(asked[0].tensors, dues, engines, bound)
        numbers = [one.numbers(own) for one, own in zip(asked, each, strict=True)]
        found.step([pair for one in asked for pair in one.given.values()], [n for own in numbers for n in own])
        self._kept.pop(key, None)
        self._kept[key] = found
        if len(self._kept) > MOST_TURNS + sum(len(one.tensors.slots) for one in asked):
            del self._kept[next(iter(self._kept))]
        firsts = []
        for one, own, given in zip(asked, each, numbers, strict=True):
            for due, (_, lr, lam) in one.tensors.took(own, given):
                firsts.append(First(due.name, due.plan.h, due.slot.stats(), lam, one.peak(due, lr), due.loses))
        return firsts


class Together:
    """Tensors that step together, as far as their step is the same from time to time."""

    def __init__(self, tensors: Tensors, dues: Sequence[Due], engines: Sequence[Engine], bound: float | None) -> None:
        self.dues, self._lib = dues, tensors.lib
        by_norm: dict[Hashable, list[int]] = {}
        for i, due in enumerate(dues):
            by_norm.setdefault(due.planned.clipped_with, []).append(i)
        self.parts = [Part([(i, dues[i]) for i in own], engines, bound, tensors.keeps) for own in by_norm.values()]

    def step(self, given: Sequence[tuple[Array, Array]], numbers: Sequence[Numbers]) -> None:
        """Step weights by gradients: all, or raise with none of them changed."""
        made, params, grads = Nows(), [p for p, _ in given], [g for _, g in given]
        nows = [made.of(due.plan.h, *one) for due, one in zip(self.dues, numbers, strict=True)]
        each = [(part.turn(params), part.of(grads), part.of(nows)) for part in self.parts]
        for due, p in zip(self.dues, params, strict=True):
            if due.converted is not None:
                self._lib.write(p, due.converted)
        for turn, own, own_nows in each if len(each) > 1 else ():
            turn.check(own, own_nows)
        for turn, own, own_nows in each:
            turn.step(own, own_nows)
        for part, (turn, *_) in zip(self.parts, each, strict=True):
            part.took(turn)
        for due, p in zip(self.dues, params, strict=True):
            if MASTER in due.slot.arrays:
                self._lib.write(p, due.slot.arrays[MASTER])


class Part:
    """Those of them whose gradients may share one norm, by their places."""

    def __init__(
        self, dues: Sequence[tuple[int, Due]], engines: Sequence[Engine], bound: float | None, keeps: bool
    ) -> None:
        self._dues, self._plans, self._prepare = dues, [due.plan for _, due in dues], partial(prepare, engines)
        jobs = [job._replace(h=_bounded(job.h, bound)) for _, due in dues for job in due.jobs]
        coupled = any(job.h.asks_of_model for job in jobs)
        self._jobs = [job._replace(h=job.h.counting()) if coupled else job for job in jobs]
        self._seen = [(i, held) for i, due in dues for held in due.plan.held]  # by each job
        self.layouts: Any = None
        self._keeps = keeps
        self.kept: Turn | None = None
        self._viewed = [i for i, due in dues if not due.plan.itself]
        self._places: Any = None  # of what is viewed, when it was

    def of(self, values: Sequence[Any]) -> list[Any]:
        """Return their share of values for all."""
        return [values[i] for i, _ in self._dues]

    def turn(self, params: Sequence[Array]) -> Turn:
        """Return them prepared for these weights: as in the last step, if they are kept."""
        viewed = [params[i] for i in self._viewed]
        if self.kept is not None:
            if not self._places.same(viewed):
                raise Changed  # which views do not follow
            return self.kept
        each = zip(self._jobs, self._seen, strict=True)
        jobs = [job if job.p is not None else job._replace(p=held.view(params[i])) for job, (i, held) in each]
        turn = Turn(self._plans, jobs, self._prepare, self.layouts)
        if self._keeps:
            self.kept, self._places = turn, places_of(viewed)
        return turn

    def took(self, turn: Turn) -> None:
        """Note what a step measured, and what of its layout is without arrays."""
        measured = iter(turn.prepared.stats())
        for _, due in self._dues:
            due.slot.plan, due.slot.measured = due.plan, list(islice(measured, len(due.plan.held)))
        self.layouts = turn.prepared.layouts


def _bounded(h: Any, bound: float | None) -> Any:
    return settled(h, max_grad_norm=bound) if bound and isinstance(h, ClippedByNorm) else h
