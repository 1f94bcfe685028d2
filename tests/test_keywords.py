"""Names that no option has: what is meant by them; and presets with options besides."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import optax
import pytest
import torch

import layerwise
from layerwise import arguments
from layerwise import jax as jax_front
from layerwise import numpy as numpy_front
from layerwise import torch as torch_front
from layerwise.errors import ContradictionError, EngineError, HyperparameterError, UnknownOptionError
from layerwise.keywords import MEANT

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
        ("torch.Lamb", "foreach", "Is `fused` meant"),
        ("torch.Lamb", "weight_decy", "Is `weight_decay` meant?"),
        ("torch.Lamb", "momentum", "Is `betas` meant?"),
        ("torch.Lamb", "always_adapt", "Is `adapt` meant"),
        ("numpy.Lamb", "fused", "Is `engine` meant"),
        ("numpy.Lars", "eta", "Is `trust_coefficient` meant?"),
        ("numpy.Adafactor", "momentum", "Is `beta1` meant?"),
        ("numpy.Adafactor", "clipping_threshold", "Is `clip_threshold` meant?"),
        ("numpy.Adafactor", "b2", "Is `beta2` meant"),
        ("torch.Adafactor", "decay_rate_fn", "Is `beta2` meant (a function of the step)?"),
        ("jax.adafactor", "beta_2", "Is `beta2` meant"),
        ("jax.lamb", "betas", "Is `b1` meant"),
        ("jax.lamb", "lr", "Is `learning_rate` meant?"),
        ("jax.adafactor", "beta1", "Is `momentum` meant"),
        ("jax.adafactor", "clip_threshold", "Is `clipping_threshold` meant?"),
        ("jax.adafactor", "beta2_decay", "Is `decay_rate` meant (-0.8 there is 0.8 here)?"),
        ("torch.Lamb", "xyzzy", "It takes params, lr, betas"),
        ("torch.Lamb", "bits", "Is `state_dtype` meant"),
        ("torch.Lamb", "block_size", "Is `state_dtype` meant"),
        ("torch.Lamb", "clip_grad", "Is `max_grad_norm` meant"),
        ("torch.Lamb", "amsgrad", "AMSGrad, the maximum of second moments, is not among the options."),
        ("numpy.Lars", "warmup_steps", "layerwise.schedules"),
        ("torch.Lamb", "adam", "It takes params"),
    ],
)
def test_what_is_meant(front, option, meant):
    with pytest.raises(UnknownOptionError) as caught:
        FUNCTIONS[front](**{option: 0.5})
    assert repr(option) in str(caught.value)
    assert meant in str(caught.value)
    assert isinstance(caught.value, TypeError)  # what Python raises
    assert isinstance(caught.value, ValueError)


def test_the_table_names_what_some_front_takes():
    fronts = [getattr(m, n) for m in (torch_front, numpy_front) for n in ("Lamb", "Lars", "Adafactor")]
    fronts += [getattr(jax_front, name) for name in ("lamb", "lars", "adafactor")]
    taken = {name for one in fronts for name in inspect.signature(one).parameters}
    # Without importing Keras, which takes its backend for good, or Paddle.
    taken |= {one.name for one in (*arguments.KERAS, *arguments.PADDLE)}
    assert {name for called, _ in MEANT.values() for name in called} <= taken


def test_a_subclass_keeps_its_own_arguments():
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
    ],
)
def test_a_module_says_where_an_optimizer_is(module, name, where):
    with pytest.raises(AttributeError, match=where):
        getattr(importlib.import_module(module), name)
    with pytest.raises(ImportError, match=where):
        exec(f"from {module} import {name}")  # noqa: S102
    assert not hasattr(importlib.import_module(module), name)


def test_other_names_are_missing_as_always():
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'\.$"):
        layerwise.nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from layerwise import nothing")  # noqa: S102


# ---- presets


def test_overrides_go_before_what_a_preset_says():
    options = layerwise.preset("apex.FusedLAMB", weight_decay=0.02, lr=0.5)
    assert options == {"weight_decay": 0.02, "max_grad_norm": 1.0, "adapt": "decayed", "lr": 0.5}
    assert layerwise.preset("apex.FusedLAMB")["weight_decay"] == 0.01
    assert torch_front.Lamb(P, **options).param_groups[0]["weight_decay"] == 0.02


@pytest.mark.parametrize("preset", [layerwise.preset, jax_front.preset])
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"momentum": 0.9}, "no option 'momentum'"),
        ({"weight_deca": 0.9}, "Is `weight_decay` meant?"),
        ({"weight_decay": -1}, "`weight_decay` must be a finite number ≥ 0"),
        ({"eps": "small"}, "`eps` must be"),
        ({"nonsense": 1}, "no option 'nonsense'"),
    ],
)
def test_overrides_are_checked(preset, overrides, words):
    with pytest.raises(HyperparameterError) as caught:
        preset("apex.FusedLAMB", **overrides)
    assert words in str(caught.value)


def test_overrides_of_jax_have_its_names():
    options = jax_front.preset("timm.Lars", learning_rate=0.5, momentum=0.9)
    assert (options["learning_rate"], options["momentum"], options["norm"]) == (0.5, 0.9, "split")
    jax_front.lars(**options)
    jax_front.adafactor(**jax_front.preset("keras.Adafactor", learning_rate=0.01, decay_rate=0.7, eps=1e-20))
    jax_front.adafactor(**jax_front.preset("keras.Adafactor", learning_rate=optax.constant_schedule(0.01)))
    with pytest.raises(UnknownOptionError, match="`learning_rate`"):
        jax_front.preset("timm.Lars", lr=0.5)


def test_overrides_by_name():
    options = layerwise.preset("mlperf.LARS", adapt={"*.bias": False})
    numpy_front.Lars(**options).step("a.bias", np.ones(2), np.ones(2))
    options = layerwise.preset("keras.Lamb", l2={"a.*": 0.1})
    assert numpy_front.Lamb(**options).l2 == {"a.*": 0.1}


def test_a_preset_does_not_deny_options_that_a_front_has_besides():
    with pytest.raises(UnknownOptionError, match=r"\('keras\.Lamb'\) has no option 'blocks'"):
        layerwise.preset("keras.Lamb", blocks=3)


@pytest.mark.parametrize(("name", "lr"), [("torch.Adafactor", 0.01), ("keras.Adafactor", 1e-3)])
def test_their_lr_is_a_cap(name, lr):
    for given, cap in ({}, lr), ({"lr": 0.05}, 0.05), ({"lr_cap": 0.05}, 0.05):
        for opt in (
            numpy_front.Adafactor(**layerwise.preset(name, **given)),
            numpy_front.Adafactor(**{**layerwise.preset(name), **given}),
        ):
            p = np.ones((3, 2))
            opt.step("p", p, np.ones((3, 2)))
            np.testing.assert_allclose(1 - p, cap, rtol=1e-6)


# ---- a fused step where there are no kernels


def test_fused_is_refused_when_the_optimizer_is_made(monkeypatch):
    from layerwise.engines import Candidate
    from layerwise.torch.step import _engines

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gone = {"cpu": Candidate("compiled", None, "the extension is gone")}
    with monkeypatch.context() as without:
        without.setattr(_engines, "KERNELS", gone)
        with pytest.raises(EngineError, match=r"no kernels for w: the extension is gone\. Pass fused=None"):
            torch_front.Lamb([("w", P[0])], fused=True)
        without.setattr(_engines, "KERNELS", {})
        with pytest.raises(EngineError, match="there are none for cpu"):
            torch_front.Lamb(P, fused=True)
        torch_front.Lamb(P)
        opt = torch_front.Lamb(P, fused=False)
        opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    torch_front.Lamb(P, fused=True)


def test_fused_is_not_differentiated():
    with pytest.raises(ContradictionError, match="`fused` must be None or False when differentiable=True"):
        torch_front.Lamb(P, fused=True, differentiable=True)
