"""Learning rates and weight decay that follow the step: a step takes the numbers of its own count."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from contract.apis import arrays, close

from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.schedules import Polynomial

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
NUMBERS = pytest.mark.offers("schedules", "numbers")  # where a schedule is asked once for each step, by its number
options_ = pytest.mark.parametrize("option", ["lr", "weight_decay"])


def falling(step):
    return 0.1 / (1 + step)


def growing(step):
    return 0.01 * step


class Watch:
    """A schedule that remembers what it was asked."""

    def __init__(self):
        self.seen = []

    def __call__(self, step):
        assert type(step) is int
        self.seen.append(step)
        return 0.1 / (1 + step)

    def asked(self):
        seen, self.seen = {*self.seen}, []
        return seen


@pytest.mark.offers("schedules")
@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "SGD"])
def test_a_step_takes_the_rate_and_the_decay_of_its_number(api, name):
    """From 0 on, and also 0; `adapt` heeds whether there is decay at this step."""
    case = next(case for case in CASES if case.name == name)
    own = {"adapt": "decayed"} if "adapt" in case.options else {}
    lr, decay = [0.1, 0.3, 0.0, 0.05], [0.0, 0.1, 0.2, 0.0]
    given = {"lr": Polynomial(0.3, total=5, warmup=1, start=0.1), "weight_decay": growing, **own}
    if api.has("numbers"):
        given |= {"lr": lambda step: lr[step], "weight_decay": lambda step: decay[step]}
    run, oracle = api.make(name, arrays(2), **given), case.reference(lr=0.1, **own)
    expected = arrays(2)
    for step in range(4):
        grads = arrays(20 + step)
        run.step(grads)
        expected = oracle.step(expected, grads, lr=given["lr"](step), weight_decay=given["weight_decay"](step))
        close(run.weights(), expected, 1e-12 if api.has("numbers") else 1e-6)


@NUMBERS
@each
def test_a_schedule_is_the_numbers_set_by_hand(api, case):
    run = api.busy(case.name, arrays(3), lr=falling, weight_decay=growing)
    by_hand = api.busy(case.name, arrays(3))
    for step in range(4):
        by_hand.opt.lr, by_hand.opt.weight_decay = falling(step), growing(step)
        assert (run.opt.lr, run.opt.weight_decay) == (falling(step), growing(step))
        run.step(arrays(30 + step))
        by_hand.step(arrays(30 + step))
        assert run.bits() == by_hand.bits()


@NUMBERS
@each
@options_
def test_all_names_of_a_step_take_the_same_number_of_the_optimizer(api, case, option):
    watch, weights = Watch(), arrays(4, {"old": (3,), "late": (3,), "later": (3,)})
    run = api.busy(case.name, weights, **{option: watch})
    for step in range(3):
        run.step({"old": np.ones(3)})
        assert watch.asked() == {step}
    run.step({"late": np.ones(3), "old": np.ones(3)})
    assert watch.asked() == {3}
    run.opt.step("later", np.ones(3), np.ones(3))
    assert watch.asked() == {3}, "in the same round as the others"
    run.step(weights)
    assert watch.asked() == {4}


@NUMBERS
@each
def test_a_resumed_run_evaluates_beta2_at_its_step_and_a_cleared_one_starts_over(api, case):
    watch = Watch()
    run, fresh = api.busy(case.name, arrays(6)), api.busy(case.name, arrays(6), lr=watch)
    for _ in range(3):
        run.step(arrays(7))
    fresh.load(run.save())
    assert fresh.opt.lr == 0.1 / 4
    watch.asked()
    fresh.step(arrays(7))
    assert watch.asked() == {3}
    fresh.opt.clear_state()
    fresh.step(arrays(7))
    assert watch.asked() == {0}


@NUMBERS
@each
@options_
def test_a_schedule_is_replaced_only_by_a_schedule(api, case, option):
    run = api.busy(case.name, arrays(1))
    setattr(run.opt, option, lambda step: 0.5)
    assert getattr(run.opt, option) == 0.5
    with pytest.raises(ContradictionError) as caught:
        setattr(run.opt, option, 0.1)
    assert f"`{option}`" in str(caught.value)
    assert f"opt.{option} = lambda step: 0.1" in str(caught.value)
    setattr(run.opt, option, lambda step: 0.25)
    assert getattr(run.opt, option) == 0.25


@NUMBERS
@pytest.mark.parametrize("answer", [0, 1, np.float32(0.5), np.array(0.5), np.array([0.5]), np.int64(1)], ids=repr)
def test_a_schedule_may_answer_with_any_number(api, answer):
    """Of any dtype, which is not that of the state."""
    found = [api.busy("Lamb", arrays(7), dtype="float32", lr=lr) for lr in (lambda step: answer, float(np.sum(answer)))]
    for run in found:
        run.step(arrays(8))
    assert found[0].bits() == found[1].bits()
    kept = {x.dtype.name for one in found[0].state().values() for x in one.values() if x.dtype.kind == "f"}
    assert kept == {"float32"}


BAD_ANSWERS = [float("nan"), float("inf"), -1.0, "0.1", [0.1], 1j, True, falling, np.array([0.1, 0.2]), None]


def named(x):
    """Return an id that is the same in every process, which a function's representation is not."""
    return getattr(x, "__name__", repr(x))


@NUMBERS
@each
@options_
@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=named)
@pytest.mark.thinned(1)
def test_a_schedule_that_answers_with_no_number_changes_nothing(api, case, option, answer):
    weights = {"w": np.array([3.0, 4.0]), "late": np.array([1.0])}
    run = api.busy(case.name, weights, **{option: lambda step: 0.1 if step != 2 else answer})
    for _ in range(2):
        run.step({"w": np.array([1.0, 2.0])})
    before = run.everything()
    for grads in ({"w": np.ones(2)}, {"w": np.ones(2), "late": np.ones(1)}):
        with pytest.raises(HyperparameterError) as caught:
            run.step(grads)
        assert str(caught.value).startswith(f"`{option}(2)` must be a finite number ≥ 0, but is {answer!r}. ")
        assert "callable" not in str(caught.value)  # whoever reads it has passed a schedule already
    with pytest.raises(HyperparameterError, match=rf"`{option}\(2\)`"):
        getattr(run.opt, option)
    assert run.everything() == before


@NUMBERS
@each
@options_
def test_an_error_of_the_schedule_passes_through_and_changes_nothing(api, case, option):
    def fails(step):
        if step == 1:
            raise KeyError("no such milestone")
        return 0.1

    weights = {**arrays(9), "late": np.ones(2)}
    run = api.busy(case.name, weights, **{option: fails})
    run.step(arrays(9))
    before = run.everything()
    with pytest.raises(KeyError, match="no such milestone"):
        run.step(weights)
    assert run.everything() == before


# ---- beta2 as a function of the step


@pytest.mark.offers("functions", "numbers")
@pytest.mark.parametrize("answer", [*BAD_ANSWERS, 1.0, 1, ZeroDivisionError()], ids=named)
def test_a_beta2_that_is_no_number_below_1_changes_nothing(api, engine, answer):
    def beta2(step):
        if step == 2 and isinstance(answer, Exception):
            raise answer
        return 0.1 if step != 2 else answer

    weights = {"w": np.array([3.0, 4.0]), "late": np.ones(2)}
    run = api.make("Adafactor", weights, beta2=beta2, engine=engine)
    for _ in range(2):
        run.step({"w": np.array([1.0, 2.0])})
    before = run.everything()
    with pytest.raises((HyperparameterError, ZeroDivisionError)) as caught:
        run.step({"late": np.ones(2), "w": np.ones(2)})  # also beside a name whose own step is the first
    said = f"`beta2(2)` must be a number in [0, 1), but is {answer!r}. A function must return"
    assert caught.value is answer or said in str(caught.value)
    assert run.everything() == before


# ---- numbers


@pytest.mark.offers("lr", "in_place")
@each
def test_an_lr_of_0_moves_nothing_and_counts(api, case):
    run = api.busy(case.name, arrays(10), lr=0)
    before = run.bits()
    run.step(arrays(11))
    assert run.bits() == before
    if api.has("own_counts", "clear"):
        assert int(run.state()["matrix"]["step"]) == 1


@NUMBERS
def test_rates_are_numbers_that_are_checked_when_they_are_set(api):
    run = api.busy("Lamb", arrays(1), lr=np.float32(0.5))
    assert (run.opt.lr, type(run.opt.lr)) == (0.5, float)
    run.opt.lr = np.array(0.25)
    assert (run.opt.lr, type(run.opt.lr)) == (0.25, float)
    for option, before in (("lr", 0.25), ("weight_decay", run.opt.weight_decay)):
        for bad in (None, -1.0, "fast"):
            with pytest.raises(HyperparameterError, match=rf"`{option}` must be a finite number ≥ 0 .* but is {bad!r}"):
                setattr(run.opt, option, bad)
        assert getattr(run.opt, option) == before


@NUMBERS
@pytest.mark.parametrize("given", [{}, {"relative_step": True}, {"relative_step": "factor"}], ids=str)
def test_an_lr_multiplies_a_relative_step(api, given):
    run = api.make("Adafactor", arrays(11), weight_decay=0.1, **given)
    half = api.make("Adafactor", arrays(11), weight_decay=0.1, lr_cap=5e-3)  # which the cap decides at these steps
    scheduled = api.make("Adafactor", arrays(11), weight_decay=0.1, lr=lambda step: 0.5, relative_step="factor")
    assert run.opt.lr == 1.0
    run.opt.lr = 0.5
    for t in range(3):
        for one in (run, half, scheduled):
            one.step(arrays(t))
    close(run.weights(), half.weights(), 1e-9)
    assert run.bits() == scheduled.bits()
    run.opt.lr = None
    assert run.opt.lr == 1.0


def test_an_lr_may_bound_a_relative_step(api):
    run = api.make("Adafactor", {"w": np.ones(2)}, lr=0.6, relative_step="cap", clip_threshold=None)
    steps = []
    for _ in range(4):
        before = run.weights()["w"][0]
        run.step({"w": np.ones(2)})
        steps.append((before - run.weights()["w"][0]) / before)
    np.testing.assert_allclose(steps, [0.6, 0.6, 3**-0.5, 0.5], rtol=1e-6)
