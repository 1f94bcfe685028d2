"""Optimizers stepped from several Python threads at once: with the interpreter's lock, and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import layerwise
from layerwise.engines.compiled import why_not
from layerwise.numpy import Adafactor, Lamb, Lars, Mixed

pytestmark = pytest.mark.skipif(bool(why_not()), reason="is about the compiled extension")
THREADS, STEPS = 8, 12
SHAPES = ((700, 900), (33,), (4, 5, 6))  # the first is shared by the engine's threads
OPTIMIZERS = (Lamb, Lars, Adafactor)


@pytest.fixture(autouse=True)
def two_threads():
    before = layerwise.get_num_threads()
    layerwise.set_num_threads(2)
    yield
    layerwise.set_num_threads(before)


def walked(seed: int, ready: Barrier | None = None, steps: int = STEPS) -> list[np.ndarray]:
    """Return weights after some steps of an optimizer of this thread's own."""
    draw = np.random.default_rng(seed)
    weights = {str(i): draw.normal(size=shape).astype(np.float32) for i, shape in enumerate(SHAPES)}
    opt = OPTIMIZERS[seed % len(OPTIMIZERS)](lr=0.01, engine="compiled")
    for _ in range(steps):
        grads = {name: draw.normal(size=w.shape).astype(np.float32) for name, w in weights.items()}
        if ready is not None:
            ready.wait()
        opt.step_all(weights, grads)
    return [*weights.values()]


def test_optimizers_of_several_threads_step_at_once():
    expected = [walked(seed) for seed in range(THREADS)]
    ready = Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as threads:
        found = [*threads.map(lambda seed: walked(seed, ready), range(THREADS))]
    for mine, theirs in zip(expected, found, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_threads_change_the_number_of_threads_meanwhile():
    def count(seed: int) -> list[np.ndarray]:
        if seed % 2:
            return walked(seed)
        for n in range(1, 200):
            layerwise.set_num_threads(1 + n % 4)
        return []

    with ThreadPoolExecutor(THREADS) as threads:
        found = [*threads.map(count, range(THREADS))]
    for seed in range(1, THREADS, 2):
        assert all(np.array_equal(a, b) for a, b in zip(walked(seed), found[seed], strict=True))


MADE = {
    "compiled": lambda: Lars(lr=0.001, engine="compiled"),
    "rule": lambda: Lars(lr=0.001, engine="rule"),
    "mixed": lambda: Mixed({"0": Lars(lr=0.001), "*": Lamb(lr=0.001)}),
}


@pytest.mark.parametrize("made", MADE)
def test_threads_step_one_optimizer_one_after_the_other(made):
    def begun():
        return MADE[made](), {str(i): np.ones(shape, np.float32) for i, shape in enumerate(SHAPES)}

    grads = {str(i): np.full(shape, 0.5, np.float32) for i, shape in enumerate(SHAPES)}
    opt, weights = begun()
    alone, wanted = begun()
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: [opt.step_all(weights, grads) for _ in range(STEPS)], range(THREADS)))
    for _ in range(THREADS * STEPS):
        alone.step_all(wanted, grads)
    assert opt.steps == THREADS * STEPS
    assert all(np.array_equal(w, wanted[name]) for name, w in weights.items())


# In a process of its own, because libraries that others of these tests import do not bear being forked.
FORKING = """
import os, threading, numpy as np
from layerwise.numpy import Lamb
begun, go = threading.Event(), threading.Event()
def lr(step):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        go.wait()
    return 0.1
opt, w = Lamb(lr=lr), np.ones(3)
thread = threading.Thread(target=lambda: opt.step("w", w, np.ones(3)))
thread.start()
begun.wait()
if not (child := os.fork()):
    opt.step("w", w, np.ones(3))
    os._exit(7)
go.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), opt.steps)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_steps_what_another_thread_was_stepping():
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "7 1\n", done.stderr


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled(), reason="has the lock")
def test_the_extension_leaves_the_lock_off():
    assert not sys._is_gil_enabled()
