"""Tests of layerwise.keras on one backend, which Keras takes from the environment for the whole process.

test_backends.py runs them for each backend; by hand: KERAS_BACKEND=torch python -m pytest -W ignore promises.py
"""

from __future__ import annotations

import json
import warnings

import keras
import numpy as np
import pytest
from cases import CASES
from reference.paths import close, data
from reference.tensors import norm

import layerwise.keras as front
import layerwise.schedules
from layerwise.errors import (
    ContradictionError,
    EngineError,
    GradientError,
    HyperparameterError,
    ParameterError,
    UnknownOptionError,
)
from layerwise.keras import _backends

ON_JAX = keras.config.backend() == "jax"
# JAX compiles each operation, and takes ten times as long. What Keras does around a step is the same on every backend,
# and the tests of the rules run all of them on JAX's functions.
not_on_jax = pytest.mark.skipif(ON_JAX, reason="is tried on another backend")
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
ADAMW = next(case for case in CASES if case.name == "AdamW")
LR = float(np.float32(0.02))  # as Keras holds it


def numbers(x):
    return np.asarray(keras.ops.convert_to_numpy(x))


def taken(optimizer, params, grads):
    """The tensors after the steps, in the dtypes in which they are given."""
    variables = [keras.Variable(p, dtype=str(p.dtype), name=f"v{i}") for i, p in enumerate(map(np.asarray, params))]
    for gs in grads:
        optimizer.apply([keras.ops.convert_to_tensor(np.asarray(g)) for g in gs], variables)
    return [numbers(v) for v in variables]


def settings(options):
    clips = ("max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value")
    kept = {name: x for name, x in options.items() if name not in (*clips, "lr") and not callable(x)}
    return {**kept, "weight_decay": options.get("weight_decay", 0.0)}


def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])


def fitted(optimizer, epochs, made=None, size=32):
    """A model, or the given one, after some epochs; and their losses."""
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = x @ np.array([[1.0], [2.0], [-1.0], [0.5]], np.float32)
    made = made or model()
    if optimizer is not None:
        made.compile(optimizer=optimizer, loss="mse")
    history = made.fit(x, y, batch_size=size, epochs=epochs, verbose=0, shuffle=False)
    return made, history.history["loss"]


def weights(*args, **options):
    return fitted(*args, **options)[0].get_weights()


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def saved_and_loaded(made, folder):
    made.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def serialized(optimizer):
    return keras.saving.serialize_keras_object(optimizer.get_config())


# ---- numbers


@not_on_jax
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.every
@each
def test_steps_are_those_of_the_formula(case, seed):
    drawn = case.busy if seed is None else case.drawn(seed)
    if drawn.get("lr", 0.0) is None:
        pytest.skip("a relative step has a test of its own")
    options, (params, grads) = settings(drawn), data(seed or 0)
    ends = referred(case.reference(lr=LR, **options), params, grads)
    if case.hyper().of_matrices:  # all else steps by AdamW
        ratio, decay = (0.05 if drawn.get("scale", "original") == "original" else 1.0), options["weight_decay"]
        rest = referred(
            ADAMW.reference(lr=LR * ratio, weight_decay=decay, eps=1e-7, maximize=options.get("maximize", False)),
            params,
            grads,
        )
        ends = [end if np.ndim(end) == 2 else other for end, other in zip(ends, rest, strict=True)]
        options["exclude_layers"] = []
    close(taken(getattr(front, case.name)(LR, **options), params, grads), ends, 1e-12, options)


@not_on_jax
@pytest.mark.every
@each
def test_variables_that_are_alike_step_as_alone(case):
    """Small ones are stacked where that is cheaper than an operation for each."""
    options, (params, grads) = settings(case.busy), data(0)
    if case.hyper().of_matrices:
        options["exclude_layers"] = []
    params = [p * factor for factor in (1.0, 3.0, 0.25) for p in params]
    grads = [[g * factor for factor in (2.0, 0.5, 1.0) for g in gs] for gs in grads]
    alone = [
        one
        for i in range(len(params))
        for one in taken(getattr(front, case.name)(LR, **options), params[i : i + 1], [gs[i : i + 1] for gs in grads])
    ]
    close(taken(getattr(front, case.name)(LR, **options), params, grads), alone, 1e-12, options)


def test_an_excluded_variable_decays_not_with_others_like_it():
    p, g = np.ones((3, 2)), np.full((3, 2), 0.5)
    excluding = front.AdamW(LR, weight_decay=0.5)
    excluding.exclude_from_weight_decay(var_names=["v1"])
    ends = [one for decay in (0.5, 0.0) for one in taken(front.AdamW(LR, weight_decay=decay), [p], [[g]])]
    close(taken(excluding, [p, p], [[g, g]]), ends, 1e-12)
    assert np.abs(ends[0] - ends[1]).max() > 1e-3


def referred(stepper, params, grads):
    named = dict(enumerate(params))
    for gs in grads:
        named = stepper.step(named, dict(enumerate(gs)))
    return list(named.values())


@not_on_jax
def test_adafactor_without_a_rate_steps_relatively_also_when_made_of_its_config():
    params, grads = data(0)
    case = next(case for case in CASES if case.name == "Adafactor")
    stepper, named = case.reference(lr=None), dict(enumerate(params))
    for gs in grads:
        named = stepper.step(named, dict(enumerate(gs)))
    for ours in (front.Adafactor(), front.Adafactor.from_config(front.Adafactor().get_config())):
        close(taken(ours, params, grads), list(named.values()), 1e-12)


@not_on_jax
def test_with_its_preset_lamb_is_keras_s():
    params, grads = data(0)
    params, grads = [np.float32(p) for p in params], [[np.float32(g) for g in gs] for gs in grads]
    theirs = taken(keras.optimizers.Lamb(LR, weight_decay=0.1), params, grads)
    close(taken(front.Lamb.like("keras.Lamb", LR, weight_decay=0.1), params, grads), theirs, 1e-5)


def test_presets_are_spelled_as_keras_does():
    apex = front.Lamb.like("apex.FusedLAMB", weight_decay=0.1)
    assert (apex.weight_decay, apex.global_clipnorm, apex.get_config()["adapt"]) == (0.1, 1.0, "decayed")
    assert front.Lamb.like("keras.Lamb", epsilon=1e-3).get_config()["eps"] == 1e-3
    assert front.Lamb(epsilon=1e-7, **layerwise.preset("keras.Lamb")).get_config()["eps"] == 1e-7
    assert front.NovoGrad.like("optax.novograd", beta_1=0.5).get_config()["betas"] == (0.5, 0.25)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_norms_that_float32_cannot_square_are_exact(size):
    p = np.full((3, 2), size, np.float32)
    [moved] = taken(front.Lamb(0.125), [p], [[np.ones((3, 2), np.float32)]])
    np.testing.assert_allclose(moved, p * (1 - 0.125), rtol=1e-5)


def test_an_empty_variable_stays_empty():
    empty = np.zeros((0, 2), np.float32)
    [moved] = taken(front.Lamb(0.125), [empty], [[empty]])
    assert moved.shape == (0, 2)


# ---- at the start


AT_ZERO = "began at zero, and will hardly move"


def said(optimizer, epochs=2):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = fitted(optimizer, epochs)[0]
    return made, [one for one in caught if AT_ZERO in str(one.message)]


@pytest.mark.parametrize("name", ["Lamb", "Lars", "Lans"])
def test_adapted_variables_that_begin_at_zero_are_named_once(name, tmp_path):
    made, [one] = said(getattr(front, name)(0.01))
    first, second = (v.path for v in made.trainable_variables if v.path.endswith("bias"))
    assert str(one.message).startswith(f"{first}, {second} {AT_ZERO}")
    assert one.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="keras")
        saved_and_loaded(made, tmp_path)


def exempting():
    optimizer = front.Lamb(0.01, adapt="decayed", weight_decay=0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        exempting,
        lambda: front.AdamW(0.01),
        lambda: front.Lamb(0.01, adapt=False),
        lambda: front.Lamb(0.01, min_norm=0.1),
        lambda: front.Lamb(0.01, trust_clip=(0.01, 10.0)),
    ],
)
def test_variables_that_the_ratio_does_not_hold_are_not_named(make):
    assert said(make(), 1)[1] == []


@not_on_jax
def test_biases_without_decay_move_as_adam_moves_them():
    moved = [abs(w).max() for w in weights(exempting(), 20)[1::2]]
    held = [abs(w).max() for w in weights(front.Lamb(0.01), 20)[1::2]]
    assert min(moved) > 0.03 > max(held)


# ---- rules for matrices


def language_model():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(20, 8, name="embedding"),
            layers.Conv1D(8, 3),
            layers.Flatten(),
            layers.Dense(16, "tanh", name="hidden"),
            layers.LayerNormalization(),
            layers.Dense(4, name="head"),
        ],
        name="lm",
    )


def orthogonal(optimizer):
    """Which variables of a model have the momentum of Muon alone, after a step; and the most that each moved."""
    made = language_model()
    start, rng = made.get_weights(), np.random.default_rng(0)
    made.compile(optimizer, "mse")
    made.fit(rng.integers(0, 20, (8, 6)), rng.normal(size=(8, 4)), verbose=0)
    names = [v.path.replace("/", "_") for v in made.trainable_variables]
    of_muon = [name for name in names if any(f"{name}_momentum_buffer" in v.path for v in optimizer.variables)]
    moved = [np.abs(a - b).max() for a, b in zip(made.get_weights(), start, strict=True)]
    return {name.split("_", 1)[1] for name in of_muon}, dict(
        zip((n.split("_", 1)[1] for n in names), moved, strict=True)
    )


@pytest.mark.parametrize(
    ("options", "of_muon"),
    [
        ({}, {"hidden_kernel"}),
        ({"exclude_layers": []}, {"hidden_kernel", "head_kernel"}),
        ({"exclude_layers": ["hid+en/"]}, {"head_kernel"}),
        ({"exclude_embeddings": False}, {"hidden_kernel", "embedding_embeddings"}),
    ],
)
def test_muon_steps_hidden_matrices_and_adamw_the_rest(options, of_muon):
    found, moved = orthogonal(front.Muon(0.02, **options))
    assert found == of_muon
    rest = {name: x for name, x in moved.items() if name not in found}
    assert max(rest.values()) == pytest.approx(0.001, rel=1e-3)  # a first step of AdamW is its lr


def test_the_rate_and_decay_of_the_rest_are_its_own():
    _, moved = orthogonal(front.Muon(0.02, adam_lr_ratio=0.5))
    assert moved["head_bias"] == pytest.approx(0.01, rel=1e-3)
    _, moved = orthogonal(front.Muon(0.02, scale="match_rms_adamw"))
    assert moved["head_bias"] == pytest.approx(0.02, rel=1e-3)
    plain, both, alone = (
        orthogonal(front.Muon(0.02, weight_decay=decay, adam_weight_decay=own))[1]
        for decay, own in ((0.0, None), (10.0, None), (10.0, 0.0))
    )
    assert both["hidden_kernel"] == alone["hidden_kernel"] != plain["hidden_kernel"]
    assert both["embedding_embeddings"] != alone["embedding_embeddings"] == plain["embedding_embeddings"]


@not_on_jax
def test_a_saved_muon_trains_on_bit_for_bit(tmp_path):
    options = {"exclude_layers": ["dense_[0-9]+/kernel"], "adam_beta_1": 0.8, "epsilon": 1e-6, "adam_weight_decay": 0.1}
    made = fitted(front.Muon(LR, **options), 3)[0]
    again = saved_and_loaded(made, tmp_path)
    assert serialized(again.optimizer) == serialized(made.optimizer)
    config = again.optimizer.get_config()
    assert {name: config[name] for name in options} == {**options, "exclude_layers": ("dense_[0-9]+/kernel",)}
    same(weights(None, 2, made), weights(None, 2, again))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"exclude_layers": "head"}, "`exclude_layers` must be a list of regular expressions or None"),
        ({"exclude_layers": ["["]}, "`exclude_layers` must be a list of regular expressions"),
        ({"exclude_embeddings": "no"}, "`exclude_embeddings` must be True or False"),
        ({"adam_lr_ratio": -1}, "`adam_lr_ratio` must be a finite number ≥ 0 or None"),
        ({"adam_beta_2": 1.0}, r"`adam_beta_2` must be a number in \[0, 1\)"),
        ({"adam_weight_decay": -1.0}, "`adam_weight_decay` must be"),
        ({"epsilon": -1.0}, "`epsilon` must be"),
    ],
)
def test_an_invalid_option_of_the_rest_is_named(options, says):
    with pytest.raises(HyperparameterError, match=says):
        front.Muon(**options)


def test_a_pattern_that_matches_no_layer_is_named():
    optimizer = front.Muon(exclude_layers=["tail"])
    with pytest.raises(HyperparameterError, match=r"patterns that each match a path, but is 'tail'.*hidden/kernel"):
        optimizer.build(language_model().trainable_variables)


def low(number):
    return keras.Variable(np.full((3, 2), number), dtype="bfloat16", name="v")


def test_state_of_sixteen_bit_variables_is_float32():
    variable, optimizer = low(1.0), front.Lamb(0.125)
    optimizer.apply([low(1.0).value], [variable])
    kept = [v for v in optimizer.variables if "exp_avg" in v.path]
    assert [keras.backend.standardize_dtype(v.dtype) for v in kept] == ["float32", "float32"]
    np.testing.assert_array_equal(numbers(keras.ops.cast(variable, "float32")), np.full((3, 2), 0.875))


def test_a_relative_epsilon_is_that_of_the_dtype():
    found, asked = low(1.0), low(1.0)
    for variable, eps in ((found, None), (asked, 2.0**-7)):
        optimizer = front.Adafactor(0.5, eps=(eps, 1e-3), eps_mode="clamp", factored=False, clip_threshold=None)
        optimizer.apply([low(2.0**-9).value], [variable])
    same([numbers(keras.ops.cast(found, "float32"))], [numbers(keras.ops.cast(asked, "float32"))])
    assert (numbers(keras.ops.cast(found, "float32")) < 1).all()


# ---- in a model


@pytest.mark.parametrize(
    ("name", "lr", "options"),
    [
        ("Lamb", keras.optimizers.schedules.ExponentialDecay(0.05, 20, 0.5), {}),
        pytest.param("Lars", 20.0, {"zero_norm_ratio": 1e-3}, marks=not_on_jax),
        pytest.param("Adafactor", 0.05, {}, marks=not_on_jax),
    ],
)
@pytest.mark.every
def test_a_saved_model_trains_on_bit_for_bit(name, lr, options, tmp_path):
    made, losses = fitted(getattr(front, name)(lr, weight_decay=1e-3, **options), 8)
    assert losses[-1] < 0.9 * losses[0]
    again = saved_and_loaded(made, tmp_path)
    assert type(again.optimizer) is getattr(front, name)
    assert int(numbers(again.optimizer.iterations)) == 8
    assert serialized(again.optimizer) == serialized(made.optimizer)
    same(weights(None, 2, made), weights(None, 2, again))


@each
@pytest.mark.every
def test_a_config_makes_the_same_optimizer(case):
    made = getattr(front, case.name)(LR, **settings(case.drawn(3)))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert type(again) is type(made)
    assert serialized(again) == serialized(made)


@not_on_jax
def test_variables_that_are_excluded_do_not_decay():
    excluding = front.AdamW(LR, weight_decay=0.5)
    excluding.exclude_from_weight_decay(var_names=["kernel"])
    excluded, plain, decayed = (
        weights(one, 3) for one in (excluding, front.AdamW(LR, weight_decay=0.0), front.AdamW(LR, weight_decay=0.5))
    )
    assert np.abs(decayed[0] - plain[0]).max() > 1e-4
    np.testing.assert_allclose(excluded[0], plain[0], atol=0.02)
    assert np.abs(excluded[0]).sum() > np.abs(decayed[0]).sum()


@not_on_jax
def test_exclusions_from_weight_decay_by_name_are_saved(tmp_path):
    made, optimizer = model(), front.AdamW(LR, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["kernel"])
    again = saved_and_loaded(fitted(optimizer, 2, made)[0], tmp_path)
    assert [again.optimizer._use_weight_decay(v) for v in again.trainable_variables] == [False, True, False, True]
    same(weights(None, 2, made), weights(None, 2, again))


def test_an_exclusion_that_cannot_be_saved_warns():
    assert "excluded_from_weight_decay" not in front.AdamW().get_config()
    excluding = front.AdamW()
    excluding.exclude_from_weight_decay([model().trainable_variables[0]])
    with pytest.warns(UserWarning, match="Exclude them by var_names") as caught:
        excluding.get_config()
    assert [one.filename for one in caught if one.category is UserWarning] == [__file__]  # Keras warns as well
    config = {**front.AdamW().get_config(), "excluded_from_weight_decay": {"var_names": [], "places": [1]}}
    with pytest.warns(UserWarning, match="by their indices"):
        front.AdamW.from_config(config)


@not_on_jax
@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("Lamb", {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}, {"betas": (0.8, 0.95), "eps": 1e-3}),
        ("AdamW", {"beta_2": 0.95}, {"betas": (0.9, 0.95)}),
        ("Adafactor", {"beta_2_decay": -0.5, "epsilon_2": 0.3}, {"beta2_decay": -0.5, "eps": (1e-30, 0.3)}),
    ],
)
@pytest.mark.every
def test_options_may_have_the_names_that_keras_has(name, theirs, ours):
    scaled = {"scale_parameter": True} if name == "Adafactor" else {}
    one, other, plain = (getattr(front, name)(LR, **scaled, **given) for given in (theirs, ours, {}))
    assert {**one.get_config(), "name": ""} == {**other.get_config(), "name": ""}
    ends = [taken(each, *data(2)) for each in (one, plain)]
    assert max(np.abs(a - b).max() for a, b in zip(*ends, strict=True)) > 1e-4


@not_on_jax
def test_schedules_are_rates_set_by_hand_also_when_made_of_a_config():
    scheduled = front.Lamb(keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5))
    restored, by_hand = front.Lamb.from_config(scheduled.get_config()), front.Lamb(0.05)
    ends = weights(scheduled, 4)
    same(ends, weights(restored, 4))
    c = model()
    c.compile(optimizer=by_hand, loss="mse")
    for step in range(4):
        by_hand.learning_rate = float(0.05 * 0.5 ** (step / 2))
        fitted(None, 1, c)
    for x, z in zip(ends, c.get_weights(), strict=True):
        np.testing.assert_allclose(x, z, rtol=1e-5, atol=1e-6)
    assert np.abs(weights(front.Lamb(0.05), 4)[0] - ends[0]).max() > 1e-3


@not_on_jax
def test_keras_accumulates_and_averages_around_a_step():
    whole, halves = weights(front.Lamb(LR), 4), weights(front.Lamb(LR, gradient_accumulation_steps=2), 4, size=16)
    for a, b in zip(whole, halves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    averaged = weights(front.Lamb(LR, use_ema=True, ema_momentum=0.5), 4)
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(whole, averaged, strict=True))


@not_on_jax
def test_keras_clips_and_unscales_before_a_step():
    params, *grads = ([x] for x in np.random.default_rng(0).normal(size=(4, 3, 2)))
    plain = front.SGD(LR)
    scaled = [[g * min(1, 0.5 / norm(g)) for g in gs] for gs in grads]
    close(taken(front.SGD(LR, clipnorm=0.5), params, grads), taken(plain, params, scaled), 1e-6)
    unscaled = taken(front.SGD(LR, loss_scale_factor=8.0), params, [[8 * g for g in gs] for gs in grads])
    close(unscaled, taken(front.SGD(LR), params, grads), 1e-12)


@pytest.mark.skipif(not ON_JAX, reason="Keras divides variables on JAX")
def test_state_is_divided_as_its_variable_is():
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((len(devices),), ["model"], devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"] = ("model", None)
    parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="model")
    try:
        keras.distribution.set_distribution(parallel)
        made = model()
        for optimizer in (front.Lamb(LR), front.Adafactor(LR, min_dim_size_to_factor=99)):
            optimizer.build(made.trainable_variables)
            kernel = made.layers[0].trainable_variables[0]
            kept = [v for v in optimizer.variables if v.shape == kernel.shape]
            assert kept
            assert all(v.value.sharding == kernel.value.sharding for v in kept)
    finally:
        keras.distribution.set_distribution(None)


# ---- refused

A_RATE = "`learning_rate` must be a finite number ≥ 0, but is .* a schedule of keras"


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("Lamb", {"lr": 0.1}, UnknownOptionError, "learning_rate"),
        ("Lamb", {"max_grad_norm": 1.0}, UnknownOptionError, "global_clipnorm"),
        ("Lamb", {"betas": (1.5, 0.9)}, HyperparameterError, "`betas`"),
        ("Lamb", {"beta_1": 1.5}, HyperparameterError, r"`beta_1` must be a number in \[0, 1\), but is 1.5"),
        ("Lamb", {"epsilon": "small"}, HyperparameterError, "`epsilon` must be"),
        (
            "Lamb",
            {"beta_2": 0.9, "betas": (0.8, 0.95)},
            ContradictionError,
            r"`beta_2` must be None with betas=\(0.8, 0.95\), but is 0.9\. ",
        ),
        *(
            ("Lamb", {"learning_rate": wrong}, HyperparameterError, A_RATE)
            for wrong in (-0.1, None, "adam", keras.optimizers.schedules.CosineDecay)
        ),
        ("Lamb", {"weight_decay": lambda step: 0.1}, HyperparameterError, "`weight_decay`"),
        ("Lamb", {"weight_decay": -0.1}, HyperparameterError, "`weight_decay` must be .* or None or 0 for none"),
        ("Adafactor", {"beta2": lambda step: 0.1}, HyperparameterError, "config"),
        *(
            ("Lamb", {clip: -1.0}, HyperparameterError, f"`{clip}`")
            for clip in ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")
        ),
    ],
)
@pytest.mark.every
def test_an_invalid_option_is_named(name, options, error, says):
    with pytest.raises(error, match=f"(?s){says}"):
        getattr(front, name)(**options)


@pytest.mark.parametrize("rate", [layerwise.schedules.Cosine(0.1, 100), lambda step: 0.1], ids=["ours", "of the step"])
def test_a_rate_that_keras_cannot_call_is_refused_at_once(rate):
    with pytest.raises(HyperparameterError, match=r"a schedule of keras\.optimizers\.schedules such as CosineDecay"):
        front.Lamb(rate)


def test_options_of_a_made_optimizer_are_fixed():
    opt = front.Lamb(0.1)
    for name, value in {"betas": (0.9, 1.5), "beta_1": 0.9}.items():
        with pytest.raises(ContradictionError, match=rf"`{name}` of Lamb is fixed when it is made\. Make another"):
            setattr(opt, name, value)
    with pytest.warns(UserWarning, match=r"no attribute 'learning_rat', so nothing reads it"):
        opt.learning_rat = 0.2
    opt.learning_rate, opt.weight_decay, opt.own = 0.2, 0.1, 3


def test_a_gradient_of_another_shape_is_named():
    variable = keras.Variable(np.ones((2, 2)), name="kernel")
    with pytest.raises(
        GradientError, match=r"the gradient of kernel has the shape \(3,\), but its variable has \(2, 2\)"
    ):
        front.Lamb(0.1).apply([keras.ops.ones((3,))], [variable])
    assert (numbers(variable) == 1).all()


def test_an_integer_variable_is_named():
    whole = keras.Variable(np.ones((2,)), dtype="int32", trainable=False)
    with pytest.raises(ParameterError, match="int32"):
        front.Lamb().build([whole])


def test_an_unsupported_backend_is_an_error_that_names_its_variable(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "openvino")
    with pytest.raises(EngineError, match="KERAS_BACKEND"):
        _backends._here.__wrapped__()


@not_on_jax
def test_a_weight_decay_that_is_set_is_checked_as_one_that_was_given():
    optimizer = front.Muon(LR, keep_norm=True)
    for value, words in ((0.1, r"`keep_norm` must be False with .*weight_decay=0\.1"), (-1, "`weight_decay` must be")):
        with pytest.raises(HyperparameterError, match=words):
            optimizer.weight_decay = value
        assert optimizer.weight_decay == 0
    optimizer.weight_decay = 0
    other = front.AdamW(LR)
    other.weight_decay = np.float32(0.5)
    assert type(other.weight_decay) is float
    assert other.get_config()["weight_decay"] == 0.5


@not_on_jax
def test_a_config_has_plain_python_objects():
    """Numbers of NumPy could not be written as JSON."""
    odd = {"betas": np.array([0.5, 0.75]), "eps": np.float32(0.25), "clipnorm": np.float64(1), "use_ema": np.True_}
    odd |= {"ema_momentum": np.array(0.5), "weight_decay": np.float32(0.5), "keep_norm": np.str_("first")}
    config = front.Lamb(np.float64(LR), **odd).get_config()
    assert json.loads(json.dumps(config)) == {**config, "betas": [0.5, 0.75]}


@pytest.mark.parametrize("value", [True, False])
def test_an_argument_that_changes_nothing_in_keras_is_refused_with_its_preset(value):
    says = rf"`relative_step` must be left out with keras\.Adafactor, but is {value}\. It has no effect"
    with pytest.raises(ContradictionError, match=says):
        front.Adafactor.like("keras.Adafactor", 0.5, relative_step=value)
