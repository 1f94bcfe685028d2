"""Parameter groups: their own options, added later, and made by rule."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch_front.front import BUSY, FRONT_OF, bits, busy, cases, close, fronts, numbers, parameters, walk

from layerwise.errors import HyperparameterError, LayerwiseError, ParameterError, UnknownOptionError
from layerwise.torch import SGD, Adafactor, AdamW, Lamb, Lars, Mixed, param_groups

LEFT_ALONE = {"momentum_dtype", "max_grad_norm"}  # storage; and what is common to all groups


@cases
def test_every_option_can_be_a_groups_own(case):
    """A group's option does what the constructor's does, and nothing to the other group."""
    front = FRONT_OF[case.name]
    for seed in range(3):
        for name in case.options.keys() - LEFT_ALONE:
            options = {**case.drawn(seed), **{name: None for name in ("max_grad_norm",) if name in case.options}}
            value = next(v for v in case.options[name] if v != options[name]) if len(case.options[name]) > 1 else None
            if value is None or not _holds(case, {**options, name: value}):
                continue
            a, b, c = (parameters(seed) for _ in range(3))
            first, *others = a
            groups = [{"params": [(first, a[first])]}, {"params": [(o, a[o]) for o in others], name: value}]
            walk(front(groups, **options), a, range(3))
            walk(front(b.items(), **options), b, range(3))
            walk(front(c.items(), **{**options, name: value}), c, range(3))
            close(numbers(a), numbers({first: b[first], **{o: c[o] for o in others}}), 0, (name, value))


def _holds(case, options):
    try:
        case.hyper(**options)
    except LayerwiseError:
        return False
    return True


@fronts
def test_groups_added_later(front):
    a, b = parameters(1), parameters(1)
    late = ("scalar", "stack")
    opt = busy(front, [(name, p) for name, p in a.items() if name not in late])
    apart = busy(front, [(name, p) for name, p in b.items() if name not in late])
    fresh = busy(front, [(name, b[name]) for name in late], maximize=True)
    walk(opt, a, [0], but=late)
    walk(apart, b, [0], but=late)
    opt.add_param_group({"params": [(name, a[name]) for name in late], "maximize": True})
    for t in (1, 2):
        walk(opt, a, [t])
        walk(apart, b, [t])
        fresh.step()
    assert bits(a) == bits(b)
    assert [int(opt.state[p]["step"]) for p in a.values()] == [3, 3, 2, 2]
    assert opt.num_parameters == 4


@pytest.mark.parametrize("group", [{"blocks": {"*": 2}}, {"skip_nonfinite": True}], ids=str)
@fronts
def test_what_only_the_optimizer_can_be_told(front, group):
    """An option that is accepted and ignored is a bug."""
    with pytest.raises(HyperparameterError, match=next(iter(group))):
        busy(front, [{"params": [nn.Parameter(torch.ones(2, 2))], **group}])


@pytest.mark.parametrize("name", ["weight_dacay", "max_grad_valeu", "capturabel"])
@fronts
def test_a_key_that_is_like_an_option_is_said_once(front, name):
    groups = [{"params": [nn.Parameter(torch.ones(2))], name: 0.1} for _ in range(2)]
    with pytest.warns(UserWarning, match=name) as said:
        opt = front(groups)
    opt.add_param_group({"params": [nn.Parameter(torch.ones(2))], name: 0.1})
    [one] = said
    assert f"the key '{name}', which is no option. Is `" in str(one.message)
    assert one.filename == __file__
    with pytest.raises(UnknownOptionError, match=name):
        front([nn.Parameter(torch.ones(2))], **{name: 0.1})


def two_groups(*options):
    return [{"params": [nn.Parameter(torch.ones(2))], **one} for one in options]


NOTHING = {"fused": None, "foreach": None, "differentiable": None, "capturable": None}


@pytest.mark.parametrize("beside", [{}, NOTHING], ids=["left out", "None"])
@fronts
def test_what_all_groups_agree_on_holds_for_the_optimizer(front, beside):
    """PyTorch's optimizers take these in groups, and wrappers repeat there what they were given."""
    made = {name: busy(front, two_groups({name: True}, beside)) for name in ("fused", "differentiable")}
    assert (
        made["fused"]._engine == busy(front, two_groups({}), fused=True)._engine != busy(front, two_groups({}))._engine
    )
    assert [group["differentiable"] for group in made["differentiable"].param_groups] == [True, True]
    opt = busy(front, two_groups({"capturable": True, "foreach": True}, beside), fused=False)
    assert [group["capturable"] for group in opt.param_groups] == [True, False]
    assert opt._engine == "rule"


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
def test_groups_that_contradict_each_other_or_the_optimizer(front, groups, given):
    with pytest.raises(HyperparameterError, match=next(iter(groups[0]))):
        busy(front, two_groups(*groups), **given)


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimization as it wraps others: the other gets its groups, and lends it its own."""

    def __init__(self, params, base, rho=0.05, adaptive=False, **options):
        super().__init__(params, {"rho": rho, "adaptive": adaptive, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    @torch.no_grad()
    def step(self, closure):
        weights = [(p, p.clone()) for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p, _ in weights]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=float(group["rho"] / norm))
        with torch.enable_grad():
            closure()
        for p, kept in weights:
            p.copy_(kept)
        self.base.step()


@fronts
def test_sam_wraps_it(front):
    torch.manual_seed(0)
    x, options = torch.randn(8, 3), {key: x for key, x in BUSY[front].items() if key in ("lr", "weight_decay")}
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    b.load_state_dict(a.state_dict())

    def backward(model):
        model.zero_grad()
        model(x).square().sum().backward()

    has_ratio = "adapt" in front._hyper.__dataclass_fields__
    with pytest.warns(UserWarning, match="'adaptive'") if has_ratio else nullcontext():
        opt = Sam(a.parameters(), front, rho=0.1, **options)
    plain = front(b.parameters(), **options)
    for _ in range(3):
        backward(a)
        opt.step(lambda: backward(a))
        backward(b)
        kept = [p.detach().clone() for p in b.parameters()]
        norm = torch.stack([p.grad.norm() for p in b.parameters()]).norm()
        with torch.no_grad():
            for p in b.parameters():
                p.add_(p.grad, alpha=float(0.1 / norm))
        backward(b)
        with torch.no_grad():
            for p, q in zip(b.parameters(), kept, strict=True):
                p.copy_(q)
        plain.step()
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(kept[0], b.weight)


def used_up():
    given = nn.Linear(3, 2).parameters()
    list(given)
    return given


NO_PARAMETERS = {
    "a method": (lambda: nn.Linear(3, 2).named_parameters, r"Call it: named_parameters\(\)"),
    "a module": (lambda: nn.Linear(3, 2), r"Pass model\.named_parameters\(\)"),
    "a used generator": (used_up, "'parameters', which has nothing left"),
}


@pytest.mark.parametrize("what", NO_PARAMETERS)
def test_what_only_has_parameters_or_had_them(what):
    make, words = NO_PARAMETERS[what]
    opt = Lamb([nn.Parameter(torch.ones(2))])
    given = (Lamb, lambda params: Lamb([{"params": params}]), lambda params: opt.add_param_group({"params": params}))
    for give in given:
        with pytest.raises(ParameterError, match=words):
            give(make())
    assert len(opt.param_groups) == 1
    assert Lamb(nn.ParameterList([nn.Parameter(torch.ones(2))])).num_parameters == 1


def test_a_group_needs_parameters():
    with pytest.raises(ParameterError, match="must have 'params', but has 'lr', 'weight_decay'"):
        Lamb([{"lr": 0.1, "weight_decay": 0.1}])


def test_an_iterator_that_gives_nothing_is_said():
    """It may have been used before; what is a generator and was not is empty on purpose."""
    p, unused = nn.Parameter(torch.ones(2)), filter(torch.is_tensor, [])
    with pytest.warns(UserWarning, match="the filter that was its 'params' gave nothing"):
        Lamb([{"params": [p]}, {"params": unused}])
    Lamb([{"params": [p]}, {"params": (p for p in ())}, {"params": []}])


def test_names_that_appear_twice_are_said():
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    for groups in ([("w", a), ("b", c), ("w", b)], [{"params": [("w", a)]}, {"params": [("w", b), ("b", c)]}]):
        with pytest.warns(UserWarning, match=r"several parameters are named 'w'\. Patterns"):
            Lamb(groups)


@pytest.mark.parametrize(
    ("key", "words"), [("weight_dacay", "Is `weight_decay` meant"), ("learning_rate", "Is `lr` meant")]
)
@fronts
def test_a_misspelt_option_that_is_set_later_is_said_once(front, key, words):
    opt = busy(front, (params := parameters(1)).items())
    walk(opt, params, [0])
    opt.param_groups[0].update(base_momentum=0.8, depth=3)  # a scheduler's, and another's own
    walk(opt, params, [1])
    opt.param_groups[0][key] = 0.1
    with pytest.warns(UserWarning, match=words) as said:
        walk(opt, params, [2])
    walk(opt, params, [3])
    assert len(said) == 1


def test_printed_is_what_is_not_the_default():
    p, q = (nn.Parameter(torch.ones(2)) for _ in range(2))
    opt = Lamb([{"params": [p]}, {"params": [q], "lr": 0.5, "adapt": False, "depth": 3}], weight_decay=0.1)
    first = "Parameter Group 0\n    lr: 0.001\n    weight_decay: 0.1\n"
    second = "Parameter Group 1\n    adapt: False\n    depth: 3\n    lr: 0.5\n    weight_decay: 0.1\n"
    assert repr(opt) == f"Lamb (\n{first}{second})"
    mixed = Mixed([{"params": [p], "rule": "sgd", "momentum": 0.9}])
    assert "rule: SGD" in repr(mixed)
    assert "dampening" not in repr(mixed)


@fronts
def test_other_keys_are_kept(front):
    opt = busy(front, [{"params": [nn.Parameter(torch.ones(2))], "name": "backbone", "depth": 3}])
    assert (opt.param_groups[0]["name"], opt.state_dict()["param_groups"][0]["depth"]) == ("backbone", 3)


BAD = [
    (Lamb, {"lr": None}),
    (Lamb, {"lr": -1.0}),
    (Lamb, {"betas": (0.9, 1.0)}),
    (Lamb, {"betas": 0.9}),
    (Lamb, {"eps": {}}),
    (Lamb, {"eps": [1e-6]}),
    (Lamb, {"adapt": 1}),
    (Lamb, {"maximize": 0}),
    (Lamb, {"bias_correction": 1}),
    (Lamb, {"max_grad_norm": True}),
    (Lamb, {"capturable": "yes"}),
    (Lamb, {"differentiable": True, "capturable": True}),
    (Lars, {"momentum": 1.0}),
    (Lars, {"nesterov": True, "dampening": 0.1}),
    (Lars, {"momentum": False}),
    (Adafactor, {"lr": 0.1, "relative_step": True}),
    (Adafactor, {"factored": (0, 0)}),
    (Adafactor, {"factored": 0}),
    (Adafactor, {"eps": (1e-3, {})}),
    (Adafactor, {"beta1": False}),
    (Adafactor, {"master_weights": None}),
]


@pytest.mark.parametrize(("front", "options"), BAD, ids=str)
def test_a_bad_option_of_a_group(front, options):
    p = nn.Parameter(torch.ones(2, 2))
    # Settings made before of values that Python calls equal must not let these pass.
    opt = front([p], lr=0.5, **({"momentum": 0.0} if front is Lars else {}))
    opt.add_param_group({"params": [nn.Parameter(torch.ones(1))], "max_grad_norm": 1.0})
    if front is Adafactor:
        opt.add_param_group({"params": [nn.Parameter(torch.ones(1))], "beta1": 0.0, "factored": False})
    groups = len(opt.param_groups)
    with pytest.raises(HyperparameterError, match=f"`{next(iter(options))}`|`capturable`"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(2))], **options})
    assert len(opt.param_groups) == groups


@fronts
def test_a_bad_parameter_leaves_the_groups_as_they_were(front):
    p = nn.Parameter(torch.ones(2))
    opt = busy(front, [p])
    bad = torch.ones(2, dtype=torch.complex64)
    with pytest.raises(ParameterError, match="complex"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(3)), bad]})
    assert len(opt.param_groups) == 1
    assert len(opt.state_dict()["param_groups"]) == 1


class Odd(nn.Module):
    """A little of everything that rules of groups are for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.rnn = nn.LSTM(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)


def names(groups):
    return [{name for name, _ in group["params"]} for group in groups]


def undecayed(groups):
    return {name for group in groups if group.get("weight_decay") == 0 for name, _ in group["params"]}


def test_groups_by_rule():
    model = Odd()
    for rules, expected in (
        (["norm"], {"norm.weight", "norm.bias"}),
        (["embedding"], {"embed.weight"}),
        ([nn.Linear], {"embed.weight", "attention.out_proj.weight", "attention.out_proj.bias"}),
        (["head.*"], {"embed.weight"}),
        (["nor*"], {"norm.weight", "norm.bias"}),
        ([0], {"scale"}),
        ([lambda name, p, module: name == "scale"], {"scale"}),
        ([], set()),
    ):
        assert undecayed(param_groups(model, no_decay=rules)) == expected
    every = [name for group in param_groups(model) for name, _ in group["params"]]
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert sorted(every) == sorted(trainable)


class OneMatrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))


class PlainRMSNorm(OneMatrix):
    """A normalization that PyTorch does not know."""


def one_of_each(*names):
    """Return a model with a module of a class of each of these names."""
    model = nn.Module()
    for name in names:
        base = PlainRMSNorm if name == "Derived" else OneMatrix
        model.add_module(name, type(name, (base,), {})())
    return model


NORMS = (
    "LlamaRMSNorm",
    "T5LayerNorm",
    "RmsNorm",
    "LayerNorm2d",
    "BatchNormAct2d",
    "RMSNormGated",
    "LayerNormalization",
)
OTHERS = ("LayerNormLinear", "LayerNormMLP", "NormalHead", "Conv2dWeightNorm", "Attention", "NormLinear")


def test_norms_are_told_by_the_names_of_their_classes():
    found = {f"{name}.weight" for name in (*NORMS, "Derived")}
    model = one_of_each(*NORMS, "Derived", *OTHERS)
    assert undecayed(param_groups(model, no_decay=["norm"])) == found
    mixed = Mixed(param_groups(model, rule="lamb", others="adamw"))
    assert set(mixed.param_groups[1]["param_names"]) == found


@pytest.mark.parametrize(
    "made", [(nn.Linear, 2, 2), (nn.Conv2d, 2, 2, 1), (nn.ConvTranspose1d, 2, 2, 1), (nn.Embedding, 2, 2)], ids=str
)
def test_layers_with_a_matrix_are_no_norms(made):
    base, *options = made
    model = nn.Sequential(type("OwnNorm", (base,), {})(*options))
    (first, *others) = param_groups(model)
    assert ([name for name, _ in first["params"]], first.keys() & {"weight_decay", "adapt"}) == (["0.weight"], set())
    assert all([name for name, _ in group["params"]] == ["0.bias"] for group in others)


def test_what_may_be_a_norm_and_is_left_out_is_said_once():
    model = nn.Sequential()
    model.norm1, model.LayerNormLinear, model.body = nn.Module(), nn.Module(), nn.Linear(2, 2)
    model.norm1.gain, model.LayerNormLinear.gain = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with pytest.warns(UserWarning, match="leaves out") as said:
        param_groups(model)
    assert [str(one.message).partition(":")[0] for one in said] == [
        '"norm" leaves out norm1.gain, LayerNormLinear.gain'
    ]
    param_groups(model, no_decay=["bias", "norm", "*.gain"], no_adapt=[])  # is no longer said
    param_groups(model, no_decay=["bias"], no_adapt=[1])


@pytest.mark.parametrize("front", [Lamb, Adafactor, AdamW], ids=lambda front: front.__name__)
def test_alone_it_exempts_biases_and_norms_from_decay_and_from_the_ratio(front):
    """As the papers' recipes do; a rule without a ratio has nothing to be exempt from."""
    opt = front(param_groups(Odd()), weight_decay=0.1)
    small = {name for name, _ in Odd().named_parameters() if "bias" in name or name == "norm.weight"}
    for group in opt.param_groups:
        exempt = set(group["param_names"]) <= small
        assert exempt or not small & set(group["param_names"])
        assert (group["weight_decay"], group.get("adapt")) == (
            (0.0 if exempt else 0.1),
            (not exempt) if front is Lamb else None,
        )


def test_biases_of_attention_and_of_recurrent_layers_are_biases():
    biases = undecayed(param_groups(Odd(), no_decay=["bias"]))
    wanted = {name for name, _ in Odd().named_parameters() if "bias" in name}
    assert biases == wanted


def test_groups_make_an_optimizer():
    model = Odd()
    groups = param_groups(model, no_decay=["bias", "norm"], no_adapt=[1], lr=0.5)
    every = set.union(*names(groups))
    assert {(group.get("weight_decay"), group.get("adapt")) for group in groups} == {
        (None, None),
        (None, False),
        (0.0, False),
    }
    for front in FRONT_OF.values():
        if front is Adafactor:  # has no trust ratio to turn off
            groups = param_groups(model, no_decay=["bias", "norm"], lr=0.5)
        opt = front(groups, weight_decay=0.1)
        assert opt.get_lr() == 0.5
        assert {name for group in opt.param_groups for name in group["param_names"]} == every


def test_the_table():
    table = str(param_groups(Odd(), no_decay=["norm"], no_adapt=["embedding"]))
    head, *rows = table.splitlines()
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert head.split() == ["parameter", "shape", "weight", "decay", "trust", "ratio"]
    assert cells["embed.weight"] == ["5×4", "yes", "no"]
    assert cells["norm.weight"] == ["4", "none", "yes"]
    assert cells["scale"] == ["scalar", "yes", "yes"]
    assert "head.weight" not in cells
    assert str(param_groups(nn.ReLU())).split() == head.split()


def test_the_table_also_after_the_optimizer_was_made():
    groups = param_groups(Odd())
    before = str(groups)
    Lamb(groups)
    assert str(groups) == before


@pytest.mark.parametrize("bad", ["bias", nn.Linear, [None], [1.5], [int], [True], 3, None], ids=str)
def test_bad_rules(bad):
    with pytest.raises(HyperparameterError, match="no_decay"):
        param_groups(Odd(), no_decay=bad)


@pytest.mark.parametrize("given", [{}, {"no_adapt": ["bias", "head.*"]}], ids=["default", "given"])
@pytest.mark.parametrize("rule", [AdamW, Adafactor, SGD])
def test_without_a_ratio_there_is_none_to_turn_off(rule, given):
    """Also in copies of groups; what asks for a ratio is an error."""
    copies = [g | {"lr": 1e-3} for g in param_groups(Odd(), **given)]
    assert any("adapt" in group for group in copies)
    own = rule(copies).param_groups
    mixed = Mixed([g | {"rule": rule.__name__.lower()} for g in copies]).param_groups
    assert not any("adapt" in group for group in (*own, *mixed))
    for asked in (True, "decayed"):
        with pytest.raises(HyperparameterError, match="`adapt` is no option"):
            rule([g | {"adapt": asked} for g in copies])
