"""The agreement of the processes of one optimizer on a step, before any of them writes.

The step must be the same on all: parameters, settings, step counts, and whether to step at all. A fingerprint of these
travels with the first sums of every step. The README explains the length of the messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise import __version__
from layerwise.errors import SynchronizationError
from layerwise.torch.sharding._cuts import Axis, axis_of, ranks_named

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BITS, CHUNKS = 12, 4  # bits per chunk of a fingerprint: few enough that sums of squares are exact in float64
FLAGS = 4
HEADER = FLAGS + 2 * CHUNKS
NOTHING = torch.zeros(0, dtype=torch.float64, device="cpu")
NOWHERE = torch.zeros(0, dtype=torch.long, device="cpu")
ELSEWHERE = "processes that hold other tensors of the model disagree about the step, or cannot take it"
PROBLEM = "problem"  # the key of the problem that keeps a process from taking the step
GRADIENT = "the gradient of"  # the prefix of keys for gradients
rooms: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by process group: for how many sums a first message has room


class StepSkipped(Exception):  # an answer, not an error
    """Raised if a process has gradients that are not finite, so that no process takes the step."""


class Report(NamedTuple):
    """The report of one process on a step."""

    fingerprint: bytes
    skip: bool
    words: Callable[[], Mapping[str, object]]  # everything that must be the same on all ranks, to find differences


class Outcome(NamedTuple):
    """The outcome of the reports of all processes."""

    skip: bool  # a process skips the step
    problem: str = ""
    new: bool = False  # a process has sent no sums, because the list of them is new there
    parted: bool = False  # a process has no model_group, so that those that have one would wait for it


class Agreement:
    """The agreement of the processes of one optimizer. Every step passes through it.

    Sums are added over `axes`. The processes along `replicas` hold the same shards. `model_group` are processes with
    other tensors of the model: they need not take the same steps, but skip together. `left` describes, for errors, what
    was not stepped.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        replicas: Sequence[Axis] = (),
        model_group: ProcessGroup | None = None,
        left: str = "nothing was stepped",
    ) -> None:
        self.axes, self.replicas, self.model_group, self._left = tuple(axes), tuple(replicas), model_group, left
        self._model = None if model_group is None else axis_of(model_group)
        self.words = {
            "model_group": "missing" if model_group is None else "present",
            "the version of layerwise": __version__,
        }
        self._layout = b""
        self.listened = False
        """Whether the others wait for this process's report, if it cannot take the step."""

    @contextmanager
    def reports_errors(self) -> Iterator[None]:
        """Report an error to the others, so that they do not take the step either."""
        self.listened = True
        try:
            yield
        except Exception as problem:
            if self.listened:
                words = {PROBLEM: f"{type(problem).__name__}: {problem}"}
                with suppress(Exception):  # the first error is more helpful
                    self._of_model(self._said(words)._replace(problem=words[PROBLEM]))
            raise

    @contextmanager
    def during_closure(self) -> Iterator[None]:
        """Do not report errors of a closure: the others are in their closures, which use collectives of their own."""
        self.listened = False
        yield
        self.listened = True

    def agree_on(self, words: Mapping[str, str]) -> None:
        """Raise unless all processes report the same, before collectives that need it."""
        outcome = self._said(words)
        if outcome.problem:
            self._raise_problem(self._of_model(outcome))
        self.listened = True

    def _said(self, words: Mapping[str, str]) -> Outcome:
        """Exchange words in a message that may replace the first one of a step."""
        report = Report(hashlib.sha256(repr(words).encode()).digest(), False, lambda: words)
        return self._exchange(report, NOTHING, None)

    def reach(self, layout: bytes, report: Report, sums: Tensor, places: Sequence[Tensor], model: Tensor) -> None:
        """Complete the first sums of a step if all processes agree on it; otherwise raise."""
        room = zip(self.axes, places, strict=True)
        known = layout == self._layout and all(len(where) <= rooms.get(axis.group, 0) for axis, where in room)
        mine = sums.clone()
        outcome = self._exchange(report, sums, places if known else None)
        if outcome.new and not outcome.skip and not outcome.problem:
            for axis, where in zip(self.axes, places, strict=True):
                rooms[axis.group] = max(rooms.get(axis.group, 0), len(where))
            self._layout = layout
            sums.copy_(mine)
            outcome = self._exchange(report, sums, places)
        outcome = self._of_model(outcome, sums, model)
        self._raise_problem(outcome)
        if outcome.skip:
            raise StepSkipped

    def _raise_problem(self, outcome: Outcome) -> None:
        if outcome.problem:
            raise SynchronizationError(
                f"{outcome.problem}. Use the same parameters, settings and backward passes on all of them; "
                f"{self._left}."
            )

    def _exchange(self, report: Report, sums: Tensor, places: Sequence[Tensor] | None) -> Outcome:
        """Add up the first message of a step, and return the result of all processes' reports."""
        self.listened = False
        known, other = places is not None, self._model is None
        flags = sums.new_tensor([float(report.skip), 0.0, float(not known), float(other)])
        prints, differences = sums.new_tensor(_prints(report)), []
        for i, axis in enumerate((*self.axes, *self.replicas)):
            where = NOWHERE if places is None or i >= len(places) else places[i]
            padding = sums.new_zeros(rooms.get(axis.group, 0) - len(where))
            found = reduced(axis, torch.cat([flags, prints, sums[where], padding]))
            # Every axis passes on the flags of those before it, so that in the end all processes have the flags of all.
            flags, x, xx = found[:FLAGS], found[FLAGS : FLAGS + CHUNKS], found[FLAGS + CHUNKS : HEADER]
            differ = (axis.senders * xx != x.square()).any()
            differences.append(differ)
            flags[1].add_(differ)
            if len(where):
                sums[where] = found[HEADER : HEADER + len(where)]
        skip, failed, new, parted = flags.tolist()
        problem = ELSEWHERE if failed else ""
        for axis, differ in zip((*self.axes, *self.replicas), differences, strict=True):
            if failed and differ:
                problem = _difference(axis, {**self.words, **report.words()})
        return Outcome(skip > 0, problem, new > 0, parted > 0)

    def _of_model(self, outcome: Outcome, sums: Tensor = NOTHING, places: Tensor = NOWHERE) -> Outcome:
        """Complete the sum over the model, and add the reports of the processes with other tensors of it."""
        total = sums[places].sum()
        if self._model is not None and not outcome.parted:
            report = [float(outcome.skip), float(bool(outcome.problem)), total.item()]
            found = reduced(self._model, torch.tensor(report, dtype=torch.float64))
            skip, problem, total = found.unbind()
            outcome = Outcome(bool(skip), outcome.problem or (ELSEWHERE if problem else ""))
        sums[places] = total.to(sums)
        return outcome


def gradient_key(name: str) -> str:
    """Return the key of a gradient, under which processes compare theirs."""
    return f"{GRADIENT} {name!r}"


def reduced(axis: Axis, sums: Tensor) -> Tensor:
    """Return the sums over all processes of the axis, which are exchanged on the mesh's device."""
    sent = sums.to(axis.device_type)
    dist.all_reduce(sent, group=axis.group)
    return sent.to(sums.device)


def _prints(report: Report) -> list[float]:
    number = int.from_bytes(report.fingerprint[: BITS * CHUNKS // 8], "little")
    chunks = [float(number >> (BITS * i) & ((1 << BITS) - 1)) for i in range(CHUNKS)]
    return [*chunks, *(x * x for x in chunks)]


def _difference(axis: Axis, words: Mapping[str, object]) -> str:
    reports: list[Any] = [None] * len(axis.ranks)
    dist.all_gather_object(reports, words, group=axis.group)
    for rank, other in zip(axis.ranks, reports, strict=True):
        if PROBLEM in other:
            return f"rank {rank} cannot take the step ({other[PROBLEM].rstrip('.')})"
    for rank, other in zip(axis.ranks[1:], reports[1:], strict=True):
        # Gradients first: a report before gradients are redistributed contains nothing else.
        for what in sorted({**reports[0], **other}, key=lambda word: not word.startswith(GRADIENT)):
            ours, theirs = reports[0].get(what, "missing"), other.get(what, "missing")
            if ours != theirs:
                both = ranks_named((axis.ranks[0], rank))
                return f"{both} disagree about the step: {what} is {ours} on the first and {theirs} on the second"
    return f"{ranks_named(axis.ranks)} hold parts that do not belong together or are in a different order"
