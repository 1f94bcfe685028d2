"""Time, state and memory of the implementations of one optimizer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.memory import GIB
from harness.peers import Peer
from harness.shapes import Shapes, parameters
from harness.timing import Clock, Running, Timing, wall

WARMUP = 2
MOMENTS = 8  # bytes a parameter of Adam's state in float32: few optimizers keep more


@dataclass
class Row:
    """The measurements of one implementation so far."""

    label: str
    package: str
    timing: Timing = field(default_factory=Timing)
    ratio: Timing = field(default_factory=Timing)  # to the base, round by round
    host: Timing = field(default_factory=Timing)
    state: float = 0  # bytes for each parameter
    peak: int | None = None


@dataclass
class Table:
    """The measurements of one optimizer on one set of shapes so far, and what is left out, with the reason."""

    optimizer: str
    name: str
    shapes: Shapes
    dtype: str
    device: str
    threads: int
    base: str
    rows: dict[str, Row] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        return parameters(self.shapes)

    @contextmanager
    def without(self, label: str) -> Iterator[None]:
        """Go on without the one that fails, and without what was measured of it."""
        try:
            yield
        except Exception as problem:
            self.left_out[label] = in_short(problem)
            self.rows.pop(label, None)


def tables_of(
    optimizer: str, name: str, work: Any, threads: int, peers: Sequence[Peer], room: float
) -> Iterator[tuple[Table, list[Peer]]]:
    """Yield the table to fill, with its implementations; if the memory might not hold all, one of each with the first.

    What does not fit with the first has only its reason there.
    """
    left_out = {peer.label: why for peer in peers if (why := peer.reason_missing(work)) is not None}
    there = [peer for peer in peers if peer.label not in left_out]
    each = max(work.bytes, MOMENTS * parameters(work.shapes))
    base, rest = [peer for peer in there if peer is peers[0]], [peer for peer in there if peer is not peers[0]]
    groups = [there]
    fit = int(room // each) - 1  # beside a step, for which as much is left
    if len(there) > fit:
        groups = [[*base, peer] for peer in rest] if fit > len(base) else [base[:fit]]
        need = f"may need {(len(base) + 2) * each / GIB:.1f} GiB beside weights and gradients, with the base"
        fitting = {peer.label for group in groups for peer in group}
        why = f"{need}, and {room / GIB:.1f} may be taken"
        left_out |= {peer.label: why for peer in there if peer.label not in fitting}
    for group in groups:
        yield (
            Table(optimizer, name, work.shapes, work.dtype, work.device, threads, peers[0].label, left_out=left_out),
            group,
        )
        left_out = {}
        gc.collect()  # what a group kept goes before the next one comes


def measure(
    table: Table,
    peers: Sequence[Peer],
    work: Any,
    rounds: int,
    enough: Callable[[], bool] = bool,
) -> None:
    """Fill a table. No more turns are taken when it is `enough`."""
    running = _started(table, peers, work)
    for one in running:
        package = next(peer.package for peer in peers if peer.label == one.label)
        table.rows[one.label] = Row(one.label, package, state=one.state_bytes() / table.parameters)
    try:
        for row, host, seconds in _turns(table, running, work.clock, rounds, enough):
            row.timing.rounds.append(seconds)
            if work.on_cuda:
                row.host.rounds.append(host)
    finally:  # Ctrl-C leaves what was measured so far
        base = table.rows.get(table.base)
        for row in table.rows.values():
            row.ratio = Timing() if base is None else row.timing.over(base.timing)
    for one in running:
        if one.label in table.rows:
            with table.without(one.label):
                table.rows[one.label].peak = one.peak()
    if not work.on_cuda:  # the same step on tensors of one element each: what is left is the work of the calls
        for row, host, _ in _turns(table, _started(table, peers, work.single()), wall, rounds, enough):
            row.host.rounds.append(host)


def _started(table: Table, peers: Sequence[Peer], work: Any) -> list[Running]:
    running = []
    for peer in peers:
        if peer.label not in table.left_out:
            with table.without(peer.label):
                running.append(peer.start(work))
    return running


def _turns(
    table: Table,
    running: Sequence[Running],
    clock: Clock,
    rounds: int,
    enough: Callable[[], bool],
) -> Iterator[tuple[Row, float, float]]:
    for round_ in range(1 - WARMUP, rounds + 1):
        for one in running:
            if one.label in table.rows and not enough():
                with table.without(one.label):
                    seconds = clock(one.step)
                    if round_ > 0:
                        yield table.rows[one.label], *seconds


def in_short(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:160]}{'…' * (len(text) > 160)}"
