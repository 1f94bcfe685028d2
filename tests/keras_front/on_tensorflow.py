"""Tests of layerwise.keras with what only TensorFlow has: `make test-tensorflow` runs them, and promises.py."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES

import layerwise.keras as front

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)

EAGER, GRAPH, XLA = {"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": True}
each = pytest.mark.parametrize("name", [case.name for case in CASES])
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 4)).astype(np.float32), RNG.normal(size=(32, 1)).astype(np.float32)


def model(head=keras.layers.Dense):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), head(1)])


def fitted(optimizer, made=None, epochs=3, size=16, x=X, **how):
    made = made or model()
    if optimizer is not None:
        made.compile(optimizer, "mse", **how)
    made.fit(x, Y, batch_size=size, epochs=epochs, verbose=0, shuffle=False)
    return made


def close(ours, theirs, tolerance=1e-5):
    for mine, peer in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, peer, rtol=tolerance, atol=tolerance)


def moved(made, start):
    return max(np.abs(a - b).max() for a, b in zip(made.get_weights(), start.get_weights(), strict=True))


@each
def test_steps_are_the_same_eager_traced_and_compiled(name):
    options = {"zero_norm_ratio": 1.0} if name in ("Lamb", "Lars") else {}
    ends = [fitted(getattr(front, name)(0.01, **options), **how) for how in (EAGER, GRAPH, XLA)]
    assert moved(ends[0], model()) > 1e-4
    for other in ends[1:]:
        close(other, ends[0], 1e-4)


@pytest.mark.parametrize("how", [EAGER, GRAPH, XLA])
@pytest.mark.parametrize(("name", "options"), [("Lamb", {"weight_decay": 0.01}), ("Adafactor", {})])
def test_with_its_preset_it_is_keras_s(name, options, how):
    ours = fitted(getattr(front, name).like(f"keras.{name}", 0.01, **options), **how)
    theirs = fitted(getattr(keras.optimizers, name)(0.01, **options), **how)
    assert moved(theirs, model()) > 1e-3
    close(ours, theirs, 1e-6)


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "AdamW"])
def test_replicas_step_as_one(name):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        made = model()
        made.compile(getattr(front, name)(0.01, weight_decay=0.01), "mse")
    assert strategy.num_replicas_in_sync == 2
    mirrored = fitted(None, made)
    close(mirrored, fitted(getattr(front, name)(0.01, weight_decay=0.01)))
    assert moved(mirrored, model()) > 1e-3


class Rows(keras.layers.Layer):
    """A table whose rows are looked up, and a layer."""

    def __init__(self, units):
        super().__init__()
        self.table, self.out = keras.layers.Embedding(50, 3), keras.layers.Dense(units)

    def call(self, x):
        return self.out(keras.ops.mean(self.table(keras.ops.cast(abs(x) * 3, "int32")), axis=1))


def test_a_model_with_a_table_learns():
    made = keras.Sequential([keras.Input((4,)), Rows(1)])
    start = made.get_weights()
    fitted(front.Adafactor(0.01), made)
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(made.get_weights(), start, strict=True))


def test_a_gradient_of_some_rows_is_that_of_a_table():
    made = keras.Sequential([keras.Input((4,)), Rows(1)])
    table = made.layers[0].table.trainable_variables[0]
    before, variables = table.numpy(), made.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((made(X) - Y) ** 2)
    grads = tape.gradient(loss, variables)
    rows = next(g for g, v in zip(grads, variables, strict=True) if v is table)
    assert isinstance(rows, tf.IndexedSlices)
    dense = [tf.convert_to_tensor(g) for g in grads]
    ends = []
    for given in (grads, dense):
        table.assign(before)
        front.Lamb(0.01).apply(given, variables)
        ends.append(table.numpy())
    np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-8)
    assert np.abs(ends[0] - before).max() > 1e-5


@pytest.mark.parametrize("how", [EAGER, GRAPH])
def test_keras_scales_losses_around_a_step(how):
    kind = keras.optimizers.LossScaleOptimizer
    scaled = fitted(kind(front.Lamb(0.01), initial_scale=64.0), **how)
    close(scaled, fitted(front.Lamb(0.01), **how), 1e-5)
    assert moved(scaled, model()) > 1e-3


def test_a_loss_scale_goes_down_at_a_gradient_that_is_not_finite():
    optimizer = keras.optimizers.LossScaleOptimizer(front.Lamb(0.01), initial_scale=64.0)
    weight = keras.Variable(np.ones((3, 2), np.float32))
    optimizer.apply([tf.fill((3, 2), np.inf)], [weight])
    np.testing.assert_array_equal(weight.numpy(), np.ones((3, 2), np.float32))
    assert float(optimizer.dynamic_scale) == 32.0


@pytest.mark.parametrize("how", [EAGER, GRAPH, XLA])
def test_keras_accumulates_and_averages_around_a_step(how):
    whole = fitted(front.Lamb(0.01), size=32, **how)
    close(fitted(front.Lamb(0.01, gradient_accumulation_steps=2), size=16, **how), whole, 1e-4)
    averaged = fitted(front.Lamb(0.01, use_ema=True, ema_momentum=0.5), size=32, **how)
    theirs = fitted(keras.optimizers.Lamb(0.01, use_ema=True, ema_momentum=0.5), size=32, **how)
    close(averaged, theirs, 1e-4)
    assert max(np.abs(a - b).max() for a, b in zip(averaged.get_weights(), whole.get_weights(), strict=True)) > 1e-4


@pytest.mark.parametrize("how", [EAGER, GRAPH, XLA])
@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon"])
def test_a_saved_model_trains_on_bit_for_bit(name, how, tmp_path):
    made = fitted(getattr(front, name)(0.01, weight_decay=0.01), **how)
    made.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is getattr(front, name)
    for one in (made, again):
        one.run_eagerly, one.jit_compile = how.get("run_eagerly", False), how.get("jit_compile", False)
        fitted(None, one)
    for a, b in zip(made.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_tensorflow_saves_a_model_with_its_optimizer(tmp_path):
    made = fitted(front.Adafactor(0.01))
    made.export(tmp_path / "exported", verbose=False)
    tf.saved_model.save(made, tmp_path / "saved")
    for folder in ("exported", "saved"):
        served = tf.saved_model.load(tmp_path / folder)
        call = served.serve if folder == "exported" else served.signatures["serving_default"]
        found = call(tf.constant(X))
        np.testing.assert_allclose(next(iter(found.values())) if isinstance(found, dict) else found, made(X), rtol=1e-5)


def test_a_checkpoint_of_tensorflow_s_trains_on_bit_for_bit(tmp_path):
    made = fitted(front.Lamb(0.01))
    path = tf.train.Checkpoint(model=made, optimizer=made.optimizer).save(tmp_path / "checkpoint")
    again = model()
    again.compile(front.Lamb(0.01), "mse")
    again.optimizer.build(again.trainable_variables)
    tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(path).assert_consumed()
    for a, b in zip(fitted(None, made).get_weights(), fitted(None, again).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
