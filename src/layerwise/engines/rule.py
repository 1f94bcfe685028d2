"""The rule itself, applied to arrays of any library."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise, starmap
from math import prod
from typing import NamedTuple

from layerwise.drivers import OtherRanks, TensorRun, drive_in_rounds, drive_whole, on_device_of
from layerwise.drivers.partial_sums import AT_ONCE
from layerwise.engines import Engine, Job, Stats, TensorId
from layerwise.engines.addresses import CheckedInPython
from layerwise.engines.arrays import Arrays, Lists
from layerwise.options.values import is_number
from layerwise.rules.arrays import apply_moves
from layerwise.rules.requests import Array, Asking, Functions, Keep, Now, RuleState, Stepped
from layerwise.storage.formatted_arrays import FormattedArray, as_numbers, formats_key, has_format, in_format
from layerwise.storage.quantized_groups import GROUP

STACKED = 1 << 15  # the largest stack: work of this size is not worth sharing among threads
MATRICES = 1 << 17  # the same for matrices, which take much more work than elements
SMALL = 1 << 12  # the largest tensor that an API without engines stacks with others


def in_stacks(kinds: Sequence[Hashable], sizes: Sequence[int], matrices: Collection[Hashable] = ()) -> list[list[int]]:
    """Return the places of tensors that step as one: small ones of one kind, and those of kinds that are multiplied, of
    any size. None is a kind of its own.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        alone = kind is None or (size > SMALL and kind not in matrices)
        groups.setdefault(i if alone else (kind, size), []).append(i)
    found = []
    for places in groups.values():
        most = (AT_ONCE if kinds[places[0]] in matrices else STACKED) // max(1, sizes[places[0]])
        found += [places[n : n + max(1, most)] for n in range(0, len(places), max(1, most))]
    return found


class RuleEngine(Engine):
    """Reads stored arrays into the dtype of the arithmetic, drives the rule, and writes the results back.

    The engine takes tensors of more than `slice_size` elements in slices of that size. To the driver, slices and shards
    are alike. Tensors of at most `stack_size` elements, or `matrix_size` if their rule multiplies matrices, are stepped
    together with others of their kind: stacked, they are one tensor of so many blocks. If other ranks hold shards of
    the tensors, all tensors of a bucket wait for one another and keep their new moments meanwhile. Those that wait have
    at most `bucket_size` elements, or are one tensor. With `lists` of them, tensors of all shapes are stepped together:
    as many as have `bucket_size` elements, and at least one.
    """

    def __init__(
        self,
        arrays: Arrays,
        slice_size: int | None = None,
        stack_size: int = 0,
        bucket_size: int = 1 << 27,
        matrix_size: int | None = None,
        lists: type[Lists] | None = None,
        name: str = "the rule",
    ) -> None:
        self.name, self.lists = name, lists
        self.arrays, self.slice_size, self.stack_size = arrays, slice_size, stack_size
        self.bucket_size = bucket_size
        self.matrix_size = stack_size if matrix_size is None else matrix_size

    def in_lists(self, job: Job, waits: bool) -> bool:
        """Return True if a job is stepped in a list with others, for all of which it may wait."""
        return self.lists is not None and not (waits and job.h.adds_products)

    def prepare(self, jobs: Sequence[Job], layouts: object = None) -> PreparedRules:
        return PreparedRules(self, jobs)


class JobGroup(NamedTuple):
    """A job, or several that are stacked or in lists, driven as one."""

    arrays: Arrays
    places: tuple[int, ...]
    jobs: tuple[Job, ...]
    grads: tuple[Array, ...]
    nows: tuple[Now, ...]
    skip: Array | None = None
    waits: bool = False  # for others, before anything is written
    lists: Lists | None = None

    @property
    def several(self) -> bool:
        return len(self.jobs) > 1 or self.lists is not None

    @property
    def now(self) -> Now:
        """The numbers of the step: for jobs in lists, one set for all."""
        if self.lists is None:
            like = self.jobs[0].p
            return Now(*(x if x is None or is_number(x) else self.arrays.read(x, like) for x in self.nows[0]))
        return Now(*(x[0] if x[0] is None else self.lists.joined_number(x) for x in zip(*self.nows, strict=True)))

    @property
    def xp(self) -> Functions:
        return self.arrays.xp if self.skip is None and not self.waits else self.arrays.pure

    def run(self, dim: int = 0, slices: Sequence[slice] = (slice(None),)) -> TensorRun:
        job = self.jobs[0]
        shape, block_dims = job.whole, job.block_dims
        if self.several:
            shape = (*shape, len(self.jobs)) if self.lists is None else self.lists.shape
            block_dims = (*block_dims, len(shape) - 1)
        rules = tuple(self._stepping(dim, cut) for cut in slices)
        counted = None if self.lists is None else self.lists.num_entries
        return TensorRun(rules, shape, block_dims, job.h.needs_model_sum, dim, self.places, counted)

    def _stepping(self, dim: int, cut: slice) -> Asking[Stats]:
        """Drive the rule on one slice, and write each result to its place as soon as it is known."""
        p, g, *state = self._columns() if self.several else self._sliced(dim, cut)
        # Statistics that other slices read as well must not be overwritten.
        shared = {id(s) for s in self.jobs[0].state} if cut != slice(None) else set()
        rule, answer = self._begun((p, g, *state), shared), None
        kept: RuleState = ()
        while True:
            try:
                asked = [rule.send(answer)]
            except StopIteration as end:
                done: Stepped = end.value
                break
            if isinstance(asked[0], Keep):
                answer = kept = asked[0].state if self.waits else self._kept(state, asked[0].state)
            else:
                answer = yield asked.pop()  # so that nothing here holds the terms while other rules run
        if self.waits:
            yield ()
        written = () if self.waits else tuple(map(id, kept))
        self._put(*_others(state, done.state, written))
        self._put((p,), (apply_moves(self.xp, self._read(p), done.moves),))
        return done.stats

    def _begun(self, stored: Sequence[Array], shared: set[int]) -> Asking[Stepped]:
        job, copy = self.jobs[0], self.arrays.copy
        each = (copy(x) if x is not None and id(x) in shared else x for x in stored)
        p, g, *state = (x if x is None else self._read(x) for x in each)
        stepping: Asking[Stepped] = job.rule.step(self.xp, p, g, job.rule.State(*state), job.h, self.now)
        return stepping

    def _kept(self, stored: Sequence[Array], state: RuleState) -> RuleState:
        """Return the state where it is now stored; state that is not stored as numbers is unchanged."""
        self._put(stored, state)
        each = (new if has_format(old) else old for old, new in zip(stored, state, strict=True))
        made: RuleState = self.jobs[0].rule.State(*each)
        return made

    def _read(self, stored: Array) -> Array:
        """Return numbers in the dtype of the arithmetic: of one array, or of one array of each stacked job."""
        arrays, like = self.arrays, self.jobs[0].p
        if not self.several:
            return arrays.read(as_numbers(stored), like)
        if self.lists is not None:
            return self.lists.read(stored)
        if has_format(stored[0]) or len({one.dtype for one in stored}) > 1:  # gradients may have any
            return arrays.stack([arrays.read(as_numbers(one), like) for one in stored])
        return arrays.read(arrays.stack(stored), like)

    def _put(self, places: Iterable[Array], results: Iterable[Array]) -> None:
        for stored, new in zip(places, results, strict=True):
            if stored is new:  # None, or already kept
                continue
            if has_format(stored) and self.lists is not None and not self.lists.by_extension(stored):
                self.lists.encode(stored, new, [now.t for now in self.nows], self.skip)
                continue
            if has_format(stored):
                for k, one in enumerate(stored if self.several else (stored,)):
                    self._encode(k, one, _entry(new, k) if self.several else new)
                continue
            if self.skip is not None:
                new = self.arrays.xp.where(self.skip, self._read(stored) if self.several else stored, new)
            if self.lists is not None:
                self.lists.write(stored, new)
            elif self.several:
                self.arrays.write_stack(stored, new)
            else:
                self.arrays.write(stored, new)

    def _encode(self, k: int, stored: FormattedArray, new: Array) -> None:
        """Write numbers, and their companions, in their format."""
        now, skip = self.nows[k], self.skip
        if skip is None and stored.write(new, now.t):
            return
        for old, x in zip((stored.array, stored.format.beside), stored.encode(new, now.t), strict=True):
            if x is not None:
                self.arrays.write(old, x if skip is None else self.arrays.xp.where(skip, old, x))

    def _sliced(self, dim: int, cut: slice) -> Iterator[Array]:
        """Yield the job's p, g and state along this slice; statistics with size 1 there belong to every slice."""
        [job], [g] = self.jobs, self.grads
        place = (slice(None),) * dim + (cut,)
        for array in self._formatted(job, g):
            whole = cut == slice(None) or array is None or array.shape[dim] != job.p.shape[dim]
            yield array if whole else array.group_slice(place) if isinstance(array, FormattedArray) else array[place]

    def _columns(self) -> Iterator[tuple[Array, ...] | None]:
        """Yield the same of several jobs: each p, each g, each state."""
        for column in zip(*map(self._formatted, self.jobs, self.grads), strict=True):
            yield None if column[0] is None else column

    def _formatted(self, job: Job, g: Array) -> tuple[Array, ...]:
        if job.storage is None:
            return job.p, g, *job.state
        p, *state = (in_format(self.arrays.bits, x, i, job.storage) for i, x in enumerate((job.p, *job.state)))
        return p, g, *state

    def joined_stats(self, dim: int, done: Sequence[Stats]) -> Stats:
        # Slices of one block received the same answers. If the cut runs between blocks, each slice has its own.
        if dim not in self.jobs[0].block_dims or len(done) == 1:
            return done[0]
        concat = self.arrays.xp.concat
        return {
            key: first if isinstance(first, float) else concat([one[key] for one in done], dim)
            for key, first in done[0].items()
        }


class PreparedRules(CheckedInPython):
    """Jobs in driving order, with those side by side that can be stepped as one."""

    def __init__(self, engine: RuleEngine, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        self._engine, self._jobs = engine, jobs
        self._groups = _alike(engine, jobs, range(len(jobs)))
        self._together = any(job.h.needs_model_sum for job in jobs)
        self._measured: list[tuple[tuple[int, ...], bool, Stats]] = []  # without tasks, which hold gradients
        self._lists: dict[tuple[int, ...], Lists] = {}

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: OtherRanks | None = None
    ) -> None:
        self.check(grads)
        if others is not None:
            self._in_rounds(grads, nows, skip, others)
            return
        tasks = [task for group in self._groups for task in self._tasks(group, grads, nows, skip)]
        # One by one unless a sum over all is requested, so that only one tensor's generators are alive at a time.
        batches = [tasks] if self._together else [[task] for task in tasks]
        self._measured = [one for batch in batches for one in _driven(self._engine, batch)]

    def _in_rounds(self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None, others: OtherRanks) -> None:
        engine, jobs = self._engine, self._jobs
        tasks, buckets = [], []
        for places in _buckets(jobs, engine.bucket_size, range(len(jobs))):
            groups = _alike(engine, jobs, places, waits=True)
            some = [task for group in groups for task in self._tasks(group, grads, nows, skip, waits=True)]
            tasks += some
            buckets.append([task.run() for task in some])
        done = drive_in_rounds(engine.arrays.xp, buckets, others)
        self._measured = [(task.places, task.several, stats) for task, stats in zip(tasks, done, strict=True)]

    def _tasks(
        self,
        group: Sequence[int],
        grads: Sequence[Array],
        nows: Sequence[Now],
        skip: Array | None,
        waits: bool = False,
    ) -> Iterator[JobGroup]:
        if skip is not None:  # computed on one device, then sent to others
            skip = on_device_of(self._engine.arrays.xp, skip, self._jobs[group[0]].p)
        first, engine = self._jobs[group[0]], self._engine
        in_lists = engine.in_lists(first, waits)
        by_now: dict[Hashable, list[int]] = {}
        for i in group:  # in lists, only values that decide about a pass must be equal
            by_now.setdefault(nows[i].weight_decay if in_lists else nows[i], []).append(i)
        for alike in by_now.values():
            for some in map(tuple, self._pieces(alike, in_lists)):
                own_jobs, own_grads = tuple(self._jobs[i] for i in some), tuple(grads[i] for i in some)
                lists = self._lists_of(some) if in_lists else None
                own_nows = tuple(nows[i] for i in some)
                yield JobGroup(engine.arrays, some, own_jobs, own_grads, own_nows, skip, waits, lists)

    def _pieces(self, places: Sequence[int], in_lists: bool) -> Iterator[list[int]]:
        """Yield the places of jobs that are alike, as many as step together; in lists, those of one shape together."""
        first, engine = self._jobs[places[0]], self._engine
        if in_lists:
            yield from _buckets(self._jobs, engine.bucket_size, sorted(places, key=lambda i: self._jobs[i].p.shape))
            return
        most = max(1, (MATRICES if first.h.of_matrices else STACKED) // max(1, _size(first)))
        yield from (list(places[start : start + most]) for start in range(0, len(places), most))

    def _lists_of(self, places: tuple[int, ...]) -> Lists | None:
        if self._engine.lists is not None and places not in self._lists:
            self._lists[places] = self._engine.lists([self._jobs[i] for i in places])
        return self._lists.get(places)

    def stats(self) -> list[Stats]:
        found: list[Stats] = [{}] * len(self._jobs)
        for places, several, stats in self._measured:
            for k, i in enumerate(places):
                found[i] = {key: _entry(x, k) for key, x in stats.items()} if several else stats
        return found


def _entry(x: Array, k: int) -> Array:
    if hasattr(x, "entry"):
        return x.entry(k)
    return x if isinstance(x, float) or not x.ndim else x[..., k]


def _size(job: Job) -> int:
    """Return the number of elements of a job's whole tensor: the same on all ranks, so that all decide alike."""
    return -(-prod(job.whole) // job.parts)


def _alike(engine: RuleEngine, jobs: Sequence[Job], places: Iterable[int], waits: bool = False) -> list[list[int]]:
    """Return some of the jobs by their indices, stacked where they can be stepped as one."""
    groups: dict[Hashable, list[int]] = {}
    for i in places:
        key = _kind(engine, jobs[i], waits)
        groups.setdefault(i if key is None else key, []).append(i)
    return list(groups.values())


def _kind(engine: RuleEngine, job: Job, waits: bool) -> Hashable:
    """Return the key that jobs must share to step as one; None for a job that steps alone.

    Matrices whose products other ranks complete are sent one by one.
    """
    kind, cut = engine.arrays.kind, (job.shape, job.cut)
    most = engine.matrix_size if job.h.of_matrices else engine.stack_size
    alone = isinstance(job.cut, TensorId) or (waits and job.h.of_matrices)
    if engine.lists is not None and engine.in_lists(job, waits):
        kind, cut = engine.lists.list_key, (None, None)
    elif alone or not engine.stack_size or _size(job) > most:
        return None
    kinds = tuple(None if a is None else kind(a) for a in (job.p, *job.state))
    return job.rule, job.h, job.block_dims, *cut, kinds, formats_key(engine.arrays.bits, job.storage)


def _buckets(jobs: Sequence[Job], most: int, places: Iterable[int]) -> Iterator[list[int]]:
    """Yield the indices of jobs in order, in buckets that are the same on all ranks that hold shards of them.

    Jobs of one tensor, whose number differs between ranks, count as the first of them.
    """
    bucket: list[int] = []
    size, before = 0, None
    for i in places:
        job = jobs[i]
        own = 0 if isinstance(job.cut, TensorId) and job.cut == before else _size(job)
        before = job.cut
        if bucket and own and size + own > most:
            yield bucket
            bucket, size = [], 0
        bucket.append(i)
        size += own
    yield bucket


def _driven(engine: RuleEngine, tasks: Sequence[JobGroup]) -> Iterator[tuple[tuple[int, ...], bool, Stats]]:
    cuts = [_cut(task.jobs[0], engine.slice_size) for task in tasks]
    runs = [task.run(*cut) for task, cut in zip(tasks, cuts, strict=True)]
    for task, (dim, _), done in zip(tasks, cuts, drive_whole(engine.arrays.xp, runs), strict=True):
        yield task.places, task.several, task.joined_stats(dim, done)
        if task.lists is not None:
            task.lists.give_back()


def _cut(job: Job, slice_size: int | None) -> tuple[int, list[slice]]:
    """Return a dimension, and the slices along it in which a tensor is stepped; groups are not cut."""
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


def _others(
    places: Iterable[Array], results: Iterable[Array], written: Sequence[int]
) -> tuple[list[Array], list[Array]]:
    """Return the results that are still to be written, and their places."""
    left = [(place, new) for place, new in zip(places, results, strict=True) if id(new) not in written]
    return [place for place, _ in left], [new for _, new in left]
