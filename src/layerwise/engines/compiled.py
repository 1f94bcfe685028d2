"""The compiled engine: all tensors of a step in one call, in place, where they lie in the machine's memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import is_not
from typing import Any

import numpy as np

from layerwise.drive import Others
from layerwise.engines import Candidate, Changed, Engine, Job, Prepared, Stats
from layerwise.engines.options import options_of
from layerwise.engines.rounds import Rounds
from layerwise.errors import EngineError
from layerwise.rules.adafactor import Adafactor
from layerwise.rules.asks import Now
from layerwise.threads import extension, wanted_threads

RATIO = ("weight_norm", "update_norm", "trust_ratio")
UPDATE = ("update_rms", "trust_ratio", "weight_rms")
LAYOUTS = 4  # ways of gradients to lie in memory that are remembered for one list of jobs
VARIABLE = "LAYERWISE_ISA"
CHANGED = "the jobs changed while they were laid out. Step from one thread at a time."

_native: Any = extension()

signals_wait: AbstractContextManager[Any] = nullcontext() if _native is None else _native.Signals()
"""While this is entered, signals whose handlers Python would call wait: what is written and what is counted are one."""


def candidate(
    otherwise: Engine,
    written: Callable[[Sequence[Any]], None] | None = None,
    otherwise_insisting: Engine | None = None,
) -> Candidate:
    """The row of a front's table. `otherwise` takes the jobs that this engine does not."""
    if _native is None:
        return Candidate("compiled", None, why_not())
    heed_environment()
    return Candidate(
        "compiled", CompiledEngine(otherwise, written), insisting=CompiledEngine(otherwise_insisting, written)
    )


def heed_environment() -> None:
    """Take as many threads and the instruction set as the environment says."""
    _native.set_num_threads(wanted_threads())
    asked = os.environ.get(VARIABLE)
    if asked and not _native.use_instruction_set(asked):
        known = ", ".join(_native.instruction_sets())
        raise EngineError(f"{VARIABLE} must be one of {known} on this machine, but is {asked!r}. Unset it to choose.")


def why_not() -> str:
    """Why the extension is not there."""
    try:
        from layerwise import _native  # noqa: F401
    except ImportError as problem:
        return f"the compiled extension cannot be imported ({problem})"
    return ""


def know_torch(torch: Any) -> None:
    """Make PyTorch's tensors known to the extension, which itself knows no framework."""
    if _native is not None:
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        _native.open_torch(torch.Tensor, torch.nn.Parameter, dtypes, exchange)


def watch(params: Sequence[Any], grads: Sequence[Any], states: Mapping[Any, Any]) -> Any:
    """The extension's look at PyTorch's tensors, or None where it cannot look at one of them."""
    try:
        return None if _native is None else _native.Watch(params, grads, states)
    except ValueError:
        return None


def in_memory(tensors: list[Any]) -> bool:
    """Whether all of PyTorch's tensors are known to hold what their memory does."""
    return _native is not None and bool(_native.in_memory(tensors))


def counts(steps: list[Any]) -> list[int] | None:
    """The numbers that these tensors of PyTorch hold, if the extension can read them."""
    found: list[int] | None = None if _native is None else _native.counts(steps)
    return found


def count(steps: list[Any]) -> bool:
    """Add one to each of them, and whether that could be done."""
    return _native is not None and bool(_native.count(steps))


class Measured(Mapping[str, Any]):
    """What a batch measured of one job in its last step, read when asked for."""

    __slots__ = ("_batch", "_job", "_names")

    def __init__(self, batch: Any, job: int, names: dict[str, int]) -> None:
        self._batch, self._job, self._names = batch, job, names

    def __getitem__(self, name: str) -> Any:
        return np.array(self._batch.measured(self._job, self._names[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy is of the numbers


class Layouts:
    """What jobs were laid out as, a few ways for gradients that lie in memory now in one and now in another.

    It holds no arrays, and may be given to the next `prepare` of jobs that differ in arrays or numbers.
    """

    def __init__(self, hs: Sequence[Any] = ()) -> None:
        self.hs = list(hs)
        self.batches: list[Any] = []  # the last used at the start
        self.parts: dict[tuple[bool, ...], Layouts] = {}

    def fitted(self, hs: Sequence[Any]) -> Layouts:
        """The same for these hyperparameters, as far as they differ in numbers alone."""
        if len(hs) != len(self.hs):
            return Layouts(hs)
        if any(map(is_not, hs, self.hs)):
            self.hs, options = list(hs), _options_of(hs)
            self.batches = [batch for batch in self.batches if batch.retune(self.hs, options)]
        return self

    def used(self, batch: Any) -> None:
        """Remember which was used last."""
        if not self.batches or self.batches[0] is not batch:
            self.batches = [batch, *(one for one in self.batches if one is not batch)][:LAYOUTS]

    def __reduce__(self) -> Any:
        return Layouts, ()  # a copy of an optimizer lays out for itself


class CompiledEngine:
    """Hands jobs to the extension, and to `otherwise` those it does not take; without one, it refuses them.

    `written` is told of parameters that were changed behind their library's back.
    """

    def __init__(self, otherwise: Engine | None, written: Callable[[Sequence[Any]], None] | None = None) -> None:
        self.otherwise, self.written = otherwise, written

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        if self.otherwise is not None and _all_elsewhere(jobs):
            return self.otherwise.prepare(jobs)
        return PreparedCompiled(self, jobs, layouts)


class PreparedCompiled:
    """Jobs, and the batches they were laid out as, the first of which is made by the first step."""

    counts = False

    def __init__(self, engine: CompiledEngine, jobs: Sequence[Job], layouts: Layouts | None = None) -> None:
        self._engine, self._jobs = engine, list(jobs)
        self._params = [job.p for job in self._jobs]
        self.notices = False
        self._layouts = (layouts or Layouts()).fitted([job.h for job in self._jobs])
        self._rounds: Rounds | None = None
        self._elsewhere: list[str] | None = None  # why the extension will never take each of them, or nothing
        self._parts: dict[tuple[bool, ...], tuple[Prepared, Prepared]] = {}
        # What the last step was measured by. Nothing here refers to this object: arrays go when nobody wants them.
        self._batch: Any = None
        self._in_parts: tuple[bool, ...] | None = None

    @property
    def layouts(self) -> Any:
        """None where another engine has a part in it that hands nothing on."""
        return None if any(theirs.layouts is None for theirs, _ in self._parts.values()) else self._layouts

    def step(self, grads: Sequence[Any], nows: Sequence[Now], skip: Any = None, others: Others | None = None) -> None:
        given = list(grads), list(nows)
        if others is not None:
            self._in_rounds(*given, skip, others)
            return
        if not self._jobs:
            return
        if skip is None and self._stepped(*given):
            return
        if self.notices:
            self.notices = False
            raise Changed
        refused = self._lay_out(*given) if skip is None else self._refused(*given, skip)
        if any(refused):
            self._in_part(*given, skip, refused)
        elif not self._stepped(*given):
            raise EngineError(CHANGED)

    def stats(self) -> list[Stats]:
        if self._in_parts is not None:
            return _joined(self._in_parts, *self._parts[self._in_parts])
        if self._batch is None:
            return []
        return [Measured(self._batch, i, _measures(job.h)) for i, job in enumerate(self._jobs)]

    def _lay_out(self, grads: list[Any], nows: list[Now]) -> list[str]:
        """Make a batch of the jobs, or say why the extension does not take each of them."""
        if self._elsewhere is not None and any(self._elsewhere):
            return self._elsewhere
        try:
            self._layouts.used(_native.Batch(self._jobs, grads, nows, _options_of([job.h for job in self._jobs])))
        except ValueError:
            return self._refused(grads, nows, None)
        return []

    def _in_rounds(self, grads: list[Any], nows: list[Now], skip: Any, others: Others) -> None:
        given = grads, nows, others
        if skip is None and self._rounds is not None and self._rounds.step(*given):
            self._was_stepped(self._rounds.batch)
            return
        refused = self._refused(grads, nows, skip)
        if any(refused):
            self._in_part(grads, nows, skip, refused, others)
            return
        options = _options_of([job.h for job in self._jobs])
        self._rounds = Rounds(_native, self._jobs, grads, nows, options)
        if not self._rounds.step(*given):
            raise EngineError(CHANGED)
        self._was_stepped(self._rounds.batch)

    def _refused(self, grads: list[Any], nows: list[Now], skip: Any) -> list[str]:
        """Why the extension does not take each of the jobs; an empty string where it does."""
        if skip is not None:
            return ["whether to step is known only on the device"] * len(self._jobs)
        if self._elsewhere is None:
            self._elsewhere = [_out_of_reach("the parameter", p) for p in self._params]
        if any(self._elsewhere):  # whether it takes the others is asked when they are prepared by themselves
            return self._elsewhere
        return [_refusal(*each) for each in zip(self._jobs, grads, nows, strict=True)]

    def _stepped(self, grads: list[Any], nows: list[Now]) -> bool:
        for batch in self._layouts.batches:
            if batch.step(self._jobs, grads, nows):
                self.notices = True
                self._layouts.used(batch)
                self._was_stepped(batch)
                return True
        return False

    def _was_stepped(self, batch: Any) -> None:
        if self._engine.written is not None:
            self._engine.written(self._params)
        self._batch, self._in_parts = batch, None

    def _in_part(
        self, grads: list[Any], nows: list[Now], skip: Any, refused: list[str], others: Others | None = None
    ) -> None:
        """Leave what the extension does not take to the other engine; all of it where tensors wait for one another."""
        if self._engine.otherwise is None:
            reason = next(filter(None, refused))
            raise EngineError(f"the fused engine does not take these tensors: {reason}. Leave the choice of engine.")
        together = others is not None or any(job.h.asks_of_model for job in self._jobs)
        theirs = tuple(together or bool(no) for no in refused)
        if theirs not in self._parts:
            refusal = next(filter(None, refused))
            sides = ([job for job, no in zip(self._jobs, theirs, strict=True) if no is side] for side in (True, False))
            layouts = self._layouts.parts.get(theirs)
            try:
                otherwise, ours = (
                    self._engine.otherwise.prepare(next(sides)),
                    self._engine.prepare(next(sides), layouts),
                )
            except EngineError as problem:
                raise EngineError(f"{problem} The compiled engine does not take them either: {refusal}.") from None
            self._parts = {theirs: (otherwise, ours)}
        # Ours first, because it may find that something has `Changed`, when nothing must have been touched.
        for side, prepared in zip((False, True), reversed(self._parts[theirs]), strict=True):
            places = [i for i, no in enumerate(theirs) if no is side]
            if places:
                prepared.step([grads[i] for i in places], [nows[i] for i in places], skip, others)
        self._batch, self._in_parts = None, theirs
        self._layouts.parts = {theirs: self._parts[theirs][1].layouts}


def _joined(theirs: Sequence[bool], otherwise: Prepared, ours: Prepared) -> list[Stats]:
    measured = iter(otherwise.stats()), iter(ours.stats())
    return [next(measured[0 if no else 1]) for no in theirs]


def _all_elsewhere(jobs: Sequence[Job]) -> bool:
    found = False
    for job in jobs:
        if _native.address(job.p):
            return False
        found = found or 0 not in job.p.shape  # whoever holds nothing steps as those do who hold something
    return found


def _out_of_reach(name: str, array: Any) -> str:
    if _native.address(array) or 0 in array.shape:
        return ""
    return f"{name} is not an array of floating numbers in this machine's memory ({type(array).__name__})"


def _options_of(hs: Sequence[Any]) -> list[Any]:
    """What the extension is told of these hyperparameters, many of which are one object."""
    made: dict[int, Any] = {}
    for h in hs:
        if id(h) not in made:
            made[id(h)] = options_of(_native, h)
    return [made[id(h)] for h in hs]


def _refusal(job: Job, g: Any, now: Now) -> str:
    """Why the extension does not take this job, or an empty string."""
    for name, array in (("the gradient", g), *_named_state(job)):
        if why := _out_of_reach(name, array):
            return why
    try:
        _native.Batch([job], [g], [now], [options_of(_native, job.h)])
    except ValueError as problem:
        return str(problem)
    return ""


def _named_state(job: Job) -> Iterator[tuple[str, Any]]:
    return ((name, array) for name, array in zip(job.state._fields, job.state, strict=True) if array is not None)


def _measures(h: Any) -> dict[str, int]:
    if isinstance(h, Adafactor):
        names = UPDATE if h.scale_parameter else UPDATE[:2]
    else:
        names = RATIO if h.adapt is not False else ("", "", "trust_ratio")
    return {name: i for i, name in enumerate(names) if name}
