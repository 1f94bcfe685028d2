"""PyTorch's table of what its optimizers take, refuse and are scheduled by, on those of layerwise.torch."""

from __future__ import annotations

from functools import partial

import pytest
from others.theirs import check_expected, module, tried

import layerwise

pytestmark = pytest.mark.slow
common = module("torch.testing._internal.common_optimizers")

import torch  # noqa: E402

import layerwise.torch as front  # noqa: E402

OURS = {"Adafactor": front.Adafactor, "Adam": front.AdamW, "AdamW": front.AdamW, "SGD": front.SGD}
INFOS = {info.optim_cls.__name__: info for info in common.optim_db if info.optim_cls.__name__ in OURS}


def made(name, params, **options):
    return OURS[name](params, **{**layerwise.preset(f"torch.{name}"), **options})


def weights():
    draw = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64)) for shape in [(5, 4), (4,), ()]]


def stepped(make, schedule=None, steps=4):
    params = weights()
    opt = make(params)
    schedulers = [one(opt) for one in schedule or ()]
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64)
        opt.step()
        for one in schedulers:
            one.step(*[1.0] * isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau))
    return params


def same_numbers(name, options, schedule=None):
    ours = stepped(lambda params: made(name, params, **options), schedule)
    theirs = stepped(lambda params: INFOS[name].optim_cls(params, **options), schedule)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def refused(name, given):
    one = given.optimizer_error_input
    try:
        opt = made(name, weights() if one.params is None else one.params, **one.kwargs)
        if given.error_on == common.OptimizerErrorEnum.STEP_ERROR:
            opt.step()
    except given.error_type:
        return
    raise AssertionError("nothing is refused")


def rows():
    for name, info in INFOS.items():
        for one in info.optim_inputs_func("cpu"):
            yield f"{name} takes {one.desc}", partial(same_numbers, name, one.kwargs)
        for flag in info.supported_impls:
            yield f"{name} takes the flag {flag}", partial(made, name, weights(), **{flag: True})
        for i, one in enumerate(info.scheduler_inputs):
            schedule = one if isinstance(one, (list, tuple)) else [one]
            yield f"{name} follows scheduler {i}", partial(same_numbers, name, {"lr": 0.01}, schedule)
        for one in info.optim_error_inputs_func("cpu", torch.float32):
            yield f"{name} refuses {one.optimizer_error_input.desc}", partial(refused, name, one)


CASES = [pytest.param(run, id=name) for name, run in rows()]


@pytest.mark.parametrize("run", CASES)
def test_tests_of_others_pass_with_our_optimizers(run):
    tried(run, "torch", next(case.id for case in CASES if case.values[0] is run))


def test_expected_differences_are_up_to_date():
    check_expected("torch", CASES)
