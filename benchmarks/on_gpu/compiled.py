"""What torch.compile makes: of our rule, over all tensors at once and in place; and of other optimizers' steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from harness.peers import DECAY, LR, Peer
from harness.tensors import stepping
from harness.timing import Running, Step
from layerwise.catalog.registry import ENTRIES
from layerwise.drivers import TensorRun, drive_whole
from layerwise.engines import Job, addresses
from layerwise.rules.arrays import apply_moves
from layerwise.rules.requests import Now
from layerwise.torch.step._engines import ForeachEngine
from on_gpu.place import RULE

MOST = 90  # seconds that one may take to be compiled
TRIES = 8  # steps after which nothing may be compiled any more

Compile = Callable[[Any, Sequence[Tensor]], Callable[..., object]]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError where it takes longer."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"not compiled within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def by_inductor(graph: Any, inputs: Sequence[Tensor]) -> Callable[..., object]:
    """What torch.compile does with a graph, without Dynamo, whose work tracing has already done."""
    compiled: Callable[..., object] = torch._inductor.compile(graph, list(inputs))
    return compiled


def as_traced(graph: Any, inputs: Sequence[Tensor]) -> Callable[..., object]:
    """Nothing compiled: to try everything else where there is no GPU."""
    traced: Callable[..., object] = graph
    return traced


class CompiledPeer(Peer):
    """A step that is compiled first, in so many seconds at most."""

    def start(self, work: Any) -> Running:
        seconds: Callable[[], float] = self.options["seconds"]
        with within(min(MOST, seconds())):
            return self.compiled(work)

    def make(self, params: list[Any]) -> Any:
        return Peer(self.label, self.target, self.options["of"]).make(params)

    def compiled(self, work: Any) -> Running:
        raise NotImplementedError


class CompiledStep(CompiledPeer):
    """torch.compile of an optimizer's `step`."""

    def compiled(self, work: Any) -> Running:
        import_module(self.target.partition(":")[0])  # all of its package, where Dynamo looks things up by name
        optimizer = self.make(work.params)
        optimizer.step()  # makes the state
        step = torch.compile(optimizer.step, backend=self.options["backend"])
        settle(step)
        return stepping(self.label, work, step, optimizer.state)


def settle(step: Step) -> None:
    """Take steps until two of them compile nothing."""
    quiet = 0
    for _ in range(TRIES):
        before = counters["stats"]["unique_graphs"]
        step()
        quiet = quiet + 1 if counters["stats"]["unique_graphs"] == before else 0
        if quiet == 2:
            return
    raise RuntimeError(f"something is compiled anew in each of {TRIES} steps")


class CompiledRule(CompiledPeer):
    """The rule of one of our optimizers, compiled for these tensors; `target` names the optimizer."""

    def make(self, params: list[Any]) -> Any:
        return Peer(self.label, self.target, {**self.options["of"], **RULE}).make(params)

    def compiled(self, work: Any) -> Running:
        name = self.target.partition(":")[2]
        whole = self.options["whole"](name, work.params, self.options["of"])
        flat = whole.flat()
        with torch.no_grad():
            graph = make_fx(whole, tracing_mode="fake")(*flat)
            function = self.options["compile"](graph, flat)

        def step() -> None:
            with torch.no_grad():
                function(*flat)

        return stepping(self.label, work, step, whole.states)


class WholeStep:
    """The step of all tensors as one function, which writes to them; t and lr are tensors too."""

    def __init__(self, name: str, params: Sequence[Tensor], options: Any) -> None:
        settings = ENTRIES[name].hyper(lr=LR, weight_decay=DECAY, **options)
        self._rule: Any = ENTRIES[name].rule
        self._h = [settings.fit(tuple(p.shape), (), torch.finfo(p.dtype).eps) for p in params]
        self._params, self._grads = [p.detach() for p in params], [p.grad for p in params]
        self.states = [self._zeros(h, p) for h, p in zip(self._h, params, strict=True)]
        self._now = [self._params[0].new_zeros(()), self._params[0].new_full((), LR)]

    def _zeros(self, h: Any, p: Tensor) -> list[Tensor | None]:
        shapes = self._rule.shapes(h, tuple(p.shape))
        return [None if shape is None else p.new_zeros(shape) for shape in shapes]

    def flat(self) -> list[Tensor]:
        states = [x for state in self.states for x in state if x is not None]
        return [*self._params, *self._grads, *states, *self._now]

    def __call__(self, *flat: Tensor) -> None:
        """Take the step."""
        given = iter(flat)
        params, grads = ([next(given) for _ in self._params] for _ in range(2))
        states = [self._rule.State(*(None if x is None else next(given) for x in state)) for state in self.states]
        t, lr = given
        t.add_(1)
        self._step(params, grads, states, Now(t, lr, DECAY))

    def _step(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Any], now: Now) -> None:
        each = zip(params, grads, states, self._h, strict=True)
        runs = [self._run(p, g, state, h, now) for p, g, state, h in each]
        for (done,), p, state in zip(drive_whole(torch, runs), params, states, strict=True):
            for stored, new in zip(state, done.state, strict=True):
                if stored is not None:
                    stored.copy_(new)
            p.copy_(apply_moves(torch, p, done.moves))

    def _run(self, p: Tensor, g: Tensor, state: Any, h: Any, now: Now) -> TensorRun:
        return TensorRun((self._rule.step(torch, p, g, state, h, now),), tuple(p.shape))


class StepOfLists(WholeStep):
    """The same on lists of tensors, as `foreach` steps them."""

    def _step(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Any], now: Now) -> None:
        jobs = [Job(self._rule, *one) for one in zip(self._h, params, states, strict=True)]
        with patch.object(addresses, "addresses_of", Nowhere):
            ForeachEngine(anywhere=True).prepare(jobs).step(grads, [now] * len(jobs))


class Nowhere:
    """The places of tensors that are traced, which lie nowhere."""

    def __init__(self, arrays: Sequence[Tensor]) -> None:
        pass

    def same(self, arrays: Sequence[Tensor]) -> bool:
        return True

    like = same
