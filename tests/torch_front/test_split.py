"""Split weights: bit for bit float32 ones, or 24 bits of them, whatever happens between the steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter
from torch_front.front import FRONT_OF, busy, fronts, in_slices, lows
from torch_front.storing import BLOCKS, by_one_engine, engines, give, held, made, same, snapshot, walk

from layerwise.storage import weights
from layerwise.torch import SGD, Lamb, load_full_precision_state_dict
from layerwise.torch.step import _formats
from layerwise.torch.step._namespace import BITS
from layerwise.torch.step._storage import full_weight

NAN, INF = float("nan"), float("inf")
FEW = {"matrix": (9, 7), "stack": (2, 3, 4), "bias": (17,), "other": (17,), "scalar": ()}
words = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64)
kept_bits = pytest.mark.parametrize("kept", [16, 8])


def floats(bits: list[int]) -> torch.Tensor:
    return torch.tensor([b - (b >> 31 << 32) for b in bits], dtype=torch.int32).view(torch.float32)


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == x, x.view(torch.int32), 0x7FC00000)


POWERS = [2.0**k * torch.tensor([1 - 2.0**-12, 1 - 2.0**-13, -1 + 2.0**-12, 1 + 2.0**-12]) for k in range(-13, 16)]
EDGES = floats([0, 1 << 31, 1, 0x7FFF, 0x8000, 0x80008000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000])


@draws(100)
@given(words)
def test_a_bfloat16_and_16_bits_are_a_float32(bits):
    x = torch.cat([floats(bits), EDGES])
    p, rest = weights.split_bf16(BITS, x, 16)
    assert torch.equal(p[x == x].to(torch.bfloat16).float(), p[x == x])
    assert rest.min() >= -(2**15)
    assert rest.max() < 2**15
    back = weights.join_bf16(BITS, p.to(torch.bfloat16).float(), rest.to(torch.int16).to(torch.int64), 16)
    assert torch.equal(as_bits(back), as_bits(x))


@draws(100)
@given(words, st.sampled_from([None, 0, 1, 2**31, 2**32 - 1]))
def test_24_bits_are_near(bits, drawn):
    """Half of a last place of 24 bits off, or a whole one where it is drawn which way to round."""
    x = torch.cat([floats(bits), EDGES])
    random = None if drawn is None else torch.full(x.shape, drawn)
    p, rest = weights.split_bf16(BITS, x, 8, random)
    back = weights.join_bf16(BITS, p.to(torch.bfloat16).float(), rest.to(torch.int8).to(torch.int64), 8)
    normal = (x.abs() >= 2.0**-126) & (x.abs() < 3.4e38)
    error = ((back.double() - x.double()) / x.double()).abs()[normal]
    assert bool((error <= 2.0 ** -(16 if drawn is None else 15)).all())
    assert torch.equal(back[~torch.isfinite(x)].isfinite(), torch.zeros(int((~torch.isfinite(x)).sum()), dtype=bool))


@draws(100)
@kept_bits
@given(bits=words)
def test_float16_and_what_it_lacks(bits, kept):
    """27 bits of a normal number, which are all of a float32, or 19; units of 2^-40 or 2^-32 below that."""
    x = torch.cat(
        [floats(bits), EDGES, torch.linspace(-70000, 70000, 1001), torch.linspace(-1e-4, 1e-4, 1001), *POWERS]
    )
    x = x[x.abs() < 65504]
    p, rest = weights.split_f16(BITS, x, kept)
    assert torch.equal(p.half().float(), p)
    stored = rest.to(torch.int16 if kept == 16 else torch.int8).to(torch.int64)
    assert torch.equal(stored, rest)
    back = weights.join_f16(BITS, p, stored, kept).double()
    if kept == 16:
        large = x.abs() >= 2.0**-14
        assert torch.equal(back[large], x[large].double())
    unit = torch.maximum(2.0 ** torch.floor(torch.log2(x.double().abs())), torch.tensor(2.0**-14)) * 2.0 ** -(10 + kept)
    error = (back - x.double()).abs()
    assert bool((error <= 0.5 * unit).all()), x[error > 0.5 * unit]
    if kept == 8:
        large = x.abs() >= 2.0**-14
        assert bool((((back - x.double()) / x.double()).abs()[large] <= 2.0**-16).all())


# ---- steps


def twins(front: Any, fused: Any, shapes: Any, **options: Any) -> Any:
    """Return runs from the same weights with float32 masters, and with split weights."""
    for form in (True, "split"):
        params = made(shapes=shapes)
        yield busy(front, params.items(), fused=fused, master_weights=form, **options), params


@engines
@pytest.mark.parametrize("steps", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.thinned(1)
@fronts
def test_many_steps_are_those_of_masters(front, steps, fused):
    """With a scaler that finds infinities, clipping, a schedule and blocks."""
    clipped = {"max_grad_norm": 1.0} if "max_grad_norm" in front._hyper.__dataclass_fields__ else {}
    shapes = {"matrix": (9, 7), "stack": (2, 3, 4)}
    runs = list(twins(front, fused, shapes, blocks={"stack": "each"}, **clipped))
    tried = []
    for opt, params in runs:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=50)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 0.1 + 0.9 * abs((t % 200) / 100 - 1))
        for t in range(steps):
            scale = scaler.scale(torch.ones(())).item()
            give(params, t, 0.01 * scale)
            if t % 97 == 5:
                params["matrix"].grad[0, 0] = INF
            scaler.step(opt)
            scaler.update()
            schedule.step()
        tried.append(held(opt, params))
        assert {opt.state[p]["step"].item() for p in params.values()} == {steps - len(range(5, steps, 97))}
    by_one_engine(*(opt for opt, _ in runs))
    same(*tried)
    assert all(torch.isfinite(x).all() for x in tried[0].values())


@engines
@pytest.mark.parametrize("sliced", [False, True], ids=["stacked", "sliced"])
@fronts
def test_the_same_float32_on_large_and_small(front, fused, sliced, monkeypatch):
    """However many tensors are stepped as one, and in however many slices a large one is taken."""
    shapes = {**FEW, "matrix": (70, 65), "wide": (3, 4000), "first": (33, 70), "second": (33, 70)}
    runs = list(twins(front, fused, shapes, blocks=BLOCKS))
    if sliced:
        in_slices(monkeypatch, 2000)
    for opt, params in runs:
        walk(opt, params, range(3))
    by_one_engine(*(opt for opt, _ in runs))
    ours, theirs = (held(opt, params) for opt, params in runs)
    same(ours, theirs)


@engines
@fronts
def test_what_is_shown_differs_from_masters_in_ties_alone(front, fused):
    (ours, split), (theirs, masters) = list(twins(front, fused, FEW))[::-1]
    for opt, params in ((ours, split), (theirs, masters)):
        walk(opt, params, range(20))
    by_one_engine(ours, theirs)
    for name, p in split.items():
        low = held(theirs, masters)[name].view(torch.int32) & 0xFFFF
        assert torch.equal(p[low != 0x8000], masters[name][low != 0x8000])


@engines
@lows
@pytest.mark.parametrize("rounding", [None, "nearest"])
@fronts
@pytest.mark.thinned(1)
def test_24_bits_lose_little_in_each_step(front, low, rounding, fused):
    """Beside a float32 run that is put where this one is before each step."""
    params = made(low, FEW)
    opt = busy(front, params.items(), master_weights="split24", rounding=rounding, fused=fused, lr=1e-3)
    walk(opt, params, range(2))
    most = 2.0 ** -(16 if rounding else 15)
    for t in range(2, 8):
        wide = {name: Parameter(x.float()) for name, x in held(opt, params).items()}
        calm = busy(front, wide.items(), fused=False, lr=1e-3)
        for name, p in params.items():
            calm.state[wide[name]] = {
                key: x.clone() for key, x in opt.state[p].items() if key not in ("master", "remainder")
            }
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


# ---- what others write


@pytest.mark.parametrize("form", ["split", "split24"])
@lows
@pytest.mark.parametrize("how", ["in place", "by an initializer", "by data", "of one element"])
def test_zeros_are_zeros(how, low, form):
    """Else the norm of a tensor of zeros would be that of remainders, and no step would move it."""
    params = made(low, {"matrix": (9, 7)})
    opt = Lamb(params.items(), lr=0.1, master_weights=form)
    walk(opt, params, range(3))
    p = params["matrix"]
    with torch.no_grad():
        if how == "in place":
            p.zero_()
        elif how == "by an initializer":
            torch.nn.init.zeros_(p)
        elif how == "by data":
            load_full_precision_state_dict(torch.nn.ParameterDict(params), opt, {"matrix": torch.zeros(9, 7)})
        else:
            p[0] = 0
    give(params, 3)
    opt.step()
    assert bool((p[0].abs() > 1e-3).all() if how != "of one element" else (p[0].abs() > 0).all())
    assert bool(torch.isfinite(held(opt, params)["matrix"]).all())


@pytest.mark.parametrize("form", ["split", "split24"])
@lows
def test_what_others_write_is_the_weight_to_its_last_place(low, form):
    """A remainder of other weights says less than half of a place."""
    params = made(low, {"matrix": (9, 7)})
    opt = Lamb(params.items(), lr=0.1, master_weights=form)
    walk(opt, params, range(3))
    for write in (lambda p: p.data.mul_(0.3), lambda p: p.clamp_(-0.1, 0.1), lambda p: p.copy_(torch.randn(9, 7))):
        with torch.no_grad():
            write(params["matrix"])
        shown = params["matrix"].detach().clone()
        assert torch.equal(held(opt, params)["matrix"].to(low), shown) or form == "split24" or low == torch.float16
        close = (held(opt, params)["matrix"] - shown.float()).abs() <= shown.float().abs() * 2.0**-8 + 1e-7
        assert bool(close.all())
        walk(opt, params, range(1))


@pytest.mark.parametrize("form", ["split", "split24"])
def test_weights_and_average_swapped_and_back(form):
    """Evaluation with averaged weights leaves the run as it was."""
    found = []
    for swaps in (False, True):
        params = made(shapes={"matrix": (9, 7)})
        opt = Lamb(params.items(), lr=0.01, master_weights=form)
        for t in range(4):
            walk(opt, params, [t])
            if swaps:
                kept = params["matrix"].detach().clone()
                params["matrix"].data.copy_(torch.full((9, 7), 7.0))
                with torch.no_grad():
                    params["matrix"].copy_(kept)
        found.append(snapshot(opt, params))
    same(*found)


# ---- from one form to another


@pytest.mark.parametrize("to", [True, "split", "split24", False])
@pytest.mark.parametrize("form", [True, "split", "split24", False])
def test_a_group_may_change_its_form_at_any_time(form, to):
    params = made(shapes=FEW)
    opt = FRONT_OF["Lamb"](params.items(), lr=0.01, master_weights=form)
    walk(opt, params, range(3))
    before = held(opt, params)
    opt.param_groups[0]["master_weights"] = to
    opt.param_groups[0]["lr"] = 0.0
    walk(opt, params, [3])
    after = held(opt, params)
    if to in (True, "split"):
        same({name: x.float() for name, x in before.items()}, after)
    kinds = {key: x.dtype for key, x in opt.state[params["matrix"]].items() if key in ("master", "remainder")}
    wanted = {True: {"master": torch.float32}, False: {}}
    assert kinds == wanted.get(to, {"remainder": _formats.REMAINDERS.get(to)})
    for name, p in params.items():
        shown = p.detach().float()
        assert bool(((after[name].float() - shown).abs() <= shown.abs() * 2.0**-8).all())
        if form:
            low = before[name].view(torch.int32) & 0xFFFF
            nearest = before[name].bfloat16().float()
            assert bool(((shown == nearest) | ((low - 0x8000).abs() <= 128)).all())


def test_float32_parameters_have_nothing_beside_them():
    params = made(torch.float32, FEW)
    opt = Lamb(params.items(), master_weights="split", rounding="stochastic", fused=False)
    twin = made(torch.float32, FEW)
    plain = Lamb(twin.items(), fused=False)
    walk(opt, params, range(3))
    walk(plain, twin, range(3))
    same(snapshot(opt, params), snapshot(plain, twin))


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sign", [1, -1])
def test_24_bits_do_not_grow(low, sign):
    """Against float32 in the same steps: the mean of what was rounded is 0, within three of its standard deviations."""
    start = (sign * (torch.rand(100, 100, generator=torch.Generator().manual_seed(0)) + 1)).to(low)
    p, q = Parameter(start.clone()), Parameter(start.float())
    opt = SGD([("w", p)], lr=1e-3, momentum=0.5, master_weights="split24")
    exact = SGD([("w", q)], lr=1e-3, momentum=0.5)
    for t in range(500):
        p.grad = torch.randn(100, 100, generator=torch.Generator().manual_seed(t)).to(low)
        q.grad = p.grad.float()
        opt.step()
        exact.step()
    growth = (full_weight(p, opt.state[p]) / q.detach() - 1).double()
    assert abs(growth.mean() / growth.std()) * 100 < 3


def test_24_bits_take_steps_below_half_of_their_last_place():
    p = Parameter(torch.full((64, 64), 1.5, dtype=torch.bfloat16))
    opt = Lamb([("w", p)], lr=1e-6, master_weights="split24")
    for _ in range(200):
        p.grad = torch.ones_like(p)
        opt.step()
    assert (1.5 - full_weight(p, opt.state[p]).mean()).item() == pytest.approx(200 * 1e-6 * 1.5, rel=0.05)
