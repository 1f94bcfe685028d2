"""Optimizers stepped from several Python threads at once: with the interpreter's lock, and without it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import layerwise
from layerwise.engines.compiled import why_not
from layerwise.errors import EngineError
from layerwise.numpy import Adafactor, Lamb, Lars

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


def test_one_optimizer_stepped_by_two_threads_neither_crashes_nor_tears():
    """The steps are of one or the other thread, and some may be refused; memory stays whole."""
    refusals = []
    weights = {str(i): np.ones(shape, np.float32) for i, shape in enumerate(SHAPES)}
    grads = {name: np.ones_like(w) for name, w in weights.items()}
    opt = Lars(lr=0.001, engine="compiled")
    opt.step_all(weights, grads)

    def step(_: int) -> None:
        for _ in range(STEPS):
            try:
                opt.step_all(weights, grads)
            except EngineError as refused:
                refusals.append(str(refused))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(step, range(4)))
    assert all("one thread at a time" in refused for refused in refusals)
    assert all(np.isfinite(w).all() for w in weights.values())


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled(), reason="has the lock")
def test_the_extension_leaves_the_lock_off():
    assert not sys._is_gil_enabled()
