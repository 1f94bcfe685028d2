"""Rules for hidden matrices, such as Muon: what they leave to AdamW, at which rate, and what is said of the rest."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from layerwise.catalog.hidden_matrices import is_embedding_or_head
from layerwise.engines import rule
from layerwise.errors import ContradictionError, HyperparameterError
from layerwise.torch import AdamW, Lamb, Mixed, Muon, param_groups
from layerwise.torch.arrays import _library


class Model(nn.Module):
    """Two hidden matrices beside all that Muon is not for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.pos_embed = nn.Embedding(7, 4), nn.Parameter(torch.ones(1, 3, 4))
        self.up, self.down, self.norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.register_parameter("position_bias_table", nn.Parameter(torch.ones(3, 4)))

    def forward(self, x):
        return self.head(self.norm(self.down(self.up(self.embed(x) + self.pos_embed + self.position_bias_table))))


HIDDEN = {"up.weight", "down.weight"}
SMALL = {"position_bias_table", "up.bias", "down.bias", "norm.weight", "norm.bias"}


def options_of(groups):
    return {name: {k: x for k, x in one.items() if k != "params"} for one in groups for name, _ in one["params"]}


def backward(model):
    model(torch.arange(3)[None]).square().mean().backward()


def said(act):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in found if "hidden matrices" in str(one.message)]


@pytest.mark.parametrize(
    ("given", "hidden", "rest"),
    [
        ({}, {}, {"lr": 0.001, "weight_decay": 0.0}),
        ({"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.0005, "weight_decay": 0.1}),
        (
            {"lr": 0.01, "scale": "match_rms_adamw", "momentum": 0.9},
            {"lr": 0.01, "scale": "match_rms_adamw", "momentum": 0.9},
            {"lr": 0.01, "weight_decay": 0.0},
        ),
        (
            {"lr": 0.01, "others": {"lr": 3e-4, "eps": 1e-7}},
            {"lr": 0.01},
            {"lr": 3e-4, "eps": 1e-7, "weight_decay": 0.0},
        ),
        ({"lr": 0.01, "others": "adamw"}, {"lr": 0.01}, {"lr": 0.0005, "weight_decay": 0.0}),
        (
            {"lr": 0.01, "others": {"rule": AdamW, "weight_decay": 0.2}},
            {"lr": 0.01},
            {"lr": 0.0005, "weight_decay": 0.2},
        ),
        (
            {"max_grad_norm": 1.0, "state_dtype": {"momentum_buffer": "bfloat16"}, "master_weights": True},
            {"max_grad_norm": 1.0, "state_dtype": {"momentum_buffer": "bfloat16"}, "master_weights": True},
            {"lr": 0.001, "weight_decay": 0.0, "max_grad_norm": 1.0, "master_weights": True},
        ),
    ],
    ids=str,
)
def test_muon_leaves_the_rest_to_adamw_at_a_rate_that_fits(given, hidden, rest):
    groups = param_groups(Model(), rule="muon", **given)
    found = options_of(groups)
    assert {name for name, options in found.items() if options["rule"] == "Muon"} == HIDDEN
    for name, options in found.items():
        small = {"weight_decay": 0.0} if name in SMALL else {}
        wanted = {"rule": "Muon", **hidden} if name in HIDDEN else {"rule": "AdamW", **rest, **small}
        assert options == pytest.approx(wanted) if name not in HIDDEN else options == wanted
    shown = str(Mixed(groups))
    assert "rule: Muon" in shown
    assert "rule: AdamW" in shown


def test_another_rule_beside_muon_has_its_own_defaults():
    assert options_of(param_groups(Model(), rule="muon", lr=0.1, others="lion"))["embed.weight"] == {"rule": "Lion"}


def test_a_scheduler_multiplies_each_rate():
    opt = Mixed(param_groups(Model(), rule="muon", lr=0.02))
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.5**step)
    opt.step()
    schedule.step()
    assert opt.get_lr() == pytest.approx([0.01, 0.0005, 0.0005])


def test_a_rate_of_numpy_is_a_rate():
    _, *rest = param_groups(Model(), rule="muon", lr=np.array(0.02))
    assert [group["lr"] for group in rest] == pytest.approx([0.001] * 2)


def test_a_rate_on_the_device_is_multiplied_there():
    lr = torch.tensor(0.02)
    hidden, *rest = param_groups(Model(), rule="muon", lr=lr)
    assert hidden["lr"] is lr
    assert all(group["lr"].item() == pytest.approx(0.001) for group in rest)


def test_false_leaves_all_to_muon():
    for groups in (param_groups(Model(), rule="muon", others=False), param_groups(Model(), rule="muon", others="muon")):
        assert {one["rule"] for one in groups} == {"Muon"}
    assert {one["rule"] for one in param_groups(Model(), rule="lamb", others=False)} == {"Lamb"}
    Muon(param_groups(Model(), rule="muon", others=False))


@pytest.mark.parametrize("options", [{}, {"rule": "lamb"}, {"rule": "muon", "others": False}], ids=str)
def test_parameters_for_a_missing_rule_are_refused(options):
    with pytest.raises(ContradictionError, match="`other_params` must be None without `others`"):
        param_groups(Model(), other_params=["embed.*"], **options)


def test_rates_of_schedulers_keep_the_proportion():
    hidden, rest, _ = param_groups(Model(), rule="muon", lr=0.01, initial_lr=0.02)
    assert (hidden["initial_lr"], rest["initial_lr"]) == pytest.approx((0.02, 0.001))


def test_a_wrong_rate_is_named():
    with pytest.raises(HyperparameterError, match="`lr` must be"):
        Mixed(param_groups(Model(), rule="muon", lr="fast"))


@pytest.mark.parametrize("others", [None, {"betas": (0.9, 0.95)}])
def test_groups_of_two_rules_are_for_mixed(others):
    with pytest.raises(
        HyperparameterError,
        match=r"the rule AdamW, but Muon steps every group by Muon.* layerwise\.torch\.Mixed",
    ):
        Muon(param_groups(Model(), rule="muon", others=others))
    assert Lamb(param_groups(Model(), rule="lamb")).get_lr() == 0.001


@pytest.mark.parametrize(
    "name",
    [
        "embed.weight", "model.embed_tokens.weight", "transformer.wte.weight", "pos_embed", "cls_token",
        "bert.embeddings.word_embeddings.weight", "lm_head.weight", "_orig_mod.head.weight", "embed_out.weight",
        "output.weight", "module.output.weight", "tok_embeddings.weight", "classifier.weight", "classifier.bias",
    ],
)  # fmt: skip
def test_names_of_embeddings_and_heads(name):
    assert is_embedding_or_head(name)


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.attention.output.dense.weight", "layers.3.attention.output.weight", "fc.weight",
        "attention.output.weight", "layers.0.heads.1.head.weight", "patch_embed.proj.weight", "embed_proj.weight",
        "time_embedding.linear_1.weight", "token_mixer.weight", "layers.0.mlp.up_proj.weight", "weight", "",
    ],
)  # fmt: skip
def test_names_of_hidden_matrices(name):
    assert not is_embedding_or_head(name)


def test_muon_over_a_whole_model_warns_once_with_the_way_out():
    model = Model()
    backward(model)
    opt = Muon(model.named_parameters())
    [text] = said(lambda: (opt.step(), opt.step()))
    assert "Muon is for hidden matrices, but also steps other parameters: 'pos_embed', 'embed.weight'" in text
    assert text.endswith('Step them with AdamW: Mixed(param_groups(model, rule="muon", lr=…)).')
    again = Muon(model.named_parameters())
    again.load_state_dict(opt.state_dict())
    assert said(again.step) == []


def test_without_names_only_vectors_are_said():
    model = Model()
    backward(model)
    [text] = said(Muon(model.parameters()).step)
    assert text.count("parameter ") == 4


def test_hidden_matrices_alone_do_not_warn():
    model = Model()
    backward(model)
    matrices = [(name, p) for name, p in model.named_parameters() if name in HIDDEN]
    assert said(Muon(matrices).step) == []
    assert said(Mixed(param_groups(model, rule="muon")).step) == []
    chosen = param_groups(model, rule="muon", others="adamw", other_params=[1])  # embeddings and head on purpose
    assert said(Mixed(chosen).step) == []
    assert said(Lamb(model.named_parameters()).step) == []


def test_groups_may_carry_a_scale_of_the_rate_for_schedulers():
    opt = Mixed(param_groups(Model(), rule="muon", lr_scale=0.5))
    assert {group["lr_scale"] for group in opt.param_groups} == {0.5}


def test_the_table_of_groups_says_that_muon_has_no_trust_ratio_unless_asked():
    for adapt, word in ((False, "no"), (True, "yes")):
        rows = [line.split() for line in str(param_groups(Model(), rule="muon", adapt=adapt)).splitlines()]
        assert ["up.weight", "6×4", "yes", word, "Muon"] in rows


class Products(TorchDispatchMode):
    """How many matrices each product is of, and their dtypes."""

    def __init__(self):
        super().__init__()
        self.seen, self.dtypes = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default):
            self.seen.append(args[0].shape[0])
            self.dtypes.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [(24, 10), (3, 24, 10), (7,)])
@pytest.mark.parametrize("options", [{}, {"adapt": True, "weight_decay": 0.1}, {"dims": "last", "momentum": 0.0}])
def test_matrices_of_a_shape_are_one_product(shape, options):
    """Of all groups with the same settings; each steps as it does alone."""
    torch.manual_seed(1)
    together = [nn.Parameter(torch.randn(shape, dtype=torch.float64) * 10.0**k) for k in (-3, 0, 3)]
    alone = [nn.Parameter(p.detach().clone()) for p in together]
    opt = Muon([{"params": together[:2]}, {"params": together[2:]}], lr=0.1, **options)
    each = [Muon([p], lr=0.1, **options) for p in alone]
    for _ in range(3):
        for p, q in zip(together, alone, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        with Products() as products:
            opt.step()
        for one in each:
            one.step()
    of_one = 3 if len(shape) == 3 and "dims" in options else 1
    assert set(products.seen) == {3 * of_one}
    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-11)


def test_a_processor_with_units_for_bfloat16_has_as_many_products_for_all_matrices_as_for_one(monkeypatch):
    monkeypatch.setattr(_library, "_quick", lambda device: "bfloat16")
    monkeypatch.setattr(_library, "multiplies", _library.multiplies.__wrapped__)  # without what it knows of this one
    params = [nn.Parameter(torch.randn(8, 12)) for _ in range(200)]
    for p in params:
        p.grad = torch.randn_like(p)
    opt = Muon(params)
    with Products() as products:
        opt.step()
    assert products.seen == [200] * 17
    assert set(products.dtypes) == {torch.bfloat16}
    assert {row["products"] for row in opt.storage().values()} == {"bfloat16"}


def test_batches_are_bounded(monkeypatch):
    monkeypatch.setattr(rule, "MATRICES", 2 * 24 * 10)
    params = [nn.Parameter(torch.randn(24, 10)) for _ in range(5)]
    for p in params:
        p.grad = torch.randn_like(p)
    with Products() as products:
        Muon(params).step()
    assert set(products.seen) == {2, 1}
