"""The gradient noise scale, against problems whose own is known."""

from __future__ import annotations

from itertools import product
from math import inf, isnan, nan

import numpy as np
import pytest
import torch
from torch import nn
from torch_front.front import bits

from layerwise.errors import GradientError, HyperparameterError, ParameterError
from layerwise.torch import Lamb, NoiseScale, step_in_backward

# The gradient of the loss w·x is x, whatever w is. Four equally likely ones, in two parameters.
POPULATION = np.array([[1.0, 2.0, 0.5], [3.0, -1.0, 0.0], [0.0, 0.5, 2.0], [2.0, 4.0, -1.0]])
G = POPULATION.mean(0)
SIGNAL = float((G**2).sum())
NOISE = float(((POPULATION - G) ** 2).sum(1).mean())


class Linear(nn.Module):
    """The mean of w·x over a batch of x."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(2).double()), nn.Parameter(torch.ones(1).double())

    def forward(self, x):
        return (x[:, :2] @ self.a + x[:, 2:] @ self.b).mean()


def pass_through(model, batches, scale=1.0):
    """The backward passes of one step."""
    model.zero_grad()
    for x in batches:
        (model(torch.as_tensor(x)) * scale).backward()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))


def trained(model, noise=None, opt=None):
    """Everything after some steps of two micro-batches each."""
    opt = Lamb(model.parameters(), lr=0.01) if opt is None else opt
    for t in range(3):
        opt.zero_grad()
        for i in range(2):
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(2 * t + i))
            model(x).square().mean().backward()
        grads = bits([p.grad for p in model.parameters()])
        if noise is not None:
            noise.update(4)
        assert bits([p.grad for p in model.parameters()]) == grads
        opt.step()
    return bits(model.state_dict()), bits(opt.state_dict()), grads


@pytest.mark.parametrize(("batch", "passes"), [(1, 2), (1, 3), (2, 2)])
def test_both_estimates_are_without_bias(batch, passes):
    """Their mean over every way in which the examples could have been drawn is what they estimate."""
    model, found = Linear(), []
    noise = NoiseScale(model)
    for drawn in product(range(4), repeat=batch * passes):
        pass_through(model, POPULATION[list(drawn)].reshape(passes, batch, 3))
        found.append(noise.update(batch))
    np.testing.assert_allclose(np.mean(found, 0), (SIGNAL, NOISE), rtol=1e-12)
    assert np.std(found, 0).min() > 0.1  # each alone says little


def test_the_factor_on_the_loss_is_taken_out():
    model, batches = Linear(), POPULATION.reshape(2, 2, 3)
    noise = NoiseScale(model)
    pass_through(model, batches)
    wanted = noise.update(2)
    pass_through(model, batches, scale=512.0)
    np.testing.assert_allclose(noise.update([2, 2], scale=512.0), wanted, rtol=1e-12)


@pytest.mark.parametrize("every", [1, 3])
def test_averages_weigh_each_measured_step_by_its_age(every):
    """Numerator and denominator, each by itself. Steps that are not measured are not looked at."""
    model = Linear()
    noise, each, found, wanted = NoiseScale(model, beta=0.5, every=every), NoiseScale(model), [], []
    assert isnan(noise.value)
    for order in product((0, 3), (1, 2), (1, 3)):
        pass_through(model, POPULATION[list(order)][:, None])
        found.append(noise.update(1))
        wanted.append(each.update(1))
    assert found == [None if i % every else x for i, x in enumerate(wanted)]
    measured = [x for x in found if x]
    signal, of_noise = np.average(measured, axis=0, weights=2.0 ** np.arange(len(measured)))
    np.testing.assert_allclose((noise.signal, noise.noise, noise.value), (signal, of_noise, of_noise / signal))


def test_a_gradient_that_is_all_noise_has_an_infinite_scale():
    model = Linear()
    noise = NoiseScale(model)
    pass_through(model, np.stack([POPULATION[:1], -POPULATION[:1]]))
    assert noise.update(1).signal < 0
    assert noise.value == inf


def test_unused_parameters_have_a_gradient_of_0_and_frozen_ones_no_part():
    model = Linear()
    model.frozen, model.idle = nn.Parameter(torch.ones(2), requires_grad=False), nn.Parameter(torch.ones(2))
    noise = NoiseScale(model)
    pass_through(model, POPULATION[:1][None])
    (POPULATION[1, 0] * model.a[0] + POPULATION[1, 1] * model.a[1]).backward()  # b has no part in it
    found = noise.update(1)
    without_b = POPULATION[1] * [1, 1, 0]
    pass_through(model, np.stack([POPULATION[:1], without_b[None]]))
    np.testing.assert_allclose(found, noise.update(1), rtol=1e-12)


def test_training_is_the_same_bit_for_bit():
    model = network()
    assert trained(model, NoiseScale(model)) == trained(network())


def test_removed_hooks_see_nothing():
    model = network()
    with NoiseScale(model) as noise:
        trained(model, noise)
        value = noise.value
    model(torch.ones(4, 5)).square().mean().backward()
    assert noise.value == value
    with pytest.raises(GradientError, match="no backward pass"):
        noise.update(4)
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("bad", [nan, inf])
def test_gradients_that_are_not_finite_are_left_out(bad):
    model = Linear()
    noise = NoiseScale(model)
    pass_through(model, POPULATION[:2][:, None])
    noise.update(1)
    before = noise.state_dict()
    pass_through(model, [POPULATION[:1], np.full((1, 3), bad)])
    assert noise.update(1) is None
    assert noise.state_dict() == before


@pytest.mark.parametrize(
    ("passes", "batch", "scale", "error", "words"),
    [
        (0, 1, 1.0, GradientError, "no backward pass"),
        (1, 1, 1.0, GradientError, "one micro-batch"),
        (2, [1, 2], 1.0, HyperparameterError, r"`batch` .*the same size.*\[1, 2\]"),
        (2, [1, 1, 1], 1.0, HyperparameterError, "as many sizes as backward passes, 2"),
        (2, 0, 1.0, HyperparameterError, "`batch`.*≥ 1"),
        (2, "11", 1.0, HyperparameterError, "`batch`"),
        (2, 1, 0.0, HyperparameterError, "`scale`.*> 0"),
    ],
)
def test_an_update_that_is_refused_changes_no_average_and_is_forgotten(passes, batch, scale, error, words):
    model = Linear()
    noise = NoiseScale(model)
    pass_through(model, POPULATION[:2][:, None])
    noise.update(1)
    before = noise.state_dict()
    pass_through(model, POPULATION[:passes][:, None])
    grads = bits([p.grad for p in model.parameters()])
    with pytest.raises(error, match=words):
        noise.update(batch, scale)
    assert noise.state_dict() == before
    assert bits([p.grad for p in model.parameters()]) == grads
    pass_through(model, POPULATION[:2][:, None])
    noise.update(1)
    assert noise.state_dict() != before


def test_gradients_that_were_cleared_before_the_update_are_missed():
    model = network()
    noise, opt = NoiseScale(model), Lamb(model.parameters())
    step_in_backward(opt, every=2)
    with pytest.raises(GradientError, match="6 gradients were cleared"):
        trained(model, noise, opt)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": 1.0}, r"`beta`.*\[0, 1\)"),
        ({"every": 0}, "`every`"),
        ({"replicas": 0}, "`replicas`"),
        ({"replicas": 2}, "`replicas`.*divisor of the 1"),
        ({"group": 3}, "`group`"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(HyperparameterError, match=words):
        NoiseScale(network(), **options)


def test_gradients_and_parameters_that_cannot_be_measured_are_refused():
    model = nn.Embedding(4, 2, sparse=True)
    _noise = NoiseScale(model)
    with pytest.raises(GradientError, match="weight is sparse"):
        model(torch.tensor([1])).sum().backward()
    with pytest.raises(ParameterError, match="meta"):
        NoiseScale(nn.Linear(2, 2, device="meta"))


def test_the_scale_is_of_a_model():
    with pytest.raises(HyperparameterError, match=r"`model` must be a torch.nn.Module, but is a Lamb of layerwise\."):
        NoiseScale(Lamb(nn.Linear(2, 2).parameters()))
