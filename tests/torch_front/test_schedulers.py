"""PyTorch's schedulers move Adafactor's relative step, too."""

from __future__ import annotations

import copy
import pickle
import warnings

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch_front.front import parameters, set_grads

from layerwise import preset
from layerwise.errors import ContradictionError, StateError
from layerwise.torch import Adafactor, convert

SCHEDULERS = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 2, gamma=0.5),
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step)),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=5),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 1.0, total_steps=10, cycle_momentum=False),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 7),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.1, 1.0, 3, cycle_momentum=False),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt, 0.1, 2), lr_scheduler.ExponentialLR(opt, 0.9)], [2]
    ),
}


def walked(opt, params, scheduler=None, steps=6):
    """The rates and the sizes of the steps, of the first element, that an optimizer takes."""
    rates, sizes, p = [], [], next(iter(params.values()))
    for t in range(steps):
        set_grads(params, 1)
        rates.append(opt.get_lr())
        before = p.detach().clone()
        opt.step()
        sizes.append((p.detach() - before).flatten()[0].item())
        if scheduler is not None:
            scheduler.step()
            assert scheduler.get_last_lr() == [opt.param_groups[0]["lr"]], t
    return rates, sizes


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_scales_the_relative_step(name):
    params = parameters(1)
    reference = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    wanted = [reference.param_groups[0]["lr"]]
    theirs = SCHEDULERS[name](reference)
    wanted[0] = reference.param_groups[0]["lr"]
    for _ in range(5):
        reference.step()
        theirs.step()
        wanted.append(reference.param_groups[0]["lr"])
    opt = Adafactor(params.values())
    rates, sizes = walked(opt, params, SCHEDULERS[name](opt))
    assert rates == wanted
    fixed = parameters(1)
    plain = Adafactor(fixed.values())
    for i, rate in enumerate(wanted):  # the same by hand
        plain.set_lr(rate)
        before = fixed[next(iter(fixed))].detach().clone()
        set_grads(fixed, 1)
        plain.step()
        assert (fixed[next(iter(fixed))].detach() - before).flatten()[0].item() == sizes[i]


def test_a_plateau_halves_the_step():
    params = parameters(1)
    opt = Adafactor(params.values())
    scheduler = lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    for loss in (1.0, 1.0, 1.0):
        scheduler.step(loss)
    assert (opt.get_lr(), scheduler.get_last_lr()) == (0.25, [0.25])


@pytest.mark.parametrize("lr", [1e-2, 0.6])
def test_torchs_adafactor_is_met_under_its_schedulers(lr):
    params, others = parameters(1), parameters(1)
    theirs = torch.optim.Adafactor(others.values(), lr=lr, weight_decay=0.1)
    ours = Adafactor(params.values(), **preset("torch.Adafactor", lr=lr, weight_decay=0.1))
    both = [lr_scheduler.StepLR(opt, 2, gamma=0.5) for opt in (ours, theirs)]
    for _ in range(6):
        for opt, ps, scheduler in zip((ours, theirs), (params, others), both, strict=True):
            set_grads(ps, 1)
            opt.step()
            scheduler.step()
    assert both[0].get_last_lr() == both[1].get_last_lr() == [lr / 8]
    for mine, its in zip(params.values(), others.values(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


def test_groups_say_what_their_lr_is():
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    groups = [{"params": [a]}, {"params": [b], "lr": 0.1}, {"params": [c], "lr": 0.1, "relative_step": "factor"}]
    opt = Adafactor(groups)
    said = [tuple(g[k] for k in ("lr", "relative_step", "scale_parameter")) for g in opt.param_groups]
    assert said == [(1.0, "factor", True), (0.1, False, False), (0.1, "factor", True)]
    assert groups[0] == {"params": [a]}
    again = Adafactor(opt.param_groups)  # as wrappers do
    assert [tuple(g[k] for k in ("lr", "relative_step", "scale_parameter")) for g in again.param_groups] == said


@pytest.mark.parametrize("lr", [1e-3, 0, torch.tensor(1e-3)])
def test_an_lr_beside_the_relative_step_is_shown_as_it_was_given(lr):
    with pytest.raises(ContradictionError) as caught:
        Adafactor([nn.Parameter(torch.ones(2))], lr=lr, relative_step=True)
    assert f"but is {lr!r}." in str(caught.value) or f"but is {float(lr)!r}." in str(caught.value)


def open_form(state):
    """A checkpoint that leaves open what lr=None decides."""
    for group in state["param_groups"]:
        group.update(lr=None, relative_step=None, scale_parameter=None)
    return state


@pytest.mark.parametrize("role", [None, "factor", "cap"])
def test_a_checkpoint_with_an_lr_of_none_goes_on(role):
    params = parameters(1)
    opt = Adafactor(params.values(), relative_step=role)
    walked(opt, params)
    twins = {name: nn.Parameter(p.detach().clone()) for name, p in params.items()}
    fresh = Adafactor(twins.values(), relative_step=role)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.load_state_dict(open_form(copy.deepcopy(opt.state_dict())))
    assert fresh.get_lr() == opt.get_lr()
    assert walked(fresh, twins) == walked(opt, params)


def test_a_checkpoint_with_an_lr_of_none_is_not_for_an_lr():
    params = parameters(1)
    state = open_form(Adafactor(params.values()).state_dict())
    with pytest.raises(StateError, match="lr means something else"):
        Adafactor(params.values(), lr=0.1).load_state_dict(state)


def test_a_schedule_is_resumed():
    params = parameters(1)
    opt = Adafactor(params.values())
    scheduler = SCHEDULERS["StepLR"](opt)
    walked(opt, params, scheduler, 3)
    twins = {name: nn.Parameter(p.detach().clone()) for name, p in params.items()}
    fresh = Adafactor(twins.values())
    other = SCHEDULERS["StepLR"](fresh)
    fresh.load_state_dict(opt.state_dict())
    other.load_state_dict(scheduler.state_dict())
    assert walked(fresh, twins, other) == walked(opt, params, scheduler)


def test_pickles_that_leave_the_relative_step_open():
    params = parameters(1)
    opt = Adafactor(params.values())
    open_form({"param_groups": opt.param_groups})
    assert pickle.loads(pickle.dumps(opt)).get_lr() == 1.0


def test_pytorchs_example_of_mnist_with_another_optimizer():
    """Adadelta and StepLR there; digits made of noise here."""
    torch.manual_seed(0)
    images, labels = torch.randn(64, 1, 8, 8), torch.arange(64) % 4
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8 * 36, 4), nn.LogSoftmax(1)
    )
    opt = Adafactor(model.parameters())
    scheduler = lr_scheduler.StepLR(opt, step_size=1, gamma=0.7)
    losses = []
    for epoch in range(4):
        for begin in range(0, 64, 16):
            opt.zero_grad()
            loss = functional.nll_loss(model(images[begin : begin + 16]), labels[begin : begin + 16])
            loss.backward()
            opt.step()
        losses.append(loss.item())
        scheduler.step()
        assert scheduler.get_last_lr() == [pytest.approx(0.7 ** (epoch + 1))]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_transformers_trainer_without_an_lr(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    data = [{"x": torch.randn(4), "labels": torch.ones(1)} for _ in range(16)]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x, labels):
            out = self.linear(x)
            return {"loss": functional.mse_loss(out, labels), "logits": out}

    model = Model()
    opt = Adafactor(model.named_parameters())
    args = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=1, per_device_train_batch_size=2, report_to=[], use_cpu=True, logging_steps=1,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, args, train_dataset=data, optimizers=(opt, None))
    trainer.train()
    rates = [one["learning_rate"] for one in trainer.state.log_history if "learning_rate" in one]
    assert rates == [pytest.approx(1 - i / 8) for i in range(8)]


@pytest.mark.parametrize("given", [torch.bfloat16, "bfloat16", ml_dtypes.bfloat16])
def test_dtypes_of_the_momentum(given):
    params = parameters(1)
    opt = Adafactor(params.values(), beta1=0.9, momentum_dtype=given)
    walked(opt, params, steps=1)
    assert opt.state[params["matrix"]]["exp_avg"].dtype == torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Adafactor(params.values(), beta1=0.9, momentum_dtype="bfloat16").load_state_dict(opt.state_dict())


@pytest.mark.parametrize("lr", [np.array([0.25]), jnp.array([0.25]), torch.tensor([[0.25]])])
def test_rates_of_one_element(lr):
    params, others = parameters(1), parameters(1)
    walked(Adafactor(params.values(), lr=lr), params)
    walked(Adafactor(others.values(), lr=0.25), others)
    assert all(torch.equal(p, q) for p, q in zip(params.values(), others.values(), strict=True))


def test_a_schedule_of_torchs_adafactor_is_resumed():
    params, others = parameters(1), parameters(1)
    theirs = torch.optim.Adafactor(others.values(), lr=0.05)
    scheduler = lr_scheduler.StepLR(theirs, 2, gamma=0.5)
    for _ in range(3):
        set_grads(others, 1)
        theirs.step()
        scheduler.step()
    ours = Adafactor(params.values(), **preset("torch.Adafactor", lr=0.05))
    ours.load_state_dict(convert(theirs.state_dict(), "torch.Adafactor"))
    assert ours.get_lr() == 0.025
