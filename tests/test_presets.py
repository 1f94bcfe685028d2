"""Presets: options that make an optimizer equal to another implementation, of its own class alone."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import ml_dtypes  # noqa: F401  # with which NumPy knows bfloat16
import numpy as np
import optax
import pytest
import torch

import layerwise.torch
from layerwise import jax as jax_front
from layerwise import numpy as front
from layerwise import preset, presets
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import HyperparameterError, PresetError, UnknownOptionError

NEEDS_LR = {"optax.adafactor", "t5x.Adafactor", "big_vision.scale_by_adafactor", "timm.AdafactorBigVision"}

each = pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)


@each
def test_a_preset_makes_its_optimizer_which_steps(one):
    options = {**preset(one.name), **({"lr": 0.1} if one.name in NEEDS_LR else {})}
    assert ENTRIES[one.optimizer].hyper(**options).optimizer == one.optimizer
    weights = {"w": np.ones((3, 2)), "b": np.ones(2)}
    opt = getattr(front, one.optimizer)(**options)
    # Not all alike: where its norm is kept, a tensor does not move along itself.
    opt.step_all(weights, {name: np.arange(1.0, w.size + 1).reshape(w.shape) for name, w in weights.items()})
    assert all(np.isfinite(w).all() and (w != 1).any() for w in weights.values())


@each
def test_a_preset_says_in_a_line_how_it_differs_and_repeats_no_default(one):
    line = str(one)
    assert one.differs
    assert len(line.splitlines()) == 1
    assert [part for part in (one.name, one.optimizer, one.differs, one.not_reproduced) if part not in line] == []
    assert ("Not reproduced" in line) == bool(one.not_reproduced)
    # Adafactor's defaults depend on whether there is an lr.
    ours = ENTRIES[one.optimizer].hyper(**({"lr": 0.1} if one.name in NEEDS_LR else {}))
    settled = ("decay_scale", "lr_cap", "relative_step")
    assert [key for key, x in one.options.items() if getattr(ours, key) == x and key not in settled] == []


@each
def test_a_preset_is_a_fresh_copy_that_leaves_lr_to_the_caller_unless_it_is_the_recipe(one):
    preset(one.name)["lr"] = "changed"
    assert preset(one.name) == dict(one.options)
    assert ("lr" in preset(one.name)) == (one.name == "transformers.Adafactor-T5")


def test_the_table_cannot_be_written_to():
    presets().clear()
    assert len(presets()) > 20
    one = presets()[0]
    with suppress(TypeError):
        one.options["changed"] = 1
    assert "changed" not in preset(one.name)


@pytest.mark.parametrize(
    ("unknown", "suggested"),
    [
        ("apex.FusedLamb", "apex.FusedLAMB"),
        ("apex", "apex.FusedLAMB"),
        ("optax.adafacto", "optax.adafactor"),
        ("torch.adafactor", "torch.Adafactor"),
        ("timm.lamb", "timm.Lamb"),
        ("", "paper.Lamb"),
        (None, "paper.Lamb"),
        (3, "paper.Lamb"),
        (["apex.FusedLAMB"], "apex.FusedLAMB"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(unknown, suggested):
    with pytest.raises(PresetError) as caught:
        preset(unknown)
    assert [word for word in (repr(unknown), suggested, "presets()") if word not in str(caught.value)] == []
    assert isinstance(caught.value, ValueError)


def test_options_beside_a_preset_take_the_place_of_its_own():
    options = preset("apex.FusedLAMB", weight_decay=0.02, lr=0.5)
    assert options == {"weight_decay": 0.02, "max_grad_norm": 1.0, "adapt": "decayed", "lr": 0.5}
    assert preset("apex.FusedLAMB")["weight_decay"] == 0.01
    opt = layerwise.torch.Lamb([torch.nn.Parameter(torch.ones(2))], **options)
    assert opt.param_groups[0]["weight_decay"] == 0.02
    opt = front.Lamb.like("timm.Lamb", 0.5, weight_decay=0.1)
    assert (opt.lr, opt.weight_decay, opt.adapt, opt.max_grad_norm) == (0.5, 0.1, "decayed", 1.0)


@pytest.mark.parametrize("make", [preset, partial(jax_front.like, learning_rate=0.1)], ids=["preset", "jax"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"momentum": 0.9}, "no option 'momentum'"),
        ({"weight_deca": 0.9}, "Did you mean `weight_decay`?"),
        ({"weight_decay": -1}, "`weight_decay` must be a finite number ≥ 0"),
        ({"eps": "small"}, "`eps` must be"),
        ({"nonsense": 1}, "no option 'nonsense'"),
    ],
)
def test_options_beside_a_preset_are_checked(make, options, words):
    with pytest.raises(HyperparameterError) as caught:
        make("apex.FusedLAMB", **options)
    assert words in str(caught.value)


def test_options_beside_a_preset_of_jax_have_the_names_of_jax():
    options = jax_front.preset("timm.Lars", learning_rate=0.5, momentum=0.9)
    assert (options["learning_rate"], options["momentum"], options["norm"]) == (0.5, 0.9, "split")
    jax_front.lars(**options)
    jax_front.adafactor(**jax_front.preset("keras.Adafactor", learning_rate=0.01, decay_rate=0.7, eps=1e-20))
    jax_front.adafactor(**jax_front.preset("keras.Adafactor", learning_rate=optax.constant_schedule(0.01)))
    with pytest.raises(UnknownOptionError, match="`learning_rate`"):
        jax_front.lars(**jax_front.preset("timm.Lars", lr=0.5))


def test_options_beside_a_preset_may_be_by_name_and_are_of_the_formula_alone():
    front.Lars(**preset("mlperf.LARS", adapt={"*.bias": False})).step("a.bias", np.ones(2), np.ones(2))
    assert front.Lamb(**preset("keras.Lamb", l2={"a.*": 0.1})).l2 == {"a.*": 0.1}
    with pytest.raises(UnknownOptionError, match=r"\('keras\.Lamb'\) has no option 'blocks'"):
        preset("keras.Lamb", blocks=3)


@pytest.mark.parametrize(("name", "lr"), [("torch.Adafactor", 0.01), ("keras.Adafactor", 1e-3)])
def test_the_lr_of_their_adafactor_is_a_cap(name, lr):
    for given, cap in ({}, lr), ({"lr": 0.05}, 0.05), ({"lr_cap": 0.05}, 0.05):
        for options in (preset(name, **given), {**preset(name), **given}):
            p = np.ones((3, 2))
            front.Adafactor(**options).step("p", p, np.ones((3, 2)))
            np.testing.assert_allclose(1 - p, cap, rtol=1e-6)


@each
def test_its_class_is_made_of_its_name_and_others_refuse_it(one):
    made, given = getattr(front, one.optimizer), {"lr": 0.1, "maximize": True}
    assert repr(made.like(one.name, **given)) == repr(made(**{**preset(one.name), **given}))
    other = front.SGD if one.optimizer != "SGD" else front.Lamb
    with pytest.raises(PresetError, match=rf"is for {one.optimizer}, not for .* Use {one.optimizer}\.like\("):
        other.like(one.name)
