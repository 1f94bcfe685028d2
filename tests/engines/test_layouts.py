"""What was laid out stays laid out: where only numbers change, where gradients lie now so and now so, and apart."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from cases import case_of
from engines.worlds import needed
from torch.nn import Parameter

from layerwise import numpy as of_numpy
from layerwise import torch as of_torch
from layerwise.engines import compiled
from layerwise.errors import ParameterError
from layerwise.numpy._optimizer import MOST_LAYOUTS
from layerwise.rules.adafactor import Adafactor
from layerwise.rules.lamb import Lamb
from layerwise.rules.lars import Lars
from layerwise.torch import _optimizer

pytestmark = needed
BETAS = {
    "Lamb": {"betas": (0.8, 0.99)},
    "Lans": {"betas": (0.8, 0.99)},
    "Lars": {"momentum": 0.8},
    "Adafactor": {"clip_threshold": 0.5, "beta1": 0.8},
    "StableAdamW": {"betas": (0.8, 0.9)},
}
methods = pytest.mark.parametrize("method", sorted(BETAS))


@pytest.fixture
def counted(monkeypatch):
    """How often a batch was laid out, and how often a parameter was planned."""
    found = {"batches": 0, "plans": 0}

    class Batch(compiled._native.Batch):
        def __init__(self, *given, **more):
            found["batches"] += 1
            super().__init__(*given, **more)

    class Extension:
        def __getattr__(self, name):
            return Batch if name == "Batch" else getattr(_native, name)

    def planned(*given):
        found["plans"] += 1
        return plan_of(*given)

    _native, plan_of = compiled._native, _optimizer.plan_of
    monkeypatch.setattr(compiled, "_native", Extension())
    monkeypatch.setattr(_optimizer, "plan_of", planned)
    return found


def laid(layouts):
    """The compiled engine's, which had all the jobs."""
    [found] = layouts.by_share.values()
    return found


def parameters():
    torch.manual_seed(0)
    return {"a": Parameter(torch.randn(6, 4)), "b": Parameter(torch.randn(5)), "c": Parameter(torch.randn(3, 2, 4))}


def give(params, seed):
    torch.manual_seed(seed)
    for p in params.values():
        p.grad = torch.randn(p.shape)


def made(method, params, **options):
    return getattr(of_torch, method)(params.items(), **{**case_of(method).busy, "lr": 0.1, **options})


def bits(params, opt):
    state = [x for p in params.values() for x in opt.state[p].values()]
    return [x.detach().numpy().tobytes() for x in (*params.values(), *state)]


@methods
def test_other_numbers_are_no_other_layout(counted, method):
    """And are heard all the same: as by an optimizer that lays out for each."""
    params, others = parameters(), parameters()
    opt, anew = made(method, params, blocks={"c": 3}), made(method, others, blocks={"c": 3})
    for seed in range(6):
        for one in (opt, anew):
            for key, value in BETAS[method].items():
                moved = tuple(x - 0.01 * seed for x in value) if isinstance(value, tuple) else value - 0.01 * seed
                one.param_groups[0][key] = moved
        give(params, seed), give(others, seed)
        opt.step()
        before = dict(counted)
        anew._forget_plans()
        anew.step()
        counted.update(before)
        assert bits(params, opt) == bits(others, anew)
        assert repr(opt.stats()) == repr(anew.stats())
        if seed == 0:
            first = dict(counted)
    assert counted == first


@methods
def test_on_the_rule_too(counted, method):
    params, others = parameters(), parameters()
    opt, anew = made(method, params, fused=False), made(method, others, fused=False)
    for seed in range(4):
        for one in (opt, anew):
            one.param_groups[0].update({key: value for key, value in BETAS[method].items() if seed % 2})
        give(params, seed), give(others, seed)
        anew._forget_plans()
        opt.step(), anew.step()
        assert bits(params, opt) == bits(others, anew)
        assert repr(opt.stats()) == repr(anew.stats())


def test_a_scheduler_that_moves_betas(counted):
    params = parameters()
    opt = made("Lamb", params)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=20)
    for seed in range(20):
        give(params, seed)
        opt.step()
        if seed < 19:
            scheduler.step()
    assert counted == {"batches": 1, "plans": 3}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("Lamb", {"adapt": False}),
        ("Lamb", {"max_grad_norm": 1.0}),
        ("Lamb", {"max_grad_norm_per_tensor": 0.1}),
        ("Lamb", {"eps_root": 1e-3, "bias_correction": False}),
        ("Lars", {"momentum": 0.0}),
        ("Lars", {"nesterov": True, "dampening": 0.0}),
        ("Adafactor", {"relative_step": False, "scale_parameter": True}),
        ("Adafactor", {"clip_threshold": None}),
    ],
    ids=str,
)
def test_what_is_more_than_a_number_is_heard(method, options):
    params, others = parameters(), parameters()
    opt, anew = made(method, params), made(method, others)
    for seed in range(4):
        for one in (opt, anew):
            defaults = {key: one.defaults[key] for key in options}
            one.param_groups[0].update(options if seed % 2 else defaults)
        give(params, seed), give(others, seed)
        anew._forget_plans()
        opt.step(), anew.step()
        assert bits(params, opt) == bits(others, anew)


def test_the_form_of_settings():
    assert Lamb(betas=(0.9, 0.99)).form() == Lamb(betas=(0.8, 0.9), eps=1e-3).form()
    assert Lamb(max_grad_norm=1.0).form() == Lamb(max_grad_norm=2.0).form()
    for other in (Lamb(eps_root=1e-3), Lamb(max_grad_norm=1.0), Lamb(trust_clip=(None, 1.0)), Lamb(adapt="decayed")):
        assert other.form() != Lamb().form()
    assert Lars(momentum=0.0).form() != Lars().form()
    one, other = Adafactor(min_dim_size_to_factor=2), Adafactor(min_dim_size_to_factor=3)
    assert one.form() != other.form()


def test_statistics_stay_where_the_next_step_is_not_taken():
    params = parameters()
    opt = made("Lamb", params, skip_nonfinite=True)
    give(params, 0)
    opt.step()
    before = opt.stats()
    opt.param_groups[0]["betas"] = (0.5, 0.9)
    params["b"].grad[0] = float("nan")
    opt.step()
    assert opt.skipped == 1
    assert opt.stats() == before


def test_statistics_stay_where_the_next_step_is_refused():
    """Though the engine had looked at some of the tensors before it came to what is wrong."""
    params = parameters()
    opt = made("Lamb", params)
    give(params, 0)
    opt.step()
    before = opt.stats()
    params["b"].data = torch.ones(7)
    params["b"].grad = torch.ones(7)
    with pytest.raises(ParameterError, match="had the shape"):
        opt.step()
    assert opt.stats() == before


def test_gradients_of_two_strides(counted):
    params, others = parameters(), parameters()
    opt, rule = made("Lamb", params), made("Lamb", others, fused=False)
    for seed in range(8):
        give(params, seed), give(others, seed)
        if seed % 2:
            params["a"].grad = params["a"].grad.t().contiguous().t()
        opt.step(), rule.step()
        for name, p in params.items():
            torch.testing.assert_close(p, others[name], rtol=1e-5, atol=1e-6)
        if seed == 1:
            first = dict(counted)
    assert counted == first == {"batches": 2, "plans": 6}
    measured, wanted = opt.stats(), rule.stats()
    assert measured["a"]["weight_norm"] == pytest.approx(wanted["a"]["weight_norm"])


def test_sets_of_names_are_not_all_remembered():
    opt, weights = of_numpy.Lamb(), {name: np.ones(2) for name in "abcdef"}
    for n in range(1, 2 ** len(weights)):
        opt.step_all(weights, {name: np.ones(2) for i, name in enumerate(weights) if n >> i & 1})
    assert len(opt._layouts) == MOST_LAYOUTS + len(weights)


def test_gradients_of_many_strides_are_not_all_remembered():
    opt, w = of_numpy.Lamb(), np.ones((2, 2))
    for n in range(2, 12):
        opt.step("w", w, np.ones((2, 2 * n))[:, ::n])
    [layouts] = opt._layouts.values()
    assert len(laid(layouts).batches) == compiled.LAYOUTS


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}], ids=str)
def test_as_many_groups_as_there_are(counted, monkeypatch, options):
    made_ = []
    init = Lamb.__post_init__
    monkeypatch.setattr(Lamb, "__post_init__", lambda self: (made_.append(self), init(self))[1])
    params = [Parameter(torch.ones(3)) for _ in range(150)]
    opt = of_torch.Lamb([{"params": [p], "eps": 1e-6 * (i + 1)} for i, p in enumerate(params)], **options)
    for p in params:
        p.grad = torch.ones(3)
    opt.step()
    before, first = len(made_), dict(counted)
    for _ in range(5):
        opt.step()
    assert (len(made_), counted) == (before, first)
    for step in range(1000):  # and what a scheduler makes is forgotten
        opt.param_groups[0]["betas"] = (0.9 - 1e-4 * step, 0.99)
        opt._settings_of(opt.param_groups[0])
    assert len(opt._groups._made) < 600


def test_numpy_rates_that_are_set_at_every_step(counted, monkeypatch):
    planned = []
    make = of_numpy.Lamb._make_plan
    monkeypatch.setattr(of_numpy.Lamb, "_make_plan", lambda *given: (planned.append(given), make(*given))[1])
    opt, twin = of_numpy.Lamb(), of_numpy.Lamb(lr=lambda step: 0.1 / (step + 1), weight_decay=lambda step: 0.01 * step)
    weights, others = ({name: np.ones((3, 3)) for name in "ab"} for _ in range(2))
    for step in range(5):
        grads = {name: np.full((3, 3), step + 1.0) for name in weights}
        opt.lr, opt.weight_decay = 0.1 / (step + 1), 0.01 * step
        opt.step_all(weights, grads)
        twin.step_all(others, grads)
    assert all(np.array_equal(weights[name], others[name]) for name in weights)
    assert counted["batches"] == 2
    assert len(planned) == 4


def test_numpy_weights_that_are_other_arrays_at_every_step(counted):
    opt, twin = of_numpy.Adafactor(lr=0.1), of_numpy.Adafactor(lr=0.1, engine="rule")
    w, other = np.ones((3, 4)), np.ones((3, 4))
    for step in range(5):
        w, other = w.copy(), other.copy()
        opt.step("w", w, np.full((3, 4), step + 1.0))
        twin.step("w", other, np.full((3, 4), step + 1.0))
    np.testing.assert_allclose(w, other, rtol=1e-12)
    assert counted["batches"] == 1


def test_numpy_relative_step_that_comes_and_goes():
    """Whether Adafactor's step follows t is more than a number."""
    opt, w = of_numpy.Adafactor(), np.ones((3, 4))
    fixed, v = of_numpy.Adafactor(lr=0.5), np.ones((3, 4))
    opt.set_options(lr=0.5, relative_step=False, scale_parameter=False)
    opt.step("w", w, np.ones((3, 4)))
    fixed.step("w", v, np.ones((3, 4)))
    assert np.array_equal(w, v)


@pytest.mark.parametrize("front", ["numpy", "torch"])
def test_copies_share_no_layout(front):
    if front == "numpy":
        opt, weights = of_numpy.Lamb(lr=0.1), {"a": np.ones((3, 3))}

        def step(one, w):
            one.step("a", w["a"], np.ones((3, 3)))

        step(opt, weights)
        copies = [copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))]
        for one in copies:
            other = copy.deepcopy(weights)
            step(one, other)
            [ours], [theirs] = opt._layouts.values(), one._layouts.values()
            assert laid(theirs).batches[0] is not laid(ours).batches[0]
        assert opt.stats()["a"]["weight_norm"] == 3.0
        return
    params = parameters()
    opt = made("Lamb", params)
    give(params, 0)
    opt.step()
    before = opt.stats()
    twin = copy.deepcopy(opt)
    for p in twin.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    twin.step()
    assert opt.stats() == before


# ---- sets that share parameters


def test_two_sets_that_share_ends_share_no_statistics_in_torch():
    params = {name: Parameter(torch.full((4, 4), float(x))) for name, x in zip("ABCD", (1, 2, 30, 4), strict=True)}
    opt = of_torch.Lamb(params.items(), lr=0.01)
    seen = {}
    for names in ("ABD", "ACD", "ABD", "ACD"):
        for name, p in params.items():
            p.grad = torch.ones(4, 4) if name in names else None
        norms = {name: float(params[name].detach().norm()) for name in names}
        opt.step()
        seen.update(norms)
        found = {name: measured["weight_norm"] for name, measured in opt.stats().items()}
        assert found == pytest.approx(seen)


def test_two_sets_that_share_ends_share_no_statistics_in_numpy():
    weights = {name: np.full((4, 4), float(x)) for name, x in zip("ABCD", (1, 2, 30, 4), strict=True)}
    opt = of_numpy.Lamb(lr=0.01)
    seen = {}
    for names in ("ABD", "ACD", "ABD", "ACD"):
        seen.update({name: np.linalg.norm(weights[name]) for name in names})
        opt.step_all(weights, {name: np.ones((4, 4)) for name in names})
        assert {name: measured["weight_norm"] for name, measured in opt.stats().items()} == pytest.approx(seen)


def test_two_optimizers_of_the_same_arrays_share_no_statistics():
    w, v = np.ones((4, 4)), np.full((4, 4), 2.0)
    one, other = of_numpy.Lamb(lr=0.01), of_numpy.Lamb(lr=0.01)
    one.step("w", w, np.ones((4, 4)))
    assert one.stats()["w"]["weight_norm"] == 4.0
    w[:] = v
    other.step("w", w, np.ones((4, 4)))
    assert one.stats()["w"]["weight_norm"] == 4.0
