"""What a step measured, against the reference and against what can be seen from outside."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES, case_of
from numpy_front.front import SHAPES, arrays, bits, busy, fronts

from layerwise.numpy import Adafactor, Lamb, Lars

RATIO_CASES = [case for case in CASES if "adapt" in case.options]


@pytest.mark.parametrize("case", RATIO_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(8))
def test_norms_and_ratio_follow_the_reference(case, seed):
    options = {**case.drawn(seed), "adapt": True}
    opt, oracle = case.numpy(**options), case.reference(**options)
    weights, expected = arrays(seed), arrays(seed)
    for t in range(3):
        grads = arrays(10 * seed + t)
        opt.step_all(weights, grads)
        expected = oracle.step(expected, grads)
        stats = opt.stats()
        assert stats.keys() == SHAPES.keys()
        for name, w in weights.items():
            for key, wanted in oracle.seen[name].items():
                assert type(stats[name][key]) is float
                np.testing.assert_allclose(stats[name][key], wanted, rtol=1e-11, atol=1e-13)
            root = np.sqrt(w.size)
            np.testing.assert_allclose(stats[name]["update_rms"] * root, stats[name]["update_norm"], rtol=1e-13)
            np.testing.assert_allclose(stats[name]["weight_rms"] * root, stats[name]["weight_norm"], rtol=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_adafactor(seed):
    case = next(case for case in CASES if case.numpy is Adafactor)
    options = {**case.drawn(seed), "lr": None, "warmup_init": False}
    opt, oracle = Adafactor(**options), case.reference(**options)
    weights, expected = arrays(seed), arrays(seed)
    for t in range(3):
        grads = arrays(10 * seed + t)
        before = {name: np.sqrt(np.mean(w**2)) for name, w in weights.items()}
        opt.step_all(weights, grads)
        expected = oracle.step(expected, grads)
        for name, w in weights.items():
            stats = opt.stats()[name]
            rms = oracle.seen[name]["update_rms"]
            np.testing.assert_allclose(stats["update_rms"], rms, rtol=1e-11)
            np.testing.assert_allclose(stats["update_norm"], rms * np.sqrt(w.size), rtol=1e-11)
            scale = 1 if options["scale_parameter"] is False else max(before[name], options["eps"][1])
            clip = 1 if options["clip_threshold"] is None else 1 / max(1, rms / options["clip_threshold"])
            np.testing.assert_allclose(stats["trust_ratio"], scale * clip, rtol=1e-11)
            if options["scale_parameter"] is not False:
                np.testing.assert_allclose(stats["weight_rms"], before[name], rtol=1e-11)
                np.testing.assert_allclose(stats["weight_norm"], before[name] * np.sqrt(w.size), rtol=1e-11)


def test_lamb_moves_by_what_the_stats_say():
    opt, w = Lamb(lr=0.1), np.array([[3.0, 4.0], [1.0, -2.0]])
    for t in range(3):
        before = w.copy()
        opt.step("w", w, arrays(t, {"w": (2, 2)})["w"])
        stats = opt.stats()["w"]
        moved = np.linalg.norm(w - before)
        np.testing.assert_allclose(moved, 0.1 * stats["trust_ratio"] * stats["update_norm"], rtol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(before), stats["weight_norm"], rtol=1e-14)


@pytest.mark.parametrize("front", [Lamb, Lars])
def test_without_adaptation_the_ratio_is_1(front):
    for options in ({"adapt": False}, {"adapt": "decayed", "weight_decay": 0}):
        opt = front(**options)
        opt.step("w", np.ones((2, 3)), np.ones((2, 3)))
        assert opt.stats()["w"]["trust_ratio"] == 1.0


@fronts
def test_every_name_has_all_four(front):
    """Of a rule that takes norms; the others have the ratio 1 and nothing else."""
    opt = front()
    opt.step_all(arrays(1), arrays(2))
    for stats in opt.stats().values():
        norms = {"weight_norm", "update_norm", "update_rms"} if case_of(front.__name__).measures_weights else set()
        assert stats.keys() >= {"trust_ratio", *norms}


@fronts
def test_stats_are_of_the_last_step_of_each_name(front):
    opt, weights = busy(front, skip_nonfinite=True), arrays(3)
    assert opt.stats() == {}
    opt.step("vector", weights["vector"], np.ones(5))
    assert opt.stats().keys() == {"vector"}
    first = opt.stats()["vector"]
    opt.step("matrix", weights["matrix"], np.ones((4, 3)))
    assert opt.stats()["vector"] == first
    opt.step("vector", weights["vector"], np.full(5, np.nan))
    assert opt.stats()["vector"] == first
    opt.step("vector", weights["vector"], np.arange(5.0))
    assert (opt.stats()["vector"] != first) == bool(case_of(front.__name__).rounds)


@fronts
def test_reading_stats_changes_nothing(front):
    opt, other, a, b = busy(front), busy(front), arrays(4), arrays(4)
    for t in range(3):
        for one, weights in ((opt, a), (other, b)):
            one.step_all(weights, arrays(40 + t))
        opt.stats()["matrix"].clear()
        assert opt.stats()["matrix"]
    assert bits(a) == bits(b)


@fronts
def test_stats_survive_a_new_lr(front):
    opt = busy(front, blocks={"matrix": 2, "stack": "each"})
    opt.step_all(arrays(5), arrays(6))
    before = {name: {key: np.array(x).tolist() for key, x in one.items()} for name, one in opt.stats().items()}
    opt.lr = 0.7
    after = {name: {key: np.array(x).tolist() for key, x in one.items()} for name, one in opt.stats().items()}
    assert before == after


@fronts
def test_a_loaded_optimizer_has_measured_nothing_yet(front):
    opt, fresh = busy(front), busy(front)
    opt.step_all(arrays(7), arrays(8))
    fresh.load_state_dict(opt.state_dict())
    assert fresh.stats() == {}


def test_a_zero_gradient_has_the_ratio_of_a_zero_norm():
    opt = Lamb(zero_norm_ratio=0.5)
    opt.step("w", np.array([3.0, 4.0]), np.zeros(2))
    assert opt.stats()["w"]["trust_ratio"] == 0.5
