"""lr and weight_decay as numbers and as callables of the step."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from numpy_front.front import arrays, bits, busy, close, copies, fronts

from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.numpy import Adafactor, Lamb

options_ = pytest.mark.parametrize("option", ["lr", "weight_decay"])


class Watch:
    """A schedule that remembers what it was asked."""

    def __init__(self):
        self.seen = []

    def __call__(self, step):
        self.seen.append(step)
        return 0.1 / (1 + step)

    def asked(self):
        seen, self.seen = self.seen, []
        return seen


def ones(named):
    return {name: np.ones(w.shape) for name, w in named.items()}


@fronts
@options_
def test_sees_0_1_2(front, option):
    watch = Watch()
    opt, weights = busy(front, **{option: watch}), arrays(1)
    for step in range(4):
        opt.step_all(weights, ones(weights))
        assert set(watch.asked()) == {step}
    assert all(type(step) is int for step in watch.seen)


@fronts
@options_
def test_step_by_step_every_name_sees_the_same(front, option):
    watch = Watch()
    opt, weights = busy(front, **{option: watch}), arrays(1)
    for step in range(3):
        for name, w in weights.items():
            opt.step(name, w, np.ones(w.shape))
        assert set(watch.asked()) == {step}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_follows_the_reference(case):
    def lr(step):
        return [0.1, 0.3, 0.0, 0.05][step]

    def decay(step):
        return [0.0, 0.1, 0.2, 0.0][step]

    opt, oracle = case.numpy(lr=lr, weight_decay=decay), case.reference(lr=0.1)
    weights, expected = arrays(2), arrays(2)
    for step in range(4):
        grads = arrays(20 + step)
        opt.step_all(weights, grads)
        expected = oracle.step(expected, grads, lr=lr(step), weight_decay=decay(step))
        close(weights, expected)


@fronts
def test_a_schedule_is_the_numbers_set_by_hand(front):
    scheduled, by_hand = (
        busy(front, lr=lambda step: 0.1 / (1 + step), weight_decay=lambda step: 0.01 * step),
        busy(front),
    )
    a, b = arrays(3), arrays(3)
    for step in range(4):
        by_hand.lr, by_hand.weight_decay = 0.1 / (1 + step), 0.01 * step
        scheduled.step_all(a, arrays(30 + step))
        by_hand.step_all(b, arrays(30 + step))
    assert bits(a) == bits(b)


@fronts
@options_
def test_late_names_see_the_step_of_the_optimizer(front, option):
    watch = Watch()
    opt, weights = busy(front, **{option: watch}), arrays(4, {"old": (3,), "late": (3,), "later": (3,)})
    for _ in range(3):
        opt.step("old", weights["old"], np.ones(3))
    watch.asked()
    opt.step_all({name: weights[name] for name in ("late", "old")}, {"late": np.ones(3), "old": np.ones(3)})
    assert set(watch.asked()) == {3}
    opt.step("later", weights["later"], np.ones(3))
    assert set(watch.asked()) == {3}, "in the same round as the others"
    opt.step_all(weights, ones(weights))
    assert set(watch.asked()) == {4}


@fronts
def test_reading_tells_the_next_step(front):
    opt, weights = busy(front, lr=lambda step: 10.0**-step, weight_decay=lambda step: 2.0**-step), arrays(5)
    for step in range(3):
        assert (opt.lr, opt.weight_decay) == (10.0**-step, 2.0**-step)
        opt.step_all(weights, ones(weights))
    number = busy(front, lr=np.float32(0.5))
    assert (number.lr, type(number.lr)) == (0.5, float)
    number.lr = np.array(0.25)
    assert (number.lr, type(number.lr)) == (0.25, float)


@fronts
def test_resumes_in_the_middle(front):
    watch = Watch()
    opt, fresh = busy(front), busy(front, lr=watch)
    weights = arrays(6)
    for _ in range(3):
        opt.step_all(weights, ones(weights))
    fresh.load_state_dict(opt.state_dict())
    assert fresh.lr == 0.1 / 4
    fresh.step_all(weights, ones(weights))
    assert set(watch.asked()) == {3}


@fronts
@options_
def test_a_schedule_is_replaced_only_by_a_schedule(front, option):
    opt = busy(front, **{option: lambda step: 0.5})
    with pytest.raises(ContradictionError) as caught:
        setattr(opt, option, 0.1)
    assert f"`{option}`" in str(caught.value)
    assert f"opt.{option} = lambda step: 0.1" in str(caught.value)
    assert getattr(opt, option) == 0.5
    setattr(opt, option, lambda step: 0.25)
    assert getattr(opt, option) == 0.25


@fronts
@options_
def test_a_number_may_be_replaced_by_a_schedule(front, option):
    opt = busy(front)
    setattr(opt, option, lambda step: 0.5)
    assert getattr(opt, option) == 0.5


@fronts
@pytest.mark.parametrize("answer", [0, 1, np.float32(0.5), np.array(0.5), np.int64(1)], ids=repr)
def test_a_schedule_may_answer_with_any_number(front, answer):
    a, b = arrays(7), arrays(7)
    busy(front, lr=lambda step: answer).step_all(a, arrays(8))
    busy(front, lr=float(answer)).step_all(b, arrays(8))
    assert bits(a) == bits(b)


@fronts
def test_float32_stays_float32_under_a_float64_schedule(front):
    w = np.ones(3, np.float32)
    opt = busy(front, lr=lambda step: np.float64(0.1))
    opt.step("w", w, np.ones(3))
    dtypes = {
        value.dtype.name for key, value in opt.state_dict().items() if key.startswith("w/") and value.dtype.kind == "f"
    }
    assert dtypes == {"float32"}


@fronts
@options_
def test_an_error_of_the_schedule_passes_through_and_changes_nothing(front, option):
    def fails(step):
        if step == 1:
            raise KeyError("no such milestone")
        return 0.1

    opt, weights = busy(front, **{option: fails}), arrays(9)
    opt.step_all(weights, ones(weights))
    before, state = bits(weights), bits(opt.state_dict())
    with pytest.raises(KeyError, match="no such milestone"):
        opt.step_all({**weights, "late": np.ones(2)}, {**ones(weights), "late": np.ones(2)})
    assert bits(weights) == before
    assert bits(opt.state_dict()) == state


@fronts
@options_
def test_the_message_for_an_answer_does_not_offer_a_schedule(front, option):
    # Whoever reads it has passed a schedule already; what it may return is a number.
    opt = busy(front, **{option: lambda step: -1.0})
    with pytest.raises(HyperparameterError) as caught:
        opt.step("w", np.ones(2), np.ones(2))
    assert f"`{option}(0)` must be " in str(caught.value)
    assert "callable" not in str(caught.value)


@fronts
def test_lr_0_moves_nothing_but_counts(front):
    opt, weights = busy(front, lr=0), arrays(10)
    before = copies(weights)
    opt.step_all(weights, ones(weights))
    assert bits(weights) == bits(before)
    assert opt.state_dict()["matrix/step"] == 1


@pytest.mark.parametrize("given", [{}, {"relative_step": True}, {"relative_step": "factor"}])
def test_lr_multiplies_a_relative_step(given):
    opt, weights = Adafactor(**given, weight_decay=0.1), arrays(11)
    half = Adafactor(lr_cap=5e-3, weight_decay=0.1)  # which the cap decides at these steps
    assert opt.lr == 1.0
    opt.lr = 0.5
    other = copies(weights)
    for _ in range(3):
        opt.step_all(weights, ones(weights))
        half.step_all(other, ones(other))
    for name, w in weights.items():
        np.testing.assert_allclose(w, other[name], rtol=1e-6)
    opt.lr = None
    assert opt.lr == 1.0


def test_a_schedule_of_a_relative_step():
    scheduled, moved = Adafactor(lr=lambda step: 0.5**step, relative_step="factor"), Adafactor()
    weights, other = arrays(11), arrays(11)
    for t in range(3):
        moved.lr = 0.5**t
        scheduled.step_all(weights, ones(weights))
        moved.step_all(other, ones(other))
    assert bits(weights) == bits(other)


def test_lr_that_bounds_a_relative_step():
    opt, weights = Adafactor(lr=0.6, relative_step="cap", clip_threshold=None), {"w": np.ones(2)}
    steps = []
    for _ in range(4):
        before = weights["w"].copy()
        opt.step_all(weights, {"w": np.ones(2)})
        steps.append(float((before - weights["w"])[0] / before[0]))
    np.testing.assert_allclose(steps, [0.6, 0.6, 3**-0.5, 0.5], rtol=1e-6)
    assert Adafactor(relative_step="cap", lr_cap=0.25).lr == 0.25


def test_lamb_and_lars_need_an_lr():
    opt = Lamb()
    with pytest.raises(HyperparameterError, match=r"`lr` must be a finite number ≥ 0 .* but is None"):
        opt.lr = None
    assert opt.lr == 1e-3


@fronts
def test_schedules_begin_anew_with_the_state(front):
    seen = []
    opt = front(lr=lambda step: seen.append(step) or 0.1)
    weights = {"w": np.ones(2)}
    for _ in range(2):
        opt.step_all(weights, {"w": np.ones(2)})
    opt.clear_state()
    opt.step_all(weights, {"w": np.ones(2)})
    assert seen == [0, 1, 0]
