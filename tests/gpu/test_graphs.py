"""The PyTorch optimizers on a GPU, recorded in CUDA graphs and without waiting for it: only where there is one."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from gpu.front import alike, both, fronts, give, waiting_refused, walk
from gpu.world import DEVICE
from torch_front.front import bits

pytestmark = [
    pytest.mark.usefixtures("on_gpu"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def refill(pairs, seed):
    """Other gradients in the same places."""
    for params, _ in pairs:
        torch.manual_seed(seed)
        for p in params:
            p.grad.copy_(torch.randn(p.shape))


def capturable(front, **options):
    """A learning rate on the device, and three steps behind them, so that everything is compiled and laid out."""
    pairs = both(front, capturable=True, lr=torch.tensor(0.5, device=DEVICE), **options)
    walk(pairs, range(3))
    return pairs


def captured(step):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    return graph


def counted(pairs, steps):
    (ours, opt), (theirs, _) = pairs
    alike(ours, theirs)
    assert {int(opt.state[p]["step"]) for p in ours} == {steps}


@fronts
def test_captured_and_replayed(front):
    """Replays take steps of their own: counts go on, and a learning rate and gradients may change where they are."""
    (_, opt), (_, other) = pairs = capturable(front)
    graph = captured(opt.step)
    for seed, rate in enumerate([0.5, 0.25, 0.125], 3):
        for _, one in pairs:
            one.param_groups[0]["lr"].fill_(rate)
        refill(pairs, seed)
        graph.replay()
        other.step()
    counted(pairs, 6)


@fronts
def test_a_step_between_replays(front):
    """It is told of other gradients; the replay after it has its own again."""
    (ours, opt), (_, other) = pairs = capturable(front)
    graph, own = captured(opt.step), [p.grad for p in ours]
    for seed in (3, 5):
        refill(pairs, seed)
        graph.replay()
        other.step()
        walk(pairs, [seed + 1])
        for p, g in zip(ours, own, strict=True):
            p.grad = g
    counted(pairs, 7)


@fronts
@pytest.mark.parametrize("between", [False, True], ids=["in a row", "with a step between"])
def test_captured_twice(front, between):
    """Each of the graphs has gradients of its own."""
    (ours, opt), (theirs, other) = pairs = capturable(front)
    first, own = captured(opt.step), [p.grad for p in ours]
    if between:
        walk(pairs, [3])
    for params, _ in pairs:
        give(params, 4)
    second, others = captured(opt.step), [p.grad for p in ours]
    for graph, grads, seed in ((second, others, 5), (first, own, 6), (first, own, 7), (second, others, 8)):
        for p, q, g in zip(ours, theirs, grads, strict=True):
            p.grad, q.grad = g, torch.empty_like(g)
        refill(pairs, seed)
        graph.replay()
        other.step()
    counted(pairs, 7 + between)


@fronts
def test_a_replay_may_be_skipped(front):
    """What has been found is looked at when the graph is replayed."""
    (ours, opt), (_, other) = pairs = both(front, capturable=True)
    found, scale = torch.tensor(0.0, device=DEVICE), torch.tensor(4.0, device=DEVICE)
    for _, one in pairs:
        one.found_inf, one.grad_scale = found, scale
    walk(pairs, range(3))
    graph = captured(opt.step)
    for seed, skipped in enumerate([0.0, 1.0, 1.0, 0.0], 3):
        found.fill_(skipped)
        refill(pairs, seed)
        if skipped:
            ours[0].grad.fill_(torch.inf)
        before = bits([ours, opt.state_dict()["state"]])
        graph.replay()
        other.step()
        assert (bits([ours, opt.state_dict()["state"]]) == before) == bool(skipped)
    counted(pairs, 5)
    assert int(opt.skipped) == int(other.skipped) == 2


def differentiate(params, inputs):
    """Whose gradients are the inputs, in new memory."""
    for p in params:
        p.grad = None
    sum((p * x).sum() for p, x in zip(params, inputs, strict=True)).backward()


@fronts
def test_gradients_made_in_the_graph(front):
    pairs = both(front, capturable=True)
    (ours, opt), (theirs, other) = pairs
    inputs = [torch.zeros_like(p) for p in ours]

    def refresh(seed):
        torch.manual_seed(seed)
        for x in inputs:
            x.copy_(torch.randn(x.shape))

    def step(params, one):
        differentiate(params, inputs)
        one.step()

    # PyTorch wants backward passes that lead up to a recording on a stream of their own.
    aside = torch.cuda.Stream()
    for seed in range(3):
        refresh(seed)
        step(theirs, other)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            step(ours, opt)
        torch.cuda.current_stream().wait_stream(aside)
    graph = captured(lambda: step(ours, opt))
    for seed in range(3, 6):
        refresh(seed)
        graph.replay()
        step(theirs, other)
    counted(pairs, 6)


@fronts
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_of_lists_does_not_synchronize(front, scaled):
    """Not for gradients that are elsewhere than before, for another learning rate, or to know whether to skip."""
    (ours, opt), (_, other) = pairs = capturable(front, max_grad_norm=1.0)
    for seed in (3, 4, 5):
        rate, found, scale = (torch.tensor(x, device=DEVICE) for x in (0.5**seed, float(seed == 5), 4.0))
        kept = [p.grad for p in ours]  # so that the new ones lie elsewhere
        for params, one in pairs:
            give(params, seed)
            one.param_groups[0]["lr"] = rate
            if scaled:
                one.found_inf, one.grad_scale = found, scale
        assert not {g.data_ptr() for g in kept} & {p.grad.data_ptr() for p in ours}
        # The first step with a scale is another kernel, and laid out anew.
        with waiting_refused() if seed > 3 else nullcontext():
            opt.step()
        other.step()
    counted(pairs, 5 if scaled else 6)
