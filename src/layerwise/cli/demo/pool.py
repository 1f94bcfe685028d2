"""Runs in worker processes, each with one thread, so that figures do not depend on how many there are.

Every worker has a pipe of its own: it is sent one run after the other, and answers with events. A worker that dies
closes its pipe, so nobody waits for it.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from layerwise.cli.demo.events import Event, Events, Finished, Moved, Started
from layerwise.cli.demo.settings import Run


class WorkerError(Exception):
    """A worker did not start, died, or failed at what it was doing; the message says which it was and what helps."""


@dataclass(frozen=True)
class Failed:
    run: Run
    text: str


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    run: Run | None = None


def carry_out(runs: Sequence[Run], workers: int) -> Events:
    """Yield the events until all runs are done, which begin in this order."""
    waiting = [*reversed(runs)]
    with _workers(min(workers, len(runs))) as staff:
        for worker in staff.values():
            yield from _next(worker, waiting)
        while busy := [pipe for pipe, worker in staff.items() if worker.run is not None]:
            for pipe in wait(busy):
                worker = staff[pipe]
                event = _received(worker)
                yield event
                if isinstance(event, Finished):
                    yield from _next(worker, waiting)


def _next(worker: Worker, waiting: list[Run]) -> Iterator[Event]:
    worker.run = waiting.pop() if waiting else None
    if worker.run is not None:
        try:
            worker.pipe.send(worker.run)
        except OSError:
            raise _died(worker) from None
        yield Started(worker.run)


def _received(worker: Worker) -> Event:
    try:
        event = worker.pipe.recv()
    except (EOFError, OSError):
        raise _died(worker) from None
    if isinstance(event, Failed):
        raise WorkerError(f"{event.run} failed. This is a mistake of ours:\n{event.text}")
    return event  # type: ignore[no-any-return]


def _died(worker: Worker) -> WorkerError:
    worker.process.join(5)
    return WorkerError(
        f"the process that trained {worker.run} {_end(worker.process.exitcode)}. If the machine ran out of memory, "
        "--threads 1 needs half as much; --act 1 needs least."
    )


def _end(code: int | None) -> str:
    if code is None:
        return "closed its pipe, but has not ended"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _workers(number: int) -> Iterator[dict[Any, Worker]]:
    """Start workers that ignore Ctrl-C: it is for this process, which ends them."""
    context = get_context("spawn")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    staff: dict[Any, Worker] = {}
    try:
        try:
            for _ in range(number):
                worker = _started(context)
                staff[worker.pipe] = worker
        except OSError as problem:
            raise WorkerError(
                f"process {len(staff) + 1} of {number} to train in could not be started: "
                f"{problem.strerror or problem}. --threads {max(1, len(staff))} needs fewer."
            ) from problem
        finally:
            signal.signal(signal.SIGINT, before)
        yield staff
    finally:
        for pipe, worker in staff.items():
            pipe.close()
            worker.process.terminate()
        for worker in staff.values():
            worker.process.join()


def _started(context: SpawnContext) -> Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def work(pipe: Connection) -> None:
    """Train the runs that arrive, until the process that sends them is gone."""
    try:
        _train_all(pipe)
    except (EOFError, OSError):
        os._exit(0)  # the process that sent the run is gone


def _train_all(pipe: Connection) -> None:
    import torch

    import layerwise
    from layerwise.cli.demo.train import train

    torch.set_num_threads(1)
    layerwise.set_num_threads(1)
    while True:
        run: Run = pipe.recv()
        try:
            outcome = train(run, lambda progress: pipe.send(Moved(run, progress)))  # noqa: B023
        except OSError:
            raise
        except Exception:
            pipe.send(Failed(run, traceback.format_exc()))
        else:
            pipe.send(Finished(run, outcome))
