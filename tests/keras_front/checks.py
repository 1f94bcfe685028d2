"""Checks of layerwise.keras on one backend, which Keras takes from the environment for the whole process.

python checks.py runs all of them; test_backends.py calls it once for each backend.
"""

import os
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
from cases import CASES
from reference.paths import close, data
from reference.tensors import norm

import layerwise
import layerwise.keras
from layerwise.errors import ContradictionError, EngineError, HyperparameterError, ParameterError, UnknownOptionError
from layerwise.keras import _namespace

CLIPS = ("max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value")
LR = float(np.float32(0.02))  # as Keras holds it


def raised(error, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as found:
        return str(found)
    raise AssertionError(f"no {error.__name__}")


def numbers(x):
    return np.asarray(keras.ops.convert_to_numpy(x))


def taken(optimizer, params, grads, names=None):
    """Return the tensors after the steps, in float64 unless they are given otherwise."""
    variables = [keras.Variable(p, dtype=str(p.dtype), name=f"v{i}") for i, p in enumerate(map(np.asarray, params))]
    for gs in grads:
        optimizer.apply([keras.ops.convert_to_tensor(np.asarray(g)) for g in gs], variables)
    return [numbers(v) for v in variables]


def settings(options):
    kept = {name: x for name, x in options.items() if name not in (*CLIPS, "lr") and not callable(x)}
    return {**kept, "weight_decay": options.get("weight_decay", 0.0)}


def model(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])


def batch(n=32):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, 4)).astype(np.float32)
    return x, (x @ np.array([[1.0], [2.0], [-1.0], [0.5]], np.float32))


def fitted(optimizer, epochs=8, made=None, size=32):
    made = made or model()
    if optimizer is not None:
        made.compile(optimizer=optimizer, loss="mse")
    history = made.fit(*batch(), batch_size=size, epochs=epochs, verbose=0, shuffle=False)
    return made, history.history["loss"]


# ---- checks


def check_the_reference_in_float64():
    for case in CASES:
        for seed, drawn in enumerate([case.busy, case.drawn(1)]):
            options = settings(drawn)
            if drawn.get("lr", 0.0) is None:
                continue
            params, grads = data(seed)
            ours = taken(getattr(layerwise.keras, case.name)(LR, **options), params, grads)
            stepper = case.reference(lr=LR, **options)
            named = dict(enumerate(params))
            for gs in grads:
                named = stepper.step(named, dict(enumerate(gs)))
            close(ours, list(named.values()), 1e-12, (case.name, options))


def check_the_relative_step():
    params, grads = data(0)
    ours = layerwise.keras.Adafactor()
    case = next(case for case in CASES if case.name == "Adafactor")
    stepper, named = case.reference(lr=None), dict(enumerate(params))
    for gs in grads:
        named = stepper.step(named, dict(enumerate(gs)))
    close(taken(ours, params, grads), list(named.values()), 1e-12)
    close(taken(type(ours).from_config(ours.get_config()), params, grads), list(named.values()), 1e-12)


def check_lamb_of_keras():
    params, grads = ([np.asarray(x, np.float32) for x in data(0)[0]], data(0)[1])
    grads = [[np.asarray(g, np.float32) for g in gs] for gs in grads]
    theirs = taken(keras.optimizers.Lamb(LR, weight_decay=0.1), params, grads)
    ours = taken(layerwise.keras.Lamb.like("keras.Lamb", LR, weight_decay=0.1), params, grads)
    close(ours, theirs, 1e-5)
    apex = layerwise.keras.Lamb.like("apex.FusedLAMB", weight_decay=0.1)
    assert (apex.weight_decay, apex.global_clipnorm, apex._h.adapt) == (0.1, 1.0, "decayed")
    assert layerwise.keras.Lamb.like("keras.Lamb", epsilon=1e-3)._h.eps == 1e-3
    assert layerwise.keras.NovoGrad.like("optax.novograd", beta_1=0.5)._h.betas == (0.5, 0.25)


def check_training_and_saving():
    rates = {"Lamb": (0.05, {}), "Lars": (20.0, {"zero_norm_ratio": 1e-3}), "Adafactor": (0.05, {})}
    falling = keras.optimizers.schedules.ExponentialDecay
    on_jax = {"Lamb": (falling(0.05, 20, 0.5), {})}
    for name, (lr, options) in (on_jax if keras.config.backend() == "jax" else rates).items():
        front = getattr(layerwise.keras, name)
        made, losses = fitted(front(lr, weight_decay=1e-3, **options))
        assert losses[-1] < 0.9 * losses[0], (name, losses)
        with tempfile.TemporaryDirectory() as folder:
            made.save(Path(folder) / "model.keras")
            again = keras.saving.load_model(Path(folder) / "model.keras")
        assert type(again.optimizer) is front
        assert int(numbers(again.optimizer.iterations)) == 8
        config, wanted = again.optimizer.get_config(), made.optimizer.get_config()
        assert keras.saving.serialize_keras_object(config) == keras.saving.serialize_keras_object(wanted)
        fitted(None, 2, made)
        fitted(None, 2, again)
        for a, b in zip(made.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


def check_configs_of_all():
    for case in CASES:
        front = getattr(layerwise.keras, case.name)
        made = front(LR, **settings(case.drawn(3)))
        again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
        assert type(again) is front
        wanted, found = (keras.saving.serialize_keras_object(one.get_config()) for one in (made, again))
        assert found == wanted, case.name


def check_exclude_from_weight_decay():
    ends = {}
    for excluded in ([], ["kernel"]):
        optimizer = layerwise.keras.AdamW(LR, weight_decay=0.5)
        if excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        ends[bool(excluded)] = fitted(optimizer, 3)[0].get_weights()
    plain = fitted(layerwise.keras.AdamW(LR, weight_decay=0.0), 3)[0].get_weights()
    assert np.abs(ends[False][0] - plain[0]).max() > 1e-4
    np.testing.assert_allclose(ends[True][0], plain[0], atol=0.02)
    assert np.abs(ends[True][0]).sum() > np.abs(ends[False][0]).sum()


def check_what_is_excluded_from_weight_decay_is_saved():
    def excluding(by_name):
        made = model()
        optimizer = layerwise.keras.AdamW(LR, weight_decay=0.5)
        kernel = made.layers[0].trainable_variables[0]
        optimizer.exclude_from_weight_decay(*((None, ["kernel"]) if by_name else ([kernel],)))
        return fitted(optimizer, 2, made)[0]

    for by_name in (False, True):
        made = excluding(by_name)
        with tempfile.TemporaryDirectory() as folder:
            made.save(Path(folder) / "model.keras")
            again = keras.saving.load_model(Path(folder) / "model.keras")
        kept = [again.optimizer._use_weight_decay(v) for v in again.trainable_variables]
        assert kept == [False, True, not by_name, True]
        fitted(None, 2, made)
        fitted(None, 2, again)
        for a, b in zip(made.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert "excluded_from_weight_decay" not in layerwise.keras.AdamW().get_config()
    unbuilt = layerwise.keras.AdamW()
    unbuilt.exclude_from_weight_decay([model().trainable_variables[0]])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        unbuilt.get_config()
    assert any("Exclude them by var_names" in str(one.message) for one in said)


def check_the_names_that_keras_has():
    params, grads = data(2)
    both = {
        "Lamb": ({"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}, {"betas": (0.8, 0.95), "eps": 1e-3}),
        "AdamW": ({"beta_2": 0.95}, {"betas": (0.9, 0.95)}),
        "Adafactor": (
            {"beta_2_decay": -0.5, "epsilon_2": 0.3},
            {"beta2_decay": -0.5, "eps": (1e-30, 0.3), "scale_parameter": True},
        ),
    }
    for name, (theirs, ours) in both.items():
        front = getattr(layerwise.keras, name)
        theirs = {**theirs, **{key: x for key, x in ours.items() if key == "scale_parameter"}}
        one, other, plain = (front(LR, **given) for given in (theirs, ours, {}))
        assert {**one.get_config(), "name": ""} == {**other.get_config(), "name": ""}
        ends = [taken(each, params, grads) for each in (one, plain)]
        assert max(np.abs(a - b).max() for a, b in zip(*ends, strict=True)) > 1e-4
    assert layerwise.keras.Lamb(epsilon=1e-7, **layerwise.preset("keras.Lamb")).get_config()["eps"] == 1e-7
    assert "`beta_1` must be a number in [0, 1), but is 1.5" in raised(
        HyperparameterError, layerwise.keras.Lamb, beta_1=1.5
    )
    assert "`epsilon` must be" in raised(HyperparameterError, layerwise.keras.Lamb, epsilon="small")
    said = raised(ContradictionError, layerwise.keras.Lamb, beta_2=0.9, betas=(0.8, 0.95))
    assert "`beta_2` must be None beside betas=(0.8, 0.95), but is 0.9. " in said


def check_schedules_and_rates_set_by_hand():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    ours = layerwise.keras.Lamb(schedule)
    restored = layerwise.keras.Lamb.from_config(ours.get_config())
    a, b = fitted(ours, 4)[0], fitted(restored, 4)[0]
    by_hand = layerwise.keras.Lamb(0.05)
    c = model()
    c.compile(optimizer=by_hand, loss="mse")
    for step in range(4):
        by_hand.learning_rate = float(0.05 * 0.5 ** (step / 2))
        fitted(None, 1, c)
    for x, y, z in zip(a.get_weights(), b.get_weights(), c.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_allclose(x, z, rtol=1e-5, atol=1e-6)
    constant = fitted(layerwise.keras.Lamb(0.05), 4)[0].get_weights()
    assert np.abs(constant[0] - a.get_weights()[0]).max() > 1e-3


def check_what_keras_does_around_a_step():
    whole = fitted(layerwise.keras.Lamb(LR), 4)[0].get_weights()
    halves = fitted(layerwise.keras.Lamb(LR, gradient_accumulation_steps=2), 4, size=16)[0].get_weights()
    for a, b in zip(whole, halves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    draw = np.random.default_rng(0)
    params, grads = [draw.normal(size=(3, 2))], [[draw.normal(size=(3, 2))] for _ in range(3)]
    clipped = taken(layerwise.keras.SGD(LR, clipnorm=0.5), params, grads)
    scaled = [[g * min(1, 0.5 / norm(g)) for g in gs] for gs in grads]
    close(clipped, taken(layerwise.keras.SGD(LR), params, scaled), 1e-6)
    averaged = layerwise.keras.Lamb(LR, use_ema=True, ema_momentum=0.5)
    made, _ = fitted(averaged, 4)
    assert any(np.abs(a - b).max() > 1e-5 for a, b in zip(whole, made.get_weights(), strict=True))
    unscaled = taken(layerwise.keras.SGD(LR, loss_scale_factor=8.0), params, [[8 * g for g in gs] for gs in grads])
    close(unscaled, taken(layerwise.keras.SGD(LR), params, grads), 1e-12)


def check_norms_that_float32_cannot_square():
    for size in (1e-25, 1e25):
        p, g = np.full((3, 2), size, np.float32), np.ones((3, 2), np.float32)
        [moved] = taken(layerwise.keras.Lamb(0.125), [p], [[g]])
        np.testing.assert_allclose(moved, p * (1 - 0.125), rtol=1e-5)
    [moved] = taken(layerwise.keras.Lamb(0.125), [np.zeros((0, 2), np.float32)], [[np.zeros((0, 2), np.float32)]])
    assert moved.shape == (0, 2)


def check_state_of_sixteen_bit_variables():
    variable = keras.Variable(np.ones((3, 2)), dtype="bfloat16", name="v")
    optimizer = layerwise.keras.Lamb(0.125)
    optimizer.apply([keras.ops.ones((3, 2), dtype="bfloat16")], [variable])
    kept = [v for v in optimizer.variables if "exp_avg" in v.path]
    assert [keras.backend.standardize_dtype(v.dtype) for v in kept] == ["float32", "float32"]
    np.testing.assert_array_equal(numbers(keras.ops.cast(variable, "float32")), np.full((3, 2), 0.875))


def check_state_divided_as_its_variable_is():
    if keras.config.backend() != "jax":
        return
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((len(devices),), ["model"], devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"] = ("model", None)
    try:
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="model")
        )
        made = model()
        for front in (layerwise.keras.Lamb, layerwise.keras.Adafactor):
            optimizer = front(LR, **({"min_dim_size_to_factor": 99} if front is layerwise.keras.Adafactor else {}))
            optimizer.build(made.trainable_variables)
            [kernel] = made.layers[0].trainable_variables[:1]
            kept = [v for v in optimizer.variables if v.shape == kernel.shape]
            assert kept
            assert all(v.value.sharding == kernel.value.sharding for v in kept)
    finally:
        keras.distribution.set_distribution(None)


def check_errors():
    assert "learning_rate" in raised(UnknownOptionError, layerwise.keras.Lamb, lr=0.1)
    assert "global_clipnorm" in raised(UnknownOptionError, layerwise.keras.Lamb, max_grad_norm=1.0)
    assert "`betas`" in raised(HyperparameterError, layerwise.keras.Lamb, betas=(1.5, 0.9))
    for wrong in (-0.1, None, "adam", keras.optimizers.schedules.CosineDecay):
        said = raised(HyperparameterError, layerwise.keras.Lamb, wrong)
        assert "`learning_rate` must be a finite number ≥ 0, but is" in said
        assert "a schedule of Keras" in said
    assert "`weight_decay`" in raised(HyperparameterError, layerwise.keras.Lamb, weight_decay=lambda step: 0.1)
    assert "config" in raised(HyperparameterError, layerwise.keras.Adafactor, beta2=lambda step: 0.1)
    for name in ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"):
        assert f"`{name}`" in raised(HyperparameterError, layerwise.keras.Lamb, **{name: -1.0})
    whole = keras.Variable(np.ones((2,)), dtype="int32", trainable=False)
    assert "int32" in raised(ParameterError, layerwise.keras.Lamb().build, [whole])
    backend = keras.config.backend
    try:
        keras.config.backend = lambda: "tensorflow"
        assert "KERAS_BACKEND" in raised(EngineError, _namespace.namespace.__wrapped__)
    finally:
        keras.config.backend = backend


# JAX compiles each operation, and for these takes ten times as long. The tests of the rules run all of them on its
# functions, and what Keras does around a step is the same on every backend.
ELSEWHERE = (
    "check_the_reference_in_float64",
    "check_the_relative_step",
    "check_lamb_of_keras",
    "check_exclude_from_weight_decay",
    "check_what_is_excluded_from_weight_decay_is_saved",
    "check_the_names_that_keras_has",
    "check_schedules_and_rates_set_by_hand",
    "check_what_keras_does_around_a_step",
)

if __name__ == "__main__":
    assert keras.config.backend() == os.environ["KERAS_BACKEND"]
    left_out = ELSEWHERE if keras.config.backend() == "jax" else ()
    for name, check in list(globals().items()):
        if name.startswith("check_") and name not in left_out:
            check()
            print(name, flush=True)
