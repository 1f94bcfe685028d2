"""The distributor, which assigns tensors to the engines of a table."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from layerwise.drivers import OtherRanks
from layerwise.engines import (
    ArraysChanged,
    DeviceStepCount,
    Engine,
    Job,
    PreparedJobs,
    Stats,
    StepInputs,
    changed_is_error,
)
from layerwise.engines.addresses import addresses_of, arrays_of
from layerwise.errors import EngineError
from layerwise.rules.requests import Array, Now, T

SEVERAL = "tensors that must be stepped together are on several devices"


def prepare(engines: Sequence[Engine], jobs: Sequence[Job], layouts: object = None) -> AssignedJobs:
    """Plan the step of these jobs by the engines of a table, which are in order of preference.

    Each job goes to the first engine that does not decline it. If tensors wait for one another, because of a sum over
    all of them or because other ranks hold parts of them, the first engine that takes all of them steps all.
    """
    return AssignedJobs(engines, jobs, layouts if isinstance(layouts, dict) else {})


Layouts = dict[tuple[int, tuple[int, ...]], object]  # of engines, by the engine and the indices of the jobs


class EngineShare(NamedTuple):
    """The jobs, by their indices, that one prepared step carries out."""

    engine: int  # by its index in the table
    places: tuple[int, ...]
    prepared: PreparedJobs


class AssignedJobs:
    """Jobs, and the engines' shares of them."""

    def __init__(self, engines: Sequence[Engine], jobs: Sequence[Job], layouts: Layouts) -> None:
        self._engines, self._jobs, self._layouts = tuple(engines), list(jobs), layouts
        self._coupled = any(h.needs_model_sum for h in {id(job.h): job.h for job in self._jobs}.values())
        self._known: dict[bool, list[EngineShare]] = {}  # whether tensors wait for one another
        self._undecided: list[tuple[int, Engine]] = []  # jobs that an engine declined because of their inputs
        self.has_stepped = False  # until then, an error is not a change
        self._arrays = arrays_of(self._jobs)
        self._places = addresses_of(self._arrays)
        if [*layouts] == [(0, tuple(range(len(self._jobs))))]:  # the first engine had all
            [(share, own)] = layouts.items()
            self._known[self._coupled] = [EngineShare(*share, self._engines[0].prepare(self._jobs, own))]
        self._last = self._shares(self._coupled)
        self.counts = len(self._last) == 1 and self._last[0].prepared.counts
        self.only: PreparedJobs | None = None
        """The single engine's own step of all jobs, once it has taken one."""

    @property
    def layouts(self) -> Layouts | None:
        """The shares' layouts, or None if one must not be replaced."""
        found = {(share.engine, share.places): share.prepared.layouts for share in self._last}
        return None if None in found.values() else found

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: OtherRanks | None = None
    ) -> None:
        together = self._coupled or others is not None
        if self._undecided:
            self._decide_again(grads, nows, skip)
        shares = self._known.get(together) or self._shares(together)
        try:
            self._step(shares, grads, nows, skip, others)
        except ArraysChanged:
            # Other engines may not take counts on the device.
            if self.has_stepped or any(isinstance(now.t, DeviceStepCount) for now in nows):
                raise
            self._check_arrays()
            given = [StepInputs(g, now, skip) for g, now in zip(grads, nows, strict=True)]
            shares = self._known[together] = self._distributed(together, given)
            with changed_is_error():
                self._step(shares, grads, nows, skip, others)
        self._took(shares)

    def step_in_parts(self, grads: Sequence[Array], nows: Sequence[Now]) -> Iterator[list[float]]:
        """Step in three parts, if one engine that can do so has all jobs; otherwise raise `ArraysChanged`."""
        shares = self._shares(self._coupled)
        ahead = shares[0].prepared.step_in_parts if len(shares) == 1 and not self._undecided else None
        if ahead is None:
            raise ArraysChanged
        yield from ahead(grads, nows)
        self._took(shares)

    def _took(self, shares: list[EngineShare]) -> None:
        self.has_stepped, self._last = True, shares
        if len(shares) == 1 and not self._undecided:
            self.only = shares[0].prepared

    def _step(
        self,
        shares: Sequence[EngineShare],
        grads: Sequence[Array],
        nows: Sequence[Now],
        skip: Array | None,
        others: OtherRanks | None,
    ) -> None:
        if len(shares) == 1:
            shares[0].prepared.step(grads, nows, skip, others)
            return
        # Before the first of them writes anything.
        for share in shares:
            share.prepared.check(_at(share.places, grads), _at(share.places, nows), skip)
        for share in shares:
            share.prepared.step(_at(share.places, grads), _at(share.places, nows), skip, others)

    @property
    def engine_per_job(self) -> list[str]:
        """The engine that took the last step, for each job."""
        found = {i: self._engines[share.engine].name for share in self._last for i in share.places}
        return [found[i] for i in range(len(self._jobs))]

    def stats(self) -> Sequence[Stats]:
        if len(self._last) == 1:
            return self._last[0].prepared.stats()
        found: list[Stats] = [{}] * len(self._jobs)
        for share in self._last:
            for i, stats in zip(share.places, share.prepared.stats(), strict=False):
                found[i] = stats
        return found

    # ---- the shares of the engines

    def _shares(self, together: bool) -> list[EngineShare]:
        if together not in self._known:
            # One share is one share, whether its tensors wait for one another or not.
            other = self._known.get(not together, ())
            self._known[together] = list(other) if len(other) == 1 else self._distributed(together)
        return self._known[together]

    def _distributed(self, together: bool, given: Sequence[StepInputs] | None = None) -> list[EngineShare]:
        self._undecided = []
        return self._shared(self._taken_together(given) if together else self._taken(given))

    def _taken(self, given: Sequence[StepInputs] | None) -> list[int]:
        found, left = [0] * len(self._jobs), list(range(len(self._jobs)))
        reasons: dict[int, list[str]] = {}
        for number, engine in enumerate(self._engines):
            if not left and number:
                break
            declined = {i: why for i, why in zip(left, self._declined(engine, left, given), strict=True) if why}
            for i, why in declined.items():
                found[i] = number + 1
                reasons.setdefault(i, []).append(why)
            left = list(declined)
        if left:
            raise self._refusal(reasons[left[0]])
        return found

    def _taken_together(self, given: Sequence[StepInputs] | None) -> list[int]:
        """Return the same if one engine must take all of them."""
        reasons: list[str] = []
        for engine in self._engines:
            why = next(filter(None, self._declined(engine, range(len(self._jobs)), given)), "")
            several = len({*engine.groups(self._jobs)}) > 1
            if not why and not several:
                return [len(reasons)] * len(self._jobs)
            reasons.append(why or SEVERAL)
        raise self._refusal(reasons)

    def _declined(self, engine: Engine, places: Sequence[int], given: Sequence[StepInputs] | None) -> list[str]:
        found = engine.reasons_to_decline(_at(places, self._jobs), None if given is None else _at(places, given))
        if given is not None:
            odd = [i for i, why in zip(places, found, strict=True) if why]
            bare = zip(odd, engine.reasons_to_decline(_at(odd, self._jobs)), strict=True)
            self._undecided += [(i, engine) for i, why in bare if not why]
        return found

    def _decide_again(self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None) -> None:
        """Ask the engines again that declined a job because of an earlier step's gradient or numbers."""
        each = ((engine, [self._jobs[i]], [StepInputs(grads[i], nows[i], skip)]) for i, engine in self._undecided)
        if any(engine.reasons_to_decline(job, given) == [""] for engine, job, given in each):
            self._check_arrays()
            self._known, self._undecided, self.has_stepped = {}, [], False

    def _check_arrays(self) -> None:
        """Raise `ArraysChanged` if weights or state have changed: an engine that prepares them now would not notice."""
        if not self._places.same(self._arrays):
            raise ArraysChanged

    def _refusal(self, reasons: Sequence[str]) -> EngineError:
        each = zip(self._engines, reasons, strict=True)
        said = "; ".join(f"{engine.name} cannot step these tensors: {why}" for engine, why in each)
        return EngineError(f"{said}. Leave out the option that requires it, and layerwise picks an engine that can.")

    def _shared(self, takers: Sequence[int]) -> list[EngineShare]:
        groups: dict[tuple[int, Hashable], list[int]] = {}
        keys = {taker: self._engines[taker].groups(self._jobs) for taker in {*takers}}
        for i, taker in enumerate(takers):
            groups.setdefault((taker, keys[taker][i]), []).append(i)
        shares = []
        for (taker, _), places in groups.items() or {(0, None): []}.items():
            layouts = self._layouts.get((taker, tuple(places)))
            prepared = self._engines[taker].prepare(_at(places, self._jobs), layouts)
            shares.append(EngineShare(taker, tuple(places), prepared))
        return shares


def _at(places: Sequence[int], values: Sequence[T]) -> list[T]:
    return [values[i] for i in places]
