"""Settings for a batch size: worked by hand, held to the published points, and taken by every front as they are."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from layerwise import schedules
from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.numpy import Lamb, Lars
from layerwise.recipes import CURVES, recommend
from layerwise.recipes.numbers import number
from layerwise.registry import ENTRIES

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"
OWN = {"reference_batch": 256, "reference_lr": 1e-3}
POINTS = [(curve, point) for curve in CURVES for point in curve.points]
each_point = pytest.mark.parametrize(("curve", "point"), POINTS, ids=lambda one: getattr(one, "name", None))


def line(found, setting):
    return next(one for one in found.lines if one.setting == setting)


class TestYours:
    def test_square_root_and_linear(self):
        found = recommend("Lamb", 4096, **OWN)
        assert found.lr == 1e-3 * 4
        assert line(found, "linear rule").value == "0.016"
        assert recommend("Lamb", 4096, **OWN, rule="linear").lr == 1e-3 * 16

    def test_a_smaller_batch(self):
        assert recommend("Lamb", 64, **OWN).lr == 1e-3 / 2

    def test_the_same_batch_changes_nothing(self):
        found = recommend("Lamb", 256, **OWN, reference_warmup=0.05)
        assert (found.lr, found.warmup) == (1e-3, 0.05)
        assert not found.extrapolated

    def test_warmup_keeps_its_steps(self):
        found = recommend("Lars", 2048, reference_batch=512, reference_lr=2.0, reference_warmup=0.01, total_samples=1e6)
        assert found.warmup == 0.04
        assert found.steps == 489
        assert found.warmup_steps == 20  # as 1 % of 1,954 steps was

    def test_warmup_of_another_is_one_from_scratch(self):
        """mlperf-bert has none up to 6,912, because it begins with a trained network."""
        found = recommend("Lamb", 4096, **OWN)
        assert found.warmup == pytest.approx(0.2843 * 4096 / 65536)
        assert line(found, "warm-up").series == "nvidia-bert"

    def test_warmup_has_an_end(self):
        found = recommend("Lars", 32768, reference_batch=512, reference_lr=2.0, reference_warmup=0.1)
        assert found.warmup == 300 / 500
        assert line(found, "warm-up").extrapolated

    def test_what_no_rule_scales_stays(self):
        found = recommend("Lamb", 16384, **OWN)
        assert found.kwargs() == {"lr": 0.008}
        assert "0.9/0.999 at batch 256 to 0.75/0.9 at 16,384" in line(found, "betas").why
        assert "kept 0.01" in line(recommend("Lamb", 4096, **OWN), "weight decay").why

    def test_growth_in_a_published_series(self):
        found = recommend("Lamb", 16384, **OWN)
        assert line(found, "as mlperf-bert").value == f"{1e-3 * 3.3e-3 / 3.5e-4:.3g}" == "0.00943"
        assert line(recommend("Lars", 32768, reference_batch=512, reference_lr=1), "as nus-resnet").value == "8"

    def test_cost(self):
        assert line(recommend("Lamb", 16384, **OWN), "training needed").value == "× 2.16"  # 5.50 / 2.55
        resnet = recommend("Lars", 65536, reference_batch=1632, reference_lr=7.4)
        assert line(resnet, "training needed").value == "× 2.41"  # 84.5 / 35.0

    def test_beta2_that_remembers_longer_than_the_run(self):
        short, long = (recommend("Lamb", 1024, **OWN, total_samples=1024 * steps) for steps in (999, 1000))
        assert any("beta2 = 0.999 averages over about 1,000 steps, and the run has 999" in one for one in short.notes)
        assert not any("beta2" in one for one in long.notes)

    def test_adafactor_has_only_yours(self):
        found = recommend("Adafactor", 1024, reference_batch=256, reference_lr=0.01)
        assert (found.lr, found.warmup, found.extrapolated) == (0.02, None, True)
        assert "no published settings of it" in str(found)


class TestPublished:
    @each_point
    def test_at_a_published_batch_it_is_that_run(self, curve, point):
        found = recommend(curve.optimizer, point.batch, like=curve.name)
        got = (found.lr, found.warmup, found.betas, found.momentum, found.weight_decay)
        assert got == (point.lr, point.warmup, point.betas, point.momentum, point.weight_decay)
        assert not found.extrapolated

    def test_between_two_the_nearest_is_scaled(self):
        found = recommend("Lamb", 5000)
        assert found.lr == pytest.approx(3.5e-3 * (5000 / 4608) ** 0.5)
        assert (found.betas, found.weight_decay) == ((0.62, 0.9), 0.01)
        assert line(found, "learning rate").distance == "1.09× above the published 4,608"
        assert not found.extrapolated

    def test_nearest_goes_by_ratio(self):
        """21,000 is 1.56 times from 32,768 and 1.61 times from 13,056, though 11,768 and 7,944 samples."""
        (resnet,) = (curve for curve in CURVES if curve.name == "mlperf-resnet")
        assert resnet.nearest(21_000).batch == 32768

    @pytest.mark.parametrize(("batch", "far"), [(32768, "2× above the published 16,384"), (128, "2× below the")])
    def test_extrapolation_says_so(self, batch, far):
        found = recommend("Lamb", batch)
        assert found.extrapolated
        assert line(found, "learning rate").how_far.startswith(f"extrapolated: {far}")
        assert "extrapolated: " in str(found)

    @pytest.mark.parametrize(
        ("x", "words"),
        [(1024, "1,020"), (999.9, "1,000"), (0.0078125, "0.00781"), (2.9e-6, "2.9e-6"), (3.5e-4, "0.00035")],
    )
    def test_numbers_are_as_people_write_them(self, x, words):
        assert number(x) == words

    def test_a_warm_up_of_next_to_nothing_has_no_digits(self):
        """A share that would be one step of thousands."""
        found = recommend("Lamb", 32, like="nvidia-bert")
        assert line(found, "warm-up").value == "less than 0.1 %"
        assert "e+" not in str(found)

    @pytest.mark.parametrize("given", ["reference_batch", "reference_lr"])
    def test_half_a_reference_names_the_half_that_is_there(self, given):
        with pytest.raises(ContradictionError, match=f"must be given with {given}, but"):
            recommend("Lamb", 32, **{given: 1})

    def test_a_stretch_beyond_what_was_published_says_so(self):
        assert not recommend("Lamb", 16384, **OWN, reference_warmup=0.001).extrapolated
        farther = recommend("Lamb", 16384, reference_batch=255, reference_lr=1e-3, reference_warmup=0.001)
        assert farther.extrapolated

    def test_the_linear_rule_is_followed_by_no_series(self):
        assert recommend("Lamb", 4096, **OWN, rule="linear", reference_warmup=0.001).extrapolated

    def test_other_series_are_shown_unscaled(self):
        found = recommend("Lars", 8192)
        assert (found.lr, line(found, "nus-resnet").value) == (17, "16")

    def test_every_series_named_has_its_source(self):
        for curve, point in POINTS:
            found = recommend(curve.optimizer, point.batch, like=curve.name)
            named = {one.series for one in found.lines}
            cited = {one.partition(": ")[0] for one in found.sources[1:]}
            assert named == cited
            assert all(one.setting and one.value and one.why and one.distance for one in found.lines)


class TestPoints:
    @each_point
    def test_settings_are_allowed(self, curve, point):
        cls = ENTRIES[curve.optimizer].hyper
        values = {spec.name: getattr(point, spec.name, None) for spec in fields(cls)}
        cls(**{name: value for name, value in values.items() if value is not None})
        assert 0 <= point.warmup < 1

    @pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
    def test_batches_ascend(self, curve):
        assert all(a.batch < b.batch for a, b in pairwise(curve.points))

    def test_numbers_that_readers_were_told(self):
        """Over 64 times the batch LAMB's rate grew 9.4 times, and over 40 times LARS's 3.3 times."""
        (bert,) = (curve.points for curve in CURVES if curve.name == "mlperf-bert")
        (resnet,) = (curve.points for curve in CURVES if curve.name == "mlperf-resnet")
        assert (len(bert), len(resnet)) == (13, 10)
        assert bert[-1].batch / bert[0].batch == 64
        assert bert[-1].lr / bert[0].lr == pytest.approx(9.43, abs=0.005)
        assert resnet[-2].batch / resnet[0].batch == pytest.approx(40, abs=0.2)
        assert resnet[-2].lr / resnet[0].lr == pytest.approx(3.34, abs=0.005)


class TestUse:
    def test_the_numpy_front_takes_it(self):
        found = recommend(Lars, 8192, total_samples=8192 * 100)
        opt = Lars(**{**found.kwargs("numpy"), "lr": found.schedule(power=2)})
        w = {"w": np.ones(3)}
        opt.step_all(w, {"w": np.ones(3)})
        assert w["w"].tolist() == [1, 1, 1]  # the first step of the warm-up
        Lamb(**recommend(Lamb, 8192).kwargs("numpy"))

    def test_the_torch_front_takes_it(self):
        torch = pytest.importorskip("torch")
        from layerwise.torch import Lamb, scheduler

        found = recommend(Lamb, 8192, total_samples=600 * 8192)
        opt = Lamb([torch.nn.Parameter(torch.ones(2))], **found.kwargs())
        group = opt.param_groups[0]
        assert (group["lr"], group["betas"], group["weight_decay"]) == (0.00288293, (0.88, 0.88), 0.0166629)
        sched = scheduler(opt, found.schedule())
        for _ in range(287):
            opt.step()
            sched.step()
        assert group["lr"] == 0.00288293

    def test_the_jax_front_takes_it(self):
        pytest.importorskip("optax")
        from layerwise.jax import adafactor, lamb, lars

        weights, grads = {"w": np.float32([3, 4])}, {"w": np.float32([1, 2])}
        for make, options, wanted in (
            (lamb, {}, {"learning_rate": 0.00288293, "b1": 0.88, "b2": 0.88, "weight_decay": 0.0166629}),
            (lars, {}, {"learning_rate": 17.0, "momentum": 0.9, "weight_decay": 0.0002}),
            (adafactor, OWN, {"learning_rate": 0.001 * 32**0.5}),
        ):
            found = recommend(make, 8192, **options).kwargs("jax")
            assert found == wanted
            opt = make(**found)
            assert all(opt.update(grads, opt.init(weights), weights)[0]["w"] < 0)

    def test_schedule(self):
        found = recommend("Lars", 8192, like="nus-resnet", total_samples=90 * 1_281_167)
        assert found.schedule(power=2) == schedules.Polynomial(16.0, 14_076, warmup=391, power=2)

    def test_everything_that_a_published_run_had_is_said(self):
        resnet = recommend("Lars", 8192, total_samples=42 * 1_281_167)
        assert resnet.schedule() == schedules.Polynomial(17.0, 6569, warmup=782, power=2, end=1e-4)
        assert line(resnet, "decay of the rate").value == "polynomial of power 2 to 0.0001"
        bert = recommend("Lamb", 4096)
        assert "from mlperf-bert" in bert.explain()[0]
        assert any("starts from a checkpoint; a run from scratch needs a warm-up" in note for note in bert.notes)
        assert not any("checkpoint" in note for note in recommend("Lamb", 65536, like="nvidia-bert").notes)
        assert recommend("Lamb", 4096, **OWN).run == ""

    def test_a_run_of_a_few_steps_is_refused(self):
        assert recommend("Lamb", 4096, **OWN, total_samples=40_960).steps == 10
        with pytest.raises(
            ContradictionError, match=r"`total_samples` must be at least 40,960.*but is 40959\. .*epochs"
        ):
            recommend("Lamb", 4096, **OWN, total_samples=40_959)

    def test_a_schedule_needs_a_length(self):
        with pytest.raises(ContradictionError, match="`total_samples` must be given for a schedule"):
            recommend("Lamb", 8192).schedule()

    def test_a_front_that_there_is_not(self):
        with pytest.raises(HyperparameterError, match="`front` must be one of 'torch', 'numpy', 'jax'"):
            recommend("Lamb", 8192).kwargs("keras")


BAD = {
    "optimizer": {"optimizer": "Signum"},
    "batch": {"batch": 0},
    "reference_batch": {"reference_lr": 1e-3},
    "reference_lr": {"reference_batch": 256},
    "reference_warmup": {"reference_warmup": 0.1},
    "reference_decay": {"reference_decay": 0.1},
    "total_samples": {"total_samples": 0},
    "like": {"like": "mlperf-resnet"},
    "rule": {"rule": "cubic"},
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_arguments_are_named(argument):
    with pytest.raises(HyperparameterError, match=rf"^`{argument}` must be .*, but is .*\. .*\.$"):
        recommend(**{"optimizer": "Lamb", "batch": 1024, **BAD[argument]})


def test_kept_norms_take_the_angle_of_an_adamw_run():
    found = recommend("Lamb", 1024, reference_batch=256, reference_lr=3e-4, reference_decay=0.1)
    assert found.kwargs() == {"lr": pytest.approx((3e-4 * 0.1) ** 0.5 * 2), "keep_norm": True}
    assert "√(lr·λ) of your AdamW run, 0.00548 at batch 256, by the sqrt rule" in str(found)
    assert "2606.16899" in str(found)
    assert "weight decay: keep yours" not in str(found)
    with pytest.raises(ContradictionError, match=r"`reference_decay` must be None for Lars.*Ask for Lamb"):
        recommend("Lars", 1024, reference_batch=256, reference_lr=3e-4, reference_decay=0.1)


def test_adafactor_alone_is_told_that_nothing_is_published():
    with pytest.raises(ContradictionError, match=r"`reference_lr` must be given for Adafactor.*No published settings"):
        recommend("Adafactor", 1024)


def rows(curve):
    for point in curve.points:
        moments = "/".join(f"{one:g}" for one in point.betas) if point.betas else f"{point.momentum or 0:g}"
        said = moments if point.betas or point.momentum else ""
        decay = "" if point.weight_decay is None else number(point.weight_decay, 6)
        cost = "" if point.cost is None else f"{point.cost:g}"
        yield [curve.name, f"{point.batch:,}", f"{point.lr:.4g}", f"{100 * point.warmup:.3g}", said, decay, cost]


def test_the_page_has_every_point():
    found = re.findall(r"^\| (\w+-[\w-]+) \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    shown = [[name, *(cell.strip() for cell in rest.split("|"))] for name, rest in found]
    assert shown == [row for curve in CURVES for row in rows(curve)]


def test_the_page_has_every_source():
    text = re.sub(r"\s+", " ", PAGE.read_text("utf-8"))
    for curve in CURVES:
        assert curve.source in text, curve.name
        assert curve.task in text, curve.name
