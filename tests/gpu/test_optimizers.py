"""The PyTorch optimizers on the GPU engine: what they do by the rule they do with kernels, without waiting for them."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy

import pytest
import torch
from cases import KERNELED
from contract.apis import close
from gpu.front import SHAPES, alike, both, fronts, give, parameters, walk
from gpu.world import DEVICE
from torch_front.front import BUSY, bits

from layerwise.torch import Lamb, Mixed

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


def test_groups_may_have_different_rules():
    def mixed(params, **more):
        rules = [{"params": params[i :: len(KERNELED)], "rule": x.name, **x.busy} for i, x in enumerate(KERNELED)]
        return Mixed(rules, max_grad_norm=0.5, capturable=True, **more)

    ours, theirs = (parameters(shapes=[shape for shape in SHAPES for _ in KERNELED]) for _ in range(2))
    pairs = (ours, mixed(ours, fused=True)), (theirs, mixed(theirs, fused=False))
    walk(pairs, range(2))
    alike(ours, theirs)
    check_stats(pairs[0][1], pairs[1][1])


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
def test_what_a_scaler_found_on_the_device_skips_the_step(front, capturable):
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


@pytest.mark.thinned(1)
@pytest.mark.kinds("factored")
@fronts
def test_weights_and_state_go_when_nobody_has_them_any_more(front):
    """Without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        (params, opt), rest = both(front, max_grad_norm=1.0, capturable=True)
        del rest
        for seed in range(2):
            give(params, seed)
            opt.step()
        opt.stats()
        grads = [weakref.ref(p.grad) for p in params]
        opt.zero_grad()  # while the optimizer lives
        assert not any(ref() is not None for ref in grads)
        tensors = [*params, *(x for state in opt.state.values() for x in state.values())]
        refs = [weakref.ref(x) for x in tensors if isinstance(x, torch.Tensor)]
        del params, opt, tensors
        assert not any(ref() is not None for ref in refs)
    finally:
        gc.enable()


def test_autograd_knows_that_parameters_were_written():
    params = parameters()
    opt = Lamb(params, fused=True)
    kept = params[0] * params[0]
    give(params, 0)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()
