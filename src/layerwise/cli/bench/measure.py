"""Time, state and memory of the implementations of one optimizer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from layerwise.cli.bench.memory import GIB
from layerwise.cli.bench.peers import Peer
from layerwise.cli.bench.shapes import Shapes, parameters, single
from layerwise.cli.bench.timing import Running, Timing, Turns

WARMUP = 2
MOMENTS = 8  # bytes a parameter of Adam's state in float32: few optimizers keep more
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
        groups = self._groups()
        self.table.apart = len(groups) > 1
        for group in groups:
            self._measure(group, rounds)
            gc.collect()  # what a group kept goes before the next one comes
        if not self._work.on_cuda:
            self._measure_host(rounds)

    def _groups(self) -> list[list[str]]:
        """Return all that are timed in turns: all, or each with the base if the memory might not hold more."""
        each = max(self._work.bytes, MOMENTS * self.table.parameters)
        fit = int(self._room // each) - 1  # beside a step, for which as much is left
        if len(self._peers) <= fit:
            return [list(self._peers)]
        base = [label for label in self._peers if label == self.table.base]
        rest = [label for label in self._peers if label not in base]
        if fit > len(base):
            return [[*base, label] for label in rest]
        why = f"may need {(len(base) + 2) * each / GIB:.1f} GiB beside weights and gradients, with the base"
        left_out = rest if fit >= 1 else self._peers
        self.table.left_out |= dict.fromkeys(left_out, f"{why}, and {self._room / GIB:.1f} may be taken")
        return [base] if base and fit >= 1 else []

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
