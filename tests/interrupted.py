"""A process whose steps are interrupted at random moments, and which prints what it then found, as JSON for each way.

Each step begins in a state that is saved first. Afterwards weights, moments and counts must be, all of them, either
what they were or what the same step makes of them undisturbed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np

from layerwise import set_num_threads

TRIES, WANTED = (60, 12) if os.environ.get("CI") else (18, 8)  # of these so many after the step has begun
MOST = 400


def interrupted(step: Callable[[], Any], delay: float) -> bool:
    """Whether an interrupt came out of the step, or right before or behind it."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            step()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True
    return False


def drawn(low: float, high: float) -> float:
    return max(1e-6, random.uniform(low, high))


class Numpy:
    """Named arrays, in their first step or in later ones."""

    together = True

    def __init__(self, engine: str | None, first: bool) -> None:
        from layerwise.numpy import Lamb

        self._made, self._first = lambda: Lamb(lr=0.1, engine=engine), first
        draw = np.random.default_rng(0)
        self._weights = {name: draw.normal(size=(90, 90)) for name in "abc"}
        self._grads = {name: draw.normal(size=(90, 90)) for name in "abc"}
        self._opt = self._made()
        self._begin()

    def _begin(self) -> None:
        self._opt = self._made()
        if not self._first:
            self._opt.step_all(self._weights, self._grads)

    def saved(self) -> Any:
        if self._first:
            self._begin()
        return {name: w.copy() for name, w in self._weights.items()}, self._opt.state_dict()

    def state(self) -> list[Any]:
        return [(self._weights, _known(self._opt))]

    def step(self) -> None:
        self._opt.step_all(self._weights, self._grads)

    def undisturbed(self, saved: Any) -> tuple[list[Any], list[Any]]:
        weights, state = saved
        twin = self._made()
        twin.load_state_dict(state)
        before = [({name: w.copy() for name, w in weights.items()}, _known(twin))]
        twin.step_all(weights, self._grads)
        return before, [(weights, _known(twin))]


def _known(opt: Any) -> dict[str, Any]:
    return {**opt.state_dict(), "known": np.array(opt.num_parameters)}


class Torch:
    """Parameters of a small model, stepped in one of several ways."""

    def __init__(self, way: str) -> None:
        import torch

        self._torch, self._way = torch, way
        self.together = way != "backward"
        self._dtype = torch.bfloat16 if way == "master" else torch.float32
        self._model, self._opt = self._made()
        self.saved()
        self.step()

    def _made(self) -> Any:
        from layerwise.torch import Lamb, step_in_backward

        torch = self._torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(70, 70) for _ in range(3))).to(self._dtype)
        if self._way == "sharded":
            from torch.distributed.tensor import Shard, distribute_module, distribute_tensor, init_device_mesh

            def cut(name: str, module: Any, mesh: Any) -> None:
                for key, p in list(module.named_parameters(recurse=False)):
                    setattr(module, key, torch.nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))

            model = distribute_module(model, init_device_mesh("cpu", (1,)), cut)
        options = {"master_weights": True} if self._way == "master" else {}
        opt = Lamb(model.named_parameters(), lr=0.1, fused=False if self._way == "rule" else None, **options)
        if self._way == "backward":
            step_in_backward(opt)
        return model, opt

    def _gradients(self, model: Any) -> None:
        for i, p in enumerate(model.parameters()):
            p.grad = self._torch.sin(p.detach() * 7 + i)

    def _loss(self, model: Any) -> Any:
        return sum(self._torch.cos(p).sum() for p in model.parameters())

    def _take(self, model: Any, opt: Any) -> None:
        if self._way == "backward":
            self._loss(model).backward()
        elif self._way == "closure":

            def closure() -> float:
                self._gradients(model)
                return 0.0

            opt.step(closure)
        else:
            opt.step()

    def step(self) -> None:
        self._take(self._model, self._opt)

    def saved(self) -> Any:
        self._model.zero_grad()
        if self._way != "backward":
            self._gradients(self._model)
        return [p.detach().clone() for p in self._model.parameters()], deepcopy(self._opt.state_dict())

    def _found(self, model: Any, opt: Any) -> list[Any]:
        def plain(x: Any) -> Any:
            x = x.detach().clone()
            return (x.to_local() if hasattr(x, "to_local") else x).float().numpy()

        each = [{"p": plain(p), **{key: plain(x) for key, x in opt.state[p].items()}} for p in model.parameters()]
        return [({}, one) for one in each]

    def state(self) -> list[Any]:
        return self._found(self._model, self._opt)

    def undisturbed(self, saved: Any) -> tuple[list[Any], list[Any]]:
        weights, state = saved
        model, opt = self._made()
        with self._torch.no_grad():
            for p, w in zip(model.parameters(), weights, strict=True):
                p.copy_(w)
        opt.load_state_dict(state)
        before = self._found(model, opt)
        if self._way != "backward":
            self._gradients(model)
        self._take(model, opt)
        return before, self._found(model, opt)


def same(one: Any, other: Any) -> bool:
    return all(
        a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)
        for a, b in zip(one, other, strict=True)
    )


def tried(front: str, way: str) -> dict[str, int]:
    if way == "sharded":
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    what: Any = Numpy("rule" if way == "rule" else None, way == "first") if front == "numpy" else Torch(way)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    lengths = []
    for _ in range(5):
        what.saved()
        begun = time.perf_counter()
        what.step()
        lengths.append(time.perf_counter() - begun)
    length = sorted(lengths)[2]
    found = {"interrupts": 0, "taken": 0, "wrong": 0}
    for number in range(MOST):
        if number >= TRIES and found["taken"] >= WANTED:
            break
        saved = what.saved()
        begun = time.perf_counter()
        hit = interrupted(what.step, drawn(0, 1.2 * length))
        if not hit:  # so that a busy machine, where a step once took long, does not make most interrupts come too late
            length = min(length, time.perf_counter() - begun)
        now = what.state()
        before, after = what.undisturbed(saved)
        was = [same(*both) for both in zip(now, before, strict=True)]
        is_ = [same(*both) for both in zip(now, after, strict=True)]
        right = (all(was) or all(is_)) if what.together else all(a or b for a, b in zip(was, is_, strict=True))
        found["interrupts"] += hit
        found["taken"] += hit and any(is_) and not all(was)
        found["wrong"] += not right
    return found


def main(front: str, *ways: str) -> None:
    set_num_threads(1)
    print(json.dumps({way: tried(front, way) for way in ways}))


if __name__ == "__main__":
    main(*sys.argv[1:])
