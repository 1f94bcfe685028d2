"""Adafactor with a decay of the second moment that follows a function of one's own."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from cases import case_of
from contract.apis import arrays, close
from reference.adafactor import ramp
from torch_front.front import bits, numbers, parameters, set_grads, twins, walk

from layerwise.errors import HyperparameterError
from layerwise.torch import Adafactor

REFERENCE = case_of("Adafactor").reference


class Ramp:
    """The same as an object, which remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, step: Any) -> Any:
        self.asked.append(step)
        return step / (step + 2)


def test_it_is_asked_for_each_tensor_s_own_step():
    params, beta2 = parameters(1), Ramp()
    oracle = REFERENCE(lr=0.1, beta2=ramp)
    opt = Adafactor(params.items(), lr=0.1, beta2=beta2)
    expected = numbers(params)
    for seed, but in enumerate([("vector",), ("vector",), ()]):
        set_grads(params, seed, but)
        expected = oracle.step(
            expected, {name: None if p.grad is None else p.grad.numpy() for name, p in params.items()}
        )
        opt.step()
        close(numbers(params), expected)
    assert beta2.asked[:2] == [0, 1]
    assert sorted(beta2.asked[2:]) == [0, 2]  # once for all that have come as far


def saved(opt: Any) -> Any:
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_checkpoint_names_the_function_and_goes_on_bit_for_bit():
    params = parameters(1)
    opt = Adafactor(params.items(), lr=0.1, beta2=lambda step: ramp(step))
    walk(opt, params, range(2))
    copies = twins(params)
    other = Adafactor(copies.items(), lr=0.1, beta2=opt.defaults["beta2"])
    state = saved(opt)
    assert "lambda" in state["param_groups"][0]["beta2"]
    assert callable(opt.param_groups[0]["beta2"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state)
    walk(opt, params, [2])
    walk(other, copies, [2])
    assert bits(copies) == bits(params)


def test_a_checkpoint_with_another_beta2_warns_and_changes_no_option():
    params = parameters(1)
    opt = Adafactor(params.items(), lr=0.1, beta2=ramp)
    walk(opt, params, range(2))
    for beta2 in (None, 0.5, Ramp()):
        other = Adafactor(parameters(1).items(), lr=0.1, beta2=beta2)
        with pytest.warns(UserWarning, match="beta2.*<function ramp>"):
            other.load_state_dict(saved(opt))
        assert other.param_groups[0]["beta2"] is beta2


@pytest.mark.parametrize("offset", [0, 2])
def test_where_steps_are_counted_on_the_device_it_computes_with_tensors(offset):
    params = parameters(1)
    copies, beta2 = twins(params), Ramp()
    options: dict[str, Any] = {"lr": 0.1, "decay_offset": offset}
    opt = Adafactor(params.items(), beta2=ramp, **options)
    other = Adafactor(copies.items(), beta2=beta2, capturable=True, **options)
    walk(opt, params, range(4))
    walk(other, copies, range(4))
    assert all(isinstance(step, torch.Tensor) and step.dtype == torch.float64 for step in beta2.asked)
    close(numbers(copies), numbers(params), 1e-14)
    # A number it may return as well, and a number is checked.
    for answer in (2.0, "0.5", torch.ones(2)):
        bad = Adafactor(twins(params).items(), beta2=lambda step, answer=answer: answer, capturable=True, **options)
        bad.param_groups[0]["params"][0].grad = torch.tensor(arrays(1)["matrix"])
        with pytest.raises(HyperparameterError, match="beta2"):
            bad.step()
