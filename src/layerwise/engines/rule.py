"""The rule itself, applied to arrays of any library."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise, starmap
from math import prod
from typing import Any, NamedTuple, Protocol

from layerwise.drive import Others, Run, beside, in_rounds, local
from layerwise.engines import Engine, Job, PartOf, Stats
from layerwise.engines.places import Watched
from layerwise.rules.arrays import moved
from layerwise.rules.asks import Array, Asking, Keep, Now, Stepped
from layerwise.rules.scalars import is_number
from layerwise.storage.groups import GROUP
from layerwise.storage.stored import Bits, Stored, formats_of, has_format, in_format, numbers

STACKED = 1 << 15  # elements that a stack may have: work that is not worth sharing among threads
MATRICES = 1 << 17  # the same of matrices, each of which brings much more work than it has elements


class Arrays(Protocol):
    """The reading and writing of a library's arrays."""

    @property
    def xp(self) -> Any:
        """The namespace with the library's functions, which may overwrite arrays that a rule no longer needs."""

    @property
    def pure(self) -> Any:
        """The same, for stored arrays that may still be needed."""

    @property
    def bits(self) -> Bits:
        """The library's view of the bits of numbers."""

    def read(self, array: Array, like: Array) -> Array:
        """Return `array` in the dtype in which a step on `like` is computed, and on its device."""

    def copy(self, array: Array) -> Array:
        """Return a copy, which may be overwritten."""

    def write(self, stored: Array, new: Array) -> None:
        """Round `new` into `stored`."""

    def kind(self, array: Array) -> Hashable:
        """Return the shape, dtype and device: arrays of one kind can be stacked."""

    def stack(self, arrays: Sequence[Array]) -> Array:
        """Return the arrays along a new last dimension."""

    def write_stack(self, stored: Sequence[Array], new: Array) -> None:
        """Round each entry along the last dimension of `new` into its place."""


class RuleEngine(Engine):
    """Reads stored arrays into the dtype of the arithmetic, drives the rule, and writes the results back.

    The engine takes tensors of more than `slice_size` elements in slices of that size. To the driver, slices and shards
    are alike. Tensors of at most `stack_size` elements, or `matrix_size` if their rule multiplies matrices, are stepped
    together with others of their kind: stacked, they are one tensor of so many blocks. If other ranks hold shards of
    the tensors, all tensors of a bucket wait for one another and keep their new moments meanwhile. Those that wait have
    at most `bucket_size` elements, or are one tensor.
    """

    name = "the rule"

    def __init__(
        self,
        arrays: Arrays,
        slice_size: int | None = None,
        stack_size: int = 0,
        bucket_size: int = 1 << 27,
        matrix_size: int | None = None,
    ) -> None:
        self.arrays, self.slice_size, self.stack_size = arrays, slice_size, stack_size
        self.bucket_size = bucket_size
        self.matrix_size = stack_size if matrix_size is None else matrix_size

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> PreparedRules:
        """Plan the step of these jobs."""
        return PreparedRules(self, jobs)


class Task(NamedTuple):
    """A job, or several stacked jobs, driven as one."""

    places: tuple[int, ...]
    jobs: tuple[Job, ...]
    grads: tuple[Array, ...]
    now: Now
    skip: Array | None = None
    waits: bool = False  # for others, before anything is written

    @property
    def stacked(self) -> bool:
        return len(self.jobs) > 1


class PreparedRules(Watched):
    """Jobs in driving order, with those side by side that can be stacked."""

    def __init__(self, engine: RuleEngine, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        self._engine, self._jobs = engine, jobs
        self._groups = _alike(engine, jobs, range(len(jobs)))
        self._together = any(job.h.asks_of_model for job in jobs)
        self._measured: list[tuple[tuple[int, ...], Stats]] = []

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: Others | None = None
    ) -> None:
        """Drive the rules of all jobs to their end."""
        self.check(grads)
        if others is not None:
            self._in_rounds(grads, nows, skip, others)
            return
        tasks = [task for group in self._groups for task in self._tasks(group, grads, nows, skip)]
        # One by one where nothing is asked of all, so that no more generators are alive than those of one tensor.
        batches = [tasks] if self._together else [[task] for task in tasks]
        # The places alone: a task holds gradients, which are freed as soon as they are used.
        self._measured = [(task.places, s) for batch in batches for task, s in _driven(self._engine, batch)]

    def _in_rounds(self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None, others: Others) -> None:
        engine, jobs = self._engine, self._jobs
        tasks, buckets = [], []
        for places in _buckets(jobs, engine.bucket_size):
            groups = _alike(engine, jobs, places, waits=True)
            some = [task for group in groups for task in self._tasks(group, grads, nows, skip, waits=True)]
            tasks += some
            buckets.append([_run(engine, task, 0, [slice(None)]) for task in some])
        done = in_rounds(engine.arrays.xp, buckets, others)
        self._measured = [(task.places, stats) for task, stats in zip(tasks, done, strict=True)]

    def _tasks(
        self,
        group: Sequence[int],
        grads: Sequence[Array],
        nows: Sequence[Now],
        skip: Array | None,
        waits: bool = False,
    ) -> Iterator[Task]:
        if skip is not None:  # found on one device, and news to others
            skip = beside(self._engine.arrays.xp, skip, self._jobs[group[0]].p)
        by_now: dict[Now, list[int]] = {}
        for i in group:
            by_now.setdefault(nows[i], []).append(i)
        first = self._jobs[group[0]]
        most = max(1, (MATRICES if first.h.of_matrices else STACKED) // max(1, _size(first)))
        for now, places in by_now.items():
            for start in range(0, len(places), most):
                some = tuple(places[start : start + most])
                yield Task(some, tuple(self._jobs[i] for i in some), tuple(grads[i] for i in some), now, skip, waits)

    def stats(self) -> list[Stats]:
        found: list[Stats] = [{}] * len(self._jobs)
        for places, stats in self._measured:
            for k, i in enumerate(places):
                found[i] = stats if len(places) == 1 else {key: _entry(x, k) for key, x in stats.items()}
        return found


def _entry(x: Array, k: int) -> Array:
    return x if isinstance(x, float) else x[..., k]


def _size(job: Job) -> int:
    """Return the number of elements of a job, or of a shard of it: the same on all ranks, so that all do the same."""
    return -(-prod(job.whole) // job.parts)


def _alike(engine: RuleEngine, jobs: Sequence[Job], places: Iterable[int], waits: bool = False) -> list[list[int]]:
    """Return some of the jobs by their places, those together that can be stacked.

    Matrices whose products others complete are sent to them one by one.
    """
    groups: dict[Hashable, list[int]] = {}
    for i in places:
        job = jobs[i]
        key: Hashable = i
        alone = isinstance(job.cut, PartOf) or (waits and job.h.of_matrices)
        most = engine.matrix_size if job.h.of_matrices else engine.stack_size
        if engine.stack_size and _size(job) <= most and not alone:
            kinds = tuple(None if a is None else engine.arrays.kind(a) for a in (job.p, *job.state))
            key = (
                job.rule,
                job.h,
                job.block_dims,
                job.shape,
                job.cut,
                kinds,
                formats_of(engine.arrays.bits, job.storage),
            )
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _buckets(jobs: Sequence[Job], most: int) -> Iterator[list[int]]:
    """Yield the places of all jobs in order, in buckets that are the same on all ranks that hold shards of them.

    Jobs of one tensor, which are not as many on all ranks, count as the first of them.
    """
    bucket: list[int] = []
    size, before = 0, None
    for i, job in enumerate(jobs):
        own = 0 if isinstance(job.cut, PartOf) and job.cut == before else _size(job)
        before = job.cut
        if bucket and own and size + own > most:
            yield bucket
            bucket, size = [], 0
        bucket.append(i)
        size += own
    yield bucket


def _driven(engine: RuleEngine, tasks: Sequence[Task]) -> list[tuple[Task, Stats]]:
    cuts = [_cut(task.jobs[0], engine.slice_size) for task in tasks]
    runs = [_run(engine, task, *cut) for task, cut in zip(tasks, cuts, strict=True)]
    finished = zip(tasks, cuts, local(engine.arrays.xp, runs), strict=True)
    return [(task, _joined_stats(engine, task, dim, done)) for task, (dim, _), done in finished]


def _cut(job: Job, slice_size: int | None) -> tuple[int, list[slice]]:
    """Return a dimension, and the slices along it that a tensor is taken in; groups stay whole."""
    shape = tuple(job.p.shape)
    wanted = -(-prod(shape) // slice_size) if slice_size and not job.h.of_matrices else 1
    if wanted <= 1:
        return 0, [slice(None)]
    dim = next((d for d, n in enumerate(shape) if n >= wanted), shape.index(max(shape)))
    grouped = job.grouped
    dim = 0 if grouped else dim
    unit = GROUP if grouped and job.storage is not None and job.storage.row_dims == 0 else 1
    length = -(-shape[dim] // unit)
    n = min(wanted, length)
    ends = [min(i * length // n * unit, shape[dim]) for i in range(n + 1)]
    return dim, list(starmap(slice, pairwise(ends)))


def _run(engine: RuleEngine, task: Task, dim: int, slices: Sequence[slice]) -> Run:
    job = task.jobs[0]
    shape, block_dims = job.whole, job.block_dims
    if task.stacked:
        shape, block_dims = (*shape, len(task.jobs)), (*block_dims, len(shape))
    rules = tuple(_stepping(engine, task, dim, cut) for cut in slices)
    return Run(rules, shape, block_dims, job.h.asks_of_model, dim, task.places)


def _stepping(engine: RuleEngine, task: Task, dim: int, cut: slice) -> Asking[Stats]:
    """Drive the rule on one slice, and write each result to its place as soon as it is known."""
    p, g, *state = _stacked(engine, task) if task.stacked else _sliced(engine, task, dim, cut)
    # Statistics that other slices read as well are not this rule's to use up.
    shared = {id(s) for s in task.jobs[0].state} if cut != slice(None) else set()
    rule, answer = _begun(engine, task, (p, g, *state), shared), None
    kept: Sequence[Any] = ()
    while True:
        try:
            asked = [rule.send(answer)]
        except StopIteration as end:
            done: Stepped = end.value
            break
        if isinstance(asked[0], Keep):
            answer = kept = asked[0].state if task.waits else _kept(engine, task, state, asked[0].state)
        else:
            answer = yield asked.pop()  # so that nothing here holds the terms while others take their turn
    if task.waits:
        yield ()
    written = () if task.waits else tuple(map(id, kept))
    _put(engine, task, *_others(state, done.state, written))
    _move(engine, task, p, done)
    return done.stats


def _kept(engine: RuleEngine, task: Task, stored: Sequence[Any], state: Any) -> Any:
    """Return the state in the place that now stores it; state that is not stored as numbers, unchanged."""
    _put(engine, task, stored, state)
    return type(state)(*(new if has_format(old) else old for old, new in zip(stored, state, strict=True)))


def _others(places: Iterable[Any], results: Iterable[Array], written: Sequence[int]) -> tuple[list[Any], list[Array]]:
    """Return the results that are still to be written, and their places."""
    left = [(place, new) for place, new in zip(places, results, strict=True) if id(new) not in written]
    return [place for place, _ in left], [new for _, new in left]


def _begun(engine: RuleEngine, task: Task, stored: Sequence[Any], shared: set[int]) -> Asking[Stepped]:
    arrays, job = engine.arrays, task.jobs[0]

    def read(one: Any) -> Array:
        return _read(engine, task, arrays.copy(one) if id(one) in shared else one)

    p, g, *state = (None if one is None else read(one) for one in stored)
    now = Now(*(x if x is None or is_number(x) else arrays.read(x, job.p) for x in task.now))
    stepping: Asking[Stepped] = job.rule.step(_namespace(engine, task), p, g, type(job.state)(*state), job.h, now)
    return stepping


def _read(engine: RuleEngine, task: Task, stored: Any) -> Array:
    """Return numbers in the dtype of the arithmetic: of one array, or of one array of each stacked job."""
    arrays, like = engine.arrays, task.jobs[0].p
    if not task.stacked:
        return arrays.read(numbers(stored), like)
    # Each by itself: gradients of stacked jobs may have dtypes that no library stacks.
    return arrays.stack([arrays.read(numbers(one), like) for one in stored])


def _move(engine: RuleEngine, task: Task, stored: Any, done: Stepped) -> None:
    p = _read(engine, task, stored)
    _put(engine, task, (stored,), (moved(_namespace(engine, task), p, done.moves),))


def _namespace(engine: RuleEngine, task: Task) -> Any:
    return engine.arrays.xp if task.skip is None and not task.waits else engine.arrays.pure


def _put(engine: RuleEngine, task: Task, places: Iterable[Any], results: Iterable[Array]) -> None:
    arrays = engine.arrays
    for stored, new in zip(places, results, strict=True):
        if stored is new:  # None, or kept already
            continue
        if has_format(stored):
            for k, one in enumerate(stored if task.stacked else (stored,)):
                _encode(engine, task, one, new[..., k] if task.stacked else new)
            continue
        if task.skip is not None:
            new = arrays.xp.where(task.skip, arrays.stack(stored) if task.stacked else stored, new)
        if task.stacked:
            arrays.write_stack(stored, new)
        else:
            arrays.write(stored, new)


def _encode(engine: RuleEngine, task: Task, stored: Stored, new: Array) -> None:
    """Write numbers, and their companions, in their format."""
    if task.skip is None and stored.write(new, task.now.t):
        return
    for old, x in zip((stored.array, stored.format.beside), stored.encode(new, task.now.t), strict=True):
        if x is not None:
            engine.arrays.write(old, x if task.skip is None else engine.arrays.xp.where(task.skip, old, x))


def _sliced(engine: RuleEngine, task: Task, dim: int, cut: slice) -> Iterator[Array]:
    """Yield the job's p, g and state along this slice; statistics with size 1 there belong to every slice."""
    [job], [g] = task.jobs, task.grads
    place = (slice(None),) * dim + (cut,)
    for array in _fields(engine, job, g):
        whole = cut == slice(None) or array is None or array.shape[dim] != job.p.shape[dim]
        yield array if whole else array.at(place) if isinstance(array, Stored) else array[place]


def _stacked(engine: RuleEngine, task: Task) -> Iterator[tuple[Array, ...] | None]:
    """Yield the same of several jobs: each p, each g, each state."""
    for column in zip(*map(partial(_fields, engine), task.jobs, task.grads), strict=True):
        yield None if column[0] is None else column


def _fields(engine: RuleEngine, job: Job, g: Array) -> tuple[Any, ...]:
    """Return p, g and each part of the state, with their formats."""
    p, *state = (in_format(engine.arrays.bits, x, i, job.storage) for i, x in enumerate((job.p, *job.state)))
    return p, g, *state


def _joined_stats(engine: RuleEngine, task: Task, dim: int, done: Sequence[Stats]) -> Stats:
    # Slices of one block received the same answers. Where the cut runs between blocks, each slice has its own.
    if dim not in task.jobs[0].block_dims or len(done) == 1:
        return done[0]
    concat = engine.arrays.xp.concat
    return {
        key: first if isinstance(first, float) else concat([one[key] for one in done], dim)
        for key, first in done[0].items()
    }
