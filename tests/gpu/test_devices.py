"""Jobs on several devices: the meta device stands for a second one, and nothing may be given to it from the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from cases import KERNELED
from engines.worlds import make_job, mapped, stored
from gpu.world import GPU, RULE, SMALL
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layerwise import engines
from layerwise.drive import Run, local
from layerwise.engines.distributor import prepare
from layerwise.engines.gpu import engine
from layerwise.engines.gpu.engine import GpuEngine
from layerwise.engines.gpu.kernels import parts
from layerwise.rules.asks import ModelSum, Now
from layerwise.torch import Lamb
from layerwise.torch.step import _tensors
from layerwise.torch.step._namespace import beside

cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
MOVING = {"_to_copy", "copy_", "empty", "empty_strided"}


def one_device(what, *given):
    devices = {x.device for x in tree_leaves(given) if isinstance(x, torch.Tensor)}
    assert len(devices) < 2, (what, devices)
    return {device.type for device in devices}


class Apart(TorchDispatchMode):
    """No operation takes tensors of two devices, be they of one number. `used` are the devices that computed."""

    def __init__(self):
        super().__init__()
        self.used = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in MOVING:
            self.used |= one_device(name, args, kwargs)
        return func(*args, **(kwargs or {}))


def jobs_of(case):
    jobs = [
        mapped(make_job(case, case.hyper(lr=0.1), shape, (), i), GPU.array) for i, shape in enumerate([(6, 5), (7,)])
    ]
    return [jobs[0], mapped(jobs[1], lambda a: a.to("meta"))]


def step(own, jobs, **more):
    ready = prepare((own,), [engines.Job(j.rule, j.h, j.p, j.state) for j in jobs])
    told = [torch.tensor(x, dtype=torch.float64) for x in (0.25, 0.125, 2.0)]
    for skipped in (True, False):
        before = jobs[0].p.clone()
        ready.step([j.g for j in jobs], [Now(1, *told)] * 2, torch.tensor(skipped), **more)
        assert torch.equal(before, jobs[0].p) == skipped
    return ready


def check(case, jobs, tolerance):
    """The job on the first device became what the rule makes of it alone."""
    alone = jobs_of(case)[:1]
    step(RULE, alone)
    for ours, theirs in zip(stored(jobs[0]), stored(alone[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@cases
def test_by_the_rule(case):
    jobs = jobs_of(case)
    with Apart() as seen:
        step(RULE, jobs)
    assert seen.used == {"cpu", "meta"}
    check(case, jobs, 0.0)


class Number(NamedTuple):
    """A number that can be added to those of its own device."""

    value: float
    device: str

    def __add__(self, other):
        assert self.device == other.device
        return Number(self.value + other.value, self.device)


def asking(number):
    """A rule that returns the sum over the model."""
    return (yield (ModelSum(number),))[0]


def test_a_sum_over_the_model_is_brought_to_each_device():
    library = SimpleNamespace(
        squares=lambda x, dims: x,
        reshape=lambda x, shape: x,
        beside=lambda x, like: Number(x.value, like.device),
    )
    given = [Number(1.0, "a"), Number(2.0, "b"), Number(4.0, "b")]
    runs = [Run((asking(one),), (), together=True) for one in given]
    assert [found for (found,) in local(library, runs)] == [Number(7.0, one.device) for one in given]


def test_what_is_brought_beside_a_number_is_one():
    assert beside(torch.tensor(2.0), 1.0) == beside(2.0, torch.tensor(1.0)) == 2.0
    assert not isinstance(beside(torch.tensor(2.0), 1.0), torch.Tensor)
    assert beside(torch.tensor(2.0), torch.tensor(1.0, device="meta")).is_meta


@cases
@pytest.mark.skipif(torch.cuda.is_available(), reason="devices stand for GPUs")
def test_by_kernels(case, monkeypatch):
    run, launches = type(parts.add_up).run, []

    def launched(self, *args, **kwargs):
        launches.append(one_device(self.__name__, args, kwargs))
        if not any(isinstance(x, torch.Tensor) and x.is_meta for x in args):
            run(self, *args, **kwargs)

    monkeypatch.setattr(type(parts.add_up), "run", launched)
    monkeypatch.setattr(engine, "DEVICES", ("cpu", "meta"))
    jobs = jobs_of(case)
    with Apart():
        step(GpuEngine(None, SMALL), jobs)
    assert min(launches.count({device}) for device in ("cpu", "meta")) > 2
    check(case, jobs, 4e-6)


def test_what_another_device_has_found_is_counted_with_the_rest(monkeypatch):
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    opt = Lamb([p], fused=False)
    monkeypatch.setattr(_tensors, "to_skip", lambda *_: torch.tensor(True))
    opt._skipped = torch.tensor(3, device="meta")
    with Apart():
        opt.step()
    assert opt._skipped.is_meta
    assert torch.equal(p, torch.ones(3))
