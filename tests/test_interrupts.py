"""An interrupt leaves a step taken and counted, or not begun; the end of the process waits for no step."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from layerwise.engines import compiled
from layerwise.numpy import Lamb

CHILD = Path(__file__).with_name("interrupted.py")
WAYS = {
    "numpy": ("ordinary", "first", "rule"),
    "torch": ("ordinary", "closure", "backward", "master", "rule", "sharded"),
}
CANNOT_WAIT = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGKILL", "SIGSTOP")
ALL = sorted(signal.valid_signals() - {getattr(signal, name, None) for name in CANNOT_WAIT})
pytestmark = pytest.mark.skipif(compiled._native is None, reason="the extension is not built")


@cache
def tried(front):
    """What one process found, which tries every way of a front: most of its time goes into imports."""
    command = [sys.executable, CHILD, front, *WAYS[front]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(("front", "way"), [(front, way) for front, ways in WAYS.items() for way in ways])
def test_at_random_moments(front, way):
    found = tried(front)[way]
    assert found["wrong"] == 0, found
    assert found["taken"] > 5, found  # interrupts that came while a step was under way


def sending(*numbers):
    """A learning rate that sends these signals while a step is taken."""

    def lr(step):
        for number in numbers:
            signal.raise_signal(number)
        sum(range(100))  # where they would be handled
        return 0.1

    return lr


@pytest.fixture
def handlers():
    """Restores the handlers that a test sets."""
    kept = {number: signal.getsignal(number) for number in {*ALL, signal.SIGINT}}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


engines = pytest.mark.parametrize("engine", [None, "rule"])


@engines
@pytest.mark.parametrize("number", ALL)
def test_the_handler_is_called_when_the_step_is_counted(handlers, engine, number):
    seen = []
    opt, w = Lamb(lr=sending(number), engine=engine), np.ones((3, 3))
    signal.signal(number, lambda *given: seen.append((given[0], int(opt.state_dict()["w/step"]))))
    handler = signal.getsignal(number)
    opt.step("w", w, np.ones((3, 3)))
    assert seen == [(number, 1)]
    assert (w != 1).all()
    assert signal.getsignal(number) is handler


@engines
def test_the_first_step_keeps_its_state(handlers, engine):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    opt, w = Lamb(lr=sending(signal.SIGINT), engine=engine), np.ones((3, 3))
    with pytest.raises(KeyboardInterrupt):
        opt.step("w", w, np.ones((3, 3)))
    assert opt.num_parameters == 1
    assert int(opt.state_dict()["w/step"]) == 1
    assert (w != 1).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_raises_takes_no_other_its_turn(handlers):
    def raises(*_):
        raise KeyboardInterrupt

    seen = []
    signal.signal(signal.SIGINT, raises)
    signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
    opt = Lamb(lr=sending(signal.SIGALRM, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        opt.step("w", np.ones(3), np.ones(3))
    assert seen == ["alarm"]
    assert signal.getsignal(signal.SIGINT) is raises


class Interrupting:
    """A gradient that is interrupted as it is read."""

    def __array__(self, *args, **kwargs):
        signal.raise_signal(signal.SIGALRM)
        return np.ones(3)


def test_a_handler_may_take_a_step_where_several_signals_came(handlers):
    """In which signals are held again, while others of the first step still wait for their handlers."""
    inner, own, called = Lamb(lr=0.1), np.ones(3), []

    def steps(number, frame):
        called.append(number)
        inner.step("own", own, np.ones(3))

    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH)
    for number in numbers:
        signal.signal(number, steps)
    opt, w = Lamb(lr=sending(*numbers)), np.ones(3)
    for t in range(20):
        opt.step("w", w, np.ones(3))
        assert sorted(called) == sorted(numbers * (t + 1))
    assert int(inner.state_dict()["own/step"]) == len(called)


def test_what_a_handler_raises_is_no_error_of_a_gradient(handlers):
    def raises(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, raises)
    opt, w = Lamb(), np.ones(3)
    with pytest.raises(TimeoutError):
        opt.step_all({"w": w}, {"w": Interrupting()})
    assert int(opt.state_dict()["w/step"]) == 1


def test_an_error_comes_out_beside_an_interrupt(handlers):
    def lr(step):
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("of the schedule")

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt) as raised:
        Lamb(lr=lr).step("w", np.ones(3), np.ones(3))
    assert "of the schedule" in repr(raised.value.__context__)


def test_what_stands_before_pythons_handler_stays(handlers, tmp_path):
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append("python"))
    with (tmp_path / "trace").open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, chain=True)
        try:
            Lamb().step("w", np.ones(3), np.ones(3))
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert seen == ["python"]
    assert "test_interrupts" in (tmp_path / "trace").read_text()


def test_ignored_signals_stay_ignored(handlers):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    Lamb(lr=sending(signal.SIGUSR1)).step("w", np.ones(3), np.ones(3))
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_other_threads_step_as_always(handlers):
    opt, w = Lamb(), np.ones(3)
    thread = threading.Thread(target=lambda: [opt.step("w", w, np.ones(3)) for _ in range(50)])
    thread.start()
    thread.join()
    assert int(opt.state_dict()["w/step"]) == 50


AT_EXIT = """
import threading, time, numpy as np, layerwise
from layerwise.numpy import Lamb
layerwise.set_num_threads(2)
def loop():
    w, g, opt = {"w": np.ones((1500, 1000))}, {"w": np.ones((1500, 1000))}, Lamb(lr=0.01)
    while True:
        opt.step_all(w, g)
for _ in range(2):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.4)
print("ends", flush=True)
"""


def test_a_daemon_thread_may_be_in_a_step_at_the_end():
    for _ in range(4 if os.environ.get("CI") else 2):
        run = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120, check=False)
        assert (run.returncode, run.stdout, run.stderr) == (0, "ends\n", "")
