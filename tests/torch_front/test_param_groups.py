"""`param_groups`: a model's parameters in groups by rules, which may be of several optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from layerwise import optional
from layerwise.errors import HyperparameterError, LayerwiseError, UnknownOptionError
from layerwise.recipes import recommend
from layerwise.torch import Adafactor, AdamW, Lamb, Lars, Mixed, param_groups


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


NAMES = [name for name, p in Odd().named_parameters() if p.requires_grad]
BIASES = {name for name in NAMES if "bias" in name}


def exempt(groups, key="weight_decay", value=0):
    return {name for group in groups if group.get(key) == value for name, _ in group["params"]}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["bias"], BIASES),
        (["norm"], {"norm.weight", "norm.bias"}),
        (["embedding"], {"embed.weight"}),
        ([nn.Linear], {"embed.weight", "attention.out_proj.weight", "attention.out_proj.bias"}),
        (["head.*"], {"embed.weight"}),
        (["nor*"], {"norm.weight", "norm.bias"}),
        ([0], {"scale"}),
        ([1], {*BIASES, "norm.weight", "scale"}),
        ([lambda name, p, module: name == "scale"], {"scale"}),
        (["bias", "scale"], {*BIASES, "scale"}),
        ([], set()),
    ],
)
def test_a_rule_is_a_kind_a_pattern_a_class_dimensions_or_a_function(rules, expected):
    """Of all that trains, once: a tied weight goes by each of its names."""
    for given in (rules, (rule for rule in rules)):
        groups = param_groups(Odd(), no_decay=given)
        assert exempt(groups) == expected
        assert sorted(name for group in groups for name, _ in group["params"]) == sorted(NAMES)
    assert exempt(param_groups(Odd(), no_adapt=rules), "adapt", False) >= expected


@pytest.mark.parametrize("bad", ["bias", nn.Linear, [None], [1.5], [int], [True], 3, None], ids=str)
def test_values_that_are_not_rules_are_refused(bad):
    with pytest.raises(HyperparameterError, match="no_decay"):
        param_groups(Odd(), no_decay=bad)


@pytest.mark.parametrize("argument", ["no_decay", "no_adapt"])
def test_a_pattern_that_matches_nothing_is_named_and_a_kind_need_not_be_there(argument):
    with pytest.raises(HyperparameterError) as caught:
        param_groups(Odd(), **{argument: ["bias", "head.wieght"]})
    said = (f"pattern 'head.wieght' in `{argument}` matches no parameter", "'head.weight'", "optional('head.wieght')")
    assert [word for word in said if word not in str(caught.value)] == []
    param_groups(Odd(), **{argument: ["bias", optional("head.wieght"), "norm.*"]})
    param_groups(nn.Linear(2, 2, bias=False), **{argument: ["bias", "norm", "embedding", nn.Embedding, 1]})


@pytest.mark.parametrize("given", [Odd().parameters(), [*Odd().parameters()], {}, None], ids=type)
def test_groups_are_made_of_a_model(given):
    with pytest.raises(HyperparameterError, match=r"`model` must be a torch.nn.Module, but is a \w+\. Pass the model"):
        param_groups(given)


@pytest.mark.parametrize("scale", [{"*.bias": 2}, lambda name: 2])
def test_an_lr_scale_by_name_is_refused(scale):
    with pytest.raises(HyperparameterError, match="Give each group an lr"):
        Lamb(param_groups(Odd(), lr_scale=scale))
    assert Lamb(param_groups(Odd(), lr_scale=0.5)).param_groups[0]["lr_scale"] == 0.5


@pytest.mark.parametrize("front", [Lamb, Adafactor, AdamW], ids=lambda front: front.__name__)
def test_by_default_biases_and_norms_have_neither_decay_nor_ratio(front):
    """As the papers' recipes do; a rule without a ratio has nothing to be exempt from."""
    opt = front(param_groups(Odd(), lr=0.5), weight_decay=0.1)
    small = {*BIASES, "norm.weight"}
    assert opt.get_lr() == 0.5
    for group in opt.param_groups:
        is_exempt = {*group["param_names"]} <= small
        assert is_exempt or not small & {*group["param_names"]}
        wanted = (0.0 if is_exempt else 0.1), (not is_exempt) if front is Lamb else None
        assert (group["weight_decay"], group.get("adapt")) == wanted


# ---- which modules are norms


class OneMatrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))


class PlainRMSNorm(OneMatrix):
    """A normalization that PyTorch does not know."""


NORMS = (
    "LlamaRMSNorm", "T5LayerNorm", "RmsNorm", "LayerNorm2d", "BatchNormAct2d", "RMSNormGated", "LayerNormalization",
)  # fmt: skip
OTHERS = ("LayerNormLinear", "LayerNormMLP", "NormalHead", "Conv2dWeightNorm", "Attention", "NormLinear")


def test_norms_are_told_by_the_names_of_their_classes():
    model, found = nn.Module(), {f"{name}.weight" for name in (*NORMS, "Derived")}
    for name in (*NORMS, "Derived", *OTHERS):
        base = PlainRMSNorm if name == "Derived" else OneMatrix
        model.add_module(name, type(name, (base,), {})())
    assert exempt(param_groups(model, no_decay=["norm"])) == found
    mixed = Mixed(param_groups(model, rule="lamb", others="adamw"))
    assert {*mixed.param_groups[1]["param_names"]} == found


@pytest.mark.parametrize(
    "made", [(nn.Linear, 2, 2), (nn.Conv2d, 2, 2, 1), (nn.ConvTranspose1d, 2, 2, 1), (nn.Embedding, 2, 2)], ids=str
)
def test_layers_with_a_matrix_are_no_norms(made):
    base, *options = made
    first, *others = param_groups(nn.Sequential(type("OwnNorm", (base,), {})(*options)))
    assert ([name for name, _ in first["params"]], first.keys() & {"weight_decay", "adapt"}) == (["0.weight"], set())
    assert all([name for name, _ in group["params"]] == ["0.bias"] for group in others)


def test_a_possible_norm_that_is_not_matched_warns_once():
    model = nn.Sequential()
    model.norm1, model.LayerNormLinear, model.body = nn.Module(), nn.Module(), nn.Linear(2, 2)
    model.norm1.gain, model.LayerNormLinear.gain = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with pytest.warns(UserWarning, match="does not match") as said:
        param_groups(model)
    assert [str(one.message).partition(":")[0] for one in said] == [
        '"norm" does not match norm1.gain, LayerNormLinear.gain'
    ]
    param_groups(model, no_decay=["bias", "norm", "*.gain"], no_adapt=[])  # is no longer said
    param_groups(model, no_decay=["bias"], no_adapt=[1])


# ---- several rules


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.norm = nn.Embedding(7, 4), nn.Linear(4, 6), nn.LayerNorm(6)


def test_others_than_matrices_may_have_a_rule_of_their_own():
    groups = param_groups(Model(), rule="lamb", others={"rule": AdamW, "lr": 3e-4, "weight_decay": 0.2}, lr=0.01)
    found = {name: (one["rule"], one.get("lr"), one.get("weight_decay")) for one in groups for name, _ in one["params"]}
    assert found == {
        "embed.weight": ("AdamW", 3e-4, 0.2),
        "up.weight": ("Lamb", 0.01, None),
        "up.bias": ("AdamW", 3e-4, 0.0),
        "norm.weight": ("AdamW", 3e-4, 0.0),
        "norm.bias": ("AdamW", 3e-4, 0.0),
    }
    assert [one["rule"] for one in Mixed(groups, max_grad_norm=1.0).param_groups] == ["Lamb", "AdamW", "AdamW"]
    table = {line.split()[0]: line.split()[2:] for line in str(groups).splitlines()}
    assert table["embed.weight"] == ["yes", "no", "AdamW"]
    assert table["up.weight"] == ["yes", "yes", "Lamb"]
    assert table["up.bias"] == ["none", "no", "AdamW"]


class Hidden(nn.Module):
    """Hidden matrices beside all that Muon is not for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(7, 4), nn.Linear(4, 6), nn.Linear(6, 4)
        self.norm, self.gain = nn.LayerNorm(4), nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 7)


def test_muon_has_the_hidden_matrices():
    groups = param_groups(Hidden(), rule="muon", lr=0.02, others={"rule": "adamw", "lr": 3e-4})
    rules = {name: one["rule"] for one in groups for name, _ in one["params"]}
    assert {name for name, rule in rules.items() if rule == "Muon"} == {"up.weight", "down.weight"}
    assert {rule for name, rule in rules.items() if name not in ("up.weight", "down.weight")} == {"AdamW"}
    said = param_groups(Hidden(), rule="muon", others="adamw", other_params=[1, "embedding"])
    assert {name for name, _ in said[0]["params"]} == {"up.weight", "down.weight", "head.weight"}
    exempt_head = param_groups(Hidden(), no_decay=["head"])
    assert {name for one in exempt_head if one.get("weight_decay") == 0 for name, _ in one["params"]} == {
        "head.weight",
        "head.bias",
    }


def test_the_other_parameters_may_be_chosen():
    options = {"rule": "lars", "others": "sgd", "other_params": ["norm.*"], "no_adapt": ["bias", "norm"], "lr": 0.1}
    groups = param_groups(Model(), **options)
    found = {name: (one["rule"], one.get("adapt")) for one in groups for name, _ in one["params"]}
    assert (found["up.bias"], found["norm.weight"]) == (("Lars", False), ("SGD", None))
    Mixed(groups)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"others": "adamw"}, "`rule` must be given when `others` is given"),
        ({"rule": "lamp"}, "Did you mean `lamb`"),
        ({"rule": "lamb", "others": {"lr": 0.1}}, "needs a `rule`"),
        ({"rule": "lamb", "others": "sgd", "other_params": ["nothing.*"]}, "matches no parameter"),
    ],
)
def test_invalid_rules_are_refused(options, words):
    with pytest.raises(LayerwiseError, match=words):
        param_groups(Model(), **options)


NO_DECAY = (
    "no_decays nodecay no_dacay no_decay_names no_weight_decay no_weight_decay_list skip skip_list decay_exempt "
    "exclude exclude_from_weight_decay"
)
MISSPELT = {
    **dict.fromkeys(NO_DECAY.split(), "no_decay"),
    **dict.fromkeys(("no_adapts", "noadapt", "no_trust", "exclude_from_layer_adaptation"), "no_adapt"),
    "other": "others",
    "other_param": "other_params",
    "others_params": "other_params",
    "rules": "rule",
    "weight_dacay": "weight_decay",
    "learning_rate": "lr",
    "capturabel": "capturable",
}


@pytest.mark.parametrize(("name", "own"), MISSPELT.items())
def test_a_misspelt_argument_and_what_others_call_it_are_refused(name, own):
    with pytest.raises(UnknownOptionError, match=rf"no argument '{name}'\. Did you mean `{own}`"):
        param_groups(Model(), **{name: ["up.weight"]})


def test_parameters_are_no_option_of_groups():
    with pytest.raises(UnknownOptionError, match=r"no argument 'params'\. The model provides them"):
        param_groups(Model(), params=[])


@pytest.mark.parametrize(("name", "words"), [("depth", "Leave it out, or set it afterwards"), ("amsgrad", "AMSGrad")])
def test_a_key_that_nothing_reads_is_kept_with_a_warning(name, words):
    with pytest.warns(UserWarning, match=rf"'{name}' into each group.* no_decay, no_adapt, rule.*{words}") as said:
        groups = param_groups(Model(), **{name: 3})
    assert [one.filename for one in said] == [__file__]
    assert {group[name] for group in Lamb(groups).param_groups} == {3}


def test_options_and_keys_of_pytorchs_groups_need_no_warning():
    groups = param_groups(Model(), lr=0.1, initial_lr=0.2, lr_scale=0.5, foreach=None, fused=None, capturable=False)
    assert {group["initial_lr"] for group in Lamb(groups).param_groups} == {0.2}


def test_recommended_settings_are_a_group():
    found = recommend(Lamb, 4096, reference_batch=256, reference_lr=1e-3)
    opt = Mixed(param_groups(Model(), rule="lamb", others="adamw", **found.kwargs()))
    assert opt.param_groups[0]["lr"] == pytest.approx(4e-3)


def test_biases_and_norms_keep_their_ratio_in_groups_for_lars():
    small = exempt(param_groups(Odd()), "adapt", False)
    for rule in ("lars", "Lars", Lars):
        groups = param_groups(Odd(), rule=rule)
        assert exempt(groups, "adapt", False) == set()
        assert exempt(groups) == exempt(groups, "min_norm", 0.1) == small
    assert exempt(param_groups(Odd(), rule="lars", min_norm=0.5), "min_norm", 0.5) == {*NAMES}
    assert exempt(param_groups(Odd(), rule="lars", no_adapt=["norm"]), "adapt", False) == {"norm.weight", "norm.bias"}
    assert exempt(param_groups(Odd(), rule="lamb"), "adapt", False) == small
    assert [group.get("min_norm") for group in Lars(param_groups(Odd(), rule="lars")).param_groups] == [0.0, 0.1]


@pytest.mark.parametrize("norm", [True, False], ids=["normalized", "not normalized"])
@pytest.mark.parametrize("lr", [4.0, 10.0])
def test_lars_fits_a_regression_at_its_rates_with_groups_made_for_it(norm, lr):
    """Plain steps at these rates end in nan; a warning says so at the first."""

    def loss_of(**options):
        torch.manual_seed(0)
        norms = [nn.BatchNorm1d(32) if norm else nn.Identity() for _ in range(2)]
        hidden = [nn.Linear(8, 32), norms[0], nn.ReLU(), nn.Linear(32, 32), norms[1], nn.ReLU()]
        model, x = nn.Sequential(*hidden, nn.Linear(32, 1)), torch.randn(256, 8)
        opt = Lars(param_groups(model, **options), lr=lr, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.05, total_iters=20)
        for _ in range(60):
            opt.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            opt.step()
            schedule.step()
        return loss.item()

    assert loss_of(rule="lars") < 0.5
    with pytest.warns(UserWarning, match=r"\.bias.* have no trust ratio\. .*lr is"):
        loss = loss_of()
    assert not loss < 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([3.5], r"`no_decay` has 3\.5, which is no selector\. Pass any of"),
        ("bias", r"`no_decay` must be a list, but is 'bias'\. Pass no_decay=\['bias'\]\."),
        (torch.nn.Linear, r"Pass no_decay=\[Linear\]\."),
    ],
)
def test_what_is_no_list_of_selectors_is_named(given, words):
    with pytest.raises(HyperparameterError, match=words):
        param_groups(torch.nn.Linear(2, 2), no_decay=given)
