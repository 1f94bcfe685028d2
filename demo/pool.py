"""Runs in worker processes, each with one thread, so that figures do not depend on how many there are."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from time import sleep

from demo.result import Outcome
from demo.settings import Run


class WorkerError(Exception):
    """A worker did not start, died, or failed at what it was doing; the message says what helps."""


def carry_out(runs: Sequence[Run], workers: int) -> Generator[tuple[Run, Outcome], None, None]:
    """Yield each run with its outcome when it is done. They begin in this order."""
    executor = ProcessPoolExecutor(min(workers, len(runs)), get_context("spawn"), initializer=_ready)
    others = {*active_children()}  # which somebody else began
    try:
        run_of = _begun(executor, runs, len(others))
        for future in as_completed(run_of):
            yield run_of[future], _outcome(run_of[future], future)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        ended = {*active_children()} - others
        for process in ended:
            process.terminate()
        while ended & {*active_children()}:  # join() may return before the executor's thread, which waits as well
            sleep(0.01)


def _begun(executor: ProcessPoolExecutor, runs: Sequence[Run], others: int) -> dict[Future[Outcome], Run]:
    """Start workers that ignore Ctrl-C: it is for this process, which ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return {executor.submit(_trained, run): run for run in runs}
    except OSError as problem:
        there = len(active_children()) - others
        raise WorkerError(
            f"process {there + 1} to train in could not be started: {problem.strerror or problem}. "
            f"--threads {max(1, there)} needs fewer."
        ) from problem
    finally:
        signal.signal(signal.SIGINT, before)


def _outcome(run: Run, future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool as problem:
        raise WorkerError(
            "a process that trained has ended. If the machine ran out of memory, --threads 1 needs half as much; "
            "--act 1 needs least."
        ) from problem
    except Exception as problem:
        raise WorkerError(f"{run} failed. This is a mistake of ours:\n{problem.__cause__}") from problem


def _ready() -> None:
    """Get a worker ready: one thread, and no life beyond that of the process that started it."""
    import torch

    import layerwise

    torch.set_num_threads(1)
    layerwise.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _trained(run: Run) -> Outcome:
    from demo.train import train

    return train(run)
