"""Time, state and memory of the implementations of one optimizer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from layerwise.cli.bench.memory import GIB
from layerwise.cli.bench.peers import Peer, Running
from layerwise.cli.bench.shapes import Shapes, parameters, shrunk, single
from layerwise.cli.bench.timing import Timing, Turns

WARMUP = 2
NOTHING = Timing(())


@dataclass
class Row:
    """The measurements of one implementation so far."""

    label: str
    package: str
    timing: Timing = NOTHING
    ratio: Timing = NOTHING  # to the base, round by round
    host: Timing = NOTHING
    state: float = 0  # bytes for each parameter
    peak: int | None = None


@dataclass
class Table:
    """The measurements of one optimizer on one set of shapes so far."""

    optimizer: str
    name: str
    shapes: Shapes
    dtype: str
    device: str
    threads: int
    base: str
    rows: dict[str, Row] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    apart: bool = False  # whether they did not all fit the memory side by side

    @classmethod
    def of(cls, optimizer: str, name: str, work: Any, threads: int, base: str) -> Table:
        return cls(optimizer, name, work.shapes, work.dtype, work.device, threads, base)

    @property
    def parameters(self) -> int:
        return parameters(self.shapes)


class Cost(NamedTuple):
    """Bytes that an optimizer keeps, and that its step takes on top."""

    state: float
    peak: float


def together(*costs: Cost) -> float:
    """Return the memory of several: they step one after the other, but keep their state all the time."""
    return sum(cost.state for cost in costs) + max((cost.peak for cost in costs), default=0)


def grouped(costs: Mapping[str, Cost], base: str, room: float) -> list[list[str]]:
    """Return all that fit the memory, as one group; if not side by side, each with the base, or alone."""

    def fits(*labels: str) -> bool:
        return together(*(costs[label] for label in labels)) <= room

    single = [label for label in costs if fits(label)]
    if fits(*single):
        return [single]
    rest = [label for label in single if label != base]
    paired = [label for label in rest if base in single and fits(base, label)]
    alone = [label for label in rest if label not in paired] + ([base] if base in single and not paired else [])
    return [*([base, label] for label in paired), *([label] for label in alone)]


class Measurement:
    """Fills a table: what is missing or fails is left out with its reason, what does not fit the memory too.

    No more turns are taken when it is `enough`. `say` shows what is being done.
    """

    def __init__(
        self,
        table: Table,
        peers: Sequence[Peer],
        work: Any,
        room: float,
        enough: Callable[[], bool] = bool,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.table, self._work, self._room, self._enough, self._say = table, work, room, enough, say
        reasons = {peer.label: peer.why_not(work, table.threads) for peer in peers}
        table.left_out |= {label: why for label, why in reasons.items() if why is not None}
        self._peers = {peer.label: peer for peer in peers if reasons[peer.label] is None}

    def run(self, rounds: int) -> None:
        groups = grouped(self._costs(), self.table.base, self._room)
        self.table.apart = len(groups) > 1
        for group in groups:
            self._measure(group, rounds)
            gc.collect()  # what a group kept goes before the next one comes
        if not self._work.on_cuda:
            self._measure_host(rounds)

    def _costs(self) -> dict[str, Cost]:
        """Estimate each implementation's memory from a step of much smaller tensors. This also finds failing ones."""
        small = self._work.like(shrunk(self._work.shapes))
        times = self.table.parameters / parameters(small.shapes)
        found = {}
        for label in self._peers:
            self._say(f"trying {label}")
            with self._without(label):
                running = self._peers[label].try_out(small)
                cost = Cost(times * (running.state_bytes() + running.copied), times * running.peak())
                found[label] = cost
                if together(cost) > self._room:
                    need, room = together(cost) / GIB, self._room / GIB
                    why = f"needs about {need:.1f} GiB beside weights and gradients, {room:.1f} may be taken"
                    self.table.left_out[label] = why
        return found

    @contextmanager
    def _without(self, label: str) -> Iterator[None]:
        """Go on without the one that fails, and without what was measured of it."""
        try:
            yield
        except Exception as problem:
            self.table.left_out[label] = in_short(problem)
            self.table.rows.pop(label, None)

    def _started(self, labels: Sequence[str], work: Any) -> list[Running]:
        running = []
        for label in labels:
            if label in self.table.left_out:  # it failed in an earlier group
                continue
            with self._without(label):
                running.append(self._peers[label].start(work))
        return running

    def _measure(self, labels: Sequence[str], rounds: int) -> None:
        running = self._started(labels, self._work)
        for one in running:
            row = self.table.rows.setdefault(one.label, Row(one.label, self._peers[one.label].package))
            row.state = one.state_bytes() / self.table.parameters
        turns = Turns({one.label: one.step for one in running}, self._work.clock, without=self._without)
        try:
            for i, label in enumerate(turns.take(rounds, WARMUP), 1):
                self._say(f"{label}: step {i} of {(rounds + WARMUP) * len(running)}")
                if self._enough():
                    break
        finally:  # Ctrl-C leaves what was measured so far
            self._keep(turns)
        for one in running:
            if one.label in self.table.rows:
                with self._without(one.label):
                    self.table.rows[one.label].peak = one.peak()

    def _keep(self, turns: Turns) -> None:
        found, host = turns.timings(), turns.host()
        for label, timing in found.items():
            row = self.table.rows[label]
            row.timing = row.timing.and_(timing)
            if self.table.base in found:
                row.ratio = row.ratio.and_(timing.over(found[self.table.base]))
            if self._work.on_cuda:
                row.host = row.host.and_(host[label])

    def _measure_host(self, rounds: int) -> None:
        """Time the same step on as many tensors of one element each: what is left is the work of the calls."""
        running = self._started(list(self.table.rows), self._work.like(single(self._work.shapes)))
        turns = Turns({one.label: one.step for one in running}, without=self._without)
        self._say("host time")
        for _ in turns.take(rounds, WARMUP):
            pass
        for label, timing in turns.timings().items():
            self.table.rows[label].host = timing


def in_short(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:160]}{'…' * (len(text) > 160)}"
