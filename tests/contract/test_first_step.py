"""What surely goes wrong in a run is said once, at a tensor's first step, with the way out of that API."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

MODEL = {"body.weight": (64, 32), "body.bias": (32,), "head.weight": (32, 4)}
AT_ZERO, STALLS = "began at zero, and will hardly move", "will not move"
RUSH = "have no trust ratio. Without a ratio, training tends to diverge from lr=1 on"
SMALL = {"bfloat16": 2.0**-7 / 7.01, "float16": 2.0**-10 / 7.01}  # the largest rates that are too small
pytestmark = [pytest.mark.offers("skip"), pytest.mark.filterwarnings("default")]


def weights(*zero):
    draw = np.random.default_rng(0)
    return {name: np.zeros(s) if name in zero else draw.normal(size=s) for name, s in MODEL.items()}


def said(run, *gradients):
    """Return what these steps say, by step."""
    found = []
    for gradient in gradients or (1.0,):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.step({name: np.full(w.shape, gradient) for name, w in run.weights().items()})
        found.append([str(one.message) for one in caught])
    return found


@pytest.mark.parametrize(("rule", "lr"), [("Lamb", 0.01), ("Lars", 1.0), ("Lans", 0.01)])
def test_adapted_tensors_that_begin_at_zero_are_named_once(api, rule, lr):
    (first,), *later = said(api.make(rule, weights("head.weight", "body.bias"), dtype="float32", lr=lr), 1.0, 1.0)
    assert first.startswith(f"body.bias, head.weight {AT_ZERO}")
    assert ("Pass min_norm=0.1 for them" in first) is (rule == "Lars")  # where exempt ones would rush
    assert later == [[]]


def test_the_warning_points_to_the_line_that_called(api):
    run = api.make("Lamb", weights("head.weight"), dtype="float32")
    with pytest.warns(UserWarning, match=AT_ZERO) as caught:
        run.step({name: np.ones(w.shape) for name, w in run.weights().items()})
    assert caught[0].filename.endswith("apis.py")


def test_a_rule_for_hidden_matrices_names_vectors_once(api):
    (first,), *later = said(api.make("Muon", weights(), lr=0.02), 1.0, 1.0)
    assert first.startswith("Muon is for hidden matrices, but also steps other parameters: 'body.bias'")
    assert re.search(r"\. Step them with (a separate )?AdamW", first)
    assert later == [[]]


FREE = [
    ("AdamW", {}),
    ("Lamb", {"adapt": False}),
    ("Lamb", {"adapt": "decayed"}),  # and the decay is 0
    ("Lamb", {"min_norm": 0.1}),
    ("Lamb", {"trust_clip": (0.01, 10.0)}),
]


@pytest.mark.parametrize(("rule", "options"), FREE, ids=str)
def test_tensors_that_the_ratio_does_not_hold_are_not_named(api, rule, options):
    assert said(api.make(rule, weights("head.weight"), lr=0.01, **options)) == [[]]


def test_a_skipped_step_says_nothing(api):
    skipped, taken = said(api.make("Lamb", weights("head.weight"), lr=0.01, skip_nonfinite=True), np.nan, 1.0)
    assert (skipped, len(taken)) == ([], 1)


def test_a_block_at_zero_counts_and_an_empty_tensor_does_not(api):
    given = {"stack": np.stack([np.ones((2, 3)), np.zeros((2, 3))])}
    given |= {"none": np.zeros((0, 3))} if api.has("empty") else {}
    ((first,),) = said(api.make("Lamb", given, lr=0.01, blocks={"stack": "each"}))
    assert first.startswith(f"stack {AT_ZERO}")


@pytest.mark.parametrize("rule", ["Lamb", "Lars"])
def test_the_warning_as_an_error_comes_after_the_step(api, rule):
    options, words = {"Lamb": ({"lr": 0.01}, AT_ZERO), "Lars": ({"lr": 4.0, "adapt": False}, RUSH)}[rule]
    run, other = (api.make(rule, weights("head.weight"), **options) for _ in range(2))
    ones = {name: np.ones(shape) for name, shape in MODEL.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=words):
            run.step(ones)
    run.step(ones)
    said(other, 1.0, 1.0)
    assert run.bits() == other.bits()


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("rule", ["Lamb", "Lans"])
def test_steps_that_rounding_loses_warn_once(api, rule, dtype):
    run, before = api.make(rule, weights(), dtype=dtype, lr=SMALL[dtype]), weights()
    start = run.weights()
    (first,), *later = said(run, 1.0, 1.0)
    assert f"most weights of {', '.join(before)} {STALLS}" in first
    assert f"{STALLS} as long as lr is at most {SMALL[dtype]:g}: a step of" in first
    assert later == [[]]
    assert np.mean(run.weights()["body.weight"] != start["body.weight"]) < 0.5  # of two steps
    assert said(api.make(rule, weights(), dtype=dtype, lr=1.1 * SMALL[dtype])) == [[]]


@pytest.mark.offers("state_dtype")
@pytest.mark.parametrize("finer", [{"master_weights": "split24"}, {"rounding": "stochastic"}], ids=str)
def test_steps_that_survive_rounding_do_not_warn(api, finer):
    assert said(api.make("Lamb", weights(), dtype="bfloat16", lr=1e-4, **finer)) == [[]]
    assert said(api.make("Lamb", weights(), dtype="float32", lr=1e-4)) == [[]]


def test_momentum_adds_up_to_longer_steps(api):
    """LARS at lr = 1 moves a tensor by 0.1 % of its norm, and by 1 % with momentum."""
    assert said(api.make("Lars", weights(), dtype="bfloat16", lr=1.0)) == [[]]
    assert len(said(api.make("Lars", weights(), dtype="bfloat16", lr=1.0, momentum=0.0))[0]) == 1


@pytest.mark.parametrize("lr_in_momentum", [True, False])
def test_momentum_adds_nothing_to_a_whole_step(api, lr_in_momentum):
    """It is 0.1 % of the norm long at lr = 1, and bfloat16 loses less than 0.112 %."""
    options = {"adapt": "step", "lr_in_momentum": lr_in_momentum}
    assert len(said(api.make("Lars", weights(), dtype="bfloat16", lr=1.1, **options))[0]) == 1
    assert said(api.make("Lars", weights(), dtype="bfloat16", lr=1.2, **options)) == [[]]


@pytest.mark.offers("schedules", "skip")
def test_a_warm_up_is_judged_by_its_peak(api):
    from layerwise.schedules import Polynomial

    for peak, words in ((0.01, 0), (1e-4, 1)):
        run = api.make("Lamb", weights(), dtype="bfloat16", lr=Polynomial(peak=peak, total=100, warmup=10))
        assert len(said(run)[0]) == words
    assert said(api.make("Lamb", weights(), dtype="bfloat16", lr=lambda step: 1e-5)) == [[]]  # which may rise


@pytest.mark.offers("set_lr")
def test_the_way_out_is_that_of_the_api(api):
    if api.name == "Paddle":
        assert "Pass multi_precision=True." in said(api.make("Lamb", weights(), dtype="float16", lr=1e-5))[0][0]
        assert said(api.make("Lamb", weights(), dtype="float16", lr=1e-5, multi_precision=True)) == [[]]
        return
    ((found,),) = said(api.make("Lamb", weights("head.weight", "body.bias"), lr=0.01))
    assert found.endswith(', and other parameters with param_groups(model, no_adapt=["bias", "norm", "head.weight"]).')
    ((found,),) = said(api.make("Lamb", weights("body.bias"), lr=0.01))
    assert found.endswith("with param_groups(model), and other parameters with param_groups(model, no_adapt=[…]).")
    run = api.make("Lamb", weights("head.weight", "body.bias"), lr=0.01)
    run.opt = type(run.opt)(list(run._weights.values()), lr=0.01)  # without names
    ((found,),) = said(run)
    assert found.startswith("parameter 1 of group 0, parameter 2 of group 0")
    assert found.endswith("with param_groups(model), and other parameters with param_groups(model, no_adapt=[…]).")


def test_a_scheduler_of_torch_is_judged_by_its_peak():
    torch = pytest.importorskip("torch")
    from contract.apis import Torch

    rates = torch.optim.lr_scheduler
    run = Torch().make("Lamb", weights(), dtype="bfloat16", lr=0.01)
    rates.LinearLR(run.opt, 1e-3)
    assert said(run) == [[]]
    run = Torch().make("Lamb", weights(), dtype="bfloat16", lr=1e-4)
    rates.OneCycleLR(run.opt, 0.01, total_steps=9)
    assert said(run) == [[]]


EXEMPT = [{"adapt": False}, {"adapt": "decayed"}]  # and the decay is 0


@pytest.mark.parametrize("options", EXEMPT, ids=str)
def test_plain_steps_at_a_rate_of_lars_are_named_once(api, options):
    (first,), *later = said(api.make("Lars", weights(), dtype="float32", lr=4.0, **options), 1e-3, 1e-3)
    assert first.startswith(f"steps of body.weight, body.bias, head.weight {RUSH}, and lr is 4. ")
    assert later == [[]]


CALM = [
    ("Lars", 1.0, {}),
    ("Lars", 0.5, {"adapt": False}),
    ("Lars", 4.0, {"adapt": "decayed", "weight_decay": 1e-3}),
    ("Lars", 4.0, {"min_norm": 0.1}),
    ("Lamb", 4.0, {"adapt": False}),
    ("SGD", 4.0, {}),
]


@pytest.mark.parametrize(("rule", "lr", "options"), CALM, ids=str)
def test_intended_plain_steps_do_not_warn(api, rule, lr, options):
    assert said(api.make(rule, weights(), dtype="float32", lr=lr, **options), 1e-3) == [[]]


@pytest.mark.offers("schedules")
def test_the_rate_of_plain_steps_is_the_peak_of_a_warm_up(api):
    from layerwise.schedules import Polynomial

    for peak, words in ((4.0, 1), (0.5, 0)):
        run = api.make("Lars", weights(), lr=Polynomial(peak=peak, total=100, warmup=10), adapt=False)
        assert len(said(run, 1e-3)[0]) == words
