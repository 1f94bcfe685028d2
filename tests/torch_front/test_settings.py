"""The settings of groups: they are plain Python objects, compared as what they compute, and fit one another."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from torch.nn import Parameter
from torch.optim.lr_scheduler import LambdaLR
from torch_front.front import bits

from layerwise import torch as front
from layerwise.errors import ContradictionError, HyperparameterError, StateError
from layerwise.torch import Lamb, Mixed, Muon
from layerwise.torch.groups import _options

DECAYS = r"`keep_norm` must be False with .*weight_decay=0\.1, but is True\. Drop one"


def matrix(name="p", seed=0):
    return name, Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)))


def step(opt, steps=1):
    for _ in range(steps):
        for group in opt.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        opt.step()


# ---- equal settings compute the same


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("other", ["lans", "lamb", "sgd"])
def test_all_gradients_count_in_a_norm_that_is_bounded_after_a_step(other, fused):
    """Also those of LANS, which has no such option itself."""
    p, q = Parameter(torch.ones(4)), Parameter(torch.ones(4))
    opt = Mixed([{"params": [p], "rule": other, "lr": 0.1}, {"params": [q], "rule": "sgd", "lr": 0.1}], fused=fused)
    for bound in (None, 1.0, None):
        opt.param_groups[1]["max_grad_norm"] = bound
        p.grad, q.grad, before = torch.full((4,), 10.0), torch.ones(4), q.detach().clone()
        opt.step()
        expected = 0.1 * 2 / (1 if bound is None else math.sqrt(404))
        torch.testing.assert_close((before - q).norm().item(), expected, rtol=1e-5, atol=0)


# ---- contradictions that name a rate


def test_a_rate_that_contradicts_an_option_is_refused_when_it_is_given():
    with pytest.raises(ContradictionError, match=f"^{DECAYS}"):
        Muon([matrix()], keep_norm=True, weight_decay=0.1)
    groups = [{"params": [matrix("a")]}, {"params": [matrix("b")], "weight_decay": torch.tensor(0.1)}]
    with pytest.raises(ContradictionError, match=r"^group 1: `keep_norm` must be False with .*weight_decay=0\.1"):
        Muon(groups, keep_norm=True)
    opt = Muon([matrix("a")], keep_norm=True)
    with pytest.raises(ContradictionError, match=f"^group 1: {DECAYS}"):
        opt.add_param_group({"params": [matrix("b")], "weight_decay": 0.1})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize("fused", [None, False])
def test_a_rate_that_contradicts_an_option_is_refused_when_it_is_set(fused):
    groups = [{"params": [matrix("a")]}, {"params": [matrix("b", 1)]}]
    opt = Muon(groups, lr=0.1, keep_norm=True, fused=fused)
    step(opt, 2)
    before = bits([opt.state_dict(), opt.parameters()])
    for set_rate in (0.1, torch.tensor(0.1), np.float64(0.1)):
        opt.param_groups[1]["weight_decay"] = set_rate
        with pytest.raises(ContradictionError, match=r"^group 1: `keep_norm` must be False with .*weight_decay=0\.1"):
            step(opt)
        opt.param_groups[1]["weight_decay"] = 0.0
        assert bits([opt.state_dict(), opt.parameters()]) == before
    step(opt)
    opt.param_groups[1].update(weight_decay=0.1, keep_norm=False)
    step(opt)


def test_a_rate_that_a_scheduler_moves_is_looked_at_when_it_begins_or_ends_to_be_0():
    opt = Muon([matrix()], lr=0.1, keep_norm=True)
    scheduler = LambdaLR(opt, lambda n: n % 2)
    for _ in range(4):  # through lr=0 and back
        step(opt)
        scheduler.step()
    opt.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(ContradictionError, match=f"^{DECAYS}"):
        step(opt)


def test_rates_of_a_checkpoint_that_contradict_an_option_change_nothing():
    saved = Muon([matrix()], weight_decay=0.1)
    step(saved)
    opt = Muon([matrix()], keep_norm=True)
    step(opt)
    before = bits([opt.state_dict(), opt.parameters()])
    with pytest.raises(StateError, match=r"rates do not fit the options of this optimizer: .*weight_decay=0\.1"):
        opt.load_state_dict(saved.state_dict())
    assert bits([opt.state_dict(), opt.parameters()]) == before


@pytest.mark.parametrize(("options", "changed"), [({"nesterov": True}, {"momentum": 0.0})], ids=str)
def test_a_momentum_that_contradicts_an_option_is_refused_at_the_next_step(options, changed):
    opt = front.Lars([{"params": [matrix("a")]}, {"params": [matrix("b", 1)]}], lr=0.1, **options)
    step(opt)
    opt.param_groups[1].update(changed)
    with pytest.raises(ContradictionError, match=r"^group 1: `nesterov`"):
        step(opt)


def test_settings_are_checked_again_only_if_something_changed(monkeypatch):
    made = []
    check = _options.GroupOptions.check
    monkeypatch.setattr(_options.GroupOptions, "check", lambda self, group: made.append(1) or check(self, group))
    opt = Lamb([{"params": [matrix("a")]}, {"params": [matrix("b", 1)]}], lr=0.1)
    step(opt, 2)
    made.clear()
    for rate in (0.1, 0.1, 0.2, 0.3):
        opt.param_groups[0]["lr"] = rate
        step(opt)
    assert made == []
    opt.param_groups[0]["lr"] = 0.0
    step(opt)
    assert made == [1, 1]  # settings are of all groups, and made anew


# ---- plain Python objects


class Listed(list):
    """A sequence of another package, as omegaconf.ListConfig is."""


ODD = {
    "lr": np.float64(1e-3),
    "weight_decay": np.array([0.5]),
    "betas": np.array([0.5, 0.75]),
    "eps": np.float32(0.25),
    "trust_clip": Listed([0.5, np.float64(8.0)]),
    "bias_correction": np.True_,
    "decay": np.str_("l2"),
    "seed": np.int64(3),
    "rounding": np.str_("nearest"),
    "capturable": np.False_,
}
PLAIN = {
    "lr": 1e-3,
    "weight_decay": 0.5,
    "betas": (0.5, 0.75),
    "eps": 0.25,
    "trust_clip": (0.5, 8.0),
    "bias_correction": True,
    "decay": "l2",
    "seed": 3,
    "rounding": "nearest",
    "capturable": False,
}


def same(found, name):
    found, wanted = found[name], PLAIN[name]
    parts = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    return found == wanted and all(type(x) is type(y) for x, y in [(found, wanted), *parts])


def loads(opt):
    """What `torch.load` returns of a checkpoint, which it refuses if that holds objects of other packages."""
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


GIVEN = {
    "to the optimizer": lambda options: Lamb([matrix()], **options),
    "in a group": lambda options: Lamb([{"params": [matrix()], **options}], lr=0.1),
    "with a rule": lambda options: Mixed([{"params": [matrix()], "rule": Lamb, **options}]),
    "later": lambda options: (opt := Lamb([matrix()]), opt.param_groups[0].update(options), step(opt))[0],
    "by set_lr": lambda options: (opt := Lamb([matrix()], **options), opt.set_lr(options["lr"]), step(opt))[0],
}


@pytest.mark.parametrize("how", GIVEN)
def test_options_become_plain_python_objects(how):
    opt = GIVEN[how](ODD)
    assert [name for name in PLAIN if not same(opt.param_groups[0], name)] == []
    step(opt)
    assert [name for name in PLAIN if not same(loads(opt)["param_groups"][0], name)] == []
    assert [name for name in PLAIN if name in opt.defaults and type(opt.defaults[name]).__module__ == "numpy"] == []


def test_options_set_after_the_last_step_are_saved_as_plain_objects():
    opt = Mixed([{"params": [matrix()], "rule": "lamb"}])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, np.float64(0.5), 10, cycle_momentum=False)
    step(opt)
    scheduler.step()
    opt.param_groups[0].update(ODD, note=np.float32(1))
    saved = loads(opt)["param_groups"][0]
    assert [name for name in PLAIN if not same(saved, name)] == []
    assert type(saved["max_lr"]) is type(saved["note"]) is float
    assert type(opt.param_groups[0]["note"]) is np.float32  # which is not ours


def test_a_wrong_option_does_not_keep_a_checkpoint_from_being_saved():
    opt = Lamb([matrix()])
    step(opt)
    opt.param_groups[0]["betas"] = [0.5, 2.0]
    assert opt.state_dict()["param_groups"][0]["betas"] == [0.5, 2.0]
    with pytest.raises(HyperparameterError, match=r"`betas` must be .*, but is \[0\.5, 2\.0\]"):
        step(opt)


def test_a_rate_that_is_a_tensor_stays_one():
    rate = torch.tensor(0.5)
    opt = Lamb([matrix()], lr=rate)
    step(opt)
    assert opt.param_groups[0]["lr"] is rate
    assert torch.equal(loads(opt)["param_groups"][0]["lr"], rate)


def test_a_group_may_name_the_rule_of_its_optimizer():
    for rule in ("lamb", "Lamb", Lamb):
        assert "rule" not in Lamb([{"params": [matrix()], "rule": rule}]).param_groups[0]
    with pytest.raises(
        HyperparameterError,
        match="a group has the rule Lars, but Lamb steps every group by Lamb",
    ):
        Lamb([{"params": [matrix()], "rule": "lars"}])
