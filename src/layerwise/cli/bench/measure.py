"""Time, state and memory of the implementations of one optimizer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from layerwise.cli.bench.groups import Cost, grouped, together
from layerwise.cli.bench.peers import Peer, Running, Work
from layerwise.cli.bench.shapes import Shapes, parameters, shrunk, single
from layerwise.cli.bench.timing import Timing, Turns

WARMUP = 2
NOTHING = Timing(())


class Screen:
    """A display of the work in progress, which shows nothing."""

    def begin(self, what: str, steps: int) -> None: ...

    def advance(self, what: str, steps: int) -> None: ...


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
    def of(cls, optimizer: str, name: str, work: Work, threads: int, base: str) -> Table:
        return cls(optimizer, name, work.shapes, work.dtype, work.device, threads, base)

    @property
    def parameters(self) -> int:
        return parameters(self.shapes)


class Measurement:
    """Fills a table: what is missing or fails is left out with its reason, what does not fit the memory too.

    No more turns are taken when it is `enough`.
    """

    def __init__(
        self,
        table: Table,
        peers: Sequence[Peer],
        work: Work,
        room: float,
        screen: Screen | None = None,
        enough: Callable[[], bool] = bool,
    ) -> None:
        self.table, self._work, self._room, self._screen, self._enough = table, work, room, screen or Screen(), enough
        reasons = {peer.label: peer.why_not(work, table.threads) for peer in peers}
        table.left_out |= {label: why for label, why in reasons.items() if why is not None}
        self._peers = {peer.label: peer for peer in peers if reasons[peer.label] is None}

    def run(self, rounds: int) -> None:
        self._screen.begin(f"{self.table.optimizer} on {self.table.name}", len(self._peers))
        costs = self._costs()
        groups = list(grouped(costs, self.table.base, self._room))
        self.table.apart = len(groups) > 1
        self._left_out(costs, groups)
        self._screen.begin("", (rounds + WARMUP) * sum(map(len, groups)))
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
            self._screen.advance(f"trying {label}", 1)
            with self._without(label):
                running = self._peers[label].try_out(small)
                found[label] = Cost(times * (running.state_bytes + running.copied), times * running.peak())
        return found

    @contextmanager
    def _without(self, label: str) -> Iterator[None]:
        """Go on without the one that fails, and without what was measured of it."""
        try:
            yield
        except Exception as problem:
            self.table.left_out[label] = in_short(problem)
            self.table.rows.pop(label, None)

    def _left_out(self, costs: dict[str, Cost], groups: list[list[str]]) -> None:
        there = {label for group in groups for label in group}
        for label in costs.keys() - there:
            need, room = together([costs[label]]) / 2**30, self._room / 2**30
            self.table.left_out[label] = (
                f"needs about {need:.1f} GiB beside weights and gradients, {room:.1f} may be taken"
            )

    def _started(self, labels: Sequence[str], work: Work) -> list[Running]:
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
            row.state = one.state_bytes / self.table.parameters
        turns = Turns({one.label: one.step for one in running}, self._work.clock, without=self._without)
        try:
            for label in turns.take(rounds, WARMUP):
                self._screen.advance(label, 1)
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
        for _ in turns.take(rounds, WARMUP):
            self._screen.advance("host time", 0)
        for label, timing in turns.timings().items():
            self.table.rows[label].host = timing


def in_short(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:160]}{'…' * (len(text) > 160)}"
