"""Measurements: what a step saw of each tensor, as the reference has it, and nothing that changes the step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import CASES, case_of
from contract.apis import SHAPES, arrays, close

pytestmark = pytest.mark.offers("stats")
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
RATIO = [case for case in CASES if "adapt" in case.options]


@pytest.mark.every
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", RATIO, ids=lambda case: case.name)
def test_norms_and_ratio_are_those_of_the_reference(api, case, seed):
    options = {**case.drawn(seed), "adapt": True}
    run, oracle, expected = api.make(case.name, arrays(seed), **options), case.reference(**options), arrays(seed)
    for t in range(3):
        grads = arrays(10 * seed + t)
        run.step(grads)
        expected = oracle.step(expected, grads)
    found = run.stats()
    assert found.keys() == SHAPES.keys()
    for name, w in expected.items():
        wanted, root = oracle.seen[name], math.sqrt(w.size)
        wanted = {**wanted, "update_rms": wanted["update_norm"] / root, "weight_rms": wanted["weight_norm"] / root}
        for key, value in wanted.items():
            np.testing.assert_allclose(found[name][key], value, rtol=1e-11, atol=1e-13, err_msg=f"{name} {key}")


@pytest.mark.parametrize("seed", range(2))
def test_the_ratio_of_adafactor_is_what_scales_its_update(api, seed):
    case = case_of("Adafactor")
    options = {**case.drawn(seed), "lr": None, "relative_step": None, "warmup_init": False}
    run, oracle, expected = api.make("Adafactor", arrays(seed), **options), case.reference(**options), arrays(seed)
    for t in range(2):
        before, grads = run.weights(), arrays(10 * seed + t)
        run.step(grads)
        expected = oracle.step(expected, grads)
    for name, w in before.items():
        stats, rms = run.stats()[name], oracle.seen[name]["update_rms"]
        length = math.sqrt(np.mean(w**2))
        scale = 1 if options["scale_parameter"] is False else max(length, options["eps"][1])
        clip = 1 if options["clip_threshold"] is None else 1 / max(1, rms / options["clip_threshold"])
        wanted = {"update_rms": rms, "update_norm": rms * math.sqrt(w.size), "trust_ratio": scale * clip}
        if options["scale_parameter"] is not False:
            wanted |= {"weight_rms": length, "weight_norm": length * math.sqrt(w.size)}
        close({key: stats[key] for key in wanted}, wanted, 1e-10)


@each
def test_a_step_moves_by_what_it_measured(api, case):
    run = api.make(case.name, {"w": np.array([[3.0, 4.0], [1.0, -2.0]])}, **{"lr": 0.1, **(case.measured or {})})
    before = run.weights()["w"]
    run.step(arrays(1, {"w": (2, 2)}))
    stats, moved = run.stats()["w"], np.linalg.norm(run.weights()["w"] - before)
    if case.measured is None:
        assert stats.keys() >= {"trust_ratio", "update_norm"}
    elif "update_norm" in stats:
        np.testing.assert_allclose(moved, 0.1 * stats["trust_ratio"] * stats["update_norm"], rtol=1e-12)
    else:  # no norm of the update is measured, and so there is no ratio
        assert stats["trust_ratio"] == 1.0
    if "adapt" in case.options:
        assert stats.keys() >= {"trust_ratio", "weight_norm", "weight_rms", "update_norm", "update_rms"}
        np.testing.assert_allclose(stats["weight_norm"], np.linalg.norm(before), rtol=1e-14)


@pytest.mark.parametrize("options", [{"adapt": False}, {"adapt": "decayed", "weight_decay": 0}], ids=str)
@pytest.mark.parametrize("name", ["Lamb", "Lars"])
def test_without_a_trust_ratio_it_is_1(api, name, options):
    run = api.make(name, {"w": np.ones((2, 3))}, **options)
    run.step({"w": np.ones((2, 3))})
    assert run.stats()["w"]["trust_ratio"] == 1.0


def test_a_zero_gradient_has_the_ratio_of_a_zero_norm_and_nan_is_shown(api):
    run = api.make("Lamb", {"w": np.array([3.0, 4.0]), "bad": np.ones(2)}, zero_norm_ratio=0.5)
    run.step({"w": np.zeros(2), "bad": np.array([1.0, np.nan])})
    assert run.stats()["w"]["trust_ratio"] == 0.5
    assert np.isnan(run.stats()["bad"]["update_norm"])


def test_sums_over_two_million_numbers_keep_the_digits_of_float32(api):
    run = api.make("Lars", {"w": np.full(2_000_000, 0.1)}, dtype="float32", momentum=0.0)
    run.step({"w": np.full(2_000_000, 1e-3)})
    np.testing.assert_allclose(run.stats()["w"]["weight_norm"], 0.1 * math.sqrt(2_000_000), rtol=1e-6)


@pytest.mark.offers("stats", "own_counts")
@each
def test_measurements_are_of_the_last_step_of_each_name(api, case):
    skip = {"skip_nonfinite": True} if api.has("skip") else {}
    run = api.busy(case.name, arrays(3), **skip)
    assert run.stats() == {}
    run.step({"vector": np.ones(5)})
    assert run.stats().keys() == {"vector"}
    first = run.stats()["vector"]
    run.step({"matrix": np.ones((4, 3))})
    assert run.stats()["vector"] == first
    if skip:
        run.step({"vector": np.full(5, np.nan)})
        assert run.stats()["vector"] == first
    run.step({"vector": np.arange(5.0)})
    assert (run.stats()["vector"] != first) == (case.rounds > 0 and not case.hyper().of_matrices)


@pytest.mark.offers("stats", "in_place")
@each
def test_reading_measurements_changes_nothing(api, case):
    run, calm = api.busy(case.name, arrays(4)), api.busy(case.name, arrays(4))
    for t in range(3):
        for one in (run, calm):
            one.step(arrays(40 + t))
        run.stats()["matrix"].clear()
        assert run.stats()["matrix"]
    assert run.bits() == calm.bits()


@pytest.mark.offers("stats", "in_place", "blocks")
@each
def test_measurements_stay_when_the_lr_changes_and_are_not_loaded(api, case):
    def seen(one):
        return {name: {key: np.array(x).tolist() for key, x in found.items()} for name, found in one.stats().items()}

    run = api.busy(case.name, arrays(5), blocks={"matrix": 2, "stack": "each"})
    run.step(arrays(6))
    before = seen(run)
    run.set_lr(0.7)
    assert seen(run) == before
    assert api.again(run).stats() == {}
