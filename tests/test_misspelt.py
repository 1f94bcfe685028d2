"""Names that no option, optimizer or module has: the message says which is meant."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
import torch

import layerwise
from layerwise import arguments, convert, optional
from layerwise import jax as jax_front
from layerwise import numpy as numpy_front
from layerwise import torch as torch_front
from layerwise.errors import HyperparameterError, UnknownOptionError
from layerwise.keywords import MEANT, meant
from layerwise.registry import ENTRIES
from layerwise.spelling import KERAS, OF_KERAS, OPTAX, PADDLE

P = [torch.nn.Parameter(torch.ones(2))]
FUNCTIONS = {
    **{f"torch.{name}": lambda name=name, **kw: getattr(torch_front, name)(P, **kw) for name in ("Lamb", "Adafactor")},
    **{f"numpy.{name}": getattr(numpy_front, name) for name in ("Lamb", "Lars", "Adafactor")},
    **{f"jax.{name}": lambda name=name, **kw: getattr(jax_front, name)(0.1, **kw) for name in ("lamb", "adafactor")},
}


@pytest.mark.parametrize(
    ("front", "option", "meant"),
    [
        ("torch.Adafactor", "momentum", "Is `beta1` meant?"),
        ("torch.Adafactor", "foreach", "Is `fused` meant"),
        ("torch.Adafactor", "betas", "Is `beta1` meant"),
        ("torch.Adafactor", "learning_rate", "Is `lr` meant?"),
        ("torch.Adafactor", "decay_rate_fn", "Is `beta2` meant (a function of the step)?"),
        ("torch.Lamb", "foreach", "Is `fused` meant"),
        ("torch.Lamb", "weight_decy", "Is `weight_decay` meant?"),
        ("torch.Lamb", "momentum", "Is `betas` meant (the first of a pair)?"),
        ("torch.Lamb", "always_adapt", "Is `adapt` meant"),
        ("torch.Lamb", "xyzzy", "It takes params, lr, betas"),
        ("torch.Lamb", "adam", "It takes params"),
        ("torch.Lamb", "bits", "Is `state_dtype` meant"),
        ("torch.Lamb", "block_size", "Is `state_dtype` meant"),
        ("torch.Lamb", "clip_grad", "Is `max_grad_norm` meant"),
        ("torch.Lamb", "amsgrad", "AMSGrad, the maximum of second moments, is not among the options."),
        ("numpy.Lamb", "fused", "Is `engine` meant"),
        ("numpy.Lars", "eta", "Is `trust_coefficient` meant?"),
        ("numpy.Lars", "warmup_steps", "layerwise.schedules"),
        ("torch.Lamb", "reproducible", "the same bits from run to run"),
        ("numpy.Adafactor", "momentum", "Is `beta1` meant?"),
        ("numpy.Adafactor", "clipping_threshold", "Is `clip_threshold` meant?"),
        ("numpy.Adafactor", "b2", "Is `beta2` meant"),
        ("jax.lamb", "betas", "Is `b1` meant"),
        ("jax.lamb", "lr", "Is `learning_rate` meant?"),
        ("jax.adafactor", "beta_2", "Is `beta2` meant"),
        ("jax.adafactor", "beta1", "Is `momentum` meant"),
        ("jax.adafactor", "clip_threshold", "Is `clipping_threshold` meant?"),
        ("jax.adafactor", "beta2_decay", "Is `decay_rate` meant (-0.8 there is 0.8 here)?"),
    ],
)
def test_an_unknown_option_is_answered_with_the_one_that_is_meant(front, option, meant):
    with pytest.raises(UnknownOptionError) as caught:
        FUNCTIONS[front](**{option: 0.5})
    assert repr(option) in str(caught.value)
    assert meant in str(caught.value)
    assert isinstance(caught.value, TypeError)  # what Python raises
    assert isinstance(caught.value, ValueError)


def test_the_options_that_are_meant_exist():
    fronts = [getattr(m, n) for m in (torch_front, numpy_front) for n in ("Lamb", "Lars", "Adafactor", "Muon")]
    fronts += [getattr(jax_front, name) for name in ("lamb", "lars", "adafactor", "muon")]
    taken = {name for one in fronts for name in inspect.signature(one).parameters}
    # Without importing Keras, which takes its backend for good, or Paddle.
    taken |= {*arguments.KERAS, "parameters", "grad_clip"}
    assert {name for called, _ in MEANT.values() for name in called} <= taken


def test_an_option_is_found_by_each_name_that_it_has_in_some_api():
    for api in (OPTAX, PADDLE, KERAS, OF_KERAS):
        for entry in ENTRIES.values():
            for option, names in api.of(entry.hyper).items():
                for i, name in enumerate(names, 1):
                    assert meant(name, ["xyzzy", option]).startswith(f"Is `{option}` meant")
                    assert meant(option, ["xyzzy", name]).startswith(f"Is `{name}` meant")
                    if len(names) > 1:
                        assert name.endswith(str(i))
                        assert f"(the {('first', 'second')[i - 1]} of a pair)" in meant(name, ["xyzzy", option])
    assert KERAS.of(ENTRIES["Adafactor"].hyper)["eps"] == ("epsilon_1", "epsilon_2")
    assert KERAS.of(ENTRIES["Lamb"].hyper)["eps"] == ("epsilon",)


def test_a_subclass_keeps_arguments_of_its_own():
    class Mine(torch_front.Lamb):
        def __init__(self, params, warmth=1, **options):
            super().__init__(params, **options)

    assert Mine(P, warmth=2, lr=0.5).get_lr() == 0.5
    with pytest.raises(UnknownOptionError, match="Lamb has no option 'momentum'"):
        Mine(P, momentum=0.9)


@pytest.mark.parametrize(
    ("module", "name", "where"),
    [
        ("layerwise", "Lamb", "from layerwise.torch import Lamb, or from layerwise.numpy"),
        ("layerwise", "LAMB", "from layerwise.torch import Lamb"),
        ("layerwise", "adafactor", "from layerwise.jax import adafactor"),
        ("layerwise.torch", "LAMB", "Is Lamb meant"),
        ("layerwise.torch", "param_group", "Is param_groups meant"),
        ("layerwise.jax", "Lamb", "Is lamb meant"),
        ("layerwise", "nothing", r"no attribute 'nothing'\.$|cannot import name 'nothing'"),
    ],
)
def test_a_module_says_where_a_name_is_that_it_lacks(module, name, where):
    with pytest.raises(AttributeError, match=where):
        getattr(importlib.import_module(module), name)
    with pytest.raises(ImportError, match=where):
        exec(f"from {module} import {name}")  # noqa: S102
    assert not hasattr(layerwise, name)


@pytest.mark.parametrize("said", [{"names": {"dense/kernal": "w"}}, {"axes": {"dense/*": (1, 0)}}], ids=str)
def test_conversion_names_the_leaf_that_is_not_there(said):
    params = {"dense": {"kernel": np.ones((2, 3), np.float32)}}
    transform = jax_front.lamb(0.1)
    theirs = torch_front.Lamb([("dense.kernel", torch.nn.Parameter(torch.ones(2, 3)))])
    state = convert.to_torch(transform.init(params), params, theirs)
    for go in (
        lambda said: convert.to_torch(transform.init(params), params, theirs, **said),
        lambda said: convert.from_torch(state, transform, params, **said),
    ):
        with pytest.raises(HyperparameterError, match=r"speaks of 'dense/.*nearest names are 'dense/kernel'"):
            go(said)
        [(argument, given)] = said.items()
        go({argument: {optional(key): value for key, value in given.items()}})
