"""Jobs on several devices: the meta device stands for a second one, and nothing may be given to it from the first."""

from __future__ import annotations

import pytest
import torch
from engines.worlds import mapped
from gpu.world import RULE, SMALL, cases, jobs_of, near, prepared
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layerwise.engines.gpu import GpuEngine, specialization
from layerwise.engines.gpu.kernels import common
from layerwise.rules.requests import Now

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
    run, launches = type(common.root).run, []

    def launched(self, *args, **kwargs):
        launches.append(one_device(self.__name__, args, kwargs))
        if not any(isinstance(x, torch.Tensor) and x.is_meta for x in args):
            run(self, *args, **kwargs)

    monkeypatch.setattr(type(common.root), "run", launched)
    monkeypatch.setattr(specialization, "DEVICES", ("cpu", "meta"))
    stepped(GpuEngine(sizes=SMALL), case, 4e-6)
    assert min(launches.count({device}) for device in ("cpu", "meta")) > 1
