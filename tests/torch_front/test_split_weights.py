"""16-bit weights beside which the digits they lack are kept: float32 bit for bit, or 24 bits; others may write them."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch_front.front import bits, busy, everything, fronts, in_slices, lows
from torch_front.storing import BLOCKS, by_one_engine, engines, give, held, made, same, snapshot, walk

from layerwise.errors import HyperparameterError, StateError
from layerwise.torch import SGD, Lamb, full_precision_state_dict, load_full_precision_state_dict
from layerwise.torch.arrays._library import named_state

pytestmark = pytest.mark.thinned(1, 2)
FEW = {"matrix": (9, 7), "stack": (2, 3, 4), "bias": (17,), "other": (17,), "scalar": ()}
FORMS = [True, "split", "split24"]
forms = pytest.mark.parametrize("form", FORMS)
splits = pytest.mark.parametrize("form", ["split", "split24"])


def masters_and_split(front: Any, fused: Any, shapes: Any, **options: Any) -> Any:
    """Return runs from the same weights with float32 masters, and with split weights."""
    for form in (True, "split"):
        params = made(shapes=shapes)
        yield busy(front, params.items(), fused=fused, master_weights=form, **options), params


# ---- steps


@engines
@fronts
def test_a_long_run_is_that_of_masters(front, fused):
    """With a scaler that finds infinities, a schedule and blocks."""
    tried = []
    runs = list(masters_and_split(front, fused, {"matrix": (9, 7), "stack": (2, 3, 4)}, blocks={"stack": "each"}))
    for opt, params in runs:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=20)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 0.1 + 0.9 * abs((t % 50) / 25 - 1))
        for t in range(50):
            give(params, t, 0.01 * scaler.scale(torch.ones(())).item())
            if t % 37 == 5:
                params["matrix"].grad[0, 0] = float("inf")
            scaler.step(opt)
            scaler.update()
            schedule.step()
        assert {opt.state[p]["step"].item() for p in params.values()} == {48}
        tried.append(held(opt, params))
    by_one_engine(*(opt for opt, _ in runs))
    same(*tried)
    assert all(torch.isfinite(x).all() for x in tried[0].values())


@fronts
def test_split_weights_are_masters_in_stacks_and_slices(front, monkeypatch):
    """What is shown differs from masters in ties alone."""
    shapes = {**FEW, "matrix": (70, 65), "wide": (3, 4000), "first": (33, 70), "second": (33, 70)}
    (theirs, masters), (ours, split) = masters_and_split(front, False, shapes, blocks=BLOCKS)
    in_slices(monkeypatch, 2000)
    for opt, params in ((theirs, masters), (ours, split)):
        walk(opt, params, range(3))
    wanted = held(theirs, masters)
    same(held(ours, split), wanted)
    for name, p in split.items():
        tie = (wanted[name].view(torch.int32) & 0xFFFF) == 0x8000
        assert torch.equal(p[~tie], masters[name][~tie])


@engines
@lows
@pytest.mark.parametrize("rounding", [None, "nearest"])
@fronts
def test_24_bits_lose_little_in_each_step(front, low, rounding, fused):
    """Beside a float32 run that is put where this one is before each step."""
    params = made(low, FEW)
    opt = busy(front, params.items(), master_weights="split24", rounding=rounding, fused=fused, lr=1e-3)
    walk(opt, params, range(2))
    most = 2.0 ** -(16 if rounding else 15)
    for t in range(2, 5):
        wide = {name: Parameter(x.float()) for name, x in held(opt, params).items()}
        calm = busy(front, wide.items(), fused=False, lr=1e-3)
        for name, p in params.items():
            calm.state[wide[name]] = {key: x.clone() for key, x in opt.state[p].items() if key != "remainder"}
        give(params, t)
        for name, p in params.items():
            wide[name].grad = p.grad.float()
        opt.step()
        calm.step()
        for name, x in held(opt, params).items():
            wanted = wide[name].detach().double()
            large = wanted.abs() > (2.0**-14 if low == torch.float16 else 0)
            error = ((x.double() - wanted) / wanted).abs()[large]
            assert bool((error <= most * (1 + 2e-2) + 3e-7).all()), (name, error.max())


@lows
@pytest.mark.parametrize("sign", [1, -1])
def test_errors_of_24_bits_cancel(low, sign):
    """Against float32 in the same steps: the mean of what was rounded is 0, within three of its standard deviations."""
    start = (sign * (torch.rand(100, 100, generator=torch.Generator().manual_seed(0)) + 1)).to(low)
    p, q = Parameter(start.clone()), Parameter(start.float())
    opt = SGD([("w", p)], lr=1e-3, momentum=0.5, master_weights="split24")
    exact = SGD([("w", q)], lr=1e-3, momentum=0.5)
    for t in range(200):
        p.grad = torch.randn(100, 100, generator=torch.Generator().manual_seed(t)).to(low)
        q.grad = p.grad.float()
        opt.step()
        exact.step()
    growth = (named_state(opt.state[p]).weights_in_full(p.detach()) / q.detach() - 1).double()
    assert abs(growth.mean() / growth.std()) * 100 < 3


# ---- what others write


def _in_place(p: Any, opt: Any) -> None:
    p.zero_()


def _in_full(p: Any, opt: Any) -> None:
    load_full_precision_state_dict(nn.ParameterDict({"matrix": p}), opt, {"matrix": torch.zeros(9, 7)})


def _one_row(p: Any, opt: Any) -> None:
    p[0] = 0


@splits
@lows
@pytest.mark.parametrize("write", [_in_place, _in_full, _one_row])
def test_zeros_that_others_write_are_zeros(write, low, form):
    """Else the norm of a tensor of zeros would be that of remainders, and no step would move it."""
    params = made(low, {"matrix": (9, 7)})
    opt = Lamb(params.items(), lr=0.1, master_weights=form)
    walk(opt, params, range(3))
    with torch.no_grad():
        write(params["matrix"], opt)
    assert held(opt, params)["matrix"][0].abs().max() < 1e-6
    walk(opt, params, [3])
    assert bool((params["matrix"][0].abs() > (0 if write is _one_row else 1e-3)).all())


@splits
@lows
def test_what_others_write_is_the_weight_to_its_last_place(low, form):
    """A remainder of other weights says less than half of a place."""
    params = made(low, {"matrix": (9, 7)})
    opt = Lamb(params.items(), lr=0.1, master_weights=form)
    walk(opt, params, range(3))
    for write in (lambda p: p.data.mul_(0.3), lambda p: p.clamp_(-0.1, 0.1), lambda p: p.copy_(torch.randn(9, 7))):
        with torch.no_grad():
            write(params["matrix"])
        shown, full = params["matrix"].detach().clone(), held(opt, params)["matrix"]
        assert torch.equal(full.to(low), shown) or form == "split24" or low == torch.float16
        assert bool(((full - shown.float()).abs() <= shown.float().abs() * 2.0**-8 + 1e-7).all())
        walk(opt, params, range(1))


@splits
def test_weights_swapped_for_their_average_and_back_are_as_they_were(form):
    found = []
    for swaps in (False, True):
        params = made(shapes={"matrix": (9, 7)})
        opt = Lamb(params.items(), lr=0.01, master_weights=form)
        for t in range(3):
            walk(opt, params, [t])
            if swaps:
                kept = params["matrix"].detach().clone()
                params["matrix"].data.fill_(7.0)
                with torch.no_grad():
                    params["matrix"].copy_(kept)
        found.append(snapshot(opt, params))
    same(*found)


# ---- weights in full, of a model


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


def params_of(net: Any) -> dict[str, Any]:
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def begun(form: Any, seed: int = 0, steps: int = 0, **options: Any) -> Any:
    net = Net(seed)
    opt = Lamb(params_of(net).items(), master_weights=form, **options)
    on(net, opt, range(steps))
    return net, opt


def on(net: Any, opt: Any, steps: Any) -> None:
    walk(opt, dict(enumerate(opt.parameters())), steps)
    net.norm.num_batches_tracked += len(steps)


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@forms
def test_weights_in_full_have_the_keys_of_the_model_and_all_digits_that_are_held(form):
    net, opt = begun(form, steps=3)
    full = full_precision_state_dict(net, opt)
    assert list(full) == list(net.state_dict())
    assert full["embed.weight"] is full["head.weight"]
    for key, shown in net.state_dict().items():
        held_more = key.startswith(("embed", "head", "other"))
        assert full[key].dtype == (torch.float32 if held_more else shown.dtype), key
        assert not full[key].requires_grad
        if held_more:
            assert not torch.equal(full[key], shown.float())
            assert torch.allclose(full[key], shown.float(), rtol=2.0**-8, atol=1e-7)
    copied = copy.deepcopy(net)  # has no optimizer
    assert full_precision_state_dict(copied, opt)["embed.weight"].dtype == torch.bfloat16


@forms
@pytest.mark.parametrize("steps", [0, 2], ids=["before its first step", "after steps"])
def test_weights_in_full_are_set_exactly(form, steps):
    net, opt = begun(form, steps=3)
    full = full_precision_state_dict(net, opt)
    other, new = begun(form, seed=9, steps=steps)
    load_full_precision_state_dict(other, new, saved(full))
    same(full_precision_state_dict(other, new), full)
    again, fresh = begun(form, seed=8)
    fresh.load_state_dict(new.state_dict())  # what was made for the weights is a state like others
    assert not steps or fresh.state[again.embed.weight]["step"] == 2
    if form == "split24":
        return
    random = {key: torch.randn_like(x) if x.is_floating_point() else x for key, x in full.items()}
    random["head.weight"] = random["embed.weight"]
    load_full_precision_state_dict(net, opt, random)
    found = full_precision_state_dict(net, opt)
    for key, x in random.items():  # small numbers of float16 are units of 2^-40
        assert torch.allclose(found[key], x, rtol=0, atol=2.0**-40 if key.startswith("other") else 0)


def test_a_run_goes_on_from_its_state_and_its_weights_in_full():
    net, opt = begun("split", steps=3)
    full, state = saved(full_precision_state_dict(net, opt)), saved(opt.state_dict())
    other, new = begun("split", seed=9)
    new.load_state_dict(state)
    load_full_precision_state_dict(other, new, full)
    for one in ((net, opt), (other, new)):
        on(*one, range(3, 5))
    same(snapshot(new, params_of(other)), snapshot(opt, params_of(net)))


@pytest.mark.parametrize("saved_as", [*FORMS, False])
@pytest.mark.parametrize("form", [*FORMS, False])
@pytest.mark.parametrize("first", ["model", "optimizer"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the option that differs
def test_checkpoints_of_any_form_load_in_any_order(first, form, saved_as):
    net, opt = begun(saved_as, steps=3)
    full = {key: x.clone() for key, x in full_precision_state_dict(net, opt).items()}
    model, state = saved(net.state_dict()), saved(opt.state_dict())
    other, new = begun(form, seed=9, lr=0.0)
    for what in ("model", "optimizer") if first == "model" else ("optimizer", "model"):
        other.load_state_dict(model) if what == "model" else new.load_state_dict(state)
    new.param_groups[0]["lr"] = 0.0
    on(other, new, [3])
    found = full_precision_state_dict(other, new)
    for key in ("embed.weight", "other.bias"):
        wanted = full[key].float()
        if form in (True, "split"):
            exact = key == "embed.weight" or form is True or saved_as is not True
            assert torch.allclose(found[key], wanted, rtol=0 if exact else 2.0**-24, atol=0), key
        error = (found[key].float() - wanted).abs() / wanted.abs()
        assert error.max() <= (2.0**-16 if form == "split24" else 2.0**-8)


WRONG = {
    "the state_dict has 'more', which the model lacks": lambda full: {**full, "more": torch.ones(1)},
    "the state_dict lacks 'embed.weight', which the model has": lambda full: {
        key: x for key, x in full.items() if key != "embed.weight"
    },
    "other.bias.*shape": lambda full: {**full, "other.bias": torch.ones(12)},
    "other.bias.*list": lambda full: {**full, "other.bias": [1.0]},
    "other.bias.*int16": lambda full: {**full, "other.bias": torch.ones(13, dtype=torch.int16)},
    "other.bias": lambda full: {**full, "other.bias": torch.ones(13, device="meta")},
    "head.weight.*tied": lambda full: {**full, "head.weight": full["head.weight"] + 1},
    "must be a dict": lambda full: [full],
}


@forms
def test_weights_in_full_that_do_not_fit_change_nothing(form):
    net, opt = begun(form, steps=2)
    full = {key: x.clone() for key, x in full_precision_state_dict(net, opt).items()}
    on(net, opt, [2])
    before = everything(opt, params_of(net)), bits(dict(net.state_dict()))
    for named, change in WRONG.items():
        with pytest.raises(StateError, match=f"(?s){named}"):
            load_full_precision_state_dict(net, opt, change(full))
        assert (everything(opt, params_of(net)), bits(dict(net.state_dict()))) == before


def test_an_optimizer_of_another_package_is_refused():
    net = Net()
    theirs = torch.optim.SGD(net.parameters(), lr=0.1)
    for call in (
        lambda: full_precision_state_dict(net, theirs),
        lambda: load_full_precision_state_dict(net, theirs, net.state_dict()),
    ):
        with warnings.catch_warnings(), pytest.raises(HyperparameterError, match=r"layerwise\.torch"):
            call()
