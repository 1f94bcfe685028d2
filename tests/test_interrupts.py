"""An interrupt leaves a step taken and counted, or not begun; the end of the process waits for no step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import layerwise
from layerwise.engines import compiled
from layerwise.numpy import Lamb

HOME = os.path.dirname(layerwise.__file__)  # noqa: PTH120  # compared with the names of files as Python has them
CANNOT_WAIT = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGKILL", "SIGSTOP")
ALL = sorted(signal.valid_signals() - {getattr(signal, name, None) for name in CANNOT_WAIT})
pytestmark = pytest.mark.skipif(compiled._native is None, reason="the extension is not built")
engines = pytest.mark.parametrize("engine", [None, "rule"])


@pytest.fixture
def handlers():
    """Restores the handlers that a test sets; an interrupt is a KeyboardInterrupt."""
    kept = {number: signal.getsignal(number) for number in {*ALL, signal.SIGINT}}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


# ---- wherever it comes


@contextmanager
def interrupted_at(number):
    """Send an interrupt before this line of the library is run, and yield a list with the number of lines so far."""
    lines = [0]

    def at_line(frame, event, arg):
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                signal.raise_signal(signal.SIGINT)
        return at_line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: at_line if frame.f_code.co_filename.startswith(HOME) else None)
    try:
        yield lines
    finally:
        sys.settrace(before)


class OfNumpy:
    """A step of several arrays."""

    def __init__(self, way):
        self.way, self.weights = way, {}
        self.grads = {name: np.linspace(1, 2, 6).reshape(2, 3) for name in "ab"}

    def reset(self):
        self.weights = {name: np.ones((2, 3)) for name in self.grads}
        self.opt = Lamb(lr=0.1, engine="rule" if self.way == "rule" else None)
        if self.way != "first":
            self.step()

    def step(self):
        self.opt.step_all(self.weights, self.grads)

    def found(self):
        state = {key: x.tobytes() for key, x in sorted(self.opt.state_dict().items())}
        return [({name: w.tobytes() for name, w in self.weights.items()}, state, self.opt.num_parameters)]


class OfTorch:
    """A step of several parameters, which are found one by one."""

    def __init__(self, way):
        self.torch, self.way = pytest.importorskip("torch"), way

    def reset(self):
        import layerwise.torch as front

        torch = self.torch
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 2).to(torch.bfloat16 if self.way == "master" else torch.float32)
        if self.way == "sharded":
            from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

            mesh = init_device_mesh("cpu", (1,))
            for key, p in list(self.model.named_parameters()):
                setattr(self.model, key, torch.nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))
        engine = {"fused": False} if self.way == "rule" else {}
        master = {"master_weights": True} if self.way == "master" else {}
        self.opt = front.Lamb(self.model.named_parameters(), lr=0.1, **engine, **master)
        if self.way == "backward":
            front.step_in_backward(self.opt)
        if self.way != "first":
            self.prepare()
            self.step()
        self.prepare()

    def prepare(self):
        if self.way != "backward":
            for p in self.model.parameters():
                p.grad = self.torch.sin(p.detach() * 7)

    def step(self):
        if self.way == "backward":
            sum(self.torch.cos(p).sum() for p in self.model.parameters()).backward()
        else:
            self.opt.step((lambda: 0.0) if self.way == "closure" else None)

    def found(self):
        def plain(x):
            return (x.to_local() if hasattr(x, "to_local") else x).detach().float().numpy().tobytes()

        each = [{"p": p, **self.opt.state.get(p, {})} for p in self.model.parameters()]
        found = [{key: plain(x) for key, x in one.items()} for one in each]
        return found if self.way == "backward" else [found]


@pytest.mark.parametrize("way", ["ordinary", "first", "rule"])
def test_a_step_of_numpy_is_taken_or_not_begun_wherever_an_interrupt_comes(handlers, way):
    taken_or_not_begun(OfNumpy(way))


@pytest.mark.parametrize("way", ["ordinary", "first", "closure", "backward", "master", "rule"])
def test_a_step_of_torch_is_taken_or_not_begun_wherever_an_interrupt_comes(handlers, way):
    taken_or_not_begun(OfTorch(way))


def test_a_step_of_sharded_parameters_is_taken_or_not_begun_wherever_an_interrupt_comes(handlers, process_group):
    taken_or_not_begun(OfTorch("sharded"))


def taken_or_not_begun(one):
    """Interrupt it at lines of the library, from the first to the last; each parameter's step where they are apart."""
    one.reset()
    before = one.found()
    with interrupted_at(0) as lines:
        one.step()
    after, seen = one.found(), []
    every = max(1, lines[0] // (150 if os.environ.get("CI") else 24))
    for number in range(1, lines[0] + 1, every):
        one.reset()
        try:
            with interrupted_at(number):
                one.step()
        except KeyboardInterrupt:
            seen.append(one.found())
        assert all(x in (a, b) for x, a, b in zip(one.found(), before, after, strict=True)), number
    assert len(seen) > 10
    assert before in seen
    assert after in seen


# ---- handlers


def sending(*numbers):
    """A learning rate that sends these signals while a step is taken."""

    def lr(step):
        for number in numbers:
            signal.raise_signal(number)
        sum(range(100))  # where they would be handled
        return 0.1

    return lr


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


def test_a_step_within_a_step_calls_no_handler(handlers):
    seen, inner, opt = [], Lamb(lr=0.1), None

    def lr(step):
        inner.step("own", np.ones(3), np.ones(3))
        return sending(signal.SIGALRM)(step)

    signal.signal(signal.SIGALRM, lambda *_: seen.append(int(opt.state_dict()["w/step"])))
    opt = Lamb(lr=lr)
    opt.step("w", np.ones(3), np.ones(3))
    assert seen == [1]


def test_a_handler_that_raises_does_not_prevent_other_handlers(handlers):
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


class Interrupting:
    """A gradient that is interrupted as it is read."""

    def __array__(self, *args, **kwargs):
        signal.raise_signal(signal.SIGALRM)
        return np.ones(3)


def test_an_error_in_a_handler_is_not_a_gradient_error(handlers):
    def raises(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, raises)
    opt, w = Lamb(), np.ones(3)
    with pytest.raises(TimeoutError):
        opt.step_all({"w": w}, {"w": Interrupting()})
    assert int(opt.state_dict()["w/step"]) == 1


def test_an_error_is_reported_with_an_interrupt(handlers):
    def lr(step):
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("of the schedule")

    with pytest.raises(KeyboardInterrupt) as raised:
        Lamb(lr=lr).step("w", np.ones(3), np.ones(3))
    assert "of the schedule" in repr(raised.value.__context__)


def test_ignored_signals_stay_ignored(handlers):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    Lamb(lr=sending(signal.SIGUSR1)).step("w", np.ones(3), np.ones(3))
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


# ---- threads


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
time.sleep(0.3)
print("ends", flush=True)
"""


def test_a_daemon_thread_may_be_in_a_step_at_the_end():
    for _ in range(4 if os.environ.get("CI") else 1):
        run = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120, check=False)
        assert (run.returncode, run.stdout, run.stderr) == (0, "ends\n", "")
