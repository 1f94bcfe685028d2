"""Schedules: their numbers, also traced by JAX, those of optax where they coincide, and what they refuse."""

from __future__ import annotations

import math

import jax
import numpy as np
import optax
import pytest

from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.schedules import Cosine, Polynomial, Stages, epochs, samples

KINDS = [
    Polynomial(0.8, total=12, warmup=4),
    Polynomial(0.8, total=12, warmup=4, power=2, start=0.1, end=0.2),
    Polynomial(0.8, total=12, power=0.5),
    Cosine(0.8, total=12, warmup=4),
    Cosine(0.8, total=12, warmup=4, start=0.1, end=0.2),
    Cosine(0.8, total=12),
]
FLAT = Polynomial(1.0, total=2)
SIXTH = 1 + (1 + math.cos(math.pi / 6)) / 2
STAGES = Stages(Polynomial(0.6, total=6, warmup=2), Polynomial(0.4, total=5, warmup=4))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Polynomial(1.0, total=6, warmup=2), [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]),
        (Polynomial(9.0, total=6, warmup=2, power=2, start=3.0, end=1.0), [3, 6, 9, 5.5, 3, 1.5, 1, 1]),
        (Cosine(2.0, total=8, warmup=2, end=1.0), [0, 1, 2, SIXTH, 1.75, 1.5, 1.25, 3 - SIXTH, 1, 1]),
        (STAGES, [0, 0.3, 0.6, 0.45, 0.3, 0.15, 0, 0.1, 0.2, 0.3, 0.4, 0, 0]),
        (Stages(FLAT, FLAT, FLAT), [1, 0.5, 1, 0.5, 1, 0.5, 0]),
    ],
    ids=["line", "power", "cosine", "stages that warm up anew", "three stages"],
)
def test_the_rates_are_those_worked_by_hand(schedule, rates):
    assert [schedule(step) for step in range(len(rates))] == pytest.approx(rates, rel=1e-15, abs=1e-15)


def test_stages_are_as_long_as_all_and_as_high_as_the_highest():
    assert (STAGES.peak, STAGES.total) == (0.6, 11)
    assert Stages(FLAT, Polynomial(3.0, 10), FLAT).peak == 3.0


@pytest.mark.parametrize("schedule", KINDS, ids=repr)
def test_a_schedule_rises_to_its_peak_and_falls_to_its_end_without_a_jump(schedule):
    assert schedule(0) == (schedule.start if schedule.warmup else schedule.peak)
    assert schedule(schedule.warmup) == schedule.peak
    assert schedule(schedule.total) == schedule(10 * schedule.total) == pytest.approx(schedule.end, abs=1e-16)
    rates = schedule(np.linspace(0, schedule.total, 12 * 64 + 1))
    assert np.all(np.diff(rates[: 64 * schedule.warmup + 1]) > 0)
    assert np.all(np.diff(rates[64 * schedule.warmup :]) < 0)
    # What √x falls in its last part; the least jump there could be is 0.1.
    assert np.abs(np.diff(rates)).max() < 0.03


def test_lengths_in_samples_and_epochs_are_rounded_up_from_their_decimals():
    assert (samples(1000, batch=100), samples(1001, batch=100)) == (10, 11)
    assert (epochs(3, dataset_size=50, batch=20), epochs(0.1, dataset_size=1000, batch=10)) == (8, 10)
    # fastalgo/imagenet_resnet50_lamb: 782 of 3,519 steps are 20 of 90 epochs of ImageNet at batch 32,768.
    imagenet = {"dataset_size": 1_281_167, "batch": 32_768}
    assert (epochs(20, **imagenet), epochs(90, **imagenet)) == (782, 3519)


@pytest.mark.parametrize("schedule", [*KINDS, STAGES], ids=repr)
def test_a_traced_step_gives_the_same(schedule):
    steps = np.arange(schedule.total + 3)
    traced = jax.jit(jax.vmap(schedule))(steps)
    assert isinstance(traced, jax.Array)
    np.testing.assert_allclose(traced, [schedule(int(step)) for step in steps], rtol=1e-6, atol=1e-7)


def test_the_rates_are_those_of_optax():
    cosine = optax.warmup_cosine_decay_schedule(0.02, 0.3, 5, 40, 0.01)
    squares = [optax.linear_schedule(0, 0.3, 5), optax.polynomial_schedule(0.3, 0.01, 2, 35)]
    for ours, theirs in (
        (Cosine(0.3, 40, 5, start=0.02, end=0.01), cosine),
        (Polynomial(0.3, 40, 5, power=2, end=0.01), optax.join_schedules(squares, [5])),
    ):
        np.testing.assert_allclose([ours(s) for s in range(45)], theirs(np.arange(45)), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("argument", "words", "make"),
    [
        ("peak", "a finite number > 0", lambda: Polynomial(0.0, 10)),
        ("total", "an integer ≥ 1", lambda: Cosine(1.0, 10.5)),
        ("warmup", "an integer ≥ 0", lambda: Polynomial(1.0, 10, warmup=-1)),
        ("warmup", "an integer < total=10, but is 10. Shorten", lambda: Polynomial(1.0, total=10, warmup=10)),
        ("start", "a number ≤ peak=1, but is 2.0", lambda: Polynomial(1.0, 10, start=2.0)),
        ("end", "a number ≤ peak=1, but is 1.5", lambda: Cosine(1.0, 10, end=1.5)),
        ("power", "a finite number > 0", lambda: Polynomial(1.0, 10, power=0)),
        ("parts", "schedules of layerwise, at least one", lambda: Stages(Polynomial(1.0, 10), lambda step: 1.0)),
        ("parts", "schedules of layerwise, at least one", Stages),
        ("count", "a finite number > 0", lambda: samples(math.inf, batch=1)),
        ("batch", "an integer ≥ 1", lambda: epochs(1, dataset_size=10, batch=0)),
        ("dataset_size", "an integer ≥ 1", lambda: epochs(1, dataset_size=1e6, batch=10)),
    ],
)
def test_a_bad_argument_is_named(argument, words, make):
    with pytest.raises(HyperparameterError, match=rf"^`{argument}` must be .*, but is .*\. .*\.$") as caught:
        make()
    assert f"`{argument}` must be {words}" in str(caught.value)
    assert isinstance(caught.value, ContradictionError) == ("≤ peak" in words or "< total" in words)


def test_a_missing_or_misspelt_argument_is_named():
    for call, words in (
        (lambda: Cosine(0.1), r"Cosine is missing `total`\. Pass a number of steps"),
        (lambda: Polynomial(), r"Polynomial is missing `peak`\."),
        (lambda: Cosine(0.1, 100, warmpu=3), r"Cosine has no option 'warmpu'\. Did you mean `warmup`\?"),
        (
            lambda: Stages(0.1, 0.2),
            r"`parts` must be schedules of layerwise, .* Pass each as Polynomial\(peak, total\)",
        ),
    ):
        with pytest.raises(HyperparameterError, match=words):
            call()
