"""Gradients of the step itself, against finite differences."""

from __future__ import annotations

import pytest
import torch
from cases import CASES
from contract.apis import close
from torch.autograd import gradcheck, gradgradcheck
from torch_front.front import FRONT_OF, busy, cases, fronts, in_slices, lows, numbers, parameters

from layerwise.errors import ContradictionError, LayerwiseError
from layerwise.torch import Adafactor, Lamb, Lars

CASE_OF = {FRONT_OF[case.name]: case for case in CASES}
SHAPES = {"matrix": (3, 2), "vector": (4,)}


def unrolled(front, options, steps=2):
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
def test_gradients_of_steps_are_those_of_finite_differences(front, options):
    assert gradcheck(unrolled(front, {**CASE_OF[front].smooth, **options}), inputs(), atol=1e-6)


@pytest.mark.parametrize(("front", "options"), [WAYS[1], WAYS[6], WAYS[10]], ids=str)
def test_second_order_gradients_are_too(front, options):
    options = {**CASE_OF[front].smooth, **options}
    assert gradgradcheck(unrolled(front, options), inputs(), atol=1e-5, rtol=1e-3)


@fronts
@pytest.mark.thinned(2)
def test_gradients_of_tensors_in_slices_are_too(front, monkeypatch):
    in_slices(monkeypatch, 3)
    assert gradcheck(unrolled(front, {**CASE_OF[front].smooth, "weight_decay": 0.1}), inputs(), atol=1e-6)


@cases
def test_a_differentiable_step_is_the_same_step(case):
    for seed in range(3):
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
def test_a_leaf_is_refused_before_anything_is_done(front):
    """As in torch.optim: an in-place step of a leaf that requires a gradient cannot be differentiated."""
    free = torch.ones(3, dtype=torch.float64)
    leaf = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = busy(front, [free, leaf], differentiable=True)
    free.grad, leaf.grad = torch.ones_like(free), torch.ones_like(leaf)
    with pytest.raises((LayerwiseError, RuntimeError), match="leaf"):
        opt.step()
    assert (free == 1).all()
    assert opt.state_dict()["state"] == {}


@pytest.mark.parametrize("option", ["capturable", "master_weights"])
@lows
def test_options_that_no_gradient_can_pass_are_refused(option, low):
    for front in FRONT_OF.values():
        with pytest.raises(ContradictionError, match=f"`{option}`"):
            front([torch.ones(2, dtype=low)], lr=0.1, differentiable=True, **{option: True})


def test_a_group_is_not_differentiable_unless_all_are():
    alone, others = ({"params": [torch.ones(2)]} for _ in range(2))
    with pytest.raises(ContradictionError, match="`differentiable` must be False in every group"):
        Lamb([{**alone, "differentiable": True}, {**others, "differentiable": False}], lr=0.1)
    free = torch.ones(2)
    opt = Lamb([{"params": [free], "differentiable": True}], lr=torch.tensor(0.1, requires_grad=True))
    free.grad = torch.ones(2)
    opt.step()
    assert free.requires_grad


def test_gradients_reach_the_state_that_a_step_began_with():
    """A state may have been made by others; it is read, and not written over."""

    def after(*moments):
        p = torch.linspace(-1, 1, 4, dtype=torch.float64)
        opt = Lamb([p], lr=0.1, differentiable=True)
        opt.state[p] = {"step": torch.tensor(3), **dict(zip(("exp_avg", "exp_avg_sq"), moments, strict=True))}
        p.grad = torch.ones_like(p)
        opt.step()
        return p.square().sum()

    assert gradcheck(after, [torch.linspace(0.5, 2, 4, dtype=torch.float64).requires_grad_() for _ in range(2)])
