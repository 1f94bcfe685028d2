from __future__ import annotations

import json
import pickle
from contextlib import suppress

import ml_dtypes  # noqa: F401  # with which NumPy knows bfloat16
import numpy as np
import pytest

from layerwise import numpy as front
from layerwise import preset, presets
from layerwise.errors import PresetError
from layerwise.registry import ENTRIES

NEEDS_LR = {"optax.adafactor", "t5x.Adafactor", "big_vision.scale_by_adafactor", "timm.AdafactorBigVision"}


def options_of(name):
    return {**preset(name), **({"lr": 0.1} if name in NEEDS_LR else {})}


@pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)
def test_constructs_its_class_and_steps(one):
    options = options_of(one.name)
    assert ENTRIES[one.optimizer].hyper(**options).optimizer == one.optimizer
    weights = {"w": np.ones((3, 2)), "b": np.ones(2)}
    opt = getattr(front, one.optimizer)(**options)
    # Not all alike: where its norm is kept, a tensor does not move along itself.
    opt.step_all(weights, {name: np.arange(1.0, w.size + 1).reshape(w.shape) for name, w in weights.items()})
    assert all(np.isfinite(w).all() and (w != 1).any() for w in weights.values())


@pytest.mark.parametrize("name", [one.name for one in presets()])
def test_gives_a_fresh_copy(name):
    preset(name)["lr"] = "changed"
    assert preset(name).get("lr") != "changed"
    assert preset(name) == dict(next(p.options for p in presets() if p.name == name))


@pytest.mark.parametrize("name", [one.name for one in presets()])
def test_lr_is_left_to_the_caller_unless_it_is_the_recipe(name):
    assert ("lr" in preset(name)) == (name == "transformers.Adafactor-T5")


def test_list_is_fresh():
    presets().clear()
    assert len(presets()) > 20


def test_the_table_cannot_be_written_to():
    one = presets()[0]
    with suppress(TypeError):
        one.options["changed"] = 1
    try:
        assert "changed" not in preset(one.name)
    finally:
        with suppress(TypeError, AttributeError):
            one.options.pop("changed", None)


@pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)
def test_says_how_it_differs(one):
    assert one.differs
    line = str(one)
    assert len(line.splitlines()) == 1
    assert one.name in line
    assert one.optimizer in line
    assert one.differs in line
    assert one.not_reproduced in line
    assert ("Not reproduced" in line) == bool(one.not_reproduced)


@pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)
def test_defaults_of_ours_are_not_repeated(one):
    # A repeated default would say "differs" of what does not. Adafactor's depend on whether there is an lr.
    ours = ENTRIES[one.optimizer].hyper(**({"lr": 0.1} if one.name in NEEDS_LR else {}))
    repeated = {
        key
        for key, value in one.options.items()
        if getattr(ours, key) == value and key not in ("decay_scale", "lr_cap", "relative_step")
    }
    assert repeated == set()


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
def test_unknown_names_get_suggestions(unknown, suggested):
    with pytest.raises(PresetError) as caught:
        preset(unknown)
    assert repr(unknown) in str(caught.value)
    assert suggested in str(caught.value)
    assert "presets()" in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)
def test_like_makes_the_optimizer_of_the_preset(one):
    made = getattr(front, one.optimizer)
    given = {"lr": 0.1, "maximize": True}
    assert repr(made.like(one.name, **given)) == repr(made(**{**preset(one.name), **given}))


def test_what_is_given_beside_a_preset_takes_its_place():
    opt = front.Lamb.like("timm.Lamb", 0.5, weight_decay=0.1)
    assert (opt.lr, opt.weight_decay, opt.adapt, opt.max_grad_norm) == (0.5, 0.1, "decayed", 1.0)


@pytest.mark.parametrize(
    "merged", [dict, lambda options: {**options, "weight_decay": 0.1}, lambda options: {"maximize": True, **options}]
)
def test_options_of_a_preset_are_of_its_class_alone(merged):
    """Of two optimizers' options there would be a mixture that neither of them is."""
    options = merged(preset("timm.Lamb"))
    with pytest.raises(PresetError, match=r"'timm.Lamb', which is one of Lamb, and this is Lars. Use Lamb, or"):
        front.Lars(**options)
    with pytest.raises(PresetError, match=r"'timm.Lamb' is one of Lamb, and this is Lars. Use Lamb.like\('timm.Lamb'"):
        front.Lars.like("timm.Lamb")
    assert front.Lamb(**options).adapt == "decayed"


@pytest.mark.parametrize("one", [one for one in presets() if one.options], ids=lambda one: one.name)
def test_no_other_class_takes_a_whole_preset(one):
    for name in ENTRIES.keys() - {one.optimizer}:
        with pytest.raises(PresetError, match=f"which is one of {one.optimizer}, and this is {name}"):
            getattr(front, name)(**{**preset(one.name, maximize=True), **dict.fromkeys(one.options, 0.1)})
        for own in [other.name for other in presets() if other.optimizer == name][:1]:
            with pytest.raises(PresetError, match=f"which is one of {one.optimizer}, and this is {name}"):
                getattr(front, name).like(own, **preset(one.name))


def test_single_values_of_a_preset_are_anyones():
    picked = {name: value for name, value in preset("timm.Lamb", lr=0.2).items() if name in ("lr", "weight_decay")}
    opt = front.AdamW(**picked)
    assert (opt.lr, opt.weight_decay) == (0.2, 0.01)
    assert front.Lars(**{**preset("timm.Lars"), **picked}).weight_decay == 0.01


class Anyhow(front.Lamb):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)


class ByPlace(front.Lamb):
    def __init__(self, rate, /, caution=False, **kw):
        super().__init__(rate, caution=caution, **kw)


class AndMore(front.Lamb):
    def __init__(self, lr, *more, **kw):
        super().__init__(lr, *more, **kw)


@pytest.mark.parametrize("cls", [Anyhow, ByPlace, AndMore])
def test_subclasses_get_the_preset_however_they_take_arguments(cls):
    for opt in (
        cls.like("timm.Lamb", 0.5, weight_decay=0.1),
        AndMore.like("timm.Lamb", 0.5, (0.8, 0.9), weight_decay=0.1),
    ):
        assert (opt.lr, opt.weight_decay, opt.adapt, opt.max_grad_norm) == (0.5, 0.1, "decayed", 1.0)


def test_what_is_saved_of_a_preset_needs_no_class_of_ours():
    saved = pickle.loads(pickle.dumps(preset("timm.Lamb")))
    assert {type(name) for name in saved} == {str}
    assert json.dumps(preset("timm.Lamb")) == json.dumps(saved)
    assert {type(name) for name in {str(k): v for k, v in preset("timm.Lamb").items()}} == {str}


def test_an_argument_given_twice_is_pythons_error():
    with pytest.raises(TypeError, match="multiple values"):
        front.Lamb.like("timm.Lamb", 0.5, lr=0.1)
    with pytest.raises(TypeError, match="multiple values"):
        front.Lamb(lr=0.1, weight_decay=0.1, **preset("timm.Lamb"))
