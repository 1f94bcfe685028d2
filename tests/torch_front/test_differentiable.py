"""Gradients of the step itself, against finite differences."""

from __future__ import annotations

import pytest
import torch
from cases import CASES
from torch.autograd import gradcheck, gradgradcheck
from torch_front.front import BUSY, FRONT_OF, busy, cases, close, fronts, in_slices, lows, numbers, parameters

from layerwise.errors import LayerwiseError
from layerwise.torch import Adafactor, Lamb, Lars

CASE_OF = {FRONT_OF[case.name]: case for case in CASES}
SHAPES = {"matrix": (3, 2), "vector": (4,)}


def unrolled(front, options, steps=3):
    """The loss after some steps, as a function of the start and of lr."""

    def loss_of(p, x):
        return (p * p * torch.linspace(0.5, 1.5, p.numel(), dtype=p.dtype).view(p.shape)).sum() + x.sum() * p.sum()

    def after(lr, *start):
        params = [p.clone() for p in start]
        opt = front(params, **{**options, "lr": lr}, differentiable=True)
        for _ in range(steps):
            for p, s in zip(params, start, strict=True):
                # Of a copy, since the step writes to p in place.
                p.grad = torch.autograd.grad(loss_of(q := p.clone(), s), q, create_graph=True)[0]
            opt.step()
        return sum(p.square().sum() for p in params)

    return after


def inputs(lr=0.05):
    start = [p.detach().clone().requires_grad_() for p in parameters(1, SHAPES).values()]
    return torch.tensor(lr, dtype=torch.float64, requires_grad=True), *start


DECAYED = {"weight_decay": 0.1}
WAYS = [
    (Lamb, {}),
    (Lamb, {**DECAYED, "max_grad_norm": 0.5, "max_grad_norm_per_tensor": 2.0}),
    (Lamb, {**DECAYED, "decay": "decoupled", "bias_correction": "lr", "grad_averaging": False}),
    (Lamb, {**DECAYED, "decay": "l2", "bias_correction": False, "maximize": True, "max_weight_norm": 0.5}),
    (Lamb, {**DECAYED, "adapt": False, "trust_clip": (0.1, 1.0)}),
    (Lars, {}),
    (Lars, {**DECAYED, "norm": "decayed", "nesterov": True, "trust_coefficient": 0.5}),
    (Lars, {**DECAYED, "lr_in_momentum": False, "dampening": 0.4, "max_grad_norm": 0.5}),
    (Lars, {**DECAYED, "momentum": 0.0, "trust_clip": (0.5, 1.5), "trust_coefficient": 0.05}),
    (Adafactor, {}),
    (Adafactor, {**DECAYED, "beta1": 0.9, "scale_parameter": True, "decay_scale": "step"}),
    (Adafactor, {**DECAYED, "beta1": 0.9, "lr_in_momentum": False, "factored": False, "clip_threshold": None}),
    (Adafactor, {**DECAYED, "eps_mode": "clamp", "clip_threshold": 0.5, "max_grad_norm": 0.5}),
]


@pytest.mark.parametrize(("front", "options"), WAYS, ids=str)
def test_three_steps_against_finite_differences(front, options):
    assert gradcheck(unrolled(front, {**CASE_OF[front].smooth, **options}), inputs(), atol=1e-6)


@pytest.mark.parametrize(("front", "options"), [WAYS[1], WAYS[6], WAYS[10]], ids=str)
def test_second_order_gradients(front, options):
    options = {**CASE_OF[front].smooth, **options}
    assert gradgradcheck(unrolled(front, options, steps=2), inputs(), atol=1e-5, rtol=1e-3)


@cases
def test_takes_the_same_step(case):
    for seed in range(6):
        options = case.drawn(seed)
        a, b = parameters(1), parameters(1)
        free = {name: p.detach().clone() for name, p in a.items()}
        opt = FRONT_OF[case.name](free.items(), differentiable=True, **options)
        calm = FRONT_OF[case.name](b.items(), **options)
        for t in range(3):
            for name, g in parameters(10 + t).items():
                free[name].grad, b[name].grad = g.detach(), g.detach()
            opt.step()
            calm.step()
        close(numbers(free), numbers(b), 1e-13, options)


@fronts
def test_stats_are_numbers(front):
    lr, *start = inputs()
    params = [p.clone() for p in start]
    opt = front(params, lr=lr, differentiable=True)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    assert all(type(x) is float for one in opt.stats().values() for x in one.values())
    assert all(p.requires_grad for p in params)


@fronts
def test_a_leaf_is_refused_before_anything_is_done(front):
    """As in torch.optim: an in-place step of a leaf that requires a gradient cannot be differentiated."""
    params = parameters(1, SHAPES)
    opt = busy(front, params.items(), differentiable=True)
    for p in params.values():
        p.grad = torch.ones_like(p)
    with pytest.raises((LayerwiseError, RuntimeError), match="leaf"):
        opt.step()
    assert opt.state_dict()["state"] == {}


@fronts
def test_a_leaf_after_others_is_refused_before_anything_is_done(front):
    free = torch.ones(3, dtype=torch.float64)
    leaf = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = busy(front, [free, leaf], differentiable=True)
    free.grad, leaf.grad = torch.ones_like(free), torch.ones_like(leaf)
    with pytest.raises((LayerwiseError, RuntimeError), match="leaf"):
        opt.step()
    assert (free == 1).all()


@lows
@fronts
def test_master_weights_keep_the_gradient(front, low):
    """Through the float32 copy the result still depends on where it started, or both together are refused."""
    start = torch.ones(3, dtype=low, requires_grad=True)
    p = start.clone()
    try:
        opt = front([p], **{**BUSY[front], "lr": 0.01}, differentiable=True, master_weights=True)
    except LayerwiseError:
        return
    p.grad = torch.ones_like(p)
    opt.step()
    (moved,) = torch.autograd.grad(p.float().sum(), start, allow_unused=True)
    assert moved is not None
    assert (moved != 0).all()


@fronts
def test_a_group_is_not_differentiable_alone(front):
    """The switch is the optimizer's; a group that says otherwise is told so, or is obeyed."""
    lr, _, start = inputs()
    p = start.detach().clone()
    try:
        opt = front([{"params": [p], "differentiable": True}], lr=lr)
    except LayerwiseError:
        return
    p.grad = torch.ones_like(p)
    opt.step()
    assert p.requires_grad


@fronts
def test_in_slices(front, monkeypatch):
    in_slices(monkeypatch, 3)
    assert gradcheck(unrolled(front, {**CASE_OF[front].smooth, "weight_decay": 0.1}, steps=2), inputs(), atol=1e-6)


def test_not_with_capturable():
    for front in FRONT_OF.values():
        with pytest.raises(LayerwiseError, match="capturable"):
            front([torch.ones(2)], lr=0.1, differentiable=True, capturable=True)
