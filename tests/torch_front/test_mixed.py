"""One optimizer whose groups have different rules."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch_front.front import BUSY, FRONT_OF, bits, close, fronts, numbers, parameters, set_grads, walk
from torch_front.mixing import BOUND, SHAPES, everything, mixed, models

import layerwise.torch
from layerwise import schedules
from layerwise.errors import ContradictionError, HyperparameterError, LayerwiseError, UnknownOptionError
from layerwise.recipes import recommend
from layerwise.torch import SGD, AdamW, Lamb, Mixed, param_groups


def apart(found: dict[str, dict[str, Any]], **options: Any) -> list[Any]:
    """An optimizer of its own for each."""
    return [FRONT_OF[name](own.items(), **{**BUSY[FRONT_OF[name]], **options}) for name, own in found.items()]


def walk_apart(opts: list[Any], params: dict[str, Any], seeds: Any, bound: float | None) -> None:
    for seed in seeds:
        set_grads(params, 1000 + seed)
        if bound is not None:
            norm = float(np.sqrt(sum(float(p.grad.square().sum()) for p in params.values())))
            for p in params.values():
                p.grad /= max(1.0, norm / bound)
        for opt in opts:
            opt.step()


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("bound", [None, BOUND])
def test_the_step_of_each_group_is_that_of_its_optimizer(bound, fused):
    """Clipped by the norm of all, also of those whose rules do not clip."""
    ours, theirs = models(), models()
    opt, opts = mixed(ours, max_grad_norm=bound, fused=fused), apart(theirs, fused=fused)
    walk(opt, everything(ours), range(4))
    walk_apart(opts, everything(theirs), range(4), bound)
    close(numbers(everything(ours)), numbers(everything(theirs)), 1e-12)
    found, wanted = opt.stats(), {name: one for each in opts for name, one in each.stats().items()}
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert found[name].keys() == one.keys()
        np.testing.assert_allclose(list(found[name].values()), list(one.values()), rtol=1e-10)
    assert len(opt._turns) == 1  # which one call of an engine carries out


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_and_inf_are_clipped_as_by_pytorch(where, bad, fused):
    """An infinite norm of all makes 0 of what is clipped, and nan of inf; what is not clipped takes its own step."""
    groups = [{"max_grad_norm": 1.0}, {"max_grad_norm": 1.0, "maximize": True}, {"maximize": True}]
    ours, theirs = ([nn.Parameter(torch.ones(4, 6)) for _ in groups] for _ in range(2))
    for p, q in zip(ours, theirs, strict=True):
        p.grad = torch.full_like(p, 0.5)
        q.grad = p.grad.clone()
    ours[where].grad[1, 2] = theirs[where].grad[1, 2] = bad
    Mixed(
        [{"params": [p], "rule": "sgd", "lr": 0.1, **own} for p, own in zip(ours, groups, strict=True)], fused=fused
    ).step()
    norm = torch.nn.utils.get_total_norm([q.grad for q in theirs])
    torch.nn.utils.clip_grads_with_norm_(theirs[:2], 1.0, norm)
    torch.optim.SGD(
        [{"params": [q], "maximize": own.get("maximize", False)} for q, own in zip(theirs, groups, strict=True)], lr=0.1
    ).step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, equal_nan=True, rtol=1e-6, atol=0)


def test_a_norm_of_all_is_of_all_rules():
    """Of one that does not clip itself, and gradients of which everything comes."""
    params = parameters(0, SHAPES)
    opt = Mixed(
        [
            {"params": [("matrix", params["matrix"])], "rule": "lans"},
            {"params": [("vector", params["vector"])], "rule": "sgd", "lr": 1.0},
        ],
        max_grad_norm=1.0,
    )
    before = params["vector"].detach().clone()
    params["matrix"].grad = torch.full((4, 3), 1e6, dtype=torch.float64)
    params["vector"].grad = torch.ones(5, dtype=torch.float64)
    opt.step()
    np.testing.assert_allclose((before - params["vector"].detach()).numpy(), 1 / np.sqrt(12e12 + 5), rtol=1e-9)


@fronts
def test_options_are_as_the_rule_has_them_by_default(front):
    name, params = front.__name__, parameters(0, SHAPES)
    for rule in (name, name.lower(), name.upper(), front):
        [group] = Mixed([{"params": list(params.items()), "rule": rule}]).param_groups
        [own] = front(params.items()).param_groups
        assert group.pop("rule") == name
        assert group == own


def test_options_of_all_rules_are_for_those_that_have_them():
    found = models()
    given = {"max_grad_norm": 1.0, "max_grad_norm_per_tensor": 2.0, "max_grad_value": 3.0, "maximize": True}
    opt = mixed(found, **given, state_dtype="float32", seed=3)
    for group in opt.param_groups:
        options = FRONT_OF[group["rule"]]._hyper.__dataclass_fields__
        assert {key: group[key] for key in given if key in group} == {k: x for k, x in given.items() if k in options}
        assert (group["state_dtype"], group["seed"]) == ("float32", 3)
    [own] = Mixed([{"params": [torch.zeros(1)], "rule": "sgd", "maximize": False}], maximize=True).param_groups
    assert own["maximize"] is False


def group(**options: Any) -> list[dict[str, Any]]:
    return [{"params": [torch.zeros(2, requires_grad=True)], **options}]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Mixed(group()), HyperparameterError, 'lacks its `rule`. Name one, such as .*"rule": "lamb"'),
        (lambda: Mixed([torch.zeros(2)]), HyperparameterError, "lacks its `rule`"),
        (lambda: Mixed(group(rule="lam")), HyperparameterError, "one of 'adafactor', .*'adamw', .* Is \"lamb\" meant"),
        (lambda: Mixed(group(rule=3)), HyperparameterError, "`rule` must be the name of an optimizer.* but is 3"),
        (lambda: Mixed(group(rule=torch.optim.SGD)), HyperparameterError, "`rule` must be the name of an optimizer"),
        (lambda: Mixed(group(rule="adamw", trust_clip=(0, 1))), HyperparameterError, "no option of AdamW. Leave it"),
        (lambda: Mixed(group(rule="sgd", betas=(0.9, 0.9))), HyperparameterError, "option of SGD. Is `momentum` meant"),
        (lambda: Mixed(group(rule="lans", max_grad_norm=1.0)), HyperparameterError, "`max_grad_norm` is no option of"),
        (lambda: Mixed(group(rule="lamb", blocks=2)), HyperparameterError, "`blocks` is of the whole optimizer"),
        (lambda: Mixed(group(rule="lans"), max_grad_norm=-1.0), HyperparameterError, "`max_grad_norm` must be"),
        (lambda: Mixed(group(rule="sgd"), state_dtype={"exp_avg": "int8"}), HyperparameterError, "one dtype for all"),
        (lambda: Mixed(group(rule="sgd"), lr=0.1), UnknownOptionError, "Mixed has no option 'lr'"),
        (lambda: Mixed(group(rule="sgd", nesterov=True)), ContradictionError, "`nesterov` must be False with"),
        (lambda: Lamb(group(rule="lamb")), HyperparameterError, "`rule` is for groups of layerwise.torch.Mixed"),
    ],
)
def test_what_groups_may_not_say(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def test_a_group_that_is_refused_changes_nothing():
    found = models()
    opt = mixed(found)
    walk(opt, everything(found), range(2))
    before = bits(opt.state_dict()), len(opt.param_groups)
    for bad in ({}, {"rule": "adam"}, {"rule": "sgd", "betas": (0.9, 0.9)}):
        with pytest.raises(HyperparameterError):
            opt.add_param_group({"params": [("more", nn.Parameter(torch.zeros(2)))], **bad})
    assert (bits(opt.state_dict()), len(opt.param_groups)) == before


def test_a_group_added_later():
    first, late = models(0), parameters(1)
    opt = mixed(first)
    walk(opt, everything(first), range(2))
    twins = parameters_like(late)
    opt.add_param_group({"params": list(late.items()), "rule": "SGD", "lr": 0.1})
    other = SGD(twins.items(), lr=0.1)
    for seed in range(2, 4):
        walk(opt, {**everything(first), **late}, [seed])
        for name, p in twins.items():
            p.grad = late[name].grad
        other.step()
    assert bits(late) == bits(twins)
    assert {int(opt.state[p]["step"]) for p in late.values()} == {2}
    assert {int(opt.state[p]["step"]) for p in everything(first).values()} == {4}


def parameters_like(params: dict[str, Any]) -> dict[str, Any]:
    return {name: nn.Parameter(p.detach().clone()) for name, p in params.items()}


# ---- what surrounds a step


def test_schedulers_move_every_group_in_proportion():
    params = parameters(0, SHAPES)
    opt = Mixed(
        [
            {"params": [("matrix", params["matrix"])], "rule": "lamb", "lr": 0.1},
            {"params": [("vector", params["vector"])], "rule": "adamw", "lr": 0.01},
        ]
    )
    plain = LambdaLR(opt, lambda t: 1 / (1 + t))
    walk(opt, params, range(3), [plain])
    np.testing.assert_allclose(opt.get_lr(), [0.025, 0.0025])
    groups = [{"params": [p], "rule": "sgd", "lr": lr} for p, lr in zip(params.values(), (0.4, 0.1), strict=True)]
    opt = Mixed(groups)
    walk(opt, params, range(5), [layerwise.torch.scheduler(opt, schedules.Cosine(0.4, 10))])
    np.testing.assert_allclose(opt.get_lr(), [0.2, 0.05])


def test_set_lr():
    params = parameters(0, SHAPES)
    opt = Mixed(
        [
            {"params": [p], "rule": r, "lr": lr}
            for p, r, lr in zip(params.values(), ("lamb", "sgd"), (1, 2), strict=True)
        ]
    )
    opt.set_lr(3.0, proportional=True)
    assert opt.get_lr() == [3.0, 6.0]


def test_a_step_with_nan_is_left_out_of_all_groups():
    found = models(0, torch.float32)
    opt = mixed(found, skip_nonfinite=True)
    walk(opt, everything(found), range(1))
    before = bits(everything(found)), bits(opt.state_dict())
    set_grads(everything(found), 5)
    next(iter(everything(found).values())).grad.fill_(float("nan"))
    opt.step()
    assert (bits(everything(found)), bits(opt.state_dict()), opt.skipped) == (*before, 1)


def test_in_the_backward_pass():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2))
    twin, x = copy.deepcopy(model), torch.randn(3, 4)
    for one, at_once in ((model, True), (twin, False)):
        opt = Mixed(param_groups(one, rule="lamb", others="adamw", lr=0.1))
        hooks = layerwise.torch.step_in_backward(opt) if at_once else None
        for _ in range(3):
            opt.zero_grad()
            one(x).square().sum().backward()
            assert all(p.grad is None for p in one.parameters()) == at_once
            opt.step()
        assert (hooks is not None) == at_once
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def test_grad_scaler():
    found, again = models(0, torch.float32), models(0, torch.float32)
    opt, other = mixed(found, max_grad_norm=BOUND), mixed(again, max_grad_norm=BOUND)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1)
    for t in range(3):
        for params in (everything(found), everything(again)):
            set_grads(params, t)
        for p in everything(found).values():
            p.grad *= scaler.get_scale()
        scaler.scale(torch.zeros(()))
        scaler.step(opt)
        scaler.update()
        other.step()
    close(numbers(everything(found)), numbers(everything(again)), 1e-5)


def test_monitor_writes_of_every_group(tmp_path):
    found = models()
    opt = mixed(found)
    with layerwise.torch.monitor(opt, tmp_path / "steps.csv"):
        walk(opt, everything(found), range(2))
    rows = (tmp_path / "steps.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * len(everything(found))


def test_small_memory_by_group():
    params = parameters(0, {"matrix": (64, 128), "other": (64, 128)}, torch.bfloat16)
    first, second = params.items()
    opt = Mixed(
        [
            {"params": [first], "rule": "lamb", "state_dtype": "int8"},
            {"params": [second], "rule": "sgd", "momentum": 0.9, "state_dtype": {"momentum_buffer": "bfloat16"}},
        ],
        master_weights="split",
    )
    walk(opt, params, range(2))
    found = opt.storage()
    assert found["matrix"]["state"] == {"exp_avg": "int8", "exp_avg_sq": "int8"}
    assert found["other"]["state"] == {"momentum_buffer": "bfloat16"}
    assert {one["weights"] for one in found.values()} == {"bfloat16+16"}


# ---- groups made of a model


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.norm = nn.Embedding(7, 4), nn.Linear(4, 6), nn.LayerNorm(6)


def test_param_groups_with_two_rules():
    model = Model()
    groups = param_groups(model, rule="lamb", others={"rule": AdamW, "lr": 3e-4, "weight_decay": 0.2}, lr=0.01)
    found = {name: (one["rule"], one.get("lr"), one.get("weight_decay")) for one in groups for name, _ in one["params"]}
    assert found == {
        "embed.weight": ("AdamW", 3e-4, 0.2),
        "up.weight": ("Lamb", 0.01, None),
        "up.bias": ("AdamW", 3e-4, 0.0),
        "norm.weight": ("AdamW", 3e-4, 0.0),
        "norm.bias": ("AdamW", 3e-4, 0.0),
    }
    opt = Mixed(groups, max_grad_norm=1.0)
    assert [one["rule"] for one in opt.param_groups] == ["Lamb", "AdamW", "AdamW"]
    table = {line.split()[0]: line.split()[2:] for line in str(groups).splitlines()}
    assert table["embed.weight"] == ["yes", "no", "AdamW"]
    assert table["up.weight"] == ["yes", "yes", "Lamb"]
    assert table["up.bias"] == ["none", "no", "AdamW"]


def test_param_groups_say_which_are_others():
    groups = param_groups(
        Model(), rule="lars", others="sgd", other_params=["norm.*"], no_adapt=["bias", "norm"], lr=0.1
    )
    found = {name: (one["rule"], one.get("adapt")) for one in groups for name, _ in one["params"]}
    assert found["up.bias"] == ("Lars", False)
    assert found["norm.weight"] == ("SGD", None)
    Mixed(groups)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"others": "adamw"}, "`rule` must be given beside others"),
        ({"rule": "lamp"}, 'Is "lamb" meant'),
        ({"rule": "lamb", "others": {"lr": 0.1}}, "lacks its `rule`"),
        ({"rule": "lamb", "others": "sgd", "other_params": ["nothing.*"]}, "matches none of the parameters"),
    ],
)
def test_param_groups_that_cannot_be(options, words):
    with pytest.raises(LayerwiseError, match=words):
        param_groups(Model(), **options)


def test_recommended_settings_are_a_group():
    found = recommend(Lamb, 4096, reference_batch=256, reference_lr=1e-3)
    opt = Mixed(param_groups(Model(), rule="lamb", others="adamw", **found.kwargs()))
    assert opt.param_groups[0]["lr"] == pytest.approx(4e-3)
