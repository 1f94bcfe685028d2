"""Steps of tensors that have slots: prepared once, and again when something has changed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

from layerwise.core.library import Array
from layerwise.core.nows import Nows
from layerwise.core.slot import Taken
from layerwise.core.tensors import Asked, Numbers, stats_of
from layerwise.core.turn import Turn, keep
from layerwise.engines import Changed, Engine, just_prepared
from layerwise.engines.places import places_of
from layerwise.first import First
from layerwise.hidden import is_vector, is_whole


class Steps:
    """The prepared steps of one optimizer, or of several that step together; a copy prepares its own."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Together] = {}  # by the names of the tensors, the last taken at the end
        self._said = False  # whether tensors were seen of which the first step alone says what is wrong

    def __reduce__(self) -> Any:
        return Steps, ()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, asked: Sequence[Asked], engines: Sequence[Engine]) -> list[First]:
        """Step all of these tensors, or raise with none of them changed. Return the first steps of tensors."""
        try:
            return self._take(asked, engines)
        except Changed:
            for one in asked:
                one.tensors.forget()
            with just_prepared():
                return self._take(asked, engines)

    def _take(self, asked: Sequence[Asked], engines: Sequence[Engine]) -> list[First]:
        key = tuple(_joined([one.names for one in asked]))
        found = self._kept.get(key)
        if found is None or not found.holds(asked):
            found = Together(asked, engines)
        firsts = found.step(asked)
        keep(self._kept, key, found, (one.tensors.slots for one in asked))
        if not any(one.is_said_once for one in firsts):
            return firsts
        said, self._said = self._said, True
        return [one for one in firsts if not (said and one.is_said_once)]


class Together:
    """Tensors that step together, for as long as their slots, settings and weights stay the same."""

    def __init__(self, asked: Sequence[Asked], engines: Sequence[Engine]) -> None:
        self._each = [list(map(partial(one.tensors.due, one.plan), one.names, one.params)) for one in asked]
        for check in (one.check for one in asked if one.check is not None):
            check()
        self._dues, self._engines = _joined(self._each), engines
        self._nows = Nows([due.plan.h for due in self._dues], [1] * len(self._dues))
        self._masters = [i for i, due in enumerate(self._dues) if due.slot.master is not None]
        self._viewed = [i for i, due in enumerate(self._dues) if not due.plan.itself]
        jobs = [job for due in self._dues for job in due.jobs]
        coupled = any(job.h.asks_of_model for job in jobs)
        self._jobs = [job._replace(h=job.h.counting()) if coupled else job for job in jobs]
        self._held = [(i, held) for i, due in enumerate(self._dues) for held in due.plan.held]  # by each job
        self._taken, self._layouts = Taken([due.plan for due in self._dues]), cast("Any", None)  # without arrays
        self._keeps = all(one.tensors.keeps for one in asked)
        self.kept: Turn | None = None
        self._where: Any = None  # the places of what is viewed, when it was prepared
        self._seen: Any = None  # what was the same in the last step
        for one in asked:
            one.tensors.prepared.add(self)

    def release(self) -> None:
        """Hold no longer, and no array."""
        self._seen, self.kept, self._each, self._dues, self._jobs = None, None, [], [], []

    def holds(self, asked: Sequence[Asked]) -> bool:
        """Return True if nothing has changed since the last step but weights that are the user's, and gradients."""
        return bool(self._seen == list(map(_seen, asked)))

    def step(self, asked: Sequence[Asked]) -> list[First]:
        """Step all of them, or raise with none of them changed. Return first steps, if this is the first of these."""
        each = [one.numbers(own) for one, own in zip(asked, self._each, strict=True)]
        params, numbers, lib = _joined([one.params for one in asked]), _joined(each), asked[0].tensors.lib
        t, lr, weight_decay = zip(*numbers, strict=True)
        nows = self._nows.of(t, lr, weight_decay)
        turn = self._turn(params)
        if self._seen is None:
            for p, due in zip(params, self._dues, strict=True):
                if due.converted is not None:
                    lib.write(p, due.converted)
        grads, own = turn.of_jobs(_joined([one.grads for one in asked]), nows)
        (turn.prepared.only or turn.prepared).step(grads, own)
        self._taken.measured, self._layouts = turn.prepared.stats(), turn.prepared.layouts
        for i in self._masters:
            lib.write(params[i], self._dues[i].slot.master)
        for due, (t, _, _) in zip(self._dues, numbers, strict=True):
            due.slot.step = t
        return self._took(asked, each)

    def _turn(self, params: Sequence[Array]) -> Turn:
        """Return the step prepared for these weights: that of last time, if it is kept."""
        viewed = [params[i] for i in self._viewed]
        if self.kept is not None:
            if not self._where.same(viewed):
                raise Changed  # which views do not follow
            return self.kept
        each = zip(self._jobs, self._held, strict=True)
        jobs = [job if job.p is not None else job._replace(p=held.view(params[i])) for job, (i, held) in each]
        turn = Turn(self._engines, self._taken.plans, jobs, self._layouts)
        if self._keeps:
            self.kept, self._where = turn, places_of(viewed)
        return turn

    def _took(self, asked: Sequence[Asked], numbers: Sequence[Sequence[Numbers]]) -> list[First]:
        """Note that this was the last step of these tensors."""
        if any(one.tensors.last is not self for one in asked):
            for i, due in enumerate(self._dues):
                due.slot.last = self._taken, i
        for one, own in zip(asked, numbers, strict=True):
            one.tensors.last, one.tensors.furthest = self, max(one.tensors.furthest, max(own)[0])
        if self._seen is not None:
            return []
        firsts = []
        for one, dues, nows in zip(asked, self._each, numbers, strict=True):
            new = {due.name: due.slot for due in one.tensors.keep(dues)}
            stats = stats_of(new)
            each = ((due, lr, lam) for due, (_, lr, lam) in zip(dues, nows, strict=True) if due.name in new)
            for d, lr, lam in each:
                h, shape = d.plan.h, d.plan.shape
                kinds = is_vector(h, shape), not one.has_blocks and is_whole(h, shape)
                firsts.append(First(d.name, h, stats[d.name], lam, one.peak(d, lr), d.loses, *kinds))
        self._seen = list(map(_seen, asked))
        return firsts


def _seen(one: Asked) -> Any:
    own = one.tensors
    return list(map(own.slots.get, one.names)), own.kinds(one.params)


def _joined(each: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return each[0] if len(each) == 1 else list(chain.from_iterable(each))
