"""Jobs on several devices: the meta device stands for a second one, and nothing may be given to it from the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from engines.worlds import mapped
from gpu.world import RULE, SMALL, cases, jobs_of, near, prepared
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layerwise.drive import Run, local
from layerwise.engines.gpu import GpuEngine, kinds
from layerwise.engines.gpu.kernels import parts
from layerwise.rules.asks import ModelSum, Now
from layerwise.torch import Lamb
from layerwise.torch._stepper import Stepper
from layerwise.torch.step import _tensors
from layerwise.torch.step._namespace import beside

MOVING = {"_to_copy", "copy_", "empty", "empty_strided"}
SHAPES = [(6, 5), (7,)]


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


def stepped(own, case, tolerance):
    """Skip a step of a job on each device and take one; the first becomes what the rule makes of it alone."""
    (first, second), told = (
        jobs_of(case, SHAPES, lr=0.1),
        [torch.tensor(x, dtype=torch.float64) for x in (0.25, 0.125, 2)],
    )
    jobs, [alone] = [first, mapped(second, lambda a: a.to("meta"))], jobs_of(case, SHAPES[:1], lr=0.1)
    with Apart() as seen:
        ready = prepared(jobs, own)
        for skipped in (True, False):
            before = first.p.clone()
            ready.step([job.g for job in jobs], [Now(1, *told)] * 2, torch.tensor(skipped))
            assert torch.equal(before, first.p) == skipped
    prepared([alone], RULE).step([alone.g], [Now(1, *told)])
    near([first], [alone], tolerance, tolerance)
    return seen.used


@pytest.mark.thinned(2)
@cases
def test_the_rule_moves_nothing_from_one_to_the_other(case):
    assert stepped(RULE, case, 0.0) == {"cpu", "meta"}


@pytest.mark.thinned(2)
@pytest.mark.kinds("factored")
@cases
@pytest.mark.skipif(torch.cuda.is_available(), reason="devices stand for GPUs")
def test_kernels_are_launched_where_their_tensors_are(case, monkeypatch):
    run, launches = type(parts.root).run, []

    def launched(self, *args, **kwargs):
        launches.append(one_device(self.__name__, args, kwargs))
        if not any(isinstance(x, torch.Tensor) and x.is_meta for x in args):
            run(self, *args, **kwargs)

    monkeypatch.setattr(type(parts.root), "run", launched)
    monkeypatch.setattr(kinds, "DEVICES", ("cpu", "meta"))
    stepped(GpuEngine(sizes=SMALL), case, 4e-6)
    assert min(launches.count({device}) for device in ("cpu", "meta")) > 1


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


def test_what_another_device_has_found_is_counted_with_the_rest(monkeypatch):
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    opt = Lamb([p], fused=False)
    monkeypatch.setattr(Stepper, "might_skip", True)
    monkeypatch.setattr(_tensors, "to_skip", lambda *_: torch.tensor(True))
    opt._stepper.skipped = torch.tensor(3, device="meta")
    with Apart():
        opt.step()
    assert opt._stepper.skipped.is_meta
    assert torch.equal(p, torch.ones(3))
