"""Groups with rules of their own in one optimizer of PyTorch: their options, and what surrounds a step."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter
from torch_front.front import BUSY, FRONT_OF, bits, fronts, parameters, twins, walk

from layerwise.errors import ContradictionError, HyperparameterError, UnknownOptionError
from layerwise.torch import SGD, Lamb, Mixed

SHAPES = {"matrix": (4, 3), "vector": (5,)}


def of_rules(params, *rules, **options):
    """Return an optimizer with a group for each parameter."""
    groups = [
        {"params": [(name, p)], "rule": rule, **(BUSY[FRONT_OF[rule]] if rule in FRONT_OF else {})}
        for (name, p), rule in zip(params.items(), rules, strict=True)
    ]
    return Mixed(groups, **options)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_and_inf_are_clipped_as_by_pytorch(where, bad, fused):
    """An infinite norm of all makes 0 of what is clipped, and nan of inf; what is not clipped takes its own step."""
    groups = [{"max_grad_norm": 1.0}, {"max_grad_norm": 1.0, "maximize": True}, {"maximize": True}]
    ours, theirs = ([Parameter(torch.ones(4, 6)) for _ in groups] for _ in range(2))
    for p, q in zip(ours, theirs, strict=True):
        p.grad = torch.full_like(p, 0.5)
        q.grad = p.grad.clone()
    ours[where].grad[1, 2] = theirs[where].grad[1, 2] = bad
    Mixed(
        [{"params": [p], "rule": "sgd", "lr": 0.1, **own} for p, own in zip(ours, groups, strict=True)], fused=fused
    ).step()
    torch.nn.utils.clip_grads_with_norm_(theirs[:2], 1.0, torch.nn.utils.get_total_norm([q.grad for q in theirs]))
    torch.optim.SGD(
        [{"params": [q], "maximize": own.get("maximize", False)} for q, own in zip(theirs, groups, strict=True)], lr=0.1
    ).step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, equal_nan=True, rtol=1e-6, atol=0)


# ---- options


@fronts
def test_options_are_as_the_rule_has_them_by_default(front):
    name, params = front.__name__, parameters(0, SHAPES)
    for rule in (name, name.lower(), name.upper(), front):
        [group] = Mixed([{"params": list(params.items()), "rule": rule}]).param_groups
        [own] = front(params.items()).param_groups
        assert group.pop("rule") == name
        assert group == own


@fronts
def test_an_option_of_all_rules_is_for_those_that_have_it(front):
    given = {"max_grad_norm": 1.0, "max_grad_norm_per_tensor": 2.0, "max_grad_value": 3.0, "maximize": True}
    groups = [{"params": [torch.zeros(1)], "rule": front, **own} for own in ({}, {"maximize": False})]
    first, second = Mixed(groups, **given, state_dtype="float32", seed=3).param_groups
    wanted = {key: x for key, x in given.items() if key in front._hyper.__dataclass_fields__}
    assert {key: first[key] for key in given if key in first} == wanted
    assert (first["state_dtype"], first["seed"], second["maximize"]) == ("float32", 3, False)


def group(**options):
    return [{"params": [torch.zeros(2, requires_grad=True)], **options}]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (
            lambda: Mixed(group()),
            HyperparameterError,
            'a group of Mixed needs a `rule`. Pass one, such as .*"rule": "lamb"',
        ),
        (lambda: Mixed([torch.zeros(2)]), HyperparameterError, "needs a `rule`"),
        (
            lambda: Mixed(group(rule="lam")),
            HyperparameterError,
            "the name of an optimizer, but is .*mean `lamb`",
        ),
        (lambda: Mixed(group(rule=3)), HyperparameterError, "`rule` must be the name of an optimizer.* but is 3"),
        (lambda: Mixed(group(rule=torch.optim.SGD)), HyperparameterError, "`rule` must be the name of an optimizer"),
        (
            lambda: Mixed(group(rule="adamw", trust_clip=(0, 1))),
            HyperparameterError,
            "AdamW has no option `trust_clip`. Remove it",
        ),
        (
            lambda: Mixed(group(rule="sgd", betas=(0.9, 0.9))),
            HyperparameterError,
            "SGD has no option `betas`. Did you mean `momentum`",
        ),
        (lambda: Mixed(group(rule="lans", max_grad_norm=1.0)), HyperparameterError, "has no option `max_grad_norm`"),
        (
            lambda: Mixed(group(rule="lamb", offload=True)),
            HyperparameterError,
            "`offload` applies to the whole optimizer",
        ),
        (lambda: Mixed(group(rule="lans"), max_grad_norm=-1.0), HyperparameterError, "`max_grad_norm` must be"),
        (lambda: Mixed(group(rule="sgd"), state_dtype={"exp_avg": "int8"}), HyperparameterError, "one dtype for all"),
        (lambda: Mixed(group(rule="sgd"), lr=0.1), UnknownOptionError, "Mixed has no option 'lr'"),
        (lambda: Mixed(group(rule="sgd", nesterov=True)), ContradictionError, "`nesterov` must be False with"),
        (
            lambda: Lamb(group(rule="lars")),
            HyperparameterError,
            "a group has the rule Lars, but Lamb steps every group by Lamb.* layerwise.torch.Mixed",
        ),
    ],
)
def test_options_that_a_group_may_not_set_are_refused(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


# ---- groups that come later


def test_a_group_may_come_later_with_another_rule_and_one_that_is_refused_changes_nothing():
    params = parameters(0, SHAPES)
    opt = of_rules(params, "Lamb", "Adafactor")
    walk(opt, params, range(2))
    before = bits(opt.state_dict()), len(opt.param_groups)
    for bad in ({}, {"rule": "adam"}, {"rule": "sgd", "betas": (0.9, 0.9)}):
        with pytest.raises(HyperparameterError):
            opt.add_param_group({"params": [("more", Parameter(torch.zeros(2)))], **bad})
    assert (bits(opt.state_dict()), len(opt.param_groups)) == before
    late = parameters(1, {"late": (3, 2)})
    opt.add_param_group({"params": [*late.items()], "rule": "SGD", "lr": 0.1})
    for one, its in ((opt, {**params, **late}), (SGD((alone := twins(late)).items(), lr=0.1), alone)):
        for p in its.values():
            p.grad = torch.ones_like(p)
        one.step()
    assert bits(late) == bits(alone)
    assert [int(opt.state[p]["step"]) for p in (*params.values(), *late.values())] == [3, 3, 1]
