"""The interface of engines, which carry out steps. A front lists them in a table; `choose` picks from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from layerwise.drivers import Others
from layerwise.errors import EngineError
from layerwise.rules.asks import Array, Now
from layerwise.storage import Storage

KEPT = 4  # prepared steps, layouts of gradients, or settings that are kept, besides some for each tensor or group


class PartOf(NamedTuple):
    """The cut of a job that may be one of several with parts of a tensor; their number differs between ranks."""

    tensor: str
    piece: int


class Job(NamedTuple):
    """One tensor, or a piece of one, as it is stored, and the settings that apply to it."""

    rule: Any  # a module of layerwise.rules
    h: Any  # hyperparameters, fitted to this tensor
    p: Array
    state: Any  # the rule's State, of stored arrays
    block_dims: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None  # of the whole, where others have parts of it
    parts: int = 1  # how many there are
    cut: Hashable = None  # and how it is cut: jobs of one shape and cut are alike on all ranks
    storage: Storage | None = None  # where not all arrays are plain numbers, rounded to nearest

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return tuple(self.p.shape) if self.shape is None else self.shape

    @property
    def grouped(self) -> bool:
        """True if a part of the state is in groups, which are not cut."""
        return self.storage is not None and any(one.coded is not None for one in self.storage.given)

    @property
    def draws(self) -> bool:
        """True if numbers are rounded at random, which needs the step."""
        return self.storage is not None and any(one.key is not None for one in self.storage.given)

    def mapped(self, change: Callable[[Array], Array]) -> Job:
        """Return the job with all its arrays changed."""
        p, *state = (x if x is None else change(x) for x in (self.p, *self.state))
        storage = None if self.storage is None else self.storage.mapped(change)
        return self._replace(p=p, state=type(self.state)(*state), storage=storage)


class Counter(NamedTuple):
    """A count on the device of the steps before this one, in place of `Now.t`. The engine adds one."""

    step: Array


class StepInputs(NamedTuple):
    """A job's share of the inputs that change from step to step."""

    g: Array
    now: Now
    skip: Array | None = None  # known on the device alone


Stats = Mapping[str, Array]


class Changed(Exception):
    """Raised by a step, with nothing touched, if an array has changed since the step was prepared."""


@contextmanager
def just_prepared() -> Iterator[None]:
    """Raise an error in place of `Changed`, from a step that was prepared a moment ago."""
    try:
        yield
    except Changed:
        raise EngineError("the jobs changed while they were laid out. Step from one thread at a time.") from None


class Prepared:
    """Jobs that are stepped together, with everything planned ahead.

    Every step looks at its arrays first. It raises `Changed`, with nothing touched, if a weight or a state has another
    address, dtype, shape or stride than when it was prepared, if its memory no longer holds its numbers, or if this
    cannot step with a gradient. The front then checks everything and prepares again, once.
    """

    counts = False
    """True if `step` takes counts on the device unchanged (`Counter`), and adds one to each that is stepped. A job that
    is one of several of a tensor, or has `others`, still gets t."""

    layouts: Any = ()
    """The plan without any array, for the next `prepare` of jobs like these.

    None if it must not be replaced for other numbers, because a CUDA graph may replay it.
    """

    @property
    def ahead(self) -> Callable[[Sequence[Array], Sequence[Now]], Iterator[list[float]]] | None:
        """What steps whole tensors in three parts, of an engine whose numbers are then the same bit for bit.

        The first begins, the second measures, and may run beside the program, and only the third writes. The second
        yields the sum of each job that is asked for over the model; all that is in the list before the third is the
        sum over the model. The first and third raise `Changed` as `step` does, and a step that is closed before its
        third part has touched nothing.
        """
        return None

    def lend(self, jobs: Sequence[Job] | None) -> bool:
        """Take these jobs for the next step, which may differ from those before in the objects that arrays are; None
        takes all arrays back. False if this must have arrays of its own, or if they lie elsewhere.
        """
        return False

    def check(self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None) -> None:
        """Raise `Changed` if `step` would. Only steps of several engines need it: `step` looks by itself."""

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: Others | None = None
    ) -> None:
        """Carry out the jobs, writing parameters and state in place; `given` has the inputs that change from step to
        step.

        If `skip` is true, on the device, nothing changes. If `others` hold parts of these tensors, they complete the
        sums, and nothing is written before the last of them is known.
        """
        raise NotImplementedError

    def stats(self) -> Sequence[Stats]:
        """Return the measurements of the last step, for each job."""
        raise NotImplementedError


class Engine:
    name: str  # in sentences

    def declines(self, jobs: Sequence[Job], given: Sequence[StepInputs] | None = None) -> list[str]:
        """Return, for each job, the reason why the engine does not take it, or an empty string.

        Before the first step only the jobs are known; later, the inputs `given` to them may be a reason as well.
        """
        return [""] * len(jobs)

    def group(self, job: Job) -> Hashable:
        """Return the key that jobs prepared together must share, such as the device."""
        return None

    def prepare(self, jobs: Sequence[Job], layouts: Any = None) -> Prepared:
        """Plan the step of these jobs, which the engine does not decline, for as long as they do not change.

        `layouts` are those of an earlier plan for jobs like these, with other arrays or other numbers in their
        hyperparameters. Parts that still hold are not planned again.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Candidate:
    """A row of a front's table: an engine, or the reason for its absence."""

    name: str
    engine: Engine | None
    declined: str = ""
    required: Engine | None = None  # in place of the engine where no other may step in


def choose(wanted: str | None, table: Sequence[Candidate]) -> tuple[Engine, ...]:
    """Return the engines that may step, in order of preference: the one asked for, or all of them."""
    rows = [row for row in table if wanted is None or (isinstance(wanted, str) and wanted == row.name)]
    if not rows:
        names = ", ".join(f'"{row.name}"' for row in table)
        raise EngineError(f"`engine` must be None or one of {names}, but is {wanted!r}. None picks the fastest.")
    return required(rows) if wanted is not None else tuple(row.engine for row in rows if row.engine is not None)


def required(rows: Sequence[Candidate]) -> tuple[Engine, ...]:
    """Return the engines of these rows, which leave no job to one outside of them."""
    found = tuple(engine for row in rows if (engine := row.required or row.engine) is not None)
    if not found:
        raise EngineError(
            f"engine {rows[0].name!r} is not available: {rows[0].declined}. engine=None picks one that is."
        )
    return found
