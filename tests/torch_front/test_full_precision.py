"""Weights in full: read as a model's state_dict, set exactly, and in whichever order checkpoints are loaded."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn
from torch_front.front import bits, everything
from torch_front.storing import same, snapshot

from layerwise.errors import HyperparameterError, StateError
from layerwise.torch import Lamb, Lars, full_precision_state_dict, load_full_precision_state_dict

FORMS = [True, "split", "split24"]
forms = pytest.mark.parametrize("form", FORMS)


class Net(nn.Module):
    """Tied weights, a buffer, a frozen layer, and one part in float32."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(13, 8).to(torch.bfloat16)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8).to(torch.bfloat16).requires_grad_(False)
        self.head = nn.Linear(8, 13, bias=False).to(torch.bfloat16)
        self.head.weight = self.embed.weight
        self.other = nn.Linear(8, 13).to(torch.float16)


def made(form, seed=0, **options):
    net = Net(seed)
    return net, Lamb([(n, p) for n, p in net.named_parameters() if p.requires_grad], master_weights=form, **options)


def walk(net, opt, steps):
    for t in steps:
        draw = torch.Generator().manual_seed(t)
        for p in opt.parameters():
            p.grad = torch.randn(p.shape, generator=draw).to(p.dtype)
        opt.step()
        net.norm.num_batches_tracked += 1


def params(net):
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def through_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@forms
def test_read_and_set(form):
    net, opt = made(form)
    walk(net, opt, range(3))
    full = full_precision_state_dict(net, opt)
    assert list(full) == list(net.state_dict())
    for key, shown in net.state_dict().items():
        held = key.startswith(("embed", "head", "other"))
        assert full[key].dtype == (torch.float32 if held else shown.dtype), key
        assert not full[key].requires_grad
        if held:
            assert not torch.equal(full[key], shown.float())
            assert torch.allclose(full[key], shown.float(), rtol=2.0**-8, atol=1e-7)
    assert full["embed.weight"] is full["head.weight"]
    # Into a model that has not stepped yet, and into one that has.
    for steps in (0, 2):
        other, new = made(form, seed=9)
        walk(other, new, range(steps))
        load_full_precision_state_dict(other, new, through_file(full))
        same(full_precision_state_dict(other, new), full)
        again, fresh = made(form, seed=8)
        fresh.load_state_dict(new.state_dict())  # what was made for the weights is a state like others
        assert not steps or fresh.state[again.embed.weight]["step"] == 2
    if form != "split24":
        random = {key: torch.randn_like(x) if x.is_floating_point() else x for key, x in full.items()}
        random["head.weight"] = random["embed.weight"]
        load_full_precision_state_dict(net, opt, random)
        float16 = {"other.weight", "other.bias"}
        found = full_precision_state_dict(net, opt)
        same(
            {k: x for k, x in found.items() if k not in float16}, {k: x for k, x in random.items() if k not in float16}
        )
        for key in float16:  # whose small numbers are units of 2^-40
            assert torch.allclose(found[key], random[key], rtol=0, atol=2.0**-40)


def test_what_goes_on_is_the_run_itself():
    """The state by its checkpoint, the weights in full."""
    net, opt = made("split")
    walk(net, opt, range(3))
    full, saved = through_file(full_precision_state_dict(net, opt)), through_file(opt.state_dict())
    other, new = made("split", seed=9)
    new.load_state_dict(saved)
    load_full_precision_state_dict(other, new, full)
    for one in ((net, opt), (other, new)):
        walk(*one, range(3, 5))
    same(snapshot(new, params(other)), snapshot(opt, params(net)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.compile imports
@pytest.mark.parametrize("wrap", [nn.DataParallel, pytest.param(torch.compile, marks=pytest.mark.slow)])
def test_keys_are_those_of_the_model_as_it_is_wrapped(wrap):
    net, opt = made("split")
    walk(net, opt, [0])
    wrapped = wrap(net)
    full = full_precision_state_dict(wrapped, opt)
    assert list(full) == list(wrapped.state_dict())
    load_full_precision_state_dict(wrapped, opt, full)
    with pytest.raises(StateError, match="Prefixes"):
        load_full_precision_state_dict(net, opt, full)


@pytest.mark.parametrize("saved_as", [*FORMS, False])
@pytest.mark.parametrize("form", [*FORMS, False])
@pytest.mark.parametrize("first", ["model", "optimizer"])
def test_checkpoints_may_be_loaded_in_any_order(first, form, saved_as):
    net, opt = made(saved_as)
    walk(net, opt, range(3))
    full = {key: x.clone() for key, x in full_precision_state_dict(net, opt).items()}
    model, saved = through_file(net.state_dict()), through_file(opt.state_dict())
    other, new = made(form, seed=9, lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the option that differs
        for what in ("model", "optimizer") if first == "model" else ("optimizer", "model"):
            other.load_state_dict(model) if what == "model" else new.load_state_dict(saved)
    new.param_groups[0]["lr"] = 0.0
    walk(other, new, [3])
    found = full_precision_state_dict(other, new)
    for key in ("embed.weight", "other.bias"):
        if form in (True, "split"):
            exact = key == "embed.weight" or (form is True) or saved_as != True  # noqa: E712
            assert torch.allclose(found[key], full[key].float(), rtol=0 if exact else 2.0**-24, atol=0), key
        error = (found[key].float() - full[key].float()).abs() / full[key].float().abs()
        assert error.max() <= (2.0**-16 if form == "split24" else 2.0**-8)


def test_several_optimizers_hold_one_model():
    net = Net()
    first = Lamb([("embed.weight", net.embed.weight)], master_weights="split")
    second = Lars([("other.weight", net.other.weight)], master_weights=True)
    for opt in (first, second):
        walk(net, opt, [0])
    full = full_precision_state_dict(net, [first, second])
    assert full["head.weight"].dtype == full["other.weight"].dtype == torch.float32
    assert full["other.bias"].dtype == torch.float16
    load_full_precision_state_dict(net, [first, second], full)
    same(full_precision_state_dict(net, [first, second]), full)


def wrong(full):
    yield {**full, "more": torch.ones(1)}, "unknown 'more'"
    yield {key: x for key, x in full.items() if key != "embed.weight"}, "missing 'embed.weight'"
    yield {**full, "other.bias": torch.ones(12)}, "other.bias.*shape"
    yield {**full, "other.bias": [1.0]}, "other.bias.*list"
    yield {**full, "other.bias": torch.ones(13, dtype=torch.int16)}, "other.bias.*int16"
    yield {**full, "other.bias": torch.ones(13, device="meta")}, "other.bias"
    yield {**full, "head.weight": full["head.weight"] + 1}, "head.weight.*tied"
    yield [full], "must be a dict"


@forms
def test_what_does_not_fit_changes_nothing(form):
    net, opt = made(form)
    walk(net, opt, range(2))
    full = {key: x.clone() for key, x in full_precision_state_dict(net, opt).items()}
    walk(net, opt, range(2, 3))
    before = everything(opt, params(net)), bits(dict(net.state_dict()))
    for given, named in wrong(full):
        with pytest.raises(StateError, match=f"(?s){named}"):
            load_full_precision_state_dict(net, opt, given)
        assert (everything(opt, params(net)), bits(dict(net.state_dict()))) == before


def test_an_optimizer_of_another_kind_is_refused():
    net = Net()
    for call in (full_precision_state_dict, lambda m, o: load_full_precision_state_dict(m, o, m.state_dict())):
        with pytest.raises(HyperparameterError, match=r"layerwise\.torch"):
            call(net, torch.optim.SGD(net.parameters(), lr=0.1))


def test_a_copy_of_the_model_has_no_optimizer():
    net, opt = made("split")
    walk(net, opt, [0])
    copied = copy.deepcopy(net)
    assert full_precision_state_dict(copied, opt)["embed.weight"].dtype == torch.bfloat16
