"""What surely goes wrong in a run is said once, at a tensor's first step."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from layerwise import numpy as lw

MODEL = {"body.weight": (64, 32), "body.bias": (32,), "head.weight": (32, 4)}
AT_ZERO, STALLS = "began at zero, and will hardly move", "will not move"


def weights(*zero):
    draw = np.random.default_rng(0)
    return {name: np.zeros(s) if name in zero else draw.normal(size=s) for name, s in MODEL.items()}


class Numpy:
    def __init__(self, rule, given, dtype="float32", **options):
        half = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
        self.opt, self.weights = getattr(lw, rule)(**options), {name: w.astype(half) for name, w in given.items()}

    def step(self, gradient=1.0):
        self.opt.step_all(self.weights, {name: np.full(w.shape, gradient) for name, w in self.weights.items()})

    def values(self):
        return {name: w.astype(np.float32) for name, w in self.weights.items()}


class Torch:
    def __init__(self, rule, given, dtype="float32", **options):
        self.torch, front = pytest.importorskip("torch"), pytest.importorskip("layerwise.torch")
        dtype = getattr(self.torch, dtype)
        self.weights = {name: self.torch.nn.Parameter(self.torch.tensor(w, dtype=dtype)) for name, w in given.items()}
        self.opt = getattr(front, rule)(self.weights.items(), **options)

    def step(self, gradient=1.0):
        for p in self.weights.values():
            p.grad = self.torch.full_like(p, gradient)
        self.opt.step()

    def values(self):
        return {name: p.detach().float().numpy().copy() for name, p in self.weights.items()}


class Paddle:
    """Its names of parameters are Paddle's own, in the order of ours."""

    def __init__(self, rule, given, dtype="float32", **options):
        self.paddle, front = pytest.importorskip("paddle"), pytest.importorskip("layerwise.paddle")
        if (lr := options.pop("lr", None)) is not None:
            options["learning_rate"] = lr
        self.weights = {name: self.paddle.create_parameter(w.shape, dtype) for name, w in given.items()}
        for name, w in given.items():
            self.weights[name].set_value(self.paddle.to_tensor(w).astype(dtype))
        self.opt = getattr(front, rule)(parameters=list(self.weights.values()), **options)

    def step(self, gradient=1.0):
        for p in self.weights.values():
            p.grad = self.paddle.full_like(p, gradient)
        self.opt.step()


def said(opt, *gradients):
    """Return what these steps say, by step."""
    found = []
    for gradient in gradients:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opt.step(gradient)
        found.append([str(one.message) for one in caught])
    return found


def where(opt):
    """Return the file that the first warning of a step points to."""
    with pytest.warns(UserWarning, match=AT_ZERO) as caught:
        opt.step()
    return caught[0].filename


each = pytest.mark.parametrize("front", [Torch, Numpy, Paddle], ids=lambda front: front.__name__)
both = pytest.mark.parametrize("front", [Torch, Numpy], ids=lambda front: front.__name__)


@each
@pytest.mark.parametrize("rule", ["Lamb", "Lars", "Lans"])
def test_adapted_tensors_that_begin_at_zero_are_named_once(front, rule):
    opt = front(rule, weights("head.weight", "body.bias"), **({"lr": 0.01} if rule != "Lars" else {"lr": 1.0}))
    (first,), *later = said(opt, 1.0, 1.0)
    names = [getattr(opt.weights[name], "name", None) or name for name in ("body.bias", "head.weight")]
    assert first.startswith(f"{', '.join(names)} {AT_ZERO}")
    assert later == [[]]


@each
def test_it_points_to_the_line_that_called(front):
    assert where(front("Lamb", weights("head.weight"))) == __file__


def test_torch_s_way_out_has_the_names_that_were_found():
    zero = ("head.weight", "body.bias")
    [[first]] = said(Torch("Lamb", weights(*zero), lr=0.01), 1.0)
    assert first.endswith('by param_groups(model), others by its no_adapt=["bias", "norm", "head.weight"].')
    [[first]] = said(Torch("Lamb", weights("body.bias"), lr=0.01), 1.0)
    assert first.endswith("by param_groups(model); its no_adapt names others.")
    opt = Torch("Lamb", weights(*zero), lr=0.01)
    opt.opt = type(opt.opt)(list(opt.weights.values()), lr=0.01)  # without names
    [[first]] = said(opt, 1.0)
    assert first.startswith("parameter 1 of group 0, parameter 2 of group 0")
    assert first.endswith("by param_groups(model); its no_adapt names others.")


FREE = (
    {"adapt": False},
    {"adapt": "decayed"},  # and the decay is 0
    {"min_norm": 0.1},
    {"trust_clip": (0.01, 10.0)},
)


@both
@pytest.mark.parametrize("options", FREE, ids=str)
def test_what_the_ratio_does_not_hold_is_not_named(front, options):
    assert said(front("Lamb", weights("head.weight"), lr=0.01, **options), 1.0) == [[]]
    assert said(front("AdamW", weights("head.weight")), 1.0) == [[]]


@both
def test_a_skipped_step_says_nothing(front):
    opt = front("Lamb", weights("head.weight"), lr=0.01, skip_nonfinite=True)
    skipped, taken = said(opt, np.nan, 1.0)
    assert (skipped, len(taken)) == ([], 1)


@both
def test_a_block_at_zero_counts_and_an_empty_tensor_does_not(front):
    given = {"stack": np.stack([np.ones((2, 3)), np.zeros((2, 3))]), "none": np.zeros((0, 3))}
    ((first,),) = said(front("Lamb", given, lr=0.01, blocks={"stack": "each"}), 1.0)
    assert first.startswith(f"stack {AT_ZERO}")


@both
def test_the_warning_as_an_error_comes_after_the_step(front):
    opt, other = (front("Lamb", weights("head.weight"), lr=0.01) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=AT_ZERO):
            opt.step()
    opt.step()
    said(other, 1.0, 1.0)
    assert all(np.array_equal(x, y) for x, y in zip(opt.values().values(), other.values().values(), strict=True))


SMALL = {"bfloat16": 2.0**-7 / 7.01, "float16": 2.0**-10 / 7.01}  # the largest rates that are too small


@both
@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("rule", ["Lamb", "Lans"])
def test_steps_that_rounding_loses_are_said_once(front, rule, dtype):
    opt = front(rule, weights(), dtype, lr=SMALL[dtype])
    before = opt.values()
    (first,), *later = said(opt, 1.0, 1.0)
    assert f"most weights of body.weight, body.bias, head.weight {STALLS}" in first
    assert f"{STALLS} as long as lr is at most {SMALL[dtype]:g}: a step of" in first
    assert later == [[]]
    assert np.mean(opt.values()["body.weight"] != before["body.weight"]) < 0.5  # of two steps
    assert said(front(rule, weights(), dtype, lr=1.1 * SMALL[dtype]), 1.0) == [[]]


@both
@pytest.mark.parametrize("finer", [{"master_weights": "split24"}, {"rounding": "stochastic"}], ids=str)
def test_steps_that_are_kept_are_not_said_to_be_lost(front, finer):
    assert said(front("Lamb", weights(), "bfloat16", lr=1e-4, **finer), 1.0) == [[]]
    assert said(front("Lamb", weights(), "float32", lr=1e-4), 1.0) == [[]]


@both
def test_momentum_adds_up_to_longer_steps(front):
    """LARS at lr = 1 moves a tensor by 0.1 % of its norm, and by 1 % with momentum."""
    assert said(front("Lars", weights(), "bfloat16", lr=1.0), 1.0) == [[]]
    assert len(said(front("Lars", weights(), "bfloat16", lr=1.0, momentum=0.0), 1.0)[0]) == 1


def test_a_warm_up_is_judged_by_its_peak():
    from layerwise.schedules import Polynomial

    slow = Polynomial(peak=1e-4, total=100, warmup=10)
    assert said(Numpy("Lamb", weights(), "bfloat16", lr=Polynomial(peak=0.01, total=100, warmup=10)), 1.0) == [[]]
    assert len(said(Numpy("Lamb", weights(), "bfloat16", lr=slow), 1.0)[0]) == 1
    assert said(Numpy("Lamb", weights(), "bfloat16", lr=lambda step: 1e-5), 1.0) == [[]]  # which may rise
    opt = Torch("Lamb", weights(), "bfloat16", lr=0.01)
    rates = opt.torch.optim.lr_scheduler
    rates.LinearLR(opt.opt, 1e-3)
    assert said(opt, 1.0) == [[]]
    opt = Torch("Lamb", weights(), "bfloat16", lr=1e-4)
    rates.OneCycleLR(opt.opt, 0.01, total_steps=9)
    assert said(opt, 1.0) == [[]]


def test_paddle_s_way_out():
    opt = Paddle("Lamb", weights(), "float16", lr=1e-5)
    assert "Pass multi_precision=True." in said(opt, 1.0)[0][0]
    assert said(Paddle("Lamb", weights(), "float16", lr=1e-5, multi_precision=True), 1.0) == [[]]
