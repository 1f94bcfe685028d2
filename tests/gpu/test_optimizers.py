"""The PyTorch optimizers on the GPU engine: what they do by the rule they do with kernels, without waiting for them."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from contract.apis import close
from gpu.front import alike, both, fronts, give, parameters, walk
from gpu.world import DEVICE
from torch_front.front import BUSY, bits

from layerwise.torch import Lamb

pytestmark = pytest.mark.usefixtures("on_gpu")


def check_stats(ours, theirs):
    stats, expected = ours.stats(), theirs.stats()
    assert stats.keys() == expected.keys()
    for name, measured in expected.items():
        close(stats[name], measured, 1e-5)


@pytest.mark.thinned(2)
@pytest.mark.kinds("factored")
@fronts
@pytest.mark.parametrize("options", [{"capturable": True, "max_grad_norm": 1.0}, {"skip_nonfinite": True}], ids=str)
def test_steps_are_those_by_the_rule(front, options):
    pairs = both(front, **options)
    walk(pairs, range(2))
    walk(pairs, [3], but=(1,))
    walk(pairs, [4])
    (ours, opt), (theirs, other) = pairs
    alike(ours, theirs)
    assert [int(opt.state[p]["step"]) for p in ours] == [int(other.state[p]["step"]) for p in theirs] == [4, 3, 4, 4]
    check_stats(opt, other)


@pytest.mark.thinned(1)
@pytest.mark.kinds("factored")
@fronts
def test_a_state_goes_to_the_rule_and_back(front):
    (ours, opt), (theirs, other) = pairs = both(front, capturable=True)

    def carry(source, params, target, others):
        with torch.no_grad():
            for p, q in zip(params, others, strict=True):
                q.copy_(p)
        target.load_state_dict(deepcopy(source.state_dict()))

    walk(pairs[:1], range(2))
    carry(opt, ours, other, theirs)
    walk(pairs, [2])
    alike(ours, theirs)
    walk(pairs[1:], [3])  # or the engine would have this state already
    carry(other, theirs, opt, ours)
    walk(pairs, [4])
    alike(ours, theirs)


@pytest.mark.thinned(1)
@fronts
@pytest.mark.parametrize("capturable", [False, True])
def test_an_overflow_found_on_the_device_skips_the_step(front, capturable):
    params = parameters()
    opt = front(params, fused=True, capturable=capturable, **BUSY[front])
    give(params, 0)
    opt.step()
    before = bits([p.cpu() for p in params]), bits(opt.state_dict()["state"])
    opt.grad_scale, opt.found_inf = torch.tensor(4.0, device=DEVICE), torch.tensor(1.0, device=DEVICE)
    for p in params:
        p.grad.fill_(torch.inf)
    opt.step()
    assert (bits([p.cpu() for p in params]), bits(opt.state_dict()["state"])) == before
    assert int(opt.skipped) == 1
    opt.found_inf = torch.tensor(0.0, device=DEVICE)
    give(params, 1)
    opt.step()
    assert bits([p.cpu() for p in params]) != before[0]
    assert {int(opt.state[p]["step"]) for p in params} == {2}


def test_autograd_knows_that_parameters_were_written():
    params = parameters()
    opt = Lamb(params, fused=True)
    kept = params[0] * params[0]
    give(params, 0)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()
