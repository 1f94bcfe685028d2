"""Steps of tensors that have slots: prepared once, and again when something has changed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from layerwise.core.library import Array
from layerwise.core.nows import Nows
from layerwise.core.slot import Taken
from layerwise.core.tensors import Asked, Due, Numbers, stats_of
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
                one.tensors.forget(one.names)
            return self._take(asked, engines, bound)

    def _take(self, asked: Sequence[Asked], engines: Sequence[Engine], bound: float | None) -> list[First]:
        key = bound, *_joined([one.names for one in asked])
        found = self._kept.get(key)
        if found is None or not found.holds(asked):
            found = Together(asked, engines, bound)
        firsts = found.step(asked)
        self._kept.pop(key, None)
        self._kept[key] = found
        if len(self._kept) > MOST_TURNS + sum(len(one.tensors.slots) for one in asked):
            del self._kept[next(iter(self._kept))]
        return firsts


class Together:
    """Tensors that step together, for as long as their slots, settings and weights stay the same."""

    def __init__(self, asked: Sequence[Asked], engines: Sequence[Engine], bound: float | None) -> None:
        self._each = [
            [one.tensors.due(name, p, one.plan) for name, p in zip(one.names, one.params, strict=True)] for one in asked
        ]
        self._dues = _joined(self._each)
        for check in (one.check for one in asked if one.check is not None):
            check()
        by_norm: dict[Hashable, list[int]] = {}
        for i, due in enumerate(self._dues):
            by_norm.setdefault(due.planned.clipped_with, []).append(i)
        keeps = all(one.tensors.keeps for one in asked)
        self.parts = [Part(own, [self._dues[i] for i in own], engines, bound, keeps) for own in by_norm.values()]
        self._hs = [due.plan.h for due in self._dues]
        self._masters = [i for i, due in enumerate(self._dues) if MASTER in due.slot.arrays]
        self._seen: Any = None  # what was the same in the last step

    def holds(self, asked: Sequence[Asked]) -> bool:
        """Return True if nothing has changed since the last step but weights that are the user's, and gradients."""
        return bool(self._seen == list(map(_seen, asked)))

    def step(self, asked: Sequence[Asked]) -> list[First]:
        """Step all of them, or raise with none of them changed. Return first steps, if this is the first of these."""
        each = [one.numbers(own) for one, own in zip(asked, self._each, strict=True)]
        params, numbers, lib = _joined([one.params for one in asked]), _joined(each), asked[0].tensors.lib
        self._carry_out(params, _joined([one.grads for one in asked]), numbers, lib)
        for i in self._masters:
            lib.write(params[i], self._dues[i].slot.arrays[MASTER])
        for due, (t, _, _) in zip(self._dues, numbers, strict=True):
            due.slot.step = t
        for one, own in zip(asked, each, strict=True):
            one.tensors.furthest = max(one.tensors.furthest, max(own)[0])
        return self._took(asked, each)

    def _carry_out(self, params: Sequence[Array], grads: Sequence[Array], numbers: Sequence[Numbers], lib: Any) -> None:
        made = Nows()
        nows = [made.of(h, *one) for h, one in zip(self._hs, numbers, strict=True)]
        turns = [(part.turn(params), part.of(grads), part.of(nows)) for part in self.parts]
        if self._seen is None:
            for due, p in zip(self._dues, params, strict=True):
                if due.converted is not None:
                    lib.write(p, due.converted)
        for turn, own, own_nows in turns if len(turns) > 1 else ():
            turn.check(own, own_nows)
        for turn, own, own_nows in turns:
            turn.step(own, own_nows)
        for part, (turn, *_) in zip(self.parts, turns, strict=True):
            part.took(turn)

    def _took(self, asked: Sequence[Asked], numbers: Sequence[Sequence[Numbers]]) -> list[First]:
        """Note that this was the last step of these tensors."""
        if any(one.tensors.last is not self for one in asked):
            for part in self.parts:
                part.is_last()
        for one in asked:
            one.tensors.last = self
        if self._seen is not None:
            return []
        firsts = []
        for one, dues, nows in zip(asked, self._each, numbers, strict=True):
            new = {due.name: due for due in one.tensors.keep(dues)}
            stats = stats_of({name: due.slot for name, due in new.items()})
            for due, (_, lr, lam) in zip(dues, nows, strict=True):
                due.converted = None
                if due.name in new:
                    firsts.append(First(due.name, due.plan.h, stats[due.name], lam, one.peak(due, lr), due.loses))
        self._seen = list(map(_seen, asked))
        return firsts


class Part:
    """Those of them whose gradients may share one norm, by their places."""

    def __init__(
        self,
        places: Sequence[int],
        dues: Sequence[Due],
        engines: Sequence[Engine],
        bound: float | None,
        keeps: bool,
    ) -> None:
        self._places, self._dues, self._prepare = places, dues, partial(prepare, engines)
        self._plans = [due.plan for due in dues]
        jobs = [job._replace(h=_bounded(job.h, bound)) for due in dues for job in due.jobs]
        coupled = any(job.h.asks_of_model for job in jobs)
        self._jobs = [job._replace(h=job.h.counting()) if coupled else job for job in jobs]
        self._held = [(i, held) for i, due in zip(places, dues, strict=True) for held in due.plan.held]  # by each job
        self._viewed = [i for i, due in zip(places, dues, strict=True) if not due.plan.itself]
        self._where: Any = None  # the places of what is viewed, when it was
        self._keeps, self._taken = keeps, Taken(self._plans)
        self.kept: Turn | None = None
        self.layouts: Any = None  # of the last step, without arrays

    def of(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return their share of values for all."""
        return values if len(values) == len(self._places) else [values[i] for i in self._places]

    def turn(self, params: Sequence[Array]) -> Turn:
        """Return them prepared for these weights: as in the last step, if they are kept."""
        viewed = [params[i] for i in self._viewed]
        if self.kept is not None:
            if not self._where.same(viewed):
                raise Changed  # which views do not follow
            return self.kept
        each = zip(self._jobs, self._held, strict=True)
        jobs = [job if job.p is not None else job._replace(p=held.view(params[i])) for job, (i, held) in each]
        turn = Turn(self._plans, jobs, self._prepare, self.layouts)
        if self._keeps:
            self.kept, self._where = turn, places_of(viewed)
        return turn

    def took(self, turn: Turn) -> None:
        """Note what the step measured, and its layout."""
        if self._keeps:
            self._taken.prepared = turn.prepared
        else:
            self._taken.measured, self.layouts = turn.prepared.stats(), turn.prepared.layouts

    def is_last(self) -> None:
        """Note it as the last step of each of them."""
        for i, due in enumerate(self._dues):
            due.slot.last = self._taken, i


def _seen(one: Asked) -> Any:
    own = one.tensors
    return own.forgotten, list(map(own.slots.get, one.names)), own.kinds(one.params)


def _joined(each: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return each[0] if len(each) == 1 else list(chain.from_iterable(each))


def _bounded(h: Any, bound: float | None) -> Any:
    return settled(h, max_grad_norm=bound) if bound and isinstance(h, ClippedByNorm) else h
