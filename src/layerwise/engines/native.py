"""The compiled engine: all tensors of a step in one call, in place, where they lie in the machine's memory."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerwise.engines import Candidate, Engine, Job, Stats
from layerwise.engines.options import options_of
from layerwise.errors import EngineError
from layerwise.hyper import Adafactor
from layerwise.threads import extension, wanted_threads

KEPT = 256  # lists of jobs whose layout is remembered; stepping in the backward pass has one for each parameter
RATIO = ("weight_norm", "update_norm", "trust_ratio")
UPDATE = ("update_rms", "trust_ratio", "weight_rms")
VARIABLE = "LAYERWISE_ISA"

_native: Any = extension()


def candidate(otherwise: Engine, written: Callable[[Sequence[Job]], None] | None = None) -> Candidate:
    """The row of a front's table. `otherwise` takes the jobs that this engine does not."""
    if _native is None:
        return Candidate("cpu", None, why_not())
    heed_environment()
    return Candidate("cpu", NativeEngine(otherwise, written), insisting=NativeEngine(None, written))


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
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        _native.open_torch(torch.Tensor, torch.nn.Parameter, dtypes, exchange)


@dataclass
class Kept:
    """A batch, and what it measures."""

    batch: Any
    measured: list[Any]  # read as Stats are


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


class NativeEngine:
    """Hands jobs to the extension, and to `otherwise` those it does not take; without one, it refuses them.

    `written` is told of jobs whose parameters were changed behind their library's back.
    """

    def __init__(self, otherwise: Engine | None, written: Callable[[Sequence[Job]], None] | None = None) -> None:
        self._otherwise, self._written = otherwise, written
        self._kept: OrderedDict[Any, Kept] = OrderedDict()

    def step(self, jobs: Sequence[Job]) -> list[Stats]:
        if not jobs:
            return []
        given = jobs if isinstance(jobs, list) else list(jobs)
        key = len(given), _native.address(given[0].p), _native.address(given[-1].p)
        kept = self._kept.get(key)
        if kept is None or not kept.batch.step(given):
            refused = [_refusal(job) for job in given]
            if any(refused):
                return self._in_part(given, refused)
            kept = self._laid_out(given)
            if not kept.batch.step(given):
                raise EngineError("the jobs changed while they were laid out. Step from one thread at a time.")
            self._kept[key] = kept
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        if self._written is not None:
            self._written(given)
        return kept.measured

    def _laid_out(self, jobs: list[Job]) -> Kept:
        batch = _native.Batch(jobs, [options_of(_native, job.h) for job in jobs])
        return Kept(batch, [Measured(batch, i, _measures(job.h)) for i, job in enumerate(jobs)])

    def _in_part(self, jobs: list[Job], refused: list[str]) -> list[Stats]:
        """Leave what the extension does not take to the other engine; all of it where tensors wait for one another."""
        if self._otherwise is None:
            reason = next(filter(None, refused))
            raise EngineError(f"the fused engine does not take these tensors: {reason}. Leave the choice of engine.")
        if any(job.h.asks_of_model for job in jobs):
            return list(self._otherwise.step(jobs))
        theirs = iter(self._otherwise.step([job for job, no in zip(jobs, refused, strict=True) if no]))
        ours = iter(self.step([job for job, no in zip(jobs, refused, strict=True) if not no]))
        return [next(theirs if no else ours) for no in refused]


def _refusal(job: Job) -> str:
    """Why the extension does not take this job, or an empty string."""
    for name, array in (("the parameter", job.p), ("the gradient", job.g), *_named_state(job)):
        if not _native.address(array) and 0 not in array.shape:
            return f"{name} is not an array of floating numbers in this machine's memory ({type(array).__name__})"
    if job.skip is not None:
        return "whether to step is known only on the device"
    try:
        _native.Batch([job], [options_of(_native, job.h)])
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
