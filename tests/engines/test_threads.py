"""Threads of a program and of the engine do not hinder one another, and people say how many there may be.

`make test-oldest` runs it alone: it needs pytest and NumPy, and nothing else of these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import layerwise
from layerwise.engines import compiled
from layerwise.errors import EngineError, HyperparameterError
from layerwise.numpy import Adafactor, Lamb, Lars

pytestmark = pytest.mark.skipif(compiled._native is None, reason="this installation has no extension")
_native = compiled._native


@pytest.fixture(autouse=True)
def threads():
    before = layerwise.get_num_threads()
    layerwise.set_num_threads(2)
    yield layerwise.set_num_threads
    layerwise.set_num_threads(before)


# ---- optimizers in threads of a program

MANY, STEPS = 6, 5
OWN = ((700, 900), (33,), (4, 5, 6))  # the first is shared by the engine's threads


def own_weights(seed, ready=None):
    """Weights after some steps of an optimizer of this thread's own."""
    draw = np.random.default_rng(seed)
    weights = {str(i): draw.normal(size=shape).astype(np.float32) for i, shape in enumerate(OWN)}
    opt = (Lamb, Lars, Adafactor)[seed % 3](lr=0.01, engine="compiled")
    for _ in range(STEPS):
        grads = {name: draw.normal(size=w.shape).astype(np.float32) for name, w in weights.items()}
        if ready is not None:
            ready.wait()
        opt.step_all(weights, grads)
    return [w.tobytes() for w in weights.values()]


def test_optimizers_of_several_threads_step_at_once_while_another_changes_the_number_of_threads(threads):
    expected, ready = [own_weights(seed) for seed in range(MANY)], Barrier(MANY)

    def one(seed):
        for n in range(200) if seed == MANY else ():
            threads(1 + n % 4)
        return own_weights(seed, ready) if seed < MANY else []

    with ThreadPoolExecutor(MANY + 1) as running:
        assert [*running.map(one, range(MANY + 1))][:MANY] == expected


@pytest.mark.parametrize("engine", ["compiled", "rule"])
def test_threads_step_one_optimizer_one_after_the_other(engine):
    grads = {str(i): np.full(shape, 0.5, np.float32) for i, shape in enumerate(OWN)}
    (opt, weights), (alone, wanted) = (
        (Lars(lr=0.001, engine=engine), {name: np.ones_like(g) for name, g in grads.items()}) for _ in "ab"
    )
    with ThreadPoolExecutor(MANY) as running:
        [*running.map(lambda _: [opt.step_all(weights, grads) for _ in range(STEPS)], range(MANY))]
    for _ in range(MANY * STEPS):
        alone.step_all(wanted, grads)
    assert opt.steps == MANY * STEPS
    assert all(np.array_equal(w, wanted[name]) for name, w in weights.items())


# In a process of its own, because libraries that others of these tests import do not bear being forked.
FORKING = """
import os, threading, numpy as np, layerwise
from layerwise.numpy import Lamb

def stepped():
    draw, optimizer = np.random.default_rng(0), Lamb(0.1, weight_decay=0.1, engine="compiled")
    weights = {name: draw.normal(size=(450, 450)).astype(np.float32) for name in "abc"}
    for _ in range(3):
        optimizer.step_all(weights, {name: draw.normal(size=(450, 450)).astype(np.float32) for name in weights})
    return b"".join(w.tobytes() for w in weights.values())

def forked(work):
    if not (child := os.fork()):
        os._exit(7 if work() else 1)
    return child

def left(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

layerwise.set_num_threads(3)
before = stepped()
print([left(child) for child in [forked(lambda: stepped() == before) for _ in range(2)]], stepped() == before)

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
child = forked(lambda: opt.step("w", w, np.ones(3)) or True)
go.set()
thread.join()
print(left(child), opt.steps)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_has_threads_of_its_own_and_steps_what_another_thread_was_stepping():
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[7, 7] True\n7 1\n", done.stderr


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled(), reason="has the lock")
def test_the_extension_leaves_the_lock_off():
    assert not sys._is_gil_enabled()


# ---- what people say


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None, True, float("nan")])
def test_a_bad_number_of_threads_is_refused(n):
    with pytest.raises(HyperparameterError, match="`n` must be an integer"):
        layerwise.set_num_threads(n)


@pytest.mark.parametrize(("asked", "had"), [(3, 3), (10**9, 1024)])
def test_the_extension_has_as_many_threads_as_were_asked_for(asked, had, threads):
    threads(asked)
    assert layerwise.get_num_threads() == _native.num_threads() == had


def test_the_environment_says_how_many_threads_and_which_instructions(monkeypatch):
    before = _native.instruction_set()
    monkeypatch.setattr("layerwise.engines.processor._given", None)
    for name, value in {"LAYERWISE_NUM_THREADS": "3", "LAYERWISE_ISA": "Baseline"}.items():
        monkeypatch.setenv(name, value)
    compiled.read_environment()
    assert (layerwise.get_num_threads(), _native.num_threads(), _native.instruction_set()) == (3, 3, "baseline")
    monkeypatch.setenv("LAYERWISE_ISA", "mmx")
    with pytest.raises(EngineError, match=r"LAYERWISE_ISA must be one of .*baseline on this machine, but is 'mmx'"):
        compiled.read_environment()
    assert not _native.use_instruction_set("mmx")
    assert _native.instruction_set() == "baseline"
    assert _native.use_instruction_set(before)
    monkeypatch.setenv("LAYERWISE_NUM_THREADS", "many")
    with pytest.raises(HyperparameterError, match="`LAYERWISE_NUM_THREADS` must be an integer ≥ 1, but is 'many'"):
        layerwise.get_num_threads()
