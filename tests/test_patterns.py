"""Names and patterns that match nothing, in every front where the names are known."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from layerwise import numpy as front
from layerwise import optional
from layerwise.errors import HyperparameterError
from layerwise.torch import Lamb, param_groups


def model():
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))


@pytest.mark.parametrize("argument", ["no_decay", "no_adapt"])
def test_param_groups_names_the_pattern(argument):
    with pytest.raises(HyperparameterError) as caught:
        param_groups(model(), **{argument: ["bias", "0.biass"]})
    assert f"`{argument}` speaks of '0.biass', which matches none" in str(caught.value)
    assert "'0.bias'" in str(caught.value)
    assert "layerwise.optional('0.biass')" in str(caught.value)
    groups = param_groups(model(), **{argument: ["bias", optional("0.biass"), "0.*"]})
    assert sum(len(group["params"]) for group in groups) == 6


def test_kinds_need_not_be_there():
    param_groups(nn.Linear(2, 2, bias=False), no_decay=["bias", "norm", "embedding", nn.Embedding, 1])


@pytest.mark.parametrize("given", [model().parameters(), list(model().parameters()), {}, None])
def test_param_groups_is_of_a_model(given):
    with pytest.raises(HyperparameterError, match=r"`model` must be a torch.nn.Module, but is a \w+\. Pass the model"):
        param_groups(given)


def test_rules_may_be_a_generator():
    groups = param_groups(model(), no_decay=(rule for rule in ("bias", "1.*")))
    assert sorted(len(group["params"]) for group in groups) == [2, 4]


@pytest.mark.parametrize("pattern", ["*.qkv.weight", "0.wieght"])
def test_blocks_of_torch(pattern):
    with pytest.raises(HyperparameterError, match=r"`blocks` speaks of '.*', which matches none .* '0.weight'"):
        Lamb(model().named_parameters(), blocks={"0.weight": 3, pattern: 3})
    opt = Lamb(model().named_parameters(), blocks={"0.weight": 3, optional(pattern): 3})
    assert pickle.loads(pickle.dumps(opt)).num_parameters == 6


def test_a_pattern_may_match_in_any_group():
    one, other = model(), nn.Linear(6, 2)
    Lamb([{"params": one.named_parameters()}, {"params": [("head.weight", other.weight)]}], blocks={"head.*": 2})


@pytest.mark.parametrize("argument", ["blocks", "lr_scale", "adapt", "decay"])
def test_numpy_knows_with_all_weights(argument):
    value = {"blocks": 2, "lr_scale": 2.0, "adapt": False, "decay": False}[argument]
    weights, grads = {"a.weight": np.ones((2, 2)), "a.bias": np.ones(2)}, {"a.weight": np.ones((2, 2))}
    opt = front.Lamb(**{argument: {"typo": value}})
    with pytest.raises(HyperparameterError, match=f"`{argument}` speaks of 'typo', .* 'a.weight', 'a.bias'"):
        opt.step_all(weights, grads)
    assert opt.num_parameters == 0
    assert (weights["a.weight"] == 1).all()
    # Of a single name it cannot know, and a name without a gradient is one all the same.
    front.Lamb(**{argument: {"typo": value}}).step("a.weight", weights["a.weight"], grads["a.weight"])
    for said in ({optional("typo"): value}, {"*.bias": value}):
        opt = front.Lamb(**{argument: said})
        opt.step_all(weights, grads)
        opt.step_all({"a.weight": weights["a.weight"]}, grads)


def test_numpy_counts_what_it_was_given():
    weights = {"a": np.ones(2), "b": np.ones(3)}
    opt = front.Lamb()
    opt.step_all(weights, {"a": np.ones(2), "b": None})
    assert (opt.num_parameters, opt.parameters) == (2, {"a": (2,), "b": (3,)})
    opt.clear_state("a")
    assert opt.parameters == {"b": (3,)}
    opt.clear_state()
    assert opt.num_parameters == 0
    opt.step("a", weights["a"], np.ones(2))
    again = front.Lamb()
    again.load_state_dict(opt.state_dict())
    assert again.num_parameters == 1


# ---- the same questions to torch's


def stepped(**options):
    params = {"w": nn.Parameter(torch.ones(2, 2)), "b": nn.Parameter(torch.ones(2))}
    opt = Lamb(params.items(), lr=0.1, **options)
    for p in params.values():
        p.grad = torch.ones_like(p)
    opt.step()
    return params, opt


def test_parameters_and_clear_state():
    params, opt = stepped()
    assert all(a is b for a, b in zip(opt.parameters(), params.values(), strict=True))
    opt.clear_state("w")
    assert set(opt.state) == {params["b"]}
    opt.step()
    assert [int(opt.state[p]["step"]) for p in params.values()] == [1, 2]
    opt.clear_state(params["b"])
    assert set(opt.state) == {params["w"]}
    opt.clear_state()
    assert not opt.state
    opt.step()
    assert [int(opt.state[p]["step"]) for p in params.values()] == [1, 1]
    with pytest.raises(ValueError, match=r"no state is kept for 'v'. Known are: 'w', 'b'\."):
        opt.clear_state("v")


def test_set_lr_keeps_proportions_where_it_is_asked_to():
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    opt = Lamb([{"params": [a]}, {"params": [b], "lr": 0.05}, {"params": [c], "lr": torch.tensor(0.2)}], lr=0.1)
    opt.set_lr(0.2, proportional=True)
    assert [float(rate) for rate in opt.get_lr()] == [0.2, 0.1, pytest.approx(0.4)]
    opt.set_lr(0.3)
    assert opt.get_lr() == 0.3
    opt.set_lr(0)
    with pytest.raises(HyperparameterError, match="`proportional` must be False while the first group's lr is 0"):
        opt.set_lr(0.1, proportional=True)


@pytest.mark.parametrize("said", [{"names": {"dense/kernal": "w"}}, {"axes": {"dense/*": (1, 0)}}])
def test_conversion_names_the_leaf(said):
    import jax.numpy as jnp

    from layerwise import convert
    from layerwise.jax import lamb

    params = {"dense": {"kernel": jnp.ones((2, 3))}}
    transform, theirs = lamb(0.1), Lamb([("dense.kernel", nn.Parameter(torch.ones(2, 3)))])
    state = convert.to_torch(transform.init(params), params, theirs)
    for go in (
        lambda said: convert.to_torch(transform.init(params), params, theirs, **said),
        lambda said: convert.from_torch(state, transform, params, **said),
    ):
        with pytest.raises(HyperparameterError, match=r"speaks of 'dense/.*nearest names are 'dense/kernel'"):
            go(said)
        [(argument, given)] = said.items()
        go({argument: {optional(key): value for key, value in given.items()}})


def test_lr_scale_by_name_does_not_go_unheard_in_groups():
    for scale in ({"*.bias": 2}, lambda name: 2):
        with pytest.raises(HyperparameterError, match="Give groups an lr of their own"):
            Lamb(param_groups(model(), lr_scale=scale))
    assert Lamb(param_groups(model(), lr_scale=0.5)).param_groups[0]["lr_scale"] == 0.5
