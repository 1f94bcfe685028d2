"""The compiled engine: all tensors of a step in one call, in place, in CPU memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import starmap
from operator import is_not
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise.drivers import OtherRanks
from layerwise.engines import KEPT, ArraysChanged, Candidate, Engine, Job, PreparedJobs, Stats, StepInputs
from layerwise.engines.addresses import PythonArraysRecord, addresses_of, arrays_of
from layerwise.engines.compiled_rounds import BatchInRounds
from layerwise.engines.processor import wanted_threads
from layerwise.engines.programs import (
    JobMeasurements,
    KernelNumbers,
    OfStep,
    kernel_numbers,
    norms_needed,
    once_per_kind,
    program_for,
    rows_and_columns,
    why_not_printed,
)
from layerwise.errors import EngineError
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Array, Now, RuleState, T
from layerwise.storage import Format, JobFormats
from layerwise.storage.extension import extension
from layerwise.storage.quantized_groups import EIGHT

if TYPE_CHECKING:
    from layerwise._native import Batch

PLAIN, SPLIT, GROUPED = range(3)  # formats, by their numbers in the extension
VARIABLE = "LAYERWISE_ISA"
PURE = (
    "this wheel, for any platform, has no compiled extension, so steps use the slower reference implementation; `pip "
    "install --force-reinstall --no-binary layerwise layerwise` compiles it"
)
TORCH_LIBRARY = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}
# Methods of tensors take 50 times as long, which matters if each array of each step is asked. The last two are in
# PyTorch's stable interface, which has nothing like the first, `bool at::native::is_neg(const at::Tensor&)`: hence its
# mangled name. Their results are compared with the methods', and they are not used if these differ.
TORCH_FUNCTIONS = (
    "_ZN2at6native6is_negERKNS_6TensorE",
    "aoti_torch_get_storage_size",
    "aoti_torch_get_storage_offset",
)

_native: Any = extension()
if _native is not None:
    _native.open_jobs(Job._fields)

signals_wait: AbstractContextManager[None] = nullcontext() if _native is None else _native.Signals()
"""A context in which signals with Python handlers wait, so that a step is both written and counted, or neither."""


def candidate(written: Callable[[Sequence[Array]], None] | None = None) -> Candidate:
    """Return the row of an API's table."""
    if _native is None:
        return Candidate("compiled", None, reason_missing())
    read_environment()
    return Candidate("compiled", CompiledEngine(written))


def read_environment() -> None:
    """Set the number of threads and the instruction set from the environment."""
    _native.set_num_threads(wanted_threads())
    asked = os.environ.get(VARIABLE)
    if asked and not _native.use_instruction_set(asked.strip().lower()):
        known = ", ".join(_native.instruction_sets())
        raise EngineError(
            f"{VARIABLE} must be one of {known} on this machine, but is {asked!r}. Unset it to choose automatically."
        )


def reason_missing() -> str:
    """Return the reason why the extension is missing, or an empty string."""
    try:
        from layerwise import _native  # noqa: F401
    except ImportError as problem:
        built = any(path.suffix != ".pyi" for path in Path(__file__).parents[1].glob("_native.*"))
        return f"the compiled extension cannot be imported ({problem})" if built else PURE
    return ""


def register_torch(torch: Any) -> None:
    """Register PyTorch's tensors with the extension, which itself knows no framework."""
    if _native is not None:
        floating = torch.float32, torch.float64, torch.bfloat16, torch.float16
        dtypes = *floating, torch.int64, torch.int8, torch.uint8, torch.int16
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        _native.open_torch(torch.Tensor, torch.nn.Parameter, dtypes, exchange)
        plain = torch.zeros(2)
        _native.use_torch_functions(_addresses(torch), plain[1:], torch._neg_view(plain)[1:])


def register_plain(tensor: type, parameter: type) -> bool:
    """Register the tensors of a library whose DLPack table locates their numbers; return whether this worked."""
    exchange = getattr(tensor, "__dlpack_c_exchange_api__", None)
    return _native is not None and bool(_native.open_plain(tensor, parameter, exchange))


def _addresses(torch: Any) -> tuple[int, ...]:
    """Return the addresses of PyTorch's own functions; zeros if they are missing or cannot be found."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / TORCH_LIBRARY.get(sys.platform, "none")))
        return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in TORCH_FUNCTIONS)
    except (OSError, AttributeError):
        return (0,) * len(TORCH_FUNCTIONS)


def _nothing(tensors: list[Array]) -> None:
    """Fallbacks that work without the extension."""


def in_memory(tensors: list[Array]) -> bool:
    """Return True if all of PyTorch's tensors are known to have their numbers in their memory."""
    return _native is not None and bool(_native.in_memory(tensors))


counts: Callable[[list[Array]], list[int] | None] = _nothing if _native is None else _native.counts
"""Return the numbers in these PyTorch tensors, if the extension can read them."""

count: Callable[[list[Array]], bool | None] = _nothing if _native is None else _native.count
"""Add one to each of them, and return True if that was possible."""


class BatchMeasurements(Sequence[JobMeasurements]):
    """The measurements of all jobs in a batch's last step."""

    def __init__(self, batch: Batch, names: Sequence[tuple[str, ...]]) -> None:
        self._batch, self._names = batch, names

    def __getitem__(self, i: Any) -> Any:
        return JobMeasurements(partial(self._batch.measured, i), self._names[i])

    def column(self, name: str) -> list[list[float] | None]:
        """Return one measurement of all jobs, or None of those that lack it."""
        places = [names.index(name) if name in names else None for names in self._names]
        return [None if at is None else self._batch.measured(i, at) for i, at in enumerate(places)]

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[object, ...]:
        return list, (list(self),)


class BatchLayouts:
    """The layouts of jobs: a few, for gradients whose arrangement in memory changes from step to step.

    They hold no arrays. The next `prepare` may use them for jobs that differ in arrays or numbers.
    """

    def __init__(self, hs: Sequence[Hyper] = ()) -> None:
        self.hs = list(hs)
        self.batches: list[Any] = []  # the most recently used at the start
        self.numbers = KernelNumbers(self.hs)
        self.measured: list[tuple[str, ...]] = []  # for each job, the names of its measurements

    def for_jobs(self, jobs: Sequence[Job]) -> BatchLayouts:
        """Return the same for these jobs, if their hyperparameters differ only in numbers."""
        hs = [job.h for job in jobs]
        if len(hs) != len(self.hs):
            return BatchLayouts(hs)
        if any(map(is_not, hs, self.hs)):
            self.hs, self.measured, forms = hs, [], once_per_kind(layout_key, jobs)
            self.numbers.fit(hs)
            self.batches = [batch for batch in self.batches if batch.retune(self.hs, forms)]
        return self

    def mark_latest(self, batch: Batch) -> None:
        if not self.batches or self.batches[0] is not batch:
            self.batches = [batch, *(one for one in self.batches if one is not batch)][:KEPT]

    def __reduce__(self) -> tuple[object, ...]:
        return BatchLayouts, ()  # a copy of an optimizer lays out for itself


class CompiledEngine(Engine):
    """The engine that hands jobs to the extension. `written` gets parameters that change without their library's
    knowledge.
    """

    name = "the compiled engine"

    def __init__(self, written: Callable[[Sequence[Array]], None] | None = None) -> None:
        self.written = written

    def reasons_to_decline(self, jobs: Sequence[Job], given: Sequence[StepInputs] | None = None) -> list[str]:
        unprinted = once_per_kind(lambda job: why_not_printed(job) or self._stored_otherwise(job), jobs)
        if given is None:
            reaches = _native.reaches
            for i, job in enumerate(jobs):
                if not unprinted[i] and not all(map(reaches, filter(_is_there, (job.p, *job.state)))):
                    unprinted[i] = _out_of_reach(job)
            return unprinted
        return [why or self._declined(job, one) for why, job, one in zip(unprinted, jobs, given, strict=True)]

    def _declined(self, job: Job, given: StepInputs) -> str:
        if given.skip is not None:
            return "whether to skip the step is known only on the device"
        if why := _out_of_reach(job, given.g):
            return why
        if kernel_numbers(job.h, given.now) is None:
            return "a number of the step is tracked by autograd, or not in CPU memory"
        try:
            _native.Batch([job], [given.g], [layout_key(job)], kernel_numbers)
        except ValueError as problem:
            return str(problem)
        return ""

    def _stored_otherwise(self, job: Job) -> str:
        """Return the reason why the extension has no layout for the storage of a job."""
        if job.storage is not None and any(one.coded not in (None, EIGHT) for one in job.storage.given):
            return "there are no kernels for its codes"
        if job.storage is not None and job.draws and job.storage.index.scattered:
            return "its part of the tensor is not contiguous"
        return ""

    def prepare(self, jobs: Sequence[Job], layouts: object = None) -> PreparedCompiled:
        return PreparedCompiled(self, jobs, layouts if isinstance(layouts, BatchLayouts) else None)


class PreparedCompiled(PreparedJobs):
    """Jobs, and the batches laid out for them; the first step creates the first batch."""

    def __init__(self, engine: CompiledEngine, jobs: Sequence[Job], layouts: BatchLayouts | None = None) -> None:
        self._engine, self._jobs = engine, list(jobs)
        self._params = [job.p for job in self._jobs] if engine.written is not None else []
        self._places = addresses_of(arrays_of(self._jobs))
        self._known = not isinstance(
            self._places, PythonArraysRecord
        )  # None if one of them is out of the extension's reach
        self.layouts: BatchLayouts = (layouts or BatchLayouts()).for_jobs(self._jobs)
        self._rounds: BatchInRounds | None = None
        # Of the last step. Nothing here refers to this object: arrays are freed when nothing else refers to them.
        self._batch: Any = None

    def lend(self, jobs: Sequence[Job] | None) -> bool:
        if jobs is not None and not (self._known and self._places.same(arrays_of(jobs))):
            return False
        self._jobs = list(jobs or ())
        return True

    def check(self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None) -> None:
        given = list(grads), self.layouts.numbers.begin(nows)
        taken = (batch.takes(self._jobs, *given, self._places) for batch in self.layouts.batches)
        if not (skip is None and self._known and any(taken)):
            self._lay_out(*given, skip)

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: OtherRanks | None = None
    ) -> None:
        """Carry out the jobs in one call, or in rounds if other ranks hold parts."""
        given = list(grads), self.layouts.numbers.begin(nows)
        if others is not None:
            self._in_rounds(*given, skip, others)
        elif self._jobs:
            self._at_once(*given, skip)

    @property
    def step_in_parts(self) -> Callable[[Sequence[Array], Sequence[Now]], Iterator[list[float]]] | None:
        """A function that carries out the jobs in three parts, of which the last writes."""
        return self._in_parts

    def _in_parts(self, grads: Sequence[Array], nows: Sequence[Now]) -> Iterator[list[float]]:
        given = list(grads), self.layouts.numbers.begin(nows)
        rounds = self._begun(*given)
        try:
            steps = rounds.step_in_parts()
            yield []
            yield (model := next(steps))
            if not self._places.same(arrays_of(self._jobs)):
                raise ArraysChanged
            if not model:
                next(steps, None)
        finally:
            rounds.batch.leave()
        if model:
            self._at_once(*given, None, model[0])
        else:
            self._was_stepped(rounds.batch)

    def stats(self) -> Sequence[Stats]:
        if self._batch is None:
            return []
        self.layouts.measured = self.layouts.measured or once_per_kind(lambda job: program_for(job).stats, self._jobs)
        return BatchMeasurements(self._batch, self.layouts.measured)

    def _at_once(self, grads: list[Array], nows: list[OfStep], skip: Array | None, model: float | None = None) -> None:
        if not (skip is None and self._known and self._stepped(grads, nows, model)):
            self._lay_out(grads, nows, skip)
            if not self._stepped(grads, nows, model):
                raise ArraysChanged

    def _lay_out(self, grads: list[Array], nows: list[OfStep], skip: Array | None) -> None:
        """Create a batch of the jobs, or find that the extension no longer takes them or their gradients."""
        self.layouts.mark_latest(self._made(grads, nows, skip, _native.Batch))

    def _made(self, grads: list[Array], nows: list[OfStep], skip: Array | None, make: Callable[..., T]) -> T:
        if skip is not None or not self._known or not self._places.same(arrays_of(self._jobs)):
            raise ArraysChanged
        given = {(id(h), id(now)): (h, now) for h, now in zip(self.layouts.hs, nows, strict=True)}.values()
        if None in starmap(self.layouts.numbers, given):
            raise ArraysChanged
        try:
            return make(self._jobs, grads, once_per_kind(layout_key, self._jobs), self.layouts.numbers)
        except ValueError:
            raise ArraysChanged from None

    def _in_rounds(self, grads: list[Array], nows: list[OfStep], skip: Array | None, others: OtherRanks) -> None:
        rounds = self._begun(grads, nows, skip)
        try:
            rounds.step(others)
        finally:
            rounds.batch.leave()
        self._was_stepped(rounds.batch)

    def _begun(self, grads: list[Array], nows: list[OfStep], skip: Array | None = None) -> BatchInRounds:
        """Return the jobs in rounds, to be left after the step."""
        given = grads, nows, self._places
        if skip is None and self._rounds is not None and self._rounds.begin(*given):
            return self._rounds
        self._rounds = self._made(grads, nows, skip, partial(BatchInRounds, _native))
        if not self._rounds.begin(*given):
            raise ArraysChanged
        return self._rounds

    def _stepped(self, grads: list[Array], nows: list[OfStep], model: float | None = None) -> bool:
        for i, batch in enumerate(self.layouts.batches):
            if batch.step(self._jobs, grads, nows, self._places, model):
                if i:
                    self.layouts.mark_latest(batch)
                self._was_stepped(batch)
                return True
        return False

    def _was_stepped(self, batch: Batch) -> None:
        if self._engine.written is not None:
            self._engine.written(self._params)
        self._batch = batch


_is_there = partial(is_not, None)


def _out_of_reach(job: Job, g: Array | None = None) -> str:
    """Return the reason why an array of a job is out of the extension's reach, or an empty string."""
    for name, array in zip(
        ("the parameter", *job.rule.State._fields, "the gradient"), (job.p, *job.state, g), strict=True
    ):
        if not (array is None or _native.reaches(array)):
            kind = type(array).__name__
            return f"{name} is not an array of floating-point numbers in CPU memory ({kind})"
    return ""


def layout_key(job: Job) -> tuple[object, ...]:
    """Return the key of a job's layout.

    It consists of its program, the clipping of its gradient, its rows and columns, and its storage.
    """
    rows, cols = rows_and_columns(job)
    storage = None if job.storage is None else _formats(job.storage, job.state)
    return program_for(job).name, *norms_needed(job.h), list(rows), list(cols), storage


def _formats(storage: JobFormats, state: RuleState) -> tuple[object, ...]:
    """Return the formats of p and of the existing parts of the state, in the extension's form."""
    weights, *fields = storage.formats
    arrays = [_format(weights, SPLIT)]
    arrays += [_format(one, GROUPED) for one, array in zip(fields, state, strict=True) if array is not None]
    return storage.row_dims, storage.index.offset, list(storage.index.strides), arrays


def _format(one: Format | None, if_beside: int) -> tuple[object, ...] | None:
    if one is None:
        return None
    return PLAIN if one.beside is None else if_beside, one.key is not None, *(one.key or (0, 0))
