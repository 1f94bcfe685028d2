"""Schedulers of PyTorch, and schedules of ours as one: groups keep their proportion, also where lr scales a step."""

from __future__ import annotations

import copy
import pickle
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler
from torch_front.front import bits, parameters, set_grads

from layerwise.errors import ContradictionError, HyperparameterError, StateError
from layerwise.schedules import Cosine, Polynomial, Stages
from layerwise.torch import Adafactor, Lamb, scheduler

WARM = Polynomial(0.8, total=12, warmup=4, power=2, start=0.1, end=0.2)


def two_groups(schedule, **options):
    w, head = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    opt = Lamb([{"params": [w]}, {"params": [head], "lr": 0.4}], **{"lr": 0.8, **options})
    return opt, scheduler(opt, schedule)


def rates(opt, sched, steps):
    seen = []
    for _ in range(steps):
        seen.append([float(group["lr"]) for group in opt.param_groups])
        opt.step()
        sched.step()
    return seen


def walked(opt, params, sched=None, steps=6):
    """Return the rates, and the bits of the weights after each step."""
    found = []
    for _ in range(steps):
        set_grads(params, 1)
        rate = opt.get_lr()
        opt.step()
        found.append((rate, bits(params)))
        if sched is not None:
            sched.step()
            assert sched.get_last_lr() == [opt.param_groups[0]["lr"]]
    return found


# ---- schedules of ours


@pytest.mark.parametrize("schedule", [WARM, Cosine(0.8, total=12), Stages(WARM, Cosine(0.8, total=12))], ids=repr)
def test_groups_keep_their_proportion_to_a_schedule(schedule):
    expected = [[schedule(step), schedule(step) / 2] for step in range(schedule.total + 2)]
    np.testing.assert_allclose(rates(*two_groups(schedule), steps=schedule.total + 2), expected, rtol=1e-15)


def test_a_schedule_writes_into_an_lr_that_is_a_tensor():
    opt, sched = two_groups(WARM, lr=torch.tensor(0.8))
    held = opt.param_groups[0]["lr"]
    seen = rates(opt, sched, steps=6)
    assert opt.param_groups[0]["lr"] is held
    np.testing.assert_allclose([one for one, _ in seen], [WARM(step) for step in range(6)], rtol=1e-6)


def test_a_checkpoint_brings_the_place_in_a_schedule_and_not_the_schedule():
    whole = rates(*two_groups(WARM), steps=10)
    opt, sched = two_groups(WARM)
    rates(opt, sched, steps=4)
    saved = copy.deepcopy((opt.state_dict(), sched.state_dict()))
    opt, sched = two_groups(WARM)
    opt.load_state_dict(saved[0])
    sched.load_state_dict(saved[1])
    assert rates(opt, sched, steps=6) == whole[4:]
    opt, _ = two_groups(WARM)
    opt.load_state_dict(saved[0])
    assert rates(opt, scheduler(opt, WARM, last_epoch=3), steps=6) == whole[4:]
    longer = Polynomial(0.8, total=100, warmup=4)
    opt, sched = two_groups(longer)
    sched.load_state_dict(two_groups(WARM)[1].state_dict())
    np.testing.assert_allclose([one for one, _ in rates(opt, sched, 9)], [longer(t) for t in range(9)], rtol=1e-15)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Polynomial(0.8, total=9, power=3), lambda opt: lr_scheduler.PolynomialLR(opt, total_iters=9, power=3)),
        (Cosine(0.8, total=9, end=0.1), lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=9, eta_min=0.1)),
        (Polynomial(0.8, total=99, warmup=9, start=0.2), lambda opt: lr_scheduler.LinearLR(opt, 0.25, 1, 9)),
    ],
)
def test_the_rates_are_those_of_pytorch(ours, theirs):
    sgd = torch.optim.SGD([Parameter(torch.ones(2))], lr=0.8)
    seen, wanted = rates(*two_groups(ours), steps=10), rates(sgd, theirs(sgd), steps=10)
    np.testing.assert_allclose([one for one, _ in seen], [one for (one,) in wanted], rtol=1e-12, atol=1e-16)


def test_a_schedule_that_fits_no_group_is_refused():
    with pytest.raises(ContradictionError, match=r"`schedule.peak` must be the lr of a group \(0.8 or 0.4\)"):
        two_groups(Polynomial(0.1, total=10))
    with pytest.raises(HyperparameterError, match="`schedule` must be a schedule of layerwise"):
        two_groups(lambda step: 1.0)
    opt = Adafactor([Parameter(torch.ones(2))])
    with pytest.raises(ContradictionError, match=r"of a group \(1\), but is 0\.1"):
        scheduler(opt, Polynomial(0.1, total=10))
    with pytest.raises(HyperparameterError, match=r"The optimizer comes first: scheduler\(optimizer, schedule\)"):
        scheduler(Polynomial(1.0, total=10), opt)
    assert rates(opt, scheduler(opt, Polynomial(1.0, total=10)), 2) == [[1.0], [0.9]]


# ---- Adafactor's relative step, which lr scales


def test_a_scheduler_of_pytorch_scales_the_relative_step():
    params, fixed = parameters(1), parameters(1)
    opt, by_hand = Adafactor(params.values()), Adafactor(fixed.values())
    found = walked(opt, params, lr_scheduler.StepLR(opt, 2, gamma=0.5))
    for one, rate in zip(found, [1.0, 1.0, 0.5, 0.5, 0.25, 0.25], strict=True):
        by_hand.set_lr(rate)
        assert [one] == walked(by_hand, fixed, steps=1)


def test_groups_settle_what_their_lr_is():
    a, b, c = (Parameter(torch.ones(2)) for _ in range(3))
    groups = [{"params": [a]}, {"params": [b], "lr": 0.1}, {"params": [c], "lr": 0.1, "relative_step": "factor"}]
    opt = Adafactor(groups)
    wanted = [(1.0, "factor", True), (0.1, False, False), (0.1, "factor", True)]
    for made in (opt, Adafactor(opt.param_groups)):  # as wrappers do
        assert [tuple(g[k] for k in ("lr", "relative_step", "scale_parameter")) for g in made.param_groups] == wanted
    assert groups[0] == {"params": [a]}


@pytest.mark.parametrize("lr", [1e-3, 0, torch.tensor(1e-3)])
def test_an_lr_given_with_a_relative_step_is_shown_unchanged(lr):
    with pytest.raises(ContradictionError) as caught:
        Adafactor([Parameter(torch.ones(2))], lr=lr, relative_step=True)
    assert f"but is {lr!r}." in str(caught.value) or f"but is {float(lr)!r}." in str(caught.value)


def open_form(state):
    """Return a checkpoint that leaves open what lr=None decides."""
    for group in state["param_groups"]:
        group.update(lr=None, relative_step=None, scale_parameter=None)
    return state


@pytest.mark.parametrize("role", [None, "factor", "cap"])
def test_a_checkpoint_with_an_lr_of_none_goes_on(role):
    params = parameters(1)
    opt = Adafactor(params.values(), relative_step=role)
    walked(opt, params)
    twins = {name: Parameter(p.detach().clone()) for name, p in params.items()}
    fresh = Adafactor(twins.values(), relative_step=role)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.load_state_dict(open_form(copy.deepcopy(opt.state_dict())))
    assert walked(fresh, twins) == walked(opt, params)
    with pytest.raises(StateError, match="give lr another meaning"):
        Adafactor(params.values(), lr=0.1).load_state_dict(open_form(opt.state_dict()))
    open_form({"param_groups": opt.param_groups})  # as an older pickle may be
    assert pickle.loads(pickle.dumps(opt)).get_lr() == 1.0


# ---- options as arrays and dtypes of other libraries


@pytest.mark.parametrize("lr", [np.array([0.25]), jnp.array([0.25])])
def test_an_lr_of_one_element_is_a_number(lr):
    params, others = parameters(1), parameters(1)
    walked(Adafactor(params.values(), lr=lr), params)
    walked(Adafactor(others.values(), lr=0.25), others)
    assert bits(params) == bits(others)
