"""Settings for a batch size: the published points, the rules that scale them, and answers that every API takes."""

from __future__ import annotations

import doctest
import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from layerwise import jax, schedules
from layerwise import numpy as numpy_front
from layerwise import torch as torch_front
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.recipes import CURVES, recommend
from layerwise.recipes.advice import format_number, format_percent

PAGE = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text("utf-8")
OWN = {"reference_batch": 256, "reference_lr": 1e-3}
SERIES = {curve.name: curve for curve in CURVES}
each_point = pytest.mark.parametrize(
    ("curve", "point"), [pytest.param(c, p, id=f"{c.name}-{p.batch}") for c in CURVES for p in c.points]
)


def line(found, setting):
    return next(one for one in found.lines if one.setting == setting)


def test_answers_read_as_recommended_txt_has_them():
    """Every number, its reason, its distance from published batches, and the sources."""
    found = doctest.testfile("recommended.txt", encoding="utf-8", globs={"recommend": recommend})
    assert (found.failed, found.attempted) == (0, 8)


@pytest.mark.parametrize(
    ("x", "words"),
    [(1024, "1,020"), (999.9, "1,000"), (0.0078125, "0.00781"), (2.9e-6, "2.9e-6"), (3.5e-4, "0.00035")],
)
def test_numbers_are_as_people_write_them(x, words):
    assert format_number(x) == words
    assert (format_percent(0.0009), format_percent(0.001), format_percent(0.0)) == ("less than 0.1 %", "0.1 %", "0 %")


# ---- a run of one's own


@pytest.mark.parametrize(
    ("batch", "options", "lr", "far"),
    [
        (4096, {**OWN, "reference_warmup": 0.001}, 1e-3 * 4, False),
        (4096, {**OWN, "rule": "linear", "reference_warmup": 0.001}, 1e-3 * 16, True),
        (64, OWN, 1e-3 / 2, True),
        (256, {**OWN, "reference_warmup": 0.05}, 1e-3, False),
        (16384, {**OWN, "reference_warmup": 0.001}, 8e-3, False),
        (
            16384,
            {"reference_batch": 255, "reference_lr": 1e-3, "reference_warmup": 1e-3},
            1e-3 * (16384 / 255) ** 0.5,
            True,
        ),
        (1024, {"reference_batch": 256, "reference_lr": 3e-4, "reference_decay": 0.1}, (3e-5) ** 0.5 * 2, True),
    ],
)
def test_a_rate_is_scaled_by_the_rule_and_more_than_was_published_is_an_extrapolation(batch, options, lr, far):
    found = recommend("Lamb", batch, **options)
    assert found.lr == pytest.approx(lr, rel=1e-6)
    assert found.extrapolated is far
    assert found.run == ""
    kept = {"keep_norm": True} if "reference_decay" in options else {}
    assert found.kwargs() == {"lr": found.lr, **kept}


def test_a_warm_up_keeps_its_steps_up_to_the_longest_published():
    found = recommend("Lars", 2048, reference_batch=512, reference_lr=2.0, reference_warmup=0.01, total_samples=1e6)
    assert (found.warmup, found.steps, found.warmup_steps) == (0.04, 489, 20)  # as 1 % of 1,954 steps was
    assert recommend("Lamb", 256, **OWN, reference_warmup=0.05).warmup == 0.05
    longest = recommend("Lars", 32768, reference_batch=512, reference_lr=2.0, reference_warmup=0.1)
    assert (longest.warmup, line(longest, "warm-up").extrapolated) == (300 / 500, True)
    scratch = recommend("Lamb", 4096, **OWN)  # mlperf-bert has none, because it begins with a trained network
    assert scratch.warmup == pytest.approx(0.2843 * 4096 / 65536)
    assert line(scratch, "warm-up").series == "nvidia-bert"


def test_a_run_shorter_than_its_second_moment_or_than_ten_steps_is_said():
    short, long = (recommend("Lamb", 1024, **OWN, total_samples=1024 * steps) for steps in (999, 1000))
    assert [any("beta2" in note for note in one.notes) for one in (short, long)] == [True, False]
    assert recommend("Lamb", 4096, **OWN, total_samples=40_960).steps == 10
    with pytest.raises(ContradictionError, match=r"`total_samples` must be at least 40,960.*but is 40959\. .*epochs"):
        recommend("Lamb", 4096, **OWN, total_samples=40_959)


# ---- published runs


@each_point
def test_at_a_published_batch_the_answer_is_that_run(curve, point):
    found = recommend(curve.optimizer, point.batch, like=curve.name)
    got = (found.lr, found.warmup, found.betas, found.momentum, found.weight_decay)
    assert got == (point.lr, point.warmup, point.betas, point.momentum, point.weight_decay)
    assert not found.extrapolated
    assert {one.series for one in found.lines} == {one.partition(": ")[0] for one in found.sources[1:]}
    assert all(one.setting and one.value and one.why and one.distance for one in found.lines)
    assert "from-scratch" if curve.from_scratch else "checkpoint" in str(found.notes)


@each_point
def test_a_published_run_has_settings_that_its_optimizer_takes(curve, point):
    cls = ENTRIES[curve.optimizer].hyper
    values = {spec.name: getattr(point, spec.name, None) for spec in fields(cls)}
    cls(**{name: value for name, value in values.items() if value is not None})
    assert 0 <= point.warmup < 1


def test_series_ascend_and_the_nearest_point_goes_by_ratio():
    assert all(a.batch < b.batch for curve in CURVES for a, b in pairwise(curve.points))
    # 1.56 times from 32,768 and 1.61 times from 13,056, though 11,768 and 7,944 samples.
    assert SERIES["mlperf-resnet"].nearest(21_000).batch == 32768


def test_the_page_has_every_source():
    text = re.sub(r"\s+", " ", PAGE)
    assert [part for curve in CURVES for part in (curve.source, curve.task) if part not in text] == []


# ---- use


def test_the_schedule_is_that_of_the_published_run():
    nus = recommend("Lars", 8192, like="nus-resnet", total_samples=90 * 1_281_167)
    assert nus.schedule(power=2) == schedules.Polynomial(16.0, 14_076, warmup=391, power=2)
    resnet = recommend("Lars", 8192, total_samples=42 * 1_281_167)
    assert resnet.schedule() == schedules.Polynomial(17.0, 6569, warmup=782, power=2, end=1e-4)
    with pytest.raises(ContradictionError, match="`total_samples` must be given for a schedule"):
        recommend("Lamb", 8192).schedule()


def test_every_api_takes_the_settings():
    lamb, lars = recommend(torch_front.Lamb, 8192, total_samples=8192 * 100), recommend("Lars", 8192)
    wanted = {"lr": 0.00288293, "betas": (0.88, 0.88), "weight_decay": 0.0166629}
    group = torch_front.Lamb([torch.nn.Parameter(torch.ones(2))], **lamb.kwargs()).param_groups[0]
    assert {name: group[name] for name in wanted} == wanted
    opt, w = numpy_front.Lamb(**{**lamb.kwargs("numpy"), "lr": lamb.schedule()}), np.ones(3, np.float32)
    assert (opt.betas, opt.weight_decay) == (wanted["betas"], wanted["weight_decay"])
    for made, found, options in (
        (jax.lamb, lamb, {"learning_rate": 0.00288293, "b1": 0.88, "b2": 0.88, "weight_decay": 0.0166629}),
        (jax.lamb, recommend("Lamb", 4608), {"learning_rate": 0.0035, "b1": 0.62, "b2": 0.9, "weight_decay": 0.01}),
        (jax.lars, lars, {"learning_rate": 17.0, "momentum": 0.9, "weight_decay": 0.0002}),
        (jax.adafactor, recommend("Adafactor", 8192, **OWN), {"learning_rate": 0.001 * 32**0.5}),
    ):
        assert found.kwargs("jax") == options
        made(**options).init(w)
    with pytest.raises(HyperparameterError, match="`front` must be 'torch', 'numpy', or 'jax'"):
        lamb.kwargs("keras")


@pytest.mark.parametrize(
    ("argument", "options", "words"),
    [
        ("optimizer", {"optimizer": "Signum"}, "one of Adafactor, "),
        ("batch", {"batch": 0}, "an integer ≥ 1"),
        ("reference_warmup", {**OWN, "reference_warmup": 1.0}, "a number in [0, 1)"),
        ("total_samples", {"total_samples": 0}, "a finite number > 0"),
        ("like", {"like": "mlperf-resnet"}, "'mlperf-bert' or 'nvidia-bert'"),
        ("like", {"like": "mlperf"}, "'mlperf-bert', "),
        ("rule", {"rule": "cubic"}, "'sqrt' or 'linear'"),
    ],
)
def test_a_bad_argument_is_named(argument, options, words):
    with pytest.raises(HyperparameterError, match=rf"^`{argument}` must be .*, but is .*\. .*\.$") as caught:
        recommend(**{"optimizer": "Lamb", "batch": 1024, **options})
    assert f"`{argument}` must be {words}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"reference_lr": 1e-3},
            "`reference_lr` needs the batch that it was tuned at. Pass `reference_batch`, such as",
        ),
        ({"reference_batch": 256}, "`reference_batch` needs a learning rate that was tuned at that batch. Pass `refer"),
        ({"optimizer": "Adafactor"}, "no settings of Adafactor by batch size are published, so only yours"),
        ({"reference_warmup": 0.1}, "`reference_warmup` belongs to a run of yours. Pass its `reference_batch` and"),
        ({"reference_decay": 0.1}, "`reference_decay` belongs to a run of yours."),
        ({"optimizer": "Lars", **OWN, "reference_decay": 0.1}, "`reference_decay` is of AdamW, whose steps Lars's"),
    ],
)
def test_what_is_given_without_the_rest_is_a_sentence(options, words):
    with pytest.raises(ContradictionError) as caught:
        recommend(**{"optimizer": "Lamb", "batch": 1024, **options})
    assert str(caught.value).startswith(words)
