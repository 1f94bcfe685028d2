"""The agreement of the processes of one optimizer on a step, before any of them writes.

The step must be the same on all: parameters, settings, step counts, and whether to step at all. A fingerprint of these
goes with the first sums of every step. So it costs no collective of its own, and the result is known before anything
is written. Only messages of the same length can be added up. So the length of a step's first message depends on the
processes alone, and not on the optimizer: a header, and as much room for sums as any step on which these processes
agreed has had. A process whose list of sums is new reports that in the header and sends no sums. If the fingerprints
are equal, all make room for the list and send their sums in a second message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise import __version__
from layerwise.drive.digits import WIDE, sum_of_rows
from layerwise.errors import SynchronizationError
from layerwise.torch.sharding import _on_device
from layerwise.torch.sharding._cuts import Axis, Cut, axes_of, axis_of
from layerwise.torch.sharding._flat import Flat

BITS, CHUNKS = 12, 4  # of a fingerprint: few enough bits that sums of squares are exact in float64
HEADER = 2 * CHUNKS + 4
CPU = torch.device("cpu")
NOTHING = torch.zeros(0, dtype=torch.long)
ON_DEVICE = (
    "processes disagree about the step, or it is new to one of them, and they agree on the device "
    "(capturable=True), where none can say what differs; without it they do"
)
EARLIER = (
    "processes disagreed about an earlier step, or one could not take it, so all left it out; they agreed on the "
    "device (capturable=True), where none can say what differed. Make the optimizers with capturable=False to see "
    "that. This step was not taken either."
)
ELSEWHERE = "other processes of the model disagree about the step, or cannot take it"
PROBLEM = "problem"  # the word for what keeps a process from taking the step
GRADIENT = "the gradient of"  # begins the words for gradients
PARTED = 2.0**20  # the number for a problem after which no process asks its model_group: more than there are processes
PATIENCE = timedelta(seconds=30)  # for others that may be in collectives of a closure, and not in the step
rooms: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by process group: for how many sums a first message has room
T = TypeVar("T")
Arriving = Generator[None, None, T]
"""A generator that stops while sums are on their way, and goes on when they have arrived; see `arrived`."""


class Skipped(Exception):  # an answer, not an error
    """The answer that a process has gradients that are not finite, and that no process takes the step."""


class Report(NamedTuple):
    """The report of one process on a step."""

    fingerprint: bytes
    skip: bool | Tensor  # or where the device learns whether all leave the step out
    words: Callable[[], Mapping[str, Any]]  # what has to be the same everywhere, to find what is not
    alone: bool = False  # whether no other sums follow in this step


class Outcome(NamedTuple):
    """The outcome of the reports of all processes."""

    skip: bool  # a process skips the step
    problem: str = ""
    new: bool = False  # a process has sent no sums, since the list of them is new there
    parted: bool = False  # a process has no model_group, so that those that have one would wait for it


class Agreement:
    """The agreement of the processes of one optimizer. Every step passes through it.

    Sums are added over `axes`. The processes along `replicas` hold the same shards. `joint` is both together, if that
    is a process group already, and replaces both in the first message. `model_group` are processes with other tensors
    of the model: they need not take the same steps, but skip together. `left` says for errors what was not stepped.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        replicas: Sequence[Axis] = (),
        joint: Axis | None = None,
        model_group: Any = None,
        left: str = "nothing was stepped",
    ) -> None:
        self.axes, self.replicas = tuple(axes), tuple(replicas)
        self._asked = (*self.axes, *self.replicas) if joint is None else (joint,)
        self._copies = 1 if joint is None else len(joint.ranks) // len(self.axes[0].ranks)
        self.model_group, self._left = model_group, left
        self._model = None if model_group is None else axis_of(model_group)
        self.words = {
            "model_group": "missing" if model_group is None else "there",
            "the version of layerwise": __version__,
        }
        self._layout, self._silent = b"", True
        self._patience: timedelta | None = None
        self._closures_send = False  # whether closures take collectives of their own
        self._verdicts: _on_device.Verdicts | None = None

    @contextmanager
    def reports_errors(self) -> Iterator[None]:
        """Report to the others why this process cannot take the step, so that they do not take it either."""
        self._silent, self._patience = True, None
        try:
            self.check_earlier()
            yield
        except Exception as problem:
            if self._silent:
                words = {**self.words, PROBLEM: f"{type(problem).__name__}: {problem}"}
                report = Report(hashlib.sha256(words[PROBLEM].encode()).digest(), False, lambda: words)
                with suppress(Exception):  # what came first says more
                    outcome = arrived(self._exchange(report, torch.zeros(0, dtype=torch.float64, device=CPU), None))
                    self._of_model(outcome._replace(problem=words[PROBLEM]), torch.zeros(0), NOTHING)
            raise
        finally:
            self._patience = None

    @contextmanager
    def during_closure(self) -> Iterator[None]:
        """Report a closure's error only if the others can be waiting for the report.

        Closures may take collectives on the same processes, as the passes of a sharded model do. Then the others wait
        in one of those, and a message of another kind would reach no process.
        """
        before = self._sent()
        try:
            yield
        except Exception:
            self._silent = self._silent and not self._closures_send and self._sent() == before
            self._patience = PATIENCE
            raise
        self._closures_send = self._closures_send or self._sent() != before

    def _sent(self) -> list[int]:
        """Return the number of collectives that this process has taken part in, for each group."""
        groups = [axis.group for axis in (*self._asked, *self.axes, *(() if self._model is None else (self._model,)))]
        try:
            return [group._get_sequence_number_for_group() for group in groups]
        except RuntimeError:  # a backend that does not count
            return []

    def to_leave(self, device: torch.device, skip: Tensor | bool | None) -> Tensor | None:
        """Return the place where the device learns that all skip the step, or None if the host must wait for that.

        The host waits for processes with other tensors of the model, which may have nothing on a device.
        """
        if device.type in _on_device.HOST or self._model is not None:
            return None
        if self._verdicts is None or self._verdicts.device != device:
            self._verdicts = _on_device.Verdicts(device)
        return _on_device.to_leave(device, skip)

    def check_earlier(self, forget: bool = True) -> None:
        """Raise if processes disagreed about an earlier step, which only the device has learned."""
        if self._verdicts is not None and self._verdicts.disagreed():
            if forget:
                self._verdicts.forget()
            self._patience = PATIENCE  # one of the others may have raised then, and be gone
            raise SynchronizationError(EARLIER)

    def agree_on(self, words: Mapping[str, str]) -> None:
        """Raise unless all processes say the same, before collectives that only this makes the same on all."""
        report = Report(hashlib.sha256(repr(words).encode()).digest(), False, lambda: words)
        nothing = torch.zeros(0, dtype=torch.float64, device=CPU)
        outcome = arrived(self._exchange(report, nothing, None))
        if outcome.problem:
            self._raise_problem(self._of_model(outcome, nothing, NOTHING))
        self._silent = True  # what goes wrong from here on is not known to the others

    def reach(
        self, layout: bytes, report: Report, sums: Tensor, places: Sequence[Tensor], model: Tensor
    ) -> Arriving[None]:
        """Complete the first sums of a step if all processes agree on it; else raise."""
        known = layout == self._layout and self._have_room(places)
        if isinstance(report.skip, Tensor) and self._verdicts is not None:
            prints = self._verdicts.numbers(_prints(report))  # in any case, since the next step may be recorded
            if self._verdicts.decides(known, report.alone):
                sums = sums if len(sums) else sums.to(self._verdicts.device)  # a rule that asks nothing is nowhere
                yield from self._reach_on_device(prints, report.skip, self._verdicts, sums, places)
                if len(model):
                    sums[model] = sum_of_rows(torch, sums[model])
                return
        mine = sums.clone()
        outcome = yield from self._exchange(report, sums, places if known else None)
        if outcome.new and not outcome.skip and not outcome.problem:
            self._make_room(places)
            self._layout = layout
            sums.copy_(mine)
            outcome = yield from self._exchange(report, sums, places)
        outcome = self._of_model(outcome, sums, model)
        self._raise_problem(outcome)
        if outcome.skip:
            raise Skipped

    def _raise_problem(self, outcome: Outcome) -> None:
        if outcome.problem:
            raise SynchronizationError(
                f"{outcome.problem}. Give all of them the same parameters, settings and backward passes; {self._left}."
            )

    def _have_room(self, places: Sequence[Tensor]) -> bool:
        each = zip(self._asked, places, strict=False)
        return all(len(where) <= rooms.get(axis.group, 0) for axis, where in each)

    def _make_room(self, places: Sequence[Tensor]) -> None:
        for axis, where in zip(self._asked, places, strict=False):
            rooms[axis.group] = max(rooms.get(axis.group, 0), len(where))

    def _reach_on_device(
        self, prints: Tensor, leave: Tensor, verdicts: _on_device.Verdicts, sums: Tensor, places: Sequence[Tensor]
    ) -> Arriving[None]:
        """Complete the first sums of a step, and have the device learn whether to `leave` everything as it is."""
        skip, failed, new = leave.to(sums.dtype), sums.new_zeros(()), sums.new_zeros(())
        self._silent = False
        for i, axis in enumerate(self._asked):
            header = torch.cat([prints, torch.stack([skip, failed, new, new.new_ones(())])])
            found = yield from self._shared(i, axis, header, sums, places)
            differ = (len(axis.ranks) * found[CHUNKS : 2 * CHUNKS] != found[:CHUNKS].square()).any()
            skip, failed, new = found[2 * CHUNKS], found[2 * CHUNKS + 1] + differ, found[2 * CHUNKS + 2]
        disagreed = failed + new > 0
        verdicts.note(disagreed)
        leave.copy_(disagreed | (skip > 0))

    def _shared(
        self, i: int, axis: Axis, header: Tensor, sums: Tensor, places: Sequence[Tensor] | None
    ) -> Arriving[Tensor]:
        """Add up the first message over an axis: the header, which this returns, and the sums at their places."""
        where = NOTHING if places is None or i >= len(places) else places[i]
        padding = sums.new_zeros(rooms.get(axis.group, 0) - len(where))
        found = yield from reduced(axis, torch.cat([header, sums[where], padding]), self._patience)
        if len(where):
            totals = found[HEADER : HEADER + len(where)]
            sums[where] = totals if self._copies == 1 else totals / self._copies
        return found[:HEADER]

    def _exchange(self, report: Report, sums: Tensor, places: Sequence[Tensor] | None) -> Arriving[Outcome]:
        # Every axis passes on the reports of those before it, so that in the end all processes have all reports.
        skip, problem, failed, new, unheard = float(report.skip), "", 0.0, float(places is None), 0.0
        self._silent = False
        own = _prints(report)
        for i, axis in enumerate(self._asked):
            header = sums.new_tensor([*own, skip, failed, new, unheard])
            found = yield from self._shared(i, axis, header, sums, places)
            *prints, skip, failed, new, unheard = found.tolist()
            n = len(axis.ranks)
            differ = any(n * xx != x * x for x, xx in zip(prints[:CHUNKS], prints[CHUNKS:], strict=True))
            if differ and unheard:  # some do not wait for words
                problem, failed = problem or ON_DEVICE, failed + 1.0
            elif differ:
                problem, parted = _difference(axis, {**self.words, **report.words()})
                failed += PARTED if parted else 1.0
            elif failed and not problem:
                problem = ELSEWHERE
        if new and unheard:  # nor for a second message
            problem = problem or ON_DEVICE
        if unheard and problem and self._verdicts is not None:  # those raise in the next step, where all do then
            self._verdicts.note(torch.ones((), dtype=torch.bool, device=self._verdicts.device))
        return Outcome(skip > 0, problem, new > 0, failed >= PARTED)

    def _of_model(self, outcome: Outcome, sums: Tensor, places: Tensor) -> Outcome:
        """Complete the sum over the model, and add the reports of the processes with other tensors of it."""
        total = sum_of_rows(torch, sums[places]) if len(places) else sums.new_zeros(0)
        if self._model is not None and not outcome.parted:
            # As long whatever is sent, so that processes with other settings find that out: a number, or its digits.
            forms = [float(len(total) == 1), float(len(total) > 1)]
            report = [float(outcome.skip), float(bool(outcome.problem)), *forms, *total.tolist()]
            sent = torch.zeros(4 + WIDE.digits, dtype=torch.float64)
            sent[: len(report)] = torch.tensor(report, dtype=torch.float64)
            found = all_reduced(self._model, sent, self._patience)
            skip, problem, plain, digits = found[:4].tolist()
            outcome = Outcome(bool(skip), outcome.problem or (ELSEWHERE if problem or (plain and digits) else ""))
            total = found[4 : 4 + len(total)]
        if len(places):
            sums[places] = total.to(sums)
        return outcome


def of_gradient(name: str) -> str:
    """Return the word for a gradient, by which processes compare theirs."""
    return f"{GRADIENT} {name!r}"


def agreement_about(cuts: Sequence[Cut | Flat | None], left: str) -> Agreement | None:
    """Return an agreement on steps of parameters with these cuts, or None if nothing is cut.

    It is with the processes that hold other parts of these very parameters: others may have none and take no part.
    """
    axes, replicas, joint = axes_of(cuts)
    return Agreement(axes, replicas, joint, left=left) if axes else None


def reduced(axis: Axis, sums: Tensor, patience: timedelta | None = None) -> Arriving[Tensor]:
    """Return the sums over all processes of the axis. They exchange them on the mesh's device, wherever they lie."""
    sent = sums.to(axis.device_type)
    work = dist.all_reduce(sent, group=axis.group, async_op=True)
    yield
    work.wait(*(() if patience is None else (patience,)))
    return sent.to(sums.device)


def all_reduced(axis: Axis, sums: Tensor, patience: timedelta | None = None) -> Tensor:
    """Return the same, once they have arrived."""
    return arrived(reduced(axis, sums, patience))


def arrived(arriving: Arriving[T]) -> T:
    """Wait for sums that are on their way, and for those that are sent when they have arrived."""
    while True:
        try:
            next(arriving)
        except StopIteration as end:
            value: T = end.value
            return value


def _prints(report: Report) -> list[float]:
    number = int.from_bytes(report.fingerprint[: BITS * CHUNKS // 8], "little")
    chunks = [float(number >> (BITS * i) & ((1 << BITS) - 1)) for i in range(CHUNKS)]
    return [*chunks, *(x * x for x in chunks)]


def _difference(axis: Axis, words: Mapping[str, Any]) -> tuple[str, bool]:
    """Return in words the first difference between processes of an axis, and True if only some have a model_group."""
    reports: list[Any] = [None] * len(axis.ranks)
    dist.all_gather_object(reports, words, group=axis.group)
    return _in_words(axis, reports), len({one["model_group"] for one in reports}) > 1


def _in_words(axis: Axis, reports: Sequence[Mapping[str, Any]]) -> str:
    for rank, other in zip(axis.ranks, reports, strict=True):
        if PROBLEM in other:
            return f"rank {rank} cannot take the step ({other[PROBLEM].rstrip('.')})"
    for rank, other in zip(axis.ranks[1:], reports[1:], strict=True):
        # Gradients first: what a process says before it redistributes some is about nothing else.
        for what in sorted({**reports[0], **other}, key=lambda word: not word.startswith(GRADIENT)):
            ours, theirs = reports[0].get(what, "missing"), other.get(what, "missing")
            if ours != theirs:
                ranks = f"ranks {axis.ranks[0]} and {rank}"
                return f"{ranks} disagree about the step: {what} is {ours} on one and {theirs} on the other"
    return f"ranks {axis.ranks} hold parts that do not belong together, or in another order"
