"""The interface of engines, which carry out steps. An API lists them in a table; `choose_engines` picks from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from layerwise.drivers import OtherRanks
from layerwise.errors import EngineError
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Array, Now, RuleState
from layerwise.storage import JobFormats

KEPT = 4  # the number of prepared steps, layouts or settings that are kept, besides some for each tensor or group


class TensorId(NamedTuple):
    """The identity of a job's tensor, if the job may be one of several parts of it; their number differs between
    ranks.
    """

    tensor: str
    piece: int


class Job(NamedTuple):
    """One tensor, or a piece of one, as it is stored, and the settings that apply to it."""

    rule: ModuleType  # a module of layerwise.rules
    h: Hyper  # hyperparameters, fitted to this tensor
    p: Array
    state: RuleState  # of stored arrays
    block_dims: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None  # the whole shape, if other ranks hold parts
    parts: int = 1  # the number of parts
    cut: Hashable = None  # the key of the cut: jobs of one shape and cut are alike on all ranks
    storage: JobFormats | None = None  # unless all arrays are plain numbers, rounded to nearest

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
        """True if numbers are rounded at random, for which the step is needed."""
        return self.storage is not None and any(one.key is not None for one in self.storage.given)

    def mapped(self, change: Callable[[Array], Array]) -> Job:
        """Return the job with all its arrays changed."""
        p, *state = (x if x is None else change(x) for x in (self.p, *self.state))
        storage = None if self.storage is None else self.storage.mapped(change)
        return self._replace(p=p, state=self.rule.State(*state), storage=storage)


class DeviceStepCount(NamedTuple):
    """The number of earlier steps, on the device, in place of `Now.t`. The engine adds one."""

    step: Array


class StepInputs(NamedTuple):
    """A job's share of the inputs that change from step to step."""

    g: Array
    now: Now
    skip: Array | None = None  # known only on the device


Stats = Mapping[str, Array]


class ArraysChanged(Exception):
    """Raised by a step, before anything is written, if an array has changed since the step was prepared."""


@contextmanager
def changed_is_error() -> Iterator[None]:
    """Turn `ArraysChanged` into an error, for a step that was prepared a moment ago."""
    try:
        yield
    except ArraysChanged:
        raise EngineError("the arrays changed while the step was prepared. Step from one thread at a time.") from None


class PreparedJobs:
    """Jobs that are stepped together, with everything planned ahead.

    Every step checks its arrays first. It raises `ArraysChanged`, before anything is written, if a weight or a state
    has another address, dtype, shape or stride than when it was prepared, if its memory no longer holds its values, or
    if a gradient cannot be used. The API then checks everything and prepares again, once.
    """

    counts = False
    """True if `step` takes counts on the device unchanged (`DeviceStepCount`), and adds one to each that is stepped.
    A job that is one of several of a tensor, or has `others`, still gets t.
    """

    layouts: object = ()
    """The plan without any array, for the next `prepare` of jobs like these.

    None if it must not be replaced for other numbers, because a CUDA graph may replay it.
    """

    @property
    def step_in_parts(self) -> Callable[[Sequence[Array], Sequence[Now]], Iterator[list[float]]] | None:
        """A function that steps whole tensors in three parts, for engines where the result is the same bit for bit.

        The first part begins, the second measures and may run in parallel with the program, and only the third writes.
        The second yields, for each job that needs it, its share of the sum over the model; the list's contents before
        the third part are the complete sums. The first and third part raise `ArraysChanged` like `step`, and a step
        that is closed before its third part has written nothing.
        """
        return None

    def lend(self, jobs: Sequence[Job] | None) -> bool:
        """Take these jobs for the next step; they may differ from the earlier ones in the objects that are their
        arrays. None gives all arrays back. Return False if this needs arrays of its own, or if they have moved.
        """
        return False

    def check(self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None) -> None:
        """Raise `ArraysChanged` if `step` would. Only steps of several engines need it: `step` checks by itself."""

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: OtherRanks | None = None
    ) -> None:
        """Carry out the jobs, writing parameters and state in place.

        If `skip` is true, on the device, nothing changes. If `others` hold parts of these tensors, they complete the
        sums, and nothing is written before the last of them is known.
        """
        raise NotImplementedError

    def stats(self) -> Sequence[Stats]:
        """Return the measurements of the last step, for each job."""
        raise NotImplementedError


class Engine:
    name: str  # as messages show it

    def reasons_to_decline(self, jobs: Sequence[Job], given: Sequence[StepInputs] | None = None) -> list[str]:
        """Return, for each job, the reason why the engine cannot take it, or an empty string.

        Before the first step only the jobs are known; later, their inputs `given` may be a reason as well.
        """
        return [""] * len(jobs)

    def groups(self, jobs: Sequence[Job]) -> Sequence[Hashable]:
        """Return, for each job, the key that jobs prepared together must share, such as the device."""
        return [None] * len(jobs)

    def prepare(self, jobs: Sequence[Job], layouts: object = None) -> PreparedJobs:
        """Plan the step of these jobs, which the engine does not decline, for as long as they do not change.

        `layouts` are those of an earlier plan for jobs like these, with other arrays or other numbers in their
        hyperparameters. Parts that are still valid are not planned again.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Candidate:
    """A row of an API's table: an engine, or the reason for its absence."""

    name: str
    engine: Engine | None
    declined: str = ""
    required: Engine | None = None  # used instead of the engine if no other engine may step in


def choose_engines(wanted: str | None, table: Sequence[Candidate]) -> tuple[Engine, ...]:
    """Return the engines that may step, in order of preference: the requested one, or all of them."""
    rows = [row for row in table if wanted is None or (isinstance(wanted, str) and wanted == row.name)]
    if not rows:
        names = ", ".join(f'"{row.name}"' for row in table)
        raise EngineError(
            f"`engine` must be None or one of {names}, but is {wanted!r}. With None, layerwise picks the fastest."
        )
    return required_engines(rows) if wanted is not None else tuple(row.engine for row in rows if row.engine is not None)


def required_engines(rows: Sequence[Candidate]) -> tuple[Engine, ...]:
    """Return the engines of these rows, which must take all jobs themselves."""
    found = tuple(engine for row in rows if (engine := row.required or row.engine) is not None)
    if not found:
        raise EngineError(
            f"engine {rows[0].name!r} is unavailable: {rows[0].declined}. With engine=None, layerwise picks an "
            "available one."
        )
    return found
