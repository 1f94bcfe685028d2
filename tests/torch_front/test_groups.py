"""Parameter groups: options of their own, added later, lent to wrappers, and what parameters may be given as."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from contract.apis import close
from torch import nn
from torch.nn import Parameter
from torch_front.front import BUSY, FRONT_OF, bits, busy, cases, fronts, numbers, parameters, walk

from layerwise import optional
from layerwise.engines import Candidate
from layerwise.engines.programs import printed_for
from layerwise.errors import (
    ContradictionError,
    EngineError,
    HyperparameterError,
    LayerwiseError,
    ParameterError,
    UnknownOptionError,
)
from layerwise.torch import Adafactor, Lamb, Lars, Mixed
from layerwise.torch.step import _engines

LEFT_ALONE = {"momentum_dtype", "max_grad_norm"}  # storage; and what is common to all groups


def ones(*shape):
    return Parameter(torch.ones(*shape))


@cases
def test_an_option_of_a_group_is_that_of_the_constructor_for_this_group_alone(case):
    front, off = FRONT_OF[case.name], {"max_grad_norm": None} if "max_grad_norm" in case.options else {}
    for name in case.options.keys() - LEFT_ALONE:
        options = {**case.drawn(1), **off}
        value = next((v for v in case.options[name] if v != options[name]), None)
        if value is None or not holds(case, {**options, name: value}):
            continue
        a, b, c = (parameters(1) for _ in range(3))
        first, *others = a
        groups = [{"params": [(first, a[first])]}, {"params": [(o, a[o]) for o in others], name: value}]
        for made, params in ((groups, a), (b.items(), b)):
            walk(front(made, **options), params, range(2))
        walk(front(c.items(), **{**options, name: value}), c, range(2))
        close(numbers(a), numbers({first: b[first], **{o: c[o] for o in others}}), 0, (name, value))


def holds(case, options):
    try:
        case.hyper(**options)
    except LayerwiseError:
        return False
    return True


@fronts
def test_a_group_that_is_added_later_begins_to_count(front):
    a, b = parameters(1), parameters(1)
    late = ("scalar", "stack")
    opt = busy(front, [(name, p) for name, p in a.items() if name not in late], **_blocks_of("stack"))
    apart = busy(front, [(name, p) for name, p in b.items() if name not in late])
    fresh = busy(front, [(name, b[name]) for name in late], maximize=True, **_blocks_of("stack"))
    walk(opt, a, [0], but=late)
    walk(apart, b, [0], but=late)
    opt.add_param_group({"params": [(name, a[name]) for name in late], "maximize": True})
    for t in (1, 2):
        walk(opt, a, [t])
        walk(apart, b, [t])
        fresh.step()
    assert bits(a) == bits(b)
    assert [int(opt.state[p]["step"]) for p in a.values()] == [3, 3, 2, 2]
    assert opt.stats()["stack"]["trust_ratio"].shape == (2,)
    assert opt.num_parameters == 4


def _blocks_of(name):
    return {"blocks": {optional(name): "each"}}


def test_an_optimizer_gives_its_parameters_and_keeps_their_proportion():
    a, b, c = ones(2), ones(2), ones(2)
    opt = Lamb([{"params": [a]}, {"params": [b], "lr": 0.5}, {"params": [c], "lr": torch.tensor(0.2)}], lr=0.1)
    assert all(p is q for p, q in zip(opt.parameters(), (a, b, c), strict=True))
    opt.set_lr(0.2, proportional=True)
    with pytest.raises(HyperparameterError, match="`lr`"):  # the second group's would be infinite
        opt.set_lr(1e308, proportional=True)
    assert [float(rate) for rate in opt.get_lr()] == [0.2, 1.0, pytest.approx(0.4)]
    for bad in (-1.0, float("nan"), "0.1", True, torch.ones(2)):
        with pytest.raises(HyperparameterError, match="`lr`"):
            opt.set_lr(bad)
    assert [float(rate) for rate in opt.get_lr()] == [0.2, 1.0, pytest.approx(0.4)]
    opt.set_lr(0.3)
    assert opt.get_lr() == 0.3
    opt.set_lr(0)
    with pytest.raises(HyperparameterError, match="`proportional` must be False while the lr of the first group is 0"):
        opt.set_lr(0.1, proportional=True)


# ---- keys of a group


@pytest.mark.parametrize("group", [{"blocks": {"*": 2}}, {"skip_nonfinite": True}], ids=str)
@fronts
def test_an_option_of_the_whole_optimizer_is_refused_in_a_group(front, group):
    """An option that is accepted and ignored is a bug."""
    with pytest.raises(HyperparameterError, match=next(iter(group))):
        busy(front, [{"params": [ones(2, 2)], **group}])


@pytest.mark.parametrize("name", ["weight_dacay", "max_grad_valeu", "capturabel"])
@fronts
def test_a_key_similar_to_an_option_warns_once(front, name):
    groups = [{"params": [ones(2)], name: 0.1} for _ in range(2)]
    with pytest.warns(UserWarning, match=name) as said:
        opt = front(groups)
    opt.add_param_group({"params": [ones(2)], name: 0.1})
    [one] = said
    assert f"the unknown option '{name}'. Did you mean `" in str(one.message)
    assert one.filename == __file__
    with pytest.raises(UnknownOptionError, match=name):
        front([ones(2)], **{name: 0.1})


@pytest.mark.parametrize(
    ("key", "words"), [("weight_dacay", "Did you mean `weight_decay`"), ("learning_rate", "Did you mean `lr`")]
)
def test_a_misspelt_option_that_is_set_later_is_said_once_and_other_keys_are_kept(key, words):
    params = parameters(1)
    opt = busy(Lamb, [{"params": params.items(), "name": "backbone", "depth": 3}])
    walk(opt, params, [0])
    opt.param_groups[0]["base_momentum"] = 0.8  # a scheduler's own
    walk(opt, params, [1])
    opt.param_groups[0][key] = 0.1
    with pytest.warns(UserWarning, match=words) as said:
        walk(opt, params, [2])
    walk(opt, params, [3])
    assert len(said) == 1
    assert (opt.param_groups[0]["name"], opt.state_dict()["param_groups"][0]["depth"]) == ("backbone", 3)


def two_groups(*options):
    return [{"params": [ones(2)], **one} for one in options]


@pytest.mark.parametrize(
    "beside", [{}, dict.fromkeys(("fused", "foreach", "differentiable", "capturable"))], ids=["left out", "None"]
)
@fronts
def test_options_equal_in_all_groups_are_the_optimizer_s(front, beside):
    """PyTorch's optimizers take these in groups, and wrappers repeat there what they were given."""
    names = ("fused", "foreach", "differentiable")
    made = {
        name: busy(front if name != "fused" or printed_for(front._hyper) else Lamb, two_groups({name: True}, beside))
        for name in names
    }
    assert {name: one._stepper.setup.engine for name, one in made.items()} == {
        "fused": "fused",
        "foreach": "foreach",
        "differentiable": None,
    }
    assert [group["differentiable"] for group in made["differentiable"].param_groups] == [True, True]
    opt = busy(front, two_groups({"capturable": True, "foreach": True}, beside), fused=False)
    assert [group["capturable"] for group in opt.param_groups] == [True, False]
    assert opt._stepper.setup.engine == "foreach"


@pytest.mark.parametrize(
    ("groups", "given"),
    [
        (({"fused": True}, {"fused": False}), {}),
        (({"fused": True},), {"fused": False}),
        (({"differentiable": True}, {"differentiable": False}), {}),
        (({"differentiable": False},), {"differentiable": True}),
    ],
    ids=str,
)
@fronts
def test_groups_that_contradict_each_other_or_the_optimizer_are_refused(front, groups, given):
    with pytest.raises(HyperparameterError, match=next(iter(groups[0]))):
        busy(front, two_groups(*groups), **given)


BAD = [
    (Lamb, {"lr": None}),
    (Lamb, {"betas": (0.9, 1.0)}),
    (Lamb, {"eps": {}}),
    (Lamb, {"eps": [1e-6]}),
    (Lamb, {"adapt": 1}),
    (Lamb, {"maximize": 0}),
    (Lamb, {"bias_correction": 1}),
    (Lamb, {"max_grad_norm": True}),
    (Lamb, {"capturable": "yes"}),
    (Lamb, {"differentiable": True, "capturable": True}),
    (Lamb, {"state_dtype": "int4"}),
    (Lamb, {"rounding": "up"}),
    (Lamb, {"seed": -1}),
    (Lamb, {"master_weights": 1}),
    (Lars, {"nesterov": True, "dampening": 0.1}),
    (Lars, {"momentum": False}),
    (Adafactor, {"lr": 0.1, "relative_step": True}),
    (Adafactor, {"factored": 0}),
    (Adafactor, {"eps": (1e-3, {})}),
    (Adafactor, {"beta1": False}),
    (Adafactor, {"master_weights": None}),
]


@pytest.mark.parametrize(("front", "options"), BAD, ids=str)
def test_a_bad_option_of_a_group_leaves_the_groups_as_they_were(front, options):
    """Settings made before of values that Python calls equal must not let these pass."""
    opt = front([ones(2, 2)], lr=0.5, **({"momentum": 0.0} if front is Lars else {}))
    opt.add_param_group({"params": [ones(1)], "max_grad_norm": 1.0})
    if front is Adafactor:
        opt.add_param_group({"params": [ones(1)], "beta1": 0.0, "factored": False})
    groups = len(opt.param_groups)
    with pytest.raises(HyperparameterError, match=f"`{next(iter(options))}`|`capturable`"):
        opt.add_param_group({"params": [ones(2)], **options})
    assert len(opt.param_groups) == groups


def test_printed_is_what_is_not_the_default():
    p, q = ones(2), ones(2)
    opt = Lamb([{"params": [p]}, {"params": [q], "lr": 0.5, "adapt": False, "depth": 3}], weight_decay=0.1)
    first = "Parameter Group 0\n    lr: 0.001\n    weight_decay: 0.1\n"
    second = "Parameter Group 1\n    adapt: False\n    depth: 3\n    lr: 0.5\n    weight_decay: 0.1\n"
    assert repr(opt) == f"Lamb (\n{first}{second})"
    mixed = Mixed([{"params": [p], "rule": "sgd", "momentum": 0.9}])
    assert "rule: SGD" in repr(mixed)
    assert "dampening" not in repr(mixed)


# ---- parameters of a group


def used_up():
    given = nn.Linear(3, 2).parameters()
    list(given)
    return given


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Linear(3, 2).named_parameters, r"Call it: named_parameters\(\)"),
        (lambda: nn.Linear(3, 2), r"Pass model\.named_parameters\(\)"),
        (used_up, "'parameters', which is exhausted"),
    ],
    ids=["a method", "a module", "a used generator"],
)
def test_models_and_exhausted_generators_are_refused(make, words):
    opt = Lamb([ones(2)])
    given = (Lamb, lambda params: Lamb([{"params": params}]), lambda params: opt.add_param_group({"params": params}))
    for give in given:
        with pytest.raises(ParameterError, match=words):
            give(make())
    assert len(opt.param_groups) == 1
    assert Lamb(nn.ParameterList([ones(2)])).num_parameters == 1


def test_a_group_needs_parameters():
    with pytest.raises(ParameterError, match="must have 'params', but has 'lr', 'weight_decay'"):
        Lamb([{"lr": 0.1, "weight_decay": 0.1}])


def test_an_exhausted_iterator_is_an_error():
    """It may have been used before; a generator that was not is empty on purpose."""
    with pytest.warns(UserWarning, match="its 'params', a filter, gave no parameters"):
        Lamb([{"params": [ones(2)]}, {"params": filter(torch.is_tensor, [])}])
    Lamb([{"params": [ones(2)]}, {"params": (p for p in ())}, {"params": []}])


def test_names_that_appear_twice_warn():
    a, b, c = ones(2), ones(2), ones(2)
    for groups in ([("w", a), ("b", c), ("w", b)], [{"params": [("w", a)]}, {"params": [("w", b), ("b", c)]}]):
        with pytest.warns(UserWarning, match=r"several parameters are named 'w'\. A pattern"):
            Lamb(groups)


def test_blocks_by_name_need_names_and_may_match_in_any_group():
    """Patterns for names that are not there would be accepted and ignored."""
    with pytest.raises(HyperparameterError, match="named_parameters"):
        Lamb(parameters(1).values(), blocks={"matrix": 2})
    one, other = nn.Linear(4, 6), nn.Linear(6, 2)
    Lamb([{"params": one.named_parameters()}, {"params": [("head.weight", other.weight)]}], blocks={"head.*": 2})


# ---- engines


def test_a_fused_step_without_kernels_is_refused_when_the_optimizer_is_made(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gone = {"cpu": Candidate("compiled", None, "the extension is gone")}
    with monkeypatch.context() as without:
        without.setattr(_engines, "KERNELS", gone)
        with pytest.raises(EngineError, match=r"no kernels for w: the extension is gone\. Pass fused=None"):
            Lamb([("w", ones(2))], fused=True)
        without.setattr(_engines, "KERNELS", {})
        with pytest.raises(EngineError, match="there are none for cpu"):
            Lamb([ones(2)], fused=True)
        Lamb([ones(2)])
        Lamb([ones(2)], fused=False).add_param_group({"params": [ones(2)]})
    Lamb([ones(2)], fused=True)
    with pytest.raises(ContradictionError, match="`fused` must be None or False when differentiable=True"):
        Lamb([ones(2)], fused=True, differentiable=True)


# ---- wrappers


class Wrapper(torch.optim.Optimizer):
    """As wrappers for sharpness-aware minimization are: the other gets its groups, and lends it its own."""

    def __init__(self, params, base, adaptive=False, **options):
        super().__init__(params, {"rho": 0.1, "adaptive": adaptive, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    def step(self):
        self.base.step()


@fronts
def test_a_wrapper_may_pass_its_groups(front):
    """Its own keys stay in them, and one that is like an option is said."""
    options = {key: x for key, x in BUSY[front].items() if key in ("lr", "weight_decay")}
    a, b = parameters(1), parameters(1)
    has_ratio = "adapt" in front._hyper.__dataclass_fields__
    with pytest.warns(UserWarning, match="'adaptive'") if has_ratio else nullcontext():
        opt = Wrapper(a.values(), front, **options)
    plain = front(b.values(), **options)
    walk(opt, a, range(2))
    walk(plain, b, range(2))
    opt.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = 0.5
    walk(opt, a, [2])
    walk(plain, b, [2])
    assert bits(a) == bits(b)
    assert opt.base.param_groups[0]["rho"] == 0.1


# ---- groups of trainers, by weight decay alone


def of_a_trainer(cls=Lamb, decay=0.1, **options):
    """A matrix, a norm's weight and its bias, without names and in two groups, after a step."""
    params = [Parameter(torch.ones(3, 3)), Parameter(torch.ones(3)), Parameter(torch.zeros(3))]
    opt = cls([{"params": params[:1], "weight_decay": decay}, {"params": params[1:], "weight_decay": 0.0}], **options)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    return opt


def test_a_bias_that_began_at_zero_without_decay_is_exempt_by_an_option():
    with pytest.warns(UserWarning, match="parameter 1 of group 1 began at zero.* fraction of .* norm.") as said:
        of_a_trainer()
    assert 'Pass adapt="decayed", which removes the trust ratio wherever weight_decay is 0' in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_a_trainer(adapt="decayed")
    with pytest.warns(UserWarning, match="began at zero.*Exempt biases and norms from the ratio with param_groups"):
        of_a_trainer(decay=0.0)  # where the option would turn all ratios off
