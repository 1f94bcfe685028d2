"""The optimizers by name in timm's factory."""

import copy
import warnings

import pytest

import layerwise
from layerwise.catalog.registry import ENTRIES

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    optim = pytest.importorskip("timm.optim")

from torch import nn  # noqa: E402

from layerwise.torch import Lamb, Lars, convert  # noqa: E402

NAMES = [f"layerwise_{name.lower()}" for name in ENTRIES]
LR = {"layerwise_sgd": 0.05, "layerwise_lars": 5.0, "layerwise_scalesgd": 0.05}


@pytest.fixture(autouse=True)
def registered():
    layerwise.register("timm")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def train(made, optimizer, steps=6):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 1, 8, 8, generator=draw), torch.randint(3, (16,), generator=draw)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(made(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_its_optimizer_and_trains(name):
    made = model()
    optimizer = optim.create_optimizer_v2(made, opt=name, lr=LR.get(name, 0.02), weight_decay=0.01)
    if name != "layerwise_muon":
        assert type(optimizer).__module__ == "layerwise.torch.optimizers"
        assert f"layerwise_{type(optimizer).__name__.lower()}" == name
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.01]
    losses = train(made, optimizer, 10)
    assert min(losses) < 0.9 * losses[0]


def test_a_second_call_changes_nothing(caplog):
    before = optim.list_optimizers()
    create = optim._optim_factory.default_registry.create_optimizer
    assert layerwise.register("timm") == {"timm": NAMES}
    assert optim.list_optimizers() == before
    assert optim._optim_factory.default_registry.create_optimizer is create
    assert not caplog.records


def test_the_registry_knows_their_options_and_has_timms_defaults():
    assert optim.list_optimizers("layerwise*") == sorted(NAMES)  # each once
    info = optim.get_optimizer_info("layerwise_lamb")
    assert (info.opt_class, info.has_betas, info.has_eps, info.has_momentum) == (Lamb, True, True, False)
    assert optim.get_optimizer_class("layerwise_lars", bind_defaults=False) is Lars
    weights = [nn.Parameter(torch.ones(2))]
    bound = optim.get_optimizer_class("layerwise_lamb")(weights, lr=0.1)
    assert bound.param_groups[0]["max_grad_norm"] == 1.0
    bound = optim.get_optimizer_class("layerwise_lars")(weights, lr=0.1)
    assert bound.param_groups[0]["momentum"] == 0.9  # as timm's factory gives it, and not 0 as its class has it


@pytest.mark.parametrize("name", ["lamb", "lookahead_adam", "sgd", "adafactor", "LAMB"])
def test_names_of_timm_stay_its_own(name):
    optimizer = optim.create_optimizer_v2(model(), opt=name, lr=0.1)
    inner = getattr(optimizer, "_base_optimizer", optimizer)
    assert not type(inner).__module__.startswith("layerwise")


@pytest.mark.parametrize("name", ["layerwise_adam", "layerwise_lam"])
def test_an_unknown_name_is_not_replaced_by_another(name):
    with pytest.raises(ValueError, match="not found in registry"):
        optim.create_optimizer_v2(model(), opt=name, lr=0.1)


def test_a_run_configured_for_timms_lamb_goes_on_as_it_was():
    theirs, ours = model(), model()
    given = {"lr": 0.02, "weight_decay": 0.02, "betas": (0.9, 0.99)}
    before = optim.create_optimizer_v2(theirs, opt="lamb", **given)
    after = optim.create_optimizer_v2(ours, opt="layerwise_lamb", **given)
    assert train(ours, after) == pytest.approx(train(theirs, before), rel=1e-4)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


def test_checkpoints_of_timm_load_because_groups_have_its_order():
    theirs = model()
    given = {"lr": 0.02, "weight_decay": 0.02}
    before = optim.create_optimizer_v2(theirs, opt="lamb", **given)
    train(theirs, before, 3)
    ours = copy.deepcopy(theirs)
    after = optim.create_optimizer_v2(ours, opt="layerwise_lamb", **given)
    after.load_state_dict(convert(before.state_dict(), "timm.Lamb"))
    assert train(ours, after, 3) == pytest.approx(train(theirs, before, 3), rel=1e-4)


def test_scales_of_the_rate_by_layers_are_followed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import timm
    made = timm.create_model(
        "vit_tiny_patch16_224", depth=2, embed_dim=16, num_heads=2, img_size=32, patch_size=16, num_classes=3
    )
    optimizer = optim.create_optimizer_v2(made, opt="layerwise_lamb", lr=0.02, weight_decay=0.01, layer_decay=0.5)
    assert {group["lr_scale"] for group in optimizer.param_groups} > {1.0, 0.5}
    from timm.scheduler import CosineLRScheduler

    CosineLRScheduler(optimizer, 10).step(0)
    assert {group["lr"] for group in optimizer.param_groups} == {0.02 * g["lr_scale"] for g in optimizer.param_groups}
    made(torch.randn(2, 3, 32, 32)).square().mean().backward()
    optimizer.step()


def rules(optimizer):
    return {
        name: (group["rule"], group["weight_decay"])
        for group in optimizer.param_groups
        for name in group["param_names"]
    }


def test_muon_has_the_hidden_matrices_and_adamw_the_rest():
    given = {"opt": "layerwise_muon", "lr": 0.02, "weight_decay": 0.01}
    made = optim.create_optimizer_v2(model(), **given)
    assert rules(made) == {
        "0.weight": ("Muon", 0.01),
        "1.weight": ("AdamW", 0.0),
        "1.bias": ("AdamW", 0.0),
        "4.weight": ("AdamW", 0.01),
        "4.bias": ("AdamW", 0.0),
    }
    assert {group["rule"]: group["lr"] for group in made.param_groups} == pytest.approx({"Muon": 0.02, "AdamW": 0.001})
    with pytest.warns(UserWarning, match="Muon got no hidden matrices, so AdamW steps everything"):
        made = optim.create_optimizer_v2(model(), **given, fallback_list=["0.*"])
    assert {rule for rule, _ in rules(made).values()} == {"AdamW"}
    made = optim.create_optimizer_v2(model(), **given, others=False)
    assert {rule for rule, _ in rules(made).values()} == {"Muon"}
    looking = optim.create_optimizer_v2(model(), **given | {"opt": "lookahead_layerwise_muon"})
    assert rules(looking._base_optimizer)["0.weight"] == ("Muon", 0.01)


def test_muon_keeps_scales_of_the_rate_by_layers_in_both_rules():
    made = nn.ModuleDict({"up": nn.Linear(3, 4), "body": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    made.group_matcher = lambda coarse: {"stem": r"^up", "blocks": r"^body"}
    opt = optim.create_optimizer_v2(made, opt="layerwise_muon", lr=0.02, weight_decay=0.01, layer_decay=0.5)
    scales = {name: (one["rule"], one["lr_scale"]) for one in opt.param_groups for name in one["param_names"]}
    plain = optim.create_optimizer_v2(made, opt="layerwise_lamb", lr=0.02, weight_decay=0.01, layer_decay=0.5)
    ids = {id(p): name for name, p in made.named_parameters()}
    of_plain = {ids[id(p)]: one["lr_scale"] for one in plain.param_groups for p in one["params"]}
    assert {name: scale for name, (_, scale) in scales.items()} == of_plain
    assert {name for name, (rule, _) in scales.items() if rule == "Muon"} == {"up.weight", "body.weight"}


def test_muon_of_parameters_alone_leaves_vectors_and_says_what_it_cannot_tell():
    with pytest.warns(UserWarning, match="cannot tell embeddings and the head from hidden matrices. Pass the model"):
        made = optim.create_optimizer_v2(model().parameters(), opt="layerwise_muon", lr=0.02)
    assert {(group["rule"], p.ndim > 1) for group in made.param_groups for p in group["params"]} == {
        ("Muon", True),
        ("AdamW", False),
    }
