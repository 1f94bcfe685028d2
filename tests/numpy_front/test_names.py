"""Settings by name: each name steps as if an optimizer of its own had them."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
import reference.adafactor
from numpy_front.front import BUSY, FRONTS, arrays, busy, close, copies, everything, fronts

from layerwise import Blocks, optional
from layerwise.errors import HyperparameterError, ParameterError
from layerwise.numpy import Adafactor, Lamb, Lars

WEIGHT, BIAS, HEAD = "encoder.weight", "encoder.bias", "head[0]/weight"
NAMES = {WEIGHT: (3, 2), BIAS: (3,), HEAD: (2, 2)}
RATIO = [front for front in FRONTS if "adapt" in signature(front).parameters]


def trajectory(opt, names=NAMES, steps=3):
    weights = arrays(1, names)
    for t in range(steps):
        opt.step_all(weights, arrays(10 + t, names))
    return weights


def each_by_itself(front, options_of):
    """Return what each name's weights become under options of its own."""
    return {name: trajectory(busy(front, **options_of(name)))[name] for name in NAMES}


SCALES = {WEIGHT: 1.0, BIAS: 0.25, HEAD: 0.0}
FACTORS = {WEIGHT: 1, BIAS: 0, HEAD: 3}
L2 = {WEIGHT: 0.3, BIAS: 0.0, HEAD: 2.0}
PLACES = {WEIGHT: "decoupled", BIAS: "l2", HEAD: "ratio"}
ADAPTED = {WEIGHT: True, BIAS: False, HEAD: True}


ALONE = {
    "lr_scale": lambda front, name: {"lr": BUSY[front]["lr"] * SCALES[name]},
    "decay": lambda _, name: {"weight_decay": 0.01 * FACTORS[name]},
    "adapt": lambda _, name: {"adapt": ADAPTED[name]},
    "l2": lambda _, name: {"l2": L2[name]},
}


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("lr_scale", SCALES),
        ("lr_scale", SCALES.__getitem__),
        ("lr_scale", {"*.bias": 0.25, "head*": 0.0}),
        ("lr_scale", {"*": 0.0, WEIGHT: 1, BIAS: np.float32(0.25)}),
        ("lr_scale", {"encoder.?eight": None, "*.bias": 0.25, "head[[]0]/*": 0}),
        ("decay", {BIAS: False, "head*": 3}),
        ("decay", {BIAS: 0, WEIGHT: True, HEAD: 3.0}),
        ("decay", {BIAS: 0.0, HEAD: 3}.get),
        ("adapt", {"*.bias": False, "*": True}),
        ("adapt", lambda name: not name.endswith("bias")),
        ("adapt", {"*.bias": False, "head*": True, WEIGHT: True}),
        ("l2", {WEIGHT: 0.3, "head*": 2}),
        ("l2", L2.get),
    ],
)
@fronts
def test_a_setting_by_name_is_that_of_an_optimizer_of_its_own(front, option, given):
    wanted = each_by_itself(front, lambda name: ALONE[option](front, name))
    for weight_decay in (0.01, lambda step: 0.01) if option == "decay" else (None,):
        options = {} if weight_decay is None else {"weight_decay": weight_decay}
        close(trajectory(busy(front, **options, **{option: given})), wanted)


def test_the_place_of_decay_may_be_by_name():
    given = {WEIGHT: "decoupled", BIAS: "l2", "head*": "ratio"}
    close(trajectory(busy(Lamb, decay=given)), each_by_itself(Lamb, lambda name: {"decay": PLACES[name]}))


@pytest.mark.parametrize("front", RATIO)
def test_names_adapt_where_they_decay(front):
    opt = busy(front, adapt={"*": "decayed"}, decay={"*.bias": False}, weight_decay=0.01)
    wanted = each_by_itself(front, lambda n: {"weight_decay": 0.01 * ADAPTED[n], "adapt": ADAPTED[n]})
    close(trajectory(opt), wanted)
    assert opt.stats()[BIAS]["trust_ratio"] == 1


def test_lr_scale_scales_a_relative_step_and_its_decay_and_not_the_lr_that_is_read():
    own = Adafactor(lr=lambda t: 0.5 * min(0.01, (t + 1) ** -0.5), scale_parameter=True)
    close(trajectory(Adafactor(lr_scale=0.5)), trajectory(own))
    w, g = {"w": np.array([[3.0, -1.0], [0.5, 2.0]])}, {"w": np.array([[0.1, 0.3], [-0.2, 0.4]])}
    expected, oracle = copies(w), reference.adafactor.Adafactor(weight_decay=0.5)
    opt = Adafactor(weight_decay=0.5, lr_scale={"w": 0.25})
    for _ in range(3):
        opt.step_all(w, g)
        expected = oracle.step(expected, g, lr_scale=0.25)
    close(w, expected)
    assert Lamb(lr=0.5, lr_scale=0.1).lr == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr_scale": {"w": -1}}, "`lr_scale['w']` must be a finite number ≥ 0, but is -1."),
        ({"lr_scale": {"*.w": float("nan")}}, "`lr_scale['*.w']` must be a finite number ≥ 0, but is nan."),
        ({"lr_scale": "fast"}, "`lr_scale` must be a finite number ≥ 0, but is 'fast'."),
        ({"lr_scale": True}, "`lr_scale` must be a finite number ≥ 0, but is True."),
        ({"lr_scale": {0.0: 0.5}}, "`lr_scale` must be a mapping from names or patterns, but is 0.0"),
        ({"decay": {"w": -1}}, "`decay['w']` must be True or False or a finite number ≥ 0"),
        ({"decay": {"w": "everywhere"}}, "`decay['w']` must be True or False"),
        ({"decay": {("w",): False}}, "`decay` must be a mapping from names or patterns"),
        ({"blocks": {"w": 0}}, "`blocks['w']` must be an integer ≥ 1 or 'each' or a sequence of lengths, but is 0."),
        ({"blocks": 1.5}, "`blocks` must be an integer ≥ 1"),
        ({"adapt": {"w": "no"}}, "`adapt['w']` must be True, False, "),
        ({"l2": {"head*": -1}}, "`l2['head*']` must be a finite number ≥ 0, but is -1"),
        ({"skip_nonfinite": 1}, "`skip_nonfinite` must be True or False, but is 1."),
    ],
    ids=str,
)
@fronts
def test_a_bad_value_by_name_is_refused_at_once(front, options, words):
    with pytest.raises(HyperparameterError) as caught:
        front(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [True, 0.5, "ratio"])
def test_decay_of_a_rule_without_that_option_is_by_name_only(value):
    with pytest.raises(HyperparameterError, match=r"`decay` must be a mapping or a callable of the name.*weight_decay"):
        Lars(decay=value)


@fronts
@pytest.mark.parametrize("option", ["lr_scale", "decay", "blocks"])
def test_a_bad_value_from_a_function_of_the_name_changes_nothing(front, option):
    opt = busy(front, **{option: lambda name: -1 if name == "late" else None})
    weights = arrays(2, {"w": (3,), "late": (3,)})
    opt.step("w", weights["w"], np.ones(3))
    before = everything(opt, weights)
    with pytest.raises(HyperparameterError, match=rf"`{option}\['late'\]` must be .* but is -1"):
        opt.step_all(weights, {"w": np.ones(3), "late": np.ones(3)})
    assert everything(opt, weights) == before


def test_rates_that_multiply_to_infinity_change_nothing():
    w, opt = np.ones(2), Lamb(lr=1e300, lr_scale=1e300)
    with pytest.raises(HyperparameterError, match="`lr_scale` times the rate"):
        opt.step("w", w, np.ones(2))
    np.testing.assert_array_equal(w, 1)


@pytest.mark.parametrize("argument", ["blocks", "lr_scale", "adapt", "decay"])
def test_a_pattern_must_match_one_of_all_weights(argument):
    """Of a single name it cannot be known, and a name without a gradient is one all the same."""
    value = {"blocks": 2, "lr_scale": 2.0, "adapt": False, "decay": False}[argument]
    weights, grads = {"a.weight": np.ones((2, 2)), "a.bias": np.ones(2)}, {"a.weight": np.ones((2, 2))}
    opt = Lamb(**{argument: {"typo": value}})
    with pytest.raises(HyperparameterError, match=f"pattern 'typo' in `{argument}` matches no .* 'a.weight', 'a.bias'"):
        opt.step_all(weights, grads)
    assert (opt.num_parameters, weights["a.weight"].tolist()) == (0, [[1, 1], [1, 1]])
    Lamb(**{argument: {"typo": value}}).step("a.weight", weights["a.weight"], grads["a.weight"])
    for said in ({optional("typo"): value}, {"*.bias": value}):
        opt = Lamb(**{argument: said})
        opt.step_all(weights, grads)
        opt.step_all({"a.weight": weights["a.weight"]}, grads)


# ---- what is known of a name


@fronts
@pytest.mark.parametrize("shape", [(2, 3), (6,), (3, 2, 1), (3, 3), ()], ids=str)
def test_a_name_keeps_its_shape_until_it_is_cleared(front, shape):
    opt = busy(front)
    opt.step("w", np.ones((3, 2)), np.ones((3, 2)))
    w = np.ones(shape)
    before = everything(opt, {"w": w})
    with pytest.raises(ParameterError) as caught:
        opt.step("w", w, np.ones(shape))
    said = ("'w'", "(3, 2)", str(shape), "clear_state('w')")
    assert [word for word in said if word not in str(caught.value)] == []
    assert everything(opt, {"w": w}) == before
    opt.clear_state("w")
    opt.step("w", w, np.ones(shape))
    assert opt.parameters == {"w": shape}


def test_parameters_are_those_that_were_given():
    opt, weights = Lamb(), {"a": np.ones(2), "b": np.ones(3)}
    assert (opt.parameters, opt.num_parameters) == ({}, 0)
    opt.step_all(weights, {"a": np.ones(2), "b": None})
    opt.parameters.clear()
    assert (opt.num_parameters, opt.parameters) == (2, {"a": (2,), "b": (3,)})
    opt.clear_state("a")
    for name in ("a", "", 3):
        with pytest.raises(ParameterError, match="no state is kept for"):
            opt.clear_state(name)


def test_repr_says_what_is_not_the_default():
    assert repr(Lamb(weight_decay=0.1)) == "layerwise.numpy.Lamb(lr=0.001, weight_decay=0.1)"
    assert repr(Lamb(blocks=Blocks(3))).startswith("layerwise.numpy.Lamb(lr=0.001, blocks=Blocks(")
    assert all(repr(front()).startswith(f"layerwise.numpy.{front.__name__}(lr=") for front in FRONTS)
