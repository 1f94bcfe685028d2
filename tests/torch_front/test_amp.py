"""Mixed precision: master weights, GradScaler, gradients that are not finite, clipping."""

from __future__ import annotations

import copy

import pytest
import torch
from contract.apis import close
from torch_front.front import bits, busy, everything, fronts, lows, numbers, parameters, set_grads, twins

from layerwise.torch import Adafactor, Lamb

NAN, INF = float("nan"), float("inf")


def scaled(scaler, params, seed):
    """Gradients as backward of the scaled loss leaves them."""
    set_grads(params, seed)
    scale = scaler.scale(torch.ones(()))
    for p in params.values():
        p.grad = (p.grad * scale).to(p.dtype)


@lows
@fronts
def test_master_weights_are_the_float32_run(front, low):
    params = parameters(1, dtype=low)
    wide = {name: torch.nn.Parameter(p.detach().float()) for name, p in params.items()}
    opt, calm = busy(front, params.items(), master_weights=True, lr=1e-3), busy(front, wide.items(), lr=1e-3)
    for t in range(3):
        set_grads(params, t)
        for name, p in params.items():
            wide[name].grad = p.grad.float()
        opt.step()
        calm.step()
    assert bits([opt.state[p]["master"] for p in params.values()]) == bits([p.detach() for p in wide.values()])
    assert bits(params) == bits({name: p.to(low) for name, p in wide.items()})
    assert {key for one in opt.state_dict()["state"].values() for key in one} >= {"master", "step"}


HANDLES = pytest.mark.parametrize("handles", [False, True], ids=["the scaler unscales", "the step unscales"])


@HANDLES
@pytest.mark.parametrize("way", ["step", "unscale_", "unscale_ and clip"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@fronts
def test_scaled_gradients_give_the_steps_of_unscaled_ones(front, dtype, way, handles):
    """PyTorch's `unscale_` refuses float16, so that there the step unscales in any case."""
    a = parameters(1, dtype=dtype)
    b = twins(a)
    opt, calm = busy(front, a.items(), skip_nonfinite=handles), busy(front, b.items())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
    unscales = way != "step"
    for t in range(3):
        scaled(scaler, a, t)
        set_grads(b, t)
        if unscales and dtype is torch.float16:
            with pytest.raises(ValueError, match="FP16"):
                scaler.unscale_(opt)
            return
        if unscales:
            scaler.unscale_(opt)
        if way == "unscale_ and clip":
            torch.nn.utils.clip_grad_norm_(a.values(), 0.5)
            torch.nn.utils.clip_grad_norm_(b.values(), 0.5)
        before = bits([p.grad for p in a.values()])
        scaler.step(opt)
        scaler.update()
        kept = handles or unscales or dtype is torch.float16
        assert (bits([p.grad for p in a.values()]) == before) == kept
        calm.step()
    close(numbers(a), numbers(b), {torch.float16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-12}[dtype])
    assert scaler.get_scale() > 16
    assert not hasattr(opt, "grad_scale")


@pytest.mark.parametrize(
    ("options", "dtype", "handles"),
    [
        ({}, torch.float32, False),
        ({"fused": False}, torch.float32, False),
        ({"fused": True}, torch.float32, True),
        ({"skip_nonfinite": True}, torch.float32, True),
        ({"capturable": True}, torch.float32, True),
        ({}, torch.float16, True),
    ],
    ids=str,
)
def test_the_scaler_unscales_where_it_can_and_nothing_else_is_asked_for(options, dtype, handles):
    """Trainers refuse to clip gradients that the step unscales."""
    opt = Lamb(parameters(1, dtype=dtype).items(), **options)
    assert opt._step_supports_amp_scaling is handles
    assert copy.deepcopy(opt)._step_supports_amp_scaling is handles


@HANDLES
@pytest.mark.parametrize("bad", [INF, NAN])
@pytest.mark.parametrize("unscale", [False, True])
@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(2)
def test_a_step_that_overflowed_is_skipped(front, unscale, bad, handles):
    params = parameters(1, dtype=torch.float32)
    opt = busy(front, params.items(), max_grad_norm=0.5, skip_nonfinite=handles)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for t in range(2):
        scaled(scaler, params, t)
        scaler.step(opt)
        scaler.update()
    scaled(scaler, params, 2)
    params["vector"].grad[3] = bad
    before = everything(opt, params)
    if unscale:
        scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    after = everything(opt, params)
    assert (after[0], after[2]) == (before[0], before[2])
    assert opt.skipped == handles
    assert scaler.get_scale() == 8
    scaled(scaler, params, 3)
    scaler.step(opt)
    assert {int(one["step"]) for one in opt.state.values()} == {3}


ALL = {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.4, "max_grad_value": 0.3}


@fronts
@pytest.mark.needs("max_grad_norm")
def test_bounds_are_of_unscaled_gradients(front):
    a = parameters(1)
    b = twins(a)
    opt, calm = (busy(front, params.items(), **ALL, skip_nonfinite=True) for params in (a, b))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaled(scaler, a, 1)
    set_grads(b, 1)
    scaler.step(opt)
    calm.step()
    close(numbers(a), numbers(b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_an_eps_of_none_is_that_of_the_parameters_own_dtype(dtype):
    p = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    opt = Adafactor([p], lr=1.0, eps=(None, 0.0), eps_mode="clamp", clip_threshold=None)
    p.grad = torch.full_like(p, torch.finfo(dtype).eps / 4)
    opt.step()
    assert p.detach().float().tolist() == [-0.25] * 4


@pytest.mark.parametrize(
    ("options", "counted"), [({}, 0), ({"fused": True}, 2), ({"skip_nonfinite": True}, 2)], ids=str
)
def test_steps_that_a_scaler_leaves_out_are_counted_where_the_step_leaves_them_out(options, counted):
    model = torch.nn.Linear(4, 4)
    opt, scaler = Lamb(model.parameters(), lr=0.01, **options), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        opt.zero_grad()
        scaler.scale(model(torch.full((2, 4), torch.inf)).sum()).backward()
        scaler.step(opt)
        scaler.update()
    assert all(map(torch.equal, before, model.parameters()))
    assert int(opt.skipped) == counted
