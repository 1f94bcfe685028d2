"""The PyTorch optimizers on the GPU engine: what they do with the others they do with it, without waiting for it."""

from __future__ import annotations

import warnings
from copy import deepcopy

import pytest
import torch
from gpu.front import alike, both, fronts, give, parameters, waiting_refused, walk
from gpu.world import DEVICE
from reference.adafactor import ramp
from torch_front.front import BUSY, bits, close

from layerwise.engines.gpu.kernels import parts
from layerwise.torch import Adafactor, Lamb

pytestmark = pytest.mark.usefixtures("on_gpu")


@fronts
@pytest.mark.parametrize(
    "options", [{}, {"capturable": True}, {"max_grad_norm": 1.0}, {"skip_nonfinite": True}], ids=str
)
def test_as_by_the_rule(front, options):
    pairs = both(front, **options)
    walk(pairs, range(3))
    walk(pairs, [3], but=(1,))
    walk(pairs, [4])
    (ours, opt), (theirs, other) = pairs
    alike(ours, theirs)
    assert [int(opt.state[p]["step"]) for p in ours] == [int(other.state[p]["step"]) for p in theirs] == [5, 4, 5, 5]
    stats, expected = opt.stats(), other.stats()
    for name, measured in expected.items():
        close(stats[name], measured, 1e-5)


@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"capturable": True, "decay_offset": 2}], ids=str)
@pytest.mark.parametrize("beta2", [ramp, 0.6], ids=["function", "number"])
def test_a_decay_of_one_s_own(beta2, options):
    if beta2 == 0.6:
        options = {name: value for name, value in options.items() if name != "decay_offset"}
    pairs = both(Adafactor, beta2=beta2, **options)
    plain = both(Adafactor, **{name: value for name, value in options.items() if name != "decay_offset"})
    walk(pairs, range(3))
    walk(pairs, [3], but=(1,))
    walk(pairs, [4])
    walk(plain[1:], range(5))
    (ours, _), (theirs, _) = pairs
    alike(ours, theirs)
    assert not any(torch.allclose(p, q, rtol=1e-4) for p, q in zip(ours, plain[1][0], strict=True))


@fronts
def test_master_weights(front):
    pairs = both(front, torch.bfloat16, master_weights=True)
    walk(pairs, range(3))
    (ours, opt), (theirs, other) = pairs
    for p, q in zip(ours, theirs, strict=True):
        close({"m": opt.state[p]["master"].cpu()}, {"m": other.state[q]["master"].cpu()}, 4e-6)
        assert torch.equal(p, opt.state[p]["master"].bfloat16())


@fronts
def test_a_state_goes_to_the_rule_and_back(front):
    (ours, opt), (theirs, other) = both(front, capturable=True)
    walk([(ours, opt)], range(2))
    with torch.no_grad():
        for p, q in zip(ours, theirs, strict=True):
            q.copy_(p)
    other.load_state_dict(deepcopy(opt.state_dict()))
    walk([(ours, opt), (theirs, other)], range(2, 4))
    alike(ours, theirs)
    walk([(theirs, other)], [4])  # or the engine would have this state already
    opt.load_state_dict(deepcopy(other.state_dict()))
    with torch.no_grad():
        for p, q in zip(ours, theirs, strict=True):
            p.copy_(q)
    walk([(ours, opt), (theirs, other)], range(5, 7))
    alike(ours, theirs)


@fronts
@pytest.mark.parametrize("capturable", [False, True])
def test_found_inf_on_the_device_skips(front, capturable):
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


@fronts
def test_a_scheduler_moves_a_learning_rate_on_the_device(front):
    if "lr" not in BUSY[front]:
        pytest.skip("no learning rate")
    (ours, opt), (theirs, other) = both(front, capturable=True, lr=torch.tensor(0.5, device=DEVICE))
    for params, one in ((ours, opt), (theirs, other)):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(one, 0.5)
        for seed in range(3):
            give(params, seed)
            one.step()
            scheduler.step()
    assert isinstance(opt.param_groups[0]["lr"], torch.Tensor)
    alike(ours, theirs)


@fronts
def test_a_step_launches_as_much_for_many_tensors(front, monkeypatch):
    launched = []
    kind, run = type(parts.add_up), type(parts.add_up).run
    monkeypatch.setattr(kind, "run", lambda self, *a, **k: (launched.append(self.__name__), run(self, *a, **k))[1])
    counts = []
    for n in (2, 9):
        params = parameters(shapes=[(4, 3)] * n)
        opt = front(params, fused=True, capturable=True, **BUSY[front])
        for seed in range(2):
            launched.clear()
            give(params, seed)
            opt.step()
        counts.append(list(launched))
    assert counts[0] == counts[1]


def test_autograd_knows_that_parameters_were_written():
    params = parameters()
    opt = Lamb(params, fused=True)
    kept = params[0] * params[0]
    give(params, 0)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_waiting_is_allowed_again_whatever_happens(monkeypatch):
    """PyTorch warns when the mode has been set, and warnings are errors here."""
    modes = []

    def set_mode(mode):
        modes.append(mode)
        if mode == "error":
            warnings.warn("the mode is a prototype", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with waiting_refused():
        assert modes == ["error"]
    with pytest.raises(ZeroDivisionError), waiting_refused():
        raise ZeroDivisionError
    assert modes == ["error", "default"] * 2
