"""What torch.optim promises of every optimizer."""

from __future__ import annotations

import copy
import inspect
import warnings
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from contract.apis import close
from torch.optim import lr_scheduler as lrs
from torch.optim import swa_utils
from torch_front.front import BUSY, bits, busy, fronts, numbers, parameters, walk

import layerwise
from layerwise.engines import Candidate
from layerwise.engines.programs import printed_for
from layerwise.errors import ContradictionError, EngineError, HyperparameterError, PresetError
from layerwise.torch import Adafactor, AdamW, Lamb, Lars, Mixed
from layerwise.torch.step import _engines


def some():
    return torch.nn.Parameter(torch.ones(2, 2))


@fronts
def test_params_are_refused_as_torch_does(front):
    p = some()
    for params, error, words in (
        (p, TypeError, "iterable of Tensors or dicts"),
        ([], ValueError, "empty parameter list"),
        ([1.0], TypeError, "float"),
        ([p * 2], ValueError, "non-leaf"),
        ([p, p], UserWarning, "duplicate parameters"),
        ([{"params": p}, {"params": p}], ValueError, "more than one parameter group"),
        ([("w", p), some()], ValueError, "with/without names"),
        ([{"params": {p}}], TypeError, "ordered"),
    ):
        with pytest.raises(error, match=words):
            busy(front, params)


@fronts
def test_added_groups_are_refused_as_torch_does(front):
    p, q = some(), some()
    opt = busy(front, [p])
    for group, error, words in (
        ([q], TypeError, "must be a dict"),
        ({"params": [p]}, ValueError, "more than one parameter group"),
        ({"params": {q}}, TypeError, "ordered"),
        ({"params": [("w", q), some()]}, ValueError, "with/without names"),
        ({"params": [q * 2]}, ValueError, "non-leaf"),
    ):
        with pytest.raises(error, match=words):
            opt.add_param_group(group)
        assert len(opt.param_groups) == 1


SCHEDULERS = {
    "LambdaLR": lambda opt: lrs.LambdaLR(opt, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda opt: lrs.MultiplicativeLR(opt, lambda t: 0.9),
    "StepLR": lambda opt: lrs.StepLR(opt, 2, 0.5),
    "MultiStepLR": lambda opt: lrs.MultiStepLR(opt, [1, 3], 0.5),
    "ConstantLR": lambda opt: lrs.ConstantLR(opt, 0.5, 2),
    "LinearLR": lambda opt: lrs.LinearLR(opt, 0.5, total_iters=3),
    "ExponentialLR": lambda opt: lrs.ExponentialLR(opt, 0.9),
    "PolynomialLR": lambda opt: lrs.PolynomialLR(opt, 6, 2.0),
    "CosineAnnealingLR": lambda opt: lrs.CosineAnnealingLR(opt, 6),
    "CosineAnnealingWarmRestarts": lambda opt: lrs.CosineAnnealingWarmRestarts(opt, 2),
    "SequentialLR": lambda opt: lrs.SequentialLR(opt, [lrs.ConstantLR(opt, 0.1), lrs.ExponentialLR(opt, 0.9)], [2]),
    "ChainedScheduler": lambda opt: lrs.ChainedScheduler([lrs.ConstantLR(opt, 0.1), lrs.ExponentialLR(opt, 0.9)]),
    "CyclicLR": lambda opt: lrs.CyclicLR(opt, 0.01, 0.1, 2, cycle_momentum="lr" not in opt.still),
    "OneCycleLR": lambda opt: lrs.OneCycleLR(opt, 0.1, 8, cycle_momentum="lr" not in opt.still),
    "SWALR": lambda opt: swa_utils.SWALR(opt, 0.05, 3),
    "ReduceLROnPlateau": lambda opt: lrs.ReduceLROnPlateau(opt, patience=0),
}
PARTS = {"LRScheduler", "Optimizer"}


def scheduled(name, opt):
    opt.still = ["lr"] if isinstance(opt, Adafactor) else []  # Adafactor has no momentum by a name torch knows
    return SCHEDULERS[name](opt)


def test_every_scheduler_of_torch_is_here():
    there = {name for name in lrs.__all__ if inspect.isclass(getattr(lrs, name))}
    assert there - PARTS <= SCHEDULERS.keys()


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
@fronts
@pytest.mark.thinned(1)
def test_schedulers(front, name, tensor):
    a, b = parameters(1), parameters(1)
    options = {"lr": torch.tensor(0.1, dtype=torch.float64) if tensor else 0.1}
    opt, by_hand = busy(front, a.items(), **options), busy(front, b.items(), lr=0.1)
    scheduler = scheduled(name, opt)
    moved = set()
    for t in range(6):
        for key in ("lr", "betas", "momentum"):
            if key in opt.defaults:
                value = opt.param_groups[0][key]
                by_hand.param_groups[0][key] = float(value) if key == "lr" else value
                moved.add((key, value if key == "betas" else float(value)))
        walk(opt, a, [t])
        walk(by_hand, b, [t])
        scheduler.step(*[1.0] if name == "ReduceLROnPlateau" else [])
    close(numbers(a), numbers(b), 1e-13)
    found = {key: len({value for name, value in moved if name == key}) for key, _ in moved}
    assert all(n > 1 for key, n in found.items() if key == "lr" or name == "OneCycleLR")
    assert not tensor or opt.param_groups[0]["lr"] is options["lr"]  # which a captured step has the address of
    if name != "ReduceLROnPlateau":  # it takes lr from where it finds it
        with pytest.raises(ContradictionError, match="scheduler"):
            opt.set_lr(0.5)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@fronts
@pytest.mark.thinned(1)
def test_a_tensor_as_a_rate_is_checked_as_the_number_is(front, name, bad):
    with pytest.raises(HyperparameterError, match=name):
        busy(front, [some()], **{name: torch.tensor(bad)})


@fronts
def test_stats_of_unnamed_parameters(front):
    p, q = some(), some()
    opt = busy(front, [{"params": [p]}, {"params": [q]}])
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    opt.step()
    assert opt.stats().keys() == {"parameter 0 of group 0", "parameter 0 of group 1"}


@fronts
def test_options_are_keywords_of_torch(front, monkeypatch):
    with pytest.raises(TypeError, match="amsgrad"):
        front([some()], amsgrad=True)
    for name, bad in product(("fused", "foreach"), (1, "yes")):
        with pytest.raises(HyperparameterError, match=name):
            front([some()], lr=0.1, **{name: bad})
    for fused, foreach in product((None, False, True), repeat=2):
        refused = nullcontext()
        if fused and foreach:
            refused = pytest.raises(ContradictionError, match="`foreach`")
        elif fused and printed_for(front._hyper) is None:
            refused = pytest.raises(EngineError, match=f"{front.__name__} has no fused kernels. Leave out fused=True")
        with refused:
            front([some()], lr=0.1, fused=fused, foreach=foreach)
    with pytest.raises(ContradictionError, match="`foreach`"):
        front([some()], lr=0.1, foreach=True, differentiable=True)
    rule = _engines.ENGINES[-1]
    monkeypatch.setattr(_engines, "ENGINES", (Candidate("compiled", None, "it was not built"), rule))
    front([some()], lr=0.1)
    with pytest.raises(EngineError, match="unavailable: it was not built"):
        front([some()], lr=0.1, fused=True)


@fronts
def test_a_subclass_steps(front):
    class Mine(front):
        def step(self, closure=None):
            return super().step(closure)

    a, b = parameters(1), parameters(1)
    walk(Mine(a.items(), **BUSY[front]), a, range(2))
    walk(busy(front, b.items()), b, range(2))
    assert bits(a) == bits(b)


@fronts
def test_step_warns_of_nothing(front):
    """Also where lr and losses are tensors that require a gradient, and below a scheduler."""
    params = parameters(1)
    opt = busy(front, params.items(), lr=torch.tensor(0.1, requires_grad=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Muon is for hidden matrices")  # and vectors are among these
        walk(opt, params, range(2))
        copy.deepcopy(opt.state_dict())
    assert not any(p.grad_fn for p in params.values())


def test_presets_by_name():
    opt = Lamb.like("timm.Lamb", [some()], weight_decay=0.1)
    assert (opt.param_groups[0]["adapt"], opt.param_groups[0]["weight_decay"]) == ("decayed", 0.1)
    for make in (
        lambda: Lars.like("timm.Lamb", [some()]),
        lambda: Mixed.like("timm.Lamb", [{"params": [some()], "rule": "lamb"}]),
    ):
        with pytest.raises(PresetError, match=r"'timm.Lamb'.* for Lamb, not for (Lars|Mixed). Use Lamb"):
            make()
    [group] = Mixed([{"params": [some()], "rule": "lamb", **layerwise.preset("timm.Lamb")}]).param_groups
    assert group["adapt"] == "decayed"


def test_a_wrapper_of_the_same_attributes_steps_as_itself():
    """Trainers make an object of a class of theirs and the optimizer's, and hand it what the optimizer has."""
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    inner = Lamb([p], lr=0.1)
    inner.step()
    wrapper = object.__new__(type("Wrapped", (Lamb,), {}))
    wrapper.__dict__.update(inner.__dict__)
    assert wrapper.stats() == inner.stats() != {}
    wrapper.step()
    assert wrapper.state[p]["step"] == 2
    del inner
    before = p.detach().clone()
    wrapper.found_inf = torch.tensor(1.0)
    wrapper.step()
    assert torch.equal(p, before)
    assert wrapper.skipped == 1
    wrapper.found_inf = torch.tensor(0.0)
    wrapper.step()
    assert not torch.equal(p, before)
    assert wrapper.state[p]["step"] == 3


def below(cls):
    return [one for own in cls.__subclasses__() for one in (own, *below(own))]


def test_names_of_pytorchs_optimizers_are_theirs_alone():
    """Packages look them up by the names of subclasses."""
    found = [one for one in below(torch.optim.Optimizer) if one.__module__.startswith("layerwise.")]
    assert [one.__name__ for one in found] == ["Optimizer"]

    class Mine(AdamW):
        pass

    assert Mine in AdamW.__subclasses__()
    assert issubclass(Mine, torch.optim.Optimizer)


def test_class_resolver_finds_pytorchs_optimizers():
    contrib = pytest.importorskip("class_resolver.contrib.torch")
    assert contrib.optimizer_resolver.lookup("adamw") is torch.optim.AdamW
    assert isinstance(AdamW([some()]), contrib.optimizer_resolver.base)
