"""Names that no option, optimizer or module has: the message says which is meant."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
import torch

from layerwise import convert, optional
from layerwise import jax as jax_front
from layerwise import numpy as numpy_front
from layerwise import torch as torch_front
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import HyperparameterError, UnknownOptionError
from layerwise.options import arguments
from layerwise.options.misspellings import guess
from layerwise.options.names import KERAS, OF_KERAS, OPTAX, PADDLE, synonyms

P = [torch.nn.Parameter(torch.ones(2))]
OF_TORCH = ("Lamb", "Adafactor", "Mixed", "Muon", "ScaleSGD", "SinkGD")
FUNCTIONS = {
    **{f"torch.{name}": lambda name=name, **kw: getattr(torch_front, name)(P, **kw) for name in OF_TORCH},
    **{f"numpy.{name}": getattr(numpy_front, name) for name in ("Lamb", "Lars", "Adafactor")},
    **{f"jax.{name}": lambda name=name, **kw: getattr(jax_front, name)(0.1, **kw) for name in ("lamb", "adafactor")},
}


@pytest.mark.parametrize(
    ("front", "option", "meant"),
    [
        ("torch.Adafactor", "momentum", "Did you mean `beta1`?"),
        ("numpy.Adafactor", "foreach", "Did you mean `engine`"),
        ("torch.Adafactor", "betas", "Did you mean `beta1`"),
        ("torch.Adafactor", "learning_rate", "Did you mean `lr`?"),
        ("torch.Adafactor", "decay_rate_fn", "Did you mean `beta2` (a function of the step)?"),
        ("torch.Lamb", "weight_decy", "Did you mean `weight_decay`?"),
        ("torch.Lamb", "momentum", "Did you mean `betas` (the first of a pair)?"),
        ("torch.Lamb", "always_adapt", "Did you mean `adapt`"),
        ("torch.Lamb", "xyzzy", "Its options are params, lr, betas"),
        ("torch.Lamb", "adam", "Its options are params"),
        ("torch.Lamb", "bits", "Did you mean `state_dtype`"),
        ("torch.Lamb", "block_size", "Did you mean `state_dtype`"),
        ("torch.Lamb", "clip_grad", "Did you mean `max_grad_norm`"),
        ("torch.Lamb", "amsgrad", "AMSGrad, which keeps the maximum of second moments, is not supported."),
        (
            "numpy.Lamb",
            "fused",
            'Did you mean `engine` (without it the fastest is picked; engine="rule" turns kernels off)?',
        ),
        ("numpy.Lars", "eta", "Did you mean `trust_coefficient`?"),
        ("numpy.Lars", "warmup_steps", "layerwise.schedules"),
        ("torch.Lamb", "mask", "use groups (layerwise.torch.param_groups)"),
        ("torch.Lamb", "trust_ratio_mask", "use groups (layerwise.torch.param_groups)"),
        (
            "torch.Lamb",
            "engine",
            "Did you mean `fused` (without it the fastest is picked; fused=False turns kernels off)?",
        ),
        ("torch.Lamb", "axis_name", "Lamb has no option 'axis_name'. Only layerwise.jax has it."),
        ("torch.SinkGD", "steps", "Did you mean `iterations`?"),
        ("torch.Muon", "steps", "Did you mean `ns_steps`?"),
        ("torch.Muon", "betas", "Did you mean `momentum` (the first of `betas`)?"),
        ("torch.ScaleSGD", "beta", "Did you mean `momentum`?"),
        ("torch.Lamb", "beta", "Did you mean `betas`?"),
        ("torch.Mixed", "lr", 'which belongs in the groups: param_groups(model, rule="lamb", lr=0.5).'),
        ("jax.lamb", "foreach", "Only layerwise.torch has it."),
        ("jax.lamb", "skip_nonfinite", "Only layerwise.torch, layerwise.numpy, and layerwise.paddle have it."),
        ("torch.Lamb", "reproducible", "the same bits from run to run"),
        ("numpy.Adafactor", "momentum", "Did you mean `beta1`?"),
        ("numpy.Adafactor", "clipping_threshold", "Did you mean `clip_threshold`?"),
        ("numpy.Adafactor", "b2", "Did you mean `beta2`"),
        ("jax.lamb", "betas", "Did you mean `b1`"),
        ("jax.lamb", "lr", "Did you mean `learning_rate`?"),
        ("jax.adafactor", "beta_2", "Did you mean `beta2`"),
        ("jax.adafactor", "beta1", "Did you mean `momentum`"),
        ("jax.adafactor", "clip_threshold", "Did you mean `clipping_threshold`?"),
        ("jax.adafactor", "beta2_decay", "Did you mean `decay_rate` (0.8 in optax is -0.8 in other libraries)?"),
    ],
)
def test_an_unknown_option_is_answered_with_the_probable_one(front, option, meant):
    with pytest.raises(UnknownOptionError) as caught:
        FUNCTIONS[front](**{option: 0.5})
    assert repr(option) in str(caught.value)
    assert meant in str(caught.value)
    assert isinstance(caught.value, TypeError)  # what Python raises
    assert isinstance(caught.value, ValueError)


def test_the_options_that_are_meant_exist():
    fronts = [
        getattr(m, n) for m in (torch_front, numpy_front) for n in ("Lamb", "Lars", "Adafactor", "Muon", "SinkGD")
    ]
    fronts += [getattr(jax_front, name) for name in ("lamb", "lars", "adafactor", "muon")]
    taken = {name for one in fronts for name in inspect.signature(one).parameters}
    # Without importing Keras, which takes its backend for good, or Paddle.
    taken |= {
        *inspect.signature(torch_front.param_groups).parameters,
        *(one.name for one in arguments.KERAS),
        "parameters",
        "grad_clip",
    }
    assert [names for names, _ in synonyms() if names[0] not in taken] == []


def test_an_option_is_found_by_each_name_that_it_has_in_some_api():
    for api in (OPTAX, PADDLE, KERAS, OF_KERAS):
        for entry in ENTRIES.values():
            for option, names in api.renamed_options(entry.hyper).items():
                for i, name in enumerate(names, 1):
                    assert guess(name, ["xyzzy", option]).startswith(f"Did you mean `{option}`")
                    assert guess(option, ["xyzzy", name]).startswith(f"Did you mean `{name}`")
                    if len(names) > 1:
                        assert name.endswith(str(i))
                        assert f"(the {('first', 'second')[i - 1]} of a pair)" in guess(name, ["xyzzy", option])
    assert KERAS.renamed_options(ENTRIES["Adafactor"].hyper)["eps"] == ("epsilon_1", "epsilon_2")
    assert KERAS.renamed_options(ENTRIES["Lamb"].hyper)["eps"] == ("epsilon",)


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
        ("layerwise", "Lamb", "or from layerwise.jax import lamb"),
        ("layerwise", "monitor", "from layerwise.torch import monitor"),
        ("layerwise.torch", "LAMB", "Did you mean `Lamb`"),
        ("layerwise.torch", "Lamb8bit", "Did you mean `Lamb`"),
        ("layerwise.torch", "param_group", "Did you mean `param_groups`"),
        ("layerwise.jax", "Lamb", "Did you mean `lamb`"),
        ("layerwise.mlx", "lamb", "Did you mean `Lamb`"),
        ("layerwise.numpy", "lamb", "Did you mean `Lamb`"),
        ("layerwise", "adafactor", "from layerwise.jax import adafactor"),
        ("layerwise", "nothing", "no attribute 'nothing'$"),
        ("layerwise.torch", "nothing", "no attribute 'nothing'$"),
    ],
)
def test_a_package_says_where_a_name_is_that_it_lacks(module, name, where):
    package = importlib.import_module(module)
    with pytest.raises(AttributeError, match=where):
        getattr(package, name)
    assert not hasattr(package, name)  # as others ask, jsonargparse for one


@pytest.mark.parametrize("said", [{"names": {"dense/kernal": "w"}}, {"axes": {"dense/*": (1, 0)}}], ids=str)
def test_conversion_names_the_missing_leaf(said):
    params = {"dense": {"kernel": np.ones((2, 3), np.float32)}}
    transform = jax_front.lamb(0.1)
    theirs = torch_front.Lamb([("dense.kernel", torch.nn.Parameter(torch.ones(2, 3)))])
    state = convert.to_torch(transform.init(params), params, theirs)
    for go in (
        lambda said: convert.to_torch(transform.init(params), params, theirs, **said),
        lambda said: convert.from_torch(state, transform, params, **said),
    ):
        with pytest.raises(HyperparameterError, match=r"pattern 'dense/.*nearest names are 'dense/kernel'"):
            go(said)
        [(argument, given)] = said.items()
        go({argument: {optional(key): value for key, value in given.items()}})
