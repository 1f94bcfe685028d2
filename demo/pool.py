"""Runs in worker processes, each with one thread, so that figures do not depend on how many there are.

Every worker has a pipe of its own: it is sent one run after the other, and answers with its progress and its outcome. A
worker that dies closes its pipe, so nobody waits for it.
"""

from __future__ import annotations

import math
import os
import signal
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from demo.result import Outcome, Progress
from demo.settings import Run

Seen = tuple[Run, Progress | Outcome]


class WorkerError(Exception):
    """A worker did not start, died, or failed at what it was doing; the message says which it was and what helps."""


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    run: Run | None = None

    def begin(self, waiting: list[Run]) -> Iterator[Seen]:
        """Begin the last of those that wait."""
        self.run = waiting.pop() if waiting else None
        if self.run is not None:
            with self._alive():
                self.pipe.send(self.run)
            yield self.run, Progress(0, math.nan)

    def answer(self) -> Progress | Outcome:
        with self._alive():
            said: Progress | Outcome | str = self.pipe.recv()
        if isinstance(said, str):
            raise WorkerError(f"{self.run} failed. This is a mistake of ours:\n{said}")
        return said

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            self.process.join(5)
            raise WorkerError(
                f"the process that trained {self.run} {_end(self.process.exitcode)}. If the machine ran out of memory, "
                "--threads 1 needs half as much; --act 1 needs least."
            ) from None


def _end(code: int | None) -> str:
    if code is None:
        return "closed its pipe, but has not ended"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def carry_out(runs: Sequence[Run], workers: int) -> Generator[Seen, None, None]:
    """Yield what is seen until all runs are done, which begin in this order."""
    waiting = [*reversed(runs)]
    with _workers(min(workers, len(runs))) as staff:
        for worker in staff:
            yield from worker.begin(waiting)
        while busy := {worker.pipe: worker for worker in staff if worker.run is not None}:
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                assert worker.run is not None  # noqa: S101
                yield worker.run, (answer := worker.answer())
                if isinstance(answer, Outcome):
                    yield from worker.begin(waiting)


@contextmanager
def _workers(number: int) -> Iterator[list[Worker]]:
    """Start workers that ignore Ctrl-C: it is for this process, which ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    staff: list[Worker] = []
    try:
        try:
            for _ in range(number):
                staff.append(_started())
        except OSError as problem:
            raise WorkerError(
                f"process {len(staff) + 1} of {number} to train in could not be started: "
                f"{problem.strerror or problem}. --threads {max(1, len(staff))} needs fewer."
            ) from problem
        finally:
            signal.signal(signal.SIGINT, before)
        yield staff
    finally:
        for worker in staff:
            worker.pipe.close()
            worker.process.terminate()
        for worker in staff:
            worker.process.join()


def _started() -> Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def work(pipe: Connection) -> None:
    """Train the runs that arrive, until the process that sends them is gone."""
    import torch

    import layerwise
    from demo.train import train

    torch.set_num_threads(1)
    layerwise.set_num_threads(1)
    try:
        while True:
            run = pipe.recv()
            try:
                outcome: Outcome | str = train(run, pipe.send)
            except OSError:
                raise
            except Exception:
                outcome = traceback.format_exc()
            pipe.send(outcome)
    except (EOFError, OSError):
        os._exit(0)
