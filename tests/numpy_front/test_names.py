"""What is said by name, and what is remembered of a name."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
import reference.adafactor
from numpy_front.front import BUSY, FRONTS, arrays, bits, busy, close, copies, fronts

from layerwise import Blocks, optional
from layerwise.errors import HyperparameterError, ParameterError
from layerwise.numpy import Adafactor, Lamb, Lars

NAMES = {"encoder.weight": (3, 2), "encoder.bias": (3,), "head[0]/weight": (2, 2)}


def trajectory(opt, names=NAMES, steps=3):
    weights = arrays(1, names)
    for t in range(steps):
        opt.step_all(
            weights, {name: arrays(10 + t)["matrix"].flat[: w.size].reshape(w.shape) for name, w in weights.items()}
        )
    return weights


def each_by_itself(front, options_of, **shared):
    """What the names' weights become when each has an optimizer of its own."""
    together = {}
    for name, shape in NAMES.items():
        alone = trajectory(busy(front, **{**shared, **options_of(name)}), NAMES)
        together[name] = alone[name]
        assert together[name].shape == shape
    return together


SCALES = {"encoder.weight": 1.0, "encoder.bias": 0.25, "head[0]/weight": 0.0}


@fronts
@pytest.mark.parametrize(
    "given",
    [
        SCALES,
        SCALES.__getitem__,
        {"*.bias": 0.25, "head*": 0.0},
        {"*": 0.0, "encoder.weight": 1, "encoder.bias": np.float32(0.25)},
        {"encoder.?eight": None, "*.bias": 0.25, "head[[]0]/*": 0},
        lambda name: None if name == "encoder.weight" else SCALES[name],
    ],
)
def test_lr_scale(front, given):
    lr = BUSY[front]["lr"]
    close(trajectory(busy(front, lr_scale=given)), each_by_itself(front, lambda name: {"lr": lr * SCALES[name]}))


@fronts
def test_one_lr_scale_for_all(front):
    lr = BUSY[front]["lr"]
    close(trajectory(busy(front, lr_scale=0.5)), trajectory(busy(front, lr=lr * 0.5)))


def test_lr_scale_where_the_step_follows_t():
    close(
        trajectory(Adafactor(lr_scale=0.5)),
        trajectory(Adafactor(lr=lambda t: 0.5 * min(0.01, (t + 1) ** -0.5), scale_parameter=True)),
    )


def test_lr_is_read_without_lr_scale():
    opt = Lamb(lr=0.5, lr_scale=0.1)
    trajectory(opt)
    assert opt.lr == 0.5


@pytest.mark.parametrize("front", [Lamb, Lars])
@pytest.mark.parametrize(
    "given", [{"*.bias": False}, lambda name: not name.endswith("bias"), {"*.bias": False, "head*": None}]
)
def test_adapt(front, given):
    close(
        trajectory(busy(front, adapt=given)), each_by_itself(front, lambda name: {"adapt": not name.endswith("bias")})
    )


@pytest.mark.parametrize("front", [Lamb, Lars])
def test_adapted_where_decayed(front):
    opt = busy(front, adapt={"*": "decayed"}, decay={"*.bias": False})
    close(
        trajectory(opt),
        each_by_itself(front, lambda n: {"adapt": False, "weight_decay": 0} if n.endswith("bias") else {}),
    )
    assert opt.stats()["encoder.bias"]["trust_ratio"] == 1


@fronts
@pytest.mark.parametrize(
    "given",
    [
        {"encoder.bias": False, "head*": 3},
        {"encoder.bias": 0, "encoder.weight": True, "head*": 3.0},
        lambda name: {"encoder.bias": 0.0, "head[0]/weight": 3}.get(name),
    ],
)
def test_decay(front, given):
    factor = {"encoder.weight": 1, "encoder.bias": 0, "head[0]/weight": 3}
    expected = each_by_itself(front, lambda name: {"weight_decay": 0.01 * factor[name]})
    close(trajectory(busy(front, decay=given)), expected)
    scheduled = busy(front, decay=given, weight_decay=lambda step: 0.01)
    close(trajectory(scheduled), expected)


def test_place_of_decay():
    given = {"encoder.weight": "decoupled", "encoder.bias": "l2", "head*": "ratio"}
    places = {"encoder.weight": "decoupled", "encoder.bias": "l2", "head[0]/weight": "ratio"}
    close(trajectory(busy(Lamb, decay=given)), each_by_itself(Lamb, lambda name: {"decay": places[name]}))


@pytest.mark.parametrize("front", [Lamb, Lars])
def test_l2(front):
    own = {"encoder.weight": 0.3, "encoder.bias": 0.0, "head[0]/weight": 2.0}
    expected = each_by_itself(front, lambda name: {"l2": own[name]})
    for given in ({"encoder.weight": 0.3, "head*": 2}, own.get):
        close(trajectory(busy(front, l2=given)), expected)
    with pytest.raises(HyperparameterError, match=r"`l2\['head\*'\]` must be a finite number ≥ 0, but is -1"):
        busy(front, l2={"head*": -1})


@fronts
def test_nothing_said_is_the_default(front):
    plain, other = bits(trajectory(busy(front))), {optional("other"): 0.5}
    for given in ({}, other, lambda name: None, None):
        assert bits(trajectory(busy(front, lr_scale=given, blocks=given if given is not other else None))) == plain
        if given is not None:
            assert bits(trajectory(busy(front, decay=given))) == plain
            if "adapt" in signature(front).parameters:
                by_name = given if given is not other else {optional("other"): False}
                assert bits(trajectory(busy(front, adapt=by_name))) == plain


BAD = [
    ({"lr_scale": {"w": -1}}, "`lr_scale['w']` must be a finite number ≥ 0, but is -1."),
    ({"lr_scale": {"*.w": float("nan")}}, "`lr_scale['*.w']` must be a finite number ≥ 0, but is nan."),
    ({"lr_scale": "fast"}, "`lr_scale` must be a finite number ≥ 0, but is 'fast'."),
    ({"lr_scale": True}, "`lr_scale` must be a finite number ≥ 0, but is True."),
    ({"decay": {"w": -1}}, "`decay['w']` must be one of True, False or a finite number ≥ 0"),
    ({"decay": {"w": "everywhere"}}, "`decay['w']` must be one of"),
    ({"blocks": {"w": 0}}, "`blocks['w']` must be an integer ≥ 1 or 'each' or a sequence of lengths, but is 0."),
    ({"blocks": {"w": ()}}, "`blocks['w']`"),
    ({"blocks": {"w": (2, 0)}}, "`blocks['w']`"),
    ({"blocks": {"w": "every"}}, "`blocks['w']`"),
    ({"blocks": 1.5}, "`blocks` must be an integer ≥ 1"),
    ({"blocks": True}, "`blocks` must be an integer ≥ 1"),
    ({"skip_nonfinite": 1}, "`skip_nonfinite` must be one of True, False, but is 1."),
    ({"lr_scale": {0.0: 0.5}}, "`lr_scale`"),
    ({"decay": {("w",): False}}, "`decay`"),
]


@fronts
@pytest.mark.parametrize(("options", "words"), BAD, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_bad_values_by_name_are_refused_at_once(front, options, words):
    with pytest.raises(HyperparameterError) as caught:
        front(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize("front", [Lamb, Lars])
def test_bad_adapt_is_refused_at_once(front):
    with pytest.raises(HyperparameterError, match=r"`adapt\['w'\]` must be one of True, False, 'decayed', but is 'no'"):
        front(adapt={"w": "no"})


@pytest.mark.parametrize("front", [Lars, Adafactor])
def test_decay_is_by_name_only(front):
    for value in (True, 0.5, "ratio"):
        with pytest.raises(
            HyperparameterError, match=r"`decay` must be a mapping or a callable of the name.*weight_decay"
        ):
            front(decay=value)


@fronts
@pytest.mark.parametrize("option", ["lr_scale", "decay", "blocks"])
def test_bad_answers_by_name_change_nothing(front, option):
    opt = busy(front, **{option: lambda name: -1 if name == "late" else None})
    weights = arrays(2, {"w": (3,), "late": (3,)})
    opt.step("w", weights["w"], np.ones(3))
    before, state = bits(weights), bits(opt.state_dict())
    with pytest.raises(HyperparameterError, match=rf"`{option}\['late'\]` must be .* but is -1"):
        opt.step_all(weights, {"w": np.ones(3), "late": np.ones(3)})
    assert bits(weights) == before
    assert bits(opt.state_dict()) == state


@fronts
def test_mappings_are_taken_as_they_were_given(front):
    given = {"encoder.bias": 0.0}
    opt, calm = busy(front, lr_scale=given), busy(front, lr_scale={"encoder.bias": 0.0})
    weights, expected = arrays(1, NAMES), arrays(1, NAMES)
    for lr in (0.1, 0.2):
        opt.lr = calm.lr = lr
        grads = {name: np.ones(w.shape) for name, w in weights.items()}
        opt.step_all(weights, grads)
        calm.step_all(expected, grads)
        given.clear()
    assert bits(weights) == bits(expected)


@fronts
def test_a_fresh_name_has_its_own_step_count(front):
    opt, alone = busy(front), busy(front)
    weights = arrays(3, {"old": (3, 2), "new": (3, 2)})
    new = copies(weights)
    for t in range(3):
        opt.step("old", weights["old"], arrays(30 + t)["matrix"][:3, :2])
    for t in range(3):
        g = arrays(60 + t)["matrix"][:3, :2]
        opt.step_all(weights, {"old": g, "new": g})
        alone.step("new", new["new"], g)
    assert weights["new"].tobytes() == new["new"].tobytes()
    state = opt.state_dict()
    assert (state["old/step"], state["new/step"]) == (6, 3)


@fronts
@pytest.mark.parametrize("absent", [{}, {"b": None}])
def test_names_without_gradient_are_left_alone(front, absent):
    opt, calm = busy(front), busy(front)
    weights = arrays(4, {"a": (3,), "b": (3,)})
    expected = copies(weights)
    both = {"a": np.ones(3), "b": np.arange(3.0)}
    for grads in (both, {"a": np.ones(3), **absent}, both):
        opt.step_all(weights, grads)
        calm.step_all(
            {name: expected[name] for name in grads if grads[name] is not None},
            {n: g for n, g in grads.items() if g is not None},
        )
    assert bits(weights) == bits(expected)
    assert opt.state_dict()["b/step"] == 2


@fronts
def test_parameters(front):
    opt = busy(front)
    assert (opt.parameters, opt.num_parameters) == ({}, 0)
    trajectory(opt)
    assert (opt.parameters, opt.num_parameters) == (NAMES, 3)
    opt.parameters.clear()
    assert opt.num_parameters == 3


@fronts
@pytest.mark.parametrize("shape", [(2, 3), (6,), (3, 2, 1), (3, 3), ()], ids=str)
def test_another_shape_is_an_error(front, shape):
    opt = busy(front)
    opt.step("w", np.ones((3, 2)), np.ones((3, 2)))
    w, state = np.ones(shape), bits(opt.state_dict())
    with pytest.raises(ParameterError) as caught:
        opt.step("w", w, np.ones(shape))
    assert "'w'" in str(caught.value)
    assert "(3, 2)" in str(caught.value)
    assert str(shape) in str(caught.value)
    assert "clear_state('w')" in str(caught.value)
    assert (w == 1).all()
    assert bits(opt.state_dict()) == state
    opt.clear_state("w")
    opt.step("w", w, np.ones(shape))
    assert opt.parameters == {"w": shape}


@fronts
def test_clear_state(front):
    opt, fresh = busy(front), busy(front)
    trajectory(opt)
    opt.clear_state("encoder.bias")
    assert set(opt.parameters) == set(NAMES) - {"encoder.bias"}
    assert set(opt.stats()) == set(opt.parameters)
    a, b = np.ones(3), np.ones(3)
    opt.step("encoder.bias", a, np.arange(3.0))
    fresh.step("encoder.bias", b, np.arange(3.0))
    assert a.tobytes() == b.tobytes()
    opt.clear_state()
    assert (opt.parameters, opt.stats()) == ({}, {})
    assert bits(trajectory(opt)) == bits(trajectory(busy(front)))


@fronts
@pytest.mark.parametrize("name", ["other", "", 3])
def test_clearing_what_is_not_there(front, name):
    opt = busy(front)
    trajectory(opt)
    with pytest.raises(ParameterError, match=r"no state is kept for .*'encoder\.weight'"):
        opt.clear_state(name)
    assert opt.num_parameters == 3


@fronts
def test_callables_see_every_name(front):
    seen = []
    trajectory(busy(front, lr_scale=lambda name: seen.append(name)))
    assert set(seen) == set(NAMES)


def test_repr_says_what_was_changed():
    assert repr(Lamb(weight_decay=0.1)) == "layerwise.numpy.Lamb(lr=0.001, weight_decay=0.1)"
    assert all(repr(front()).startswith(f"layerwise.numpy.{front.__name__}(lr=") for front in FRONTS)


def test_blocks_by_name():
    opt = Lamb(lr=0.1, blocks={"qkv*": 3, "experts": Blocks("each"), "other": None})
    weights = arrays(5, {"qkv.weight": (6, 2), "experts": (4, 2), "bias": (5,)})
    opt.step_all(weights, {name: np.ones(w.shape) for name, w in weights.items()})
    sizes = {name: np.shape(stats["trust_ratio"]) for name, stats in opt.stats().items()}
    assert sizes == {"qkv.weight": (3,), "experts": (4,), "bias": ()}


def test_lr_scale_reaches_the_decay_where_the_step_follows_t():
    w = {"w": np.array([[3.0, -1.0], [0.5, 2.0]])}
    expected, g = copies(w), {"w": np.array([[0.1, 0.3], [-0.2, 0.4]])}
    opt, oracle = Adafactor(weight_decay=0.5, lr_scale={"w": 0.25}), reference.adafactor.Adafactor(weight_decay=0.5)
    for _ in range(3):
        opt.step_all(w, g)
        expected = oracle.step(expected, g, lr_scale=0.25)
    close(w, expected)


def test_rates_that_multiply_to_infinity_change_nothing():
    w, opt = np.ones(2), Lamb(lr=1e300, lr_scale=1e300)
    with pytest.raises(HyperparameterError, match="`lr_scale` times the rate"):
        opt.step("w", w, np.ones(2))
    np.testing.assert_array_equal(w, 1)
