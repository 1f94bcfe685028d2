"""The processes that hold other parts of the same model: one all-reduce a round completes all sums, and all agree.

What they step must be the same: parameters, settings, step counts, and whether to step at all. A fingerprint of that
goes with the first sums of every step, so that it costs no collective of its own and is known before anything is
written. Sums can only be added to sums of the same layout. Who finds its layout changed since the last step therefore
says so in the old one, which everybody still understands; if all say the same, the new one holds from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.drive import Question
from layerwise.errors import HyperparameterError, SynchronizationError, sentence
from layerwise.rules.asks import ModelSum, Now
from layerwise.torch._cuts import Axis

Axes = tuple[tuple[Axis, int], ...]  # of one job: who cuts it, and along which of its dimensions
BITS, CHUNKS = 12, 4  # of a fingerprint: few enough bits that sums of squares are exact in float64
HEADER = 2 * CHUNKS + 2
CPU = torch.device("cpu")
NOTHING = torch.zeros(0, dtype=torch.long)
ELSEWHERE = "other processes of the model disagree about the step, or cannot take it"
PROBLEM = "problem"  # the word for what keeps a process from taking the step


class Skipped(Exception):  # an answer, not an error
    """Somebody's gradients are not finite: nobody takes the step."""


class Said(NamedTuple):
    """What one process says of a step."""

    fingerprint: bytes
    skip: bool | None  # None where nobody will
    words: Callable[[], Mapping[str, Any]]  # what has to be the same everywhere, to find what is not


class Heard(NamedTuple):
    """What has become known of a step."""

    skip: bool  # somebody wants to
    problem: str = ""


class Agreement:
    """What the processes of one optimizer agree on. Every step passes through here, whatever it consists of.

    `replicas` are those who hold the same parts. They add up nothing together, and are asked only where somebody might
    skip. `model_group` are processes with other tensors of the model: they need not take the same steps, but skip
    together.
    """

    def __init__(self, axes: Sequence[Axis], replicas: Sequence[Axis] = (), model_group: Any = None) -> None:
        self.axes, self.replicas = tuple(axes), tuple(replicas)
        self._model = None if model_group is None else axis_of(model_group)
        self._layout, self._silent = b"", True
        self._skips: bool | None = None
        self._lengths = [0] * len(self.axes)  # how many sums the last step had on each axis

    @contextmanager
    def told_of_errors(self, skips: bool) -> Iterator[None]:
        """Where this process cannot take the step, the others are told why, and do not take it either.

        `skips` says whether somebody might skip it, which is the same for all.
        """
        self._silent, self._skips = True, False if skips else None
        try:
            yield
        except Exception as problem:
            if self._silent:
                words = {PROBLEM: f"{type(problem).__name__}: {problem}"}
                said = Said(hashlib.sha256(words[PROBLEM].encode()).digest(), self._skips, lambda: words)
                with suppress(Exception):  # what came first says more
                    heard = self._exchange_nothing(said, CPU)._replace(problem=words[PROBLEM])
                    self._of_model(heard, torch.zeros(0), NOTHING)
            raise

    def settle(self, layout: bytes, said: Said, sums: Tensor, places: Sequence[Tensor], model: Tensor) -> None:
        """Complete the first sums of a step, if everybody takes it."""
        heard = Heard(skip=False)
        if layout != self._layout:
            heard = self._exchange_nothing(said, sums.device)
        if not any(heard):
            self._layout, self._lengths = layout, list(map(len, places))
            heard = self._exchange(said, sums, places)
        heard = self._of_model(heard, sums, model)
        if heard.problem:
            raise SynchronizationError(
                f"{heard.problem}. Give all of them the same parameters, settings and backward passes; nothing was "
                "stepped."
            )
        if heard.skip:
            raise Skipped

    def _exchange_nothing(self, said: Said, device: torch.device) -> Heard:
        nothing = torch.zeros(max(self._lengths, default=0), dtype=torch.float64, device=device)
        return self._exchange(said, nothing, [slice(n) for n in self._lengths])

    def _exchange(self, said: Said, sums: Tensor, places: Sequence[Tensor | slice]) -> Heard:
        # On every axis goes what was heard on those before it, so that in the end all have heard of all.
        skip, problem, self._silent = float(bool(said.skip)), "", False
        chunks = _chunks(said.fingerprint)
        asked = () if said.skip is None else self.replicas
        for axis, where in zip((*self.axes, *asked), (*places, *([slice(0)] * len(asked))), strict=True):
            header = [*chunks, *(x * x for x in chunks), skip, float(bool(problem))]
            found = all_reduced(axis, torch.cat([sums.new_tensor(header), sums[where]]))
            sums[where] = found[HEADER:]
            *prints, skip, heard = found[:HEADER].tolist()
            n = len(axis.ranks)
            if any(n * xx != x * x for x, xx in zip(prints[:CHUNKS], prints[CHUNKS:], strict=True)):
                problem = _difference(axis, said.words())
            elif heard and not problem:
                problem = ELSEWHERE
        return Heard(skip > 0, problem)

    def _of_model(self, heard: Heard, sums: Tensor, places: Tensor) -> Heard:
        """The sum over the model, with what is heard from those who hold other tensors of it."""
        total = sums[places].sum()
        if self._model is not None:
            said = [float(heard.skip), float(bool(heard.problem)), total.item()]
            skip, problem, total = all_reduced(self._model, torch.tensor(said, dtype=torch.float64))
            heard = Heard(bool(skip), heard.problem or (ELSEWHERE if problem else ""))
        if len(places):
            sums[places] = total.to(sums)
        return heard


class Peers:
    """Adds up the sums of jobs that are stepped together."""

    def __init__(self, agreement: Agreement, jobs: Sequence[Axes], described: str) -> None:
        self._agreement, self._jobs, self._described = agreement, jobs, described
        self._rounds: list[Round] = []
        self._how = ""

    def begin(self, nows: Sequence[Now], skip: bool | None, words: Callable[[], Mapping[str, Any]]) -> None:
        """Another step, and what is known of it here."""
        # What is known on the device alone is not compared, and nan is not the same even as itself.
        numbers = [tuple(x if isinstance(x, (int, float)) and x == x else 0 for x in now) for now in nows]
        self._number, self._said = 0, Said(str(hash(tuple(numbers))).encode(), skip, words)

    def told_how(self, how: str) -> None:
        """Whoever steps otherwise asks at other times, and has to be found out before anybody waits for the rest."""
        if how != self._how:
            self._how, self._rounds = how, []
        words = self._said.words
        self._said = self._said._replace(words=lambda: {**words(), "what steps it": how})

    def add_up(self, questions: Sequence[Question], sums: Any) -> Any:
        """The sums over all of the model, given those here."""
        sums = torch.as_tensor(sums)
        if self._number == len(self._rounds) or self._rounds[self._number].questions != questions:
            self._rounds[self._number :] = [self._round(questions, sums.device)]
        now = self._rounds[self._number]
        if self._number == 0:
            print_ = hashlib.sha256(now.layout + self._said.fingerprint).digest()
            self._agreement.settle(now.layout, self._said._replace(fingerprint=print_), sums, now.places, now.model)
        else:
            for axis, places in zip(self._agreement.axes, now.places, strict=True):
                if len(places):
                    sums[places] = all_reduced(axis, sums[places])
            if len(now.model):
                sums[now.model] = sums[now.model].sum()
        self._number += 1
        return sums

    def _round(self, questions: Sequence[Question], device: torch.device) -> Round:
        starts = [0]
        for question in questions:
            starts.append(starts[-1] + question.length)

        def places(wanted: Callable[[Question], bool]) -> Tensor:
            each = zip(questions, starts, starts[1:], strict=False)
            found = [i for question, start, end in each if wanted(question) for i in range(start, end)]
            return torch.tensor(found, dtype=torch.long, device=device)

        asked = [(q.job, q.ask.__name__, q.dims) for q in questions]  # how many numbers may differ: parts are uneven
        return Round(
            list(questions),
            [places(partial(self._adds, axis)) for axis in self._agreement.axes],
            places(lambda q: q.ask is ModelSum),
            hashlib.sha256(f"{self._described} {self._how} {asked}".encode()).digest(),
        )

    def _adds(self, axis: Axis, question: Question) -> bool:
        return any(other == axis and d in question.dims for other, d in self._jobs[question.job])


class Round(NamedTuple):
    """Where the sums of one round go."""

    questions: list[Question]
    places: list[Tensor]  # which of them are added up over each axis
    model: Tensor  # which make the model's sum
    layout: bytes


def axis_of(group: Any) -> Axis:
    device_type = dist.get_backend_config(group).partition(":")[0]
    return Axis(tuple(dist.get_process_group_ranks(group)), group, device_type)


def all_reduced(axis: Axis, sums: Tensor) -> Tensor:
    """The sums over all processes of the axis, which talk by the mesh's device, wherever each has its sums."""
    sent = sums.to(axis.device_type)
    dist.all_reduce(sent, group=axis.group)
    return sent.to(sums.device)


def _chunks(fingerprint: bytes) -> list[float]:
    number = int.from_bytes(fingerprint[: BITS * CHUNKS // 8], "little")
    return [float(number >> (BITS * i) & ((1 << BITS) - 1)) for i in range(CHUNKS)]


def _difference(axis: Axis, words: Mapping[str, Any]) -> str:
    """In words, what is not the same on two processes of an axis that disagree."""
    said: list[Any] = [None] * len(axis.ranks)
    dist.all_gather_object(said, words, group=axis.group)
    for rank, other in zip(axis.ranks, said, strict=True):
        if PROBLEM in other:
            return f"rank {rank} cannot take the step ({other[PROBLEM].rstrip('.')})"
    for rank, other in zip(axis.ranks[1:], said[1:], strict=True):
        for what in dict.fromkeys((*said[0], *other)):
            ours, theirs = said[0].get(what, "missing"), other.get(what, "missing")
            if ours != theirs:
                ranks = f"ranks {axis.ranks[0]} and {rank}"
                return f"{ranks} disagree about the step: {what} is {ours} on one and {theirs} on the other"
    return f"ranks {axis.ranks} hold parts that do not belong together, or in another order"


def check_model_group(group: Any) -> Any:
    """Raise unless it is a process group, or None."""
    if group is None or (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        return group
    way_out = "Pass what torch.distributed.new_group() gave."
    raise HyperparameterError(sentence("model_group", "a process group that this process is in", group, way_out))
