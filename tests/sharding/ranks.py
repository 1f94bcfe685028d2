"""A pool of processes that stand for the ranks of a job, started once and used by many tests.

    ranks.run(3, some_function, *arguments)      # [what rank 0 returned, rank 1, rank 2], or RanksFailed
    ranks.outcomes(3, some_function, *arguments)  # an Outcome each, also of ranks that raised or died

The function belongs to a module that every rank can import by name. It finds a process group of its own over Gloo.
"""

from __future__ import annotations

import os
import pickle
import re
import reprlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

Group = tuple[str, int, float]  # a file for the ranks to meet at, how many they are, and seconds they wait

TESTS = Path(__file__).parent.parent
MOST = 4
START = 120.0  # seconds for a rank to import what it needs, on a machine that may be busy
CALL = 60.0  # seconds for a call
ALONE = 10.0  # seconds that the others get once a rank is dead
LAST = 60.0  # seconds for a rank to say where it hangs, or to go
WARNINGS = ("-W", "error", "-W", "ignore:Muon is for hidden matrices")  # of which models here have others on purpose
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LAYERWISE_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "TRITON_INTERPRET": "1",  # kernels, where there are any, on tensors in the machine's memory
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # that a peer has gone is said by an exception
}
# As in pyproject.toml.
WARNINGS = ("-W", "error", "-W", "ignore:Muon is for hidden matrices, but also steps other parameters")


class RanksFailed(Exception):
    """A rank raised, died or hung; the message has what each had to say."""


@dataclass(frozen=True)
class Outcome:
    """What came of a call on one rank: a value, or the error's type and traceback."""

    value: Any = None
    error: str = ""
    traceback: str = ""

    @property
    def line(self) -> str:
        """The line that says what went wrong, of which long messages have others below."""
        lines = self.traceback.rstrip().splitlines()
        return next((one for one in reversed(lines) if re.match(rf"([\w.]+\.)?{self.error}\b", one)), lines[-1])


class Source:
    """The process that ranks are forked from: what they import takes seconds, and is imported once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stderr = folder / "source.stderr"
        self._line, theirs = socket.socketpair()
        path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *WARNINGS, "-m", "sharding.worker", str(theirs.fileno())],
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                stdout=stderr,
                stderr=stderr,
            )
        theirs.close()

    def fork(self, *fds: int, timeout: float) -> int:
        """Make a rank that has these files, and return its process id."""
        return int(self._ask("fork", *fds, timeout=timeout))

    def exit_code(self, pid: int, timeout: float) -> int:
        """Wait for the end of a rank, which is a child of that process and of no other."""
        return int(self._ask(f"wait {pid} {timeout}", timeout=2 * timeout))

    def _ask(self, request: str, *fds: int, timeout: float) -> bytes:
        self._line.settimeout(timeout)
        try:
            socket.send_fds(self._line, [request.encode()], fds)
            answer = self._line.recv(100)
        except OSError as problem:
            raise RanksFailed(f"ranks cannot be started ({problem}).\n{self._stderr.read_text()}") from None
        if not answer:
            raise RanksFailed(f"what ranks are forked from has ended.\n{self._stderr.read_text()}")
        return answer

    def close(self) -> None:
        self._line.close()
        self._process.kill()
        self._process.wait()


class Rank:
    """One process, and the line to it."""

    def __init__(self, number: int, source: Source, timeout: float) -> None:
        self.number, self._source, self._ended = number, source, False
        self.stderr = source.folder / f"rank{number}.stderr"
        self.line, theirs = Pipe()
        with self.stderr.open("wb") as stderr, theirs:
            self.pid = source.fork(theirs.fileno(), stderr.fileno(), timeout=timeout)

    def said(self) -> str:
        return self.stderr.read_text("utf-8", "replace")[-4000:]

    def where(self) -> str:
        """Where it hangs, as it says itself."""
        os.kill(self.pid, signal.SIGUSR1)
        end = time.monotonic() + LAST
        # The first line of the stack goes out before its frames do.
        while "  File " not in self.said().rpartition("most recent call first")[2] and time.monotonic() < end:
            time.sleep(0.05)
        return self.said()

    def exit_code(self) -> int:
        code = self._source.exit_code(self.pid, LAST)
        self._ended = True
        return code

    def died(self) -> Outcome:
        code = self.exit_code()
        return Outcome(error="died", traceback=f"rank {self.number} died with exit code {code}.\n{self.said()}")

    def kill(self) -> None:
        self.line.close()
        if not self._ended:  # or the number may be another process's by now
            os.kill(self.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Go by itself, as the end of the line asks it to."""
        if code := self.exit_code():
            raise RanksFailed(f"rank {self.number} left with exit code {code}, or not at all.\n{self.said()}")


class Ranks:
    """The pool. A process starts when it is first needed, and another one after it died or hung."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source: Source | None = None
        self._ranks: dict[int, Rank] = {}
        self._group: Group | None = None
        self._groups = 0

    def run(self, world: int, function: Callable[..., Any], *arguments: Any, timeout: float = CALL) -> list[Any]:
        """What the function returns on each of `world` ranks, if it returns on all of them."""
        found = self.outcomes(world, function, *arguments, timeout=timeout)
        if bad := {i: one for i, one in enumerate(found) if one.error}:
            call = f"{function.__name__}{reprlib.repr(arguments)} on {world} ranks"  # arguments may be weights
            lines = (f"rank {i}: {one.line}" for i, one in bad.items())
            tracebacks = (f"\nrank {i}: {one.traceback}" for i, one in bad.items())
            raise RanksFailed("\n".join([*lines, call, *tracebacks]))
        return [one.value for one in found]

    def outcomes(
        self, world: int, function: Callable[..., Any], *arguments: Any, timeout: float = CALL
    ) -> list[Outcome]:
        """What came of the function on each of `world` ranks. Ranks that hang are an error here, too."""
        assert 1 <= world <= MOST
        ranks = self._started(world)
        group = self._group_for(world, timeout / 2)
        for rank in ranks:
            rank.line.send_bytes(pickle.dumps((function, arguments, rank.number, group)))
        found = self._gather(ranks, time.monotonic() + timeout)
        if any(one.error for one in found):
            self._group = None
        return found

    def _group_for(self, world: int, timeout: float) -> Group:
        """The process group of the last call where that will do: to make one takes longer than most calls."""
        if self._group is None or self._group[1:] != (world, timeout):
            self._groups += 1
            self._group = str(self._folder / f"store{self._groups}"), world, timeout
        return self._group

    def _gather(self, ranks: list[Rank], end: float) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        while len(found) < len(ranks):
            lines = {rank.line: rank for rank in ranks if rank.number not in found}
            ready = wait(list(lines), max(0.0, end - time.monotonic()))
            if not ready:
                self._hung([lines[line] for line in lines])
            for line in ready:
                assert isinstance(line, Connection)
                found[lines[line].number] = one = _received(lines[line])
                if one.error == "died":
                    self._lose([lines[line]])
                    end = min(end, time.monotonic() + ALONE)
        return [found[rank.number] for rank in ranks]

    def _hung(self, ranks: list[Rank]) -> None:
        report = "\n".join(f"rank {rank.number} hangs.\n{rank.where()}" for rank in ranks)
        self._lose(ranks)
        self._group = None
        raise RanksFailed(report)

    def _started(self, world: int) -> list[Rank]:
        self._source = self._source or Source(self._folder)
        new = [Rank(number, self._source, START) for number in range(world) if number not in self._ranks]
        self._ranks.update({rank.number: rank for rank in new})
        self._group = None if new else self._group
        bad = [one.traceback for one in self._gather(new, time.monotonic() + START) if one.error]
        if bad:
            raise RanksFailed("\n".join(bad))
        return [self._ranks[number] for number in range(world)]

    def _lose(self, ranks: list[Rank]) -> None:
        for rank in ranks:
            self._ranks.pop(rank.number).kill()

    def close(self) -> None:
        """Let all of them go, and complain if one does not go well."""
        ranks, self._ranks = list(self._ranks.values()), {}
        for rank in ranks:
            rank.line.close()
        try:
            for rank in ranks:
                rank.leave()
        finally:
            if self._source:
                self._source.close()


def _received(rank: Rank) -> Outcome:
    try:
        return Outcome(*pickle.loads(rank.line.recv_bytes()))
    except (EOFError, ConnectionResetError):
        return rank.died()
