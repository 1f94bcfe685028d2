"""Lists of tensors on a GPU (`foreach=True`), where there is one; tests/engines/test_foreach.py tries them on CPUs."""

from __future__ import annotations

import pytest
import torch
from cases import CASES
from gpu.front import alike, give, had_by, parameters, waiting_refused, walk
from gpu.test_graphs import captured, refill
from gpu.world import DEVICE
from torch_front.front import BUSY, FRONT_OF

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
every = pytest.mark.parametrize("front", [FRONT_OF[case.name] for case in CASES])
in_lists = pytest.mark.parametrize("front", [FRONT_OF[case.name] for case in CASES])


def both(front, dtype=torch.float32, **options):
    """The optimizer on lists, and the same tensor by tensor."""
    found = []
    for how in ({"foreach": True}, {"foreach": False, "fused": False}):
        params, given = parameters(dtype), had_by(front, {**BUSY[front], **options})
        given = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in given.items()}
        found.append((params, front(params, **how, **given)))
    return found


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_steps_are_those_of_each_tensor(front, dtype):
    (ours, opt), (theirs, other) = pairs = both(front, dtype)
    walk(pairs, range(4))
    alike(ours, theirs, {torch.bfloat16: 1e-2, torch.float32: 4e-6, torch.float64: 1e-12}[dtype])
    assert set(opt.engines().values()) == {"foreach"}
    assert set(other.engines().values()) == {"the rule"}


@every
def test_they_are_what_steps_without_kernels(front):
    params = parameters()
    opt = front(params, fused=False, **BUSY[front])
    walk([(params, opt)], range(2))
    assert set(opt.engines().values()) == {"foreach"}


@in_lists
def test_a_step_of_lists_does_not_synchronize(front):
    """Not for norms, ratios, counts, another learning rate, or to know whether to skip."""
    options = {"capturable": True, "lr": torch.tensor(0.5, device=DEVICE), "max_grad_norm": 1.0}
    (ours, opt), (theirs, other) = pairs = both(front, **options)
    walk(pairs, range(3))
    for seed in (3, 4, 5):
        for params, one in pairs:
            give(params, seed)
            one.param_groups[0]["lr"] = torch.tensor(0.5**seed, device=DEVICE)
            one.found_inf = torch.tensor(float(seed == 5), device=DEVICE)
            one.grad_scale = torch.tensor(4.0, device=DEVICE)
        if seed == 3:  # which is laid out anew, because it may be skipped
            opt.step()
        else:
            with waiting_refused():
                opt.step()
        other.step()
    alike(ours, theirs)
    assert {int(opt.state[p]["step"]) for p in ours} == {5}


@in_lists
def test_captured_and_replayed(front):
    (ours, opt), (theirs, other) = pairs = both(front, capturable=True, lr=torch.tensor(0.5, device=DEVICE))
    walk(pairs, range(3))
    graph = captured(opt.step)
    for seed, rate in enumerate([0.5, 0.25, 0.125], 3):
        for _, one in pairs:
            one.param_groups[0]["lr"].fill_(rate)
        refill(pairs, seed)
        graph.replay()
        other.step()
    alike(ours, theirs)
    assert {int(opt.state[p]["step"]) for p in ours} == {6}
