"""Stochastic rounding: by bits that belong to the element, whatever else is different."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter
from torch_front.front import busy, fronts, in_slices, lows
from torch_front.storing import BLOCKS, by_one_engine, engines, give, made, same, snapshot, walk

import layerwise
from layerwise.storage import weights
from layerwise.torch import Adafactor, Lamb, Lars, step_in_backward
from layerwise.torch.step._namespace import BITS

SHAPES = {"matrix": (70, 65), "like": (70, 65), "bias": (17,), "other": (17,)}
ROUNDED = {"rounding": "stochastic", "state_dtype": "bfloat16"}


@lows
def test_it_is_unbiased(low):
    """A million draws of one number: their mean is within four standard errors of it."""
    n, x = 1_000_000, 1.0 + 0.3 * (2.0**-7 if low == torch.bfloat16 else 2.0**-10)
    p = Parameter(torch.full((n,), x).to(low))
    opt = Lars([("w", p)], lr=1.0, momentum=0.0, adapt=False, rounding="stochastic", fused=False)
    step = x - p.detach().float()[0].item()
    p.grad = torch.full((n,), -step).to(low)
    wanted = p.detach().float()[0].item() - p.grad.float()[0].item()
    opt.step()
    found = p.detach().double()
    assert len(found.unique()) == 2
    assert abs(found.mean().item() - wanted) <= 4 * found.std().item() / n**0.5


@lows
def test_what_cannot_be_rounded_stays(low):
    most = torch.finfo(low).max
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), most, -most, 0.0, -0.0, torch.finfo(low).tiny / 4])
    round_ = weights.round_bf16 if low == torch.bfloat16 else weights.round_f16
    for drawn in (0, 2**31, 2**32 - 1):
        found = round_(BITS, x, torch.full(x.shape, drawn))
        assert torch.equal(found.nan_to_num(), x.nan_to_num())
        assert torch.equal(found.to(low).float().nan_to_num(), x.nan_to_num())
        assert torch.equal(torch.signbit(found[1:]), torch.signbit(x[1:]))


@pytest.mark.parametrize("front", [Lamb, Lars, Adafactor])
def test_it_moves_what_nearest_leaves(front):
    """A hundred steps of a tenth of a last place; and the seed says where they lead."""
    found, alone = [], {Lars: {"adapt": False, "momentum": 0.0}}.get(front, {})
    for options in ({}, {"rounding": "stochastic"}, {"rounding": "stochastic", "seed": 1}):
        p = Parameter(torch.full((40, 40), 1.5, dtype=torch.bfloat16))
        opt = front([("w", p)], lr=4e-4, fused=False, **alone, **options)
        for _ in range(100):
            p.grad = torch.ones_like(p)
            opt.step()
        found.append(p.detach().float())
    assert torch.equal(found[0], torch.full((40, 40), 1.5))
    assert not torch.equal(found[1], found[2])
    moved = [(1.5 - x).mean().item() for x in found]
    assert moved[1] == pytest.approx(moved[2], rel=0.1)
    assert moved[1] > 0.005


@engines
@fronts
def test_neither_order_nor_company_nor_slices_matter(front, fused, monkeypatch):
    params = made(shapes=SHAPES)
    opt = busy(front, params.items(), fused=fused, **ROUNDED, **_unclipped(front))
    walk(opt, params, range(3))
    turned = dict(reversed(made(shapes=SHAPES).items()))
    groups = [{"params": [(name, p)]} for name, p in turned.items()]
    if fused is False:
        in_slices(monkeypatch, 2000)
    other = busy(front, groups, fused=fused, **ROUNDED, **_unclipped(front))
    for t in range(3):
        give(params, t)
        for name, p in turned.items():
            p.grad = params[name].grad
        other.step()
    ours, theirs = snapshot(opt, params), snapshot(other, turned)
    alike(ours, theirs)


def alike(ours, theirs):
    """Sums in another order are others in the last digit of float32, which rounding seldom shows."""
    for key, x in ours.items():
        assert torch.allclose(x.double(), theirs[key].double(), rtol=1e-2, atol=1e-5), key
        if x.dtype == torch.bfloat16:
            assert (x == theirs[key]).double().mean() > 0.99, key


def _unclipped(front):
    return {"max_grad_norm": None} if "max_grad_norm" in front._hyper.__dataclass_fields__ else {}


@engines
@pytest.mark.parametrize("front", [Lamb, Lars])
def test_in_the_backward_pass_and_after_it(front, fused):
    found = []
    for backward in (False, True):
        params = made(shapes=SHAPES)
        opt = front(params.items(), lr=0.01, fused=fused, **ROUNDED)
        handle = step_in_backward(opt) if backward else None
        for t in range(3):
            give(params, t)
            given = {name: p.grad.float() for name, p in params.items()}
            opt.zero_grad()
            sum((p.float() * given[name]).sum() for name, p in params.items()).backward()
            opt.step()
            opt.zero_grad()
        found.append(snapshot(opt, params))
        del handle
    alike(*found)


@engines
@pytest.mark.parametrize("threads", [1, 3])
def test_a_thread_more_changes_nothing(threads, fused):
    before = layerwise.get_num_threads()
    found = []
    try:
        for n in (before, threads):
            layerwise.set_num_threads(n)
            params = made()
            opt = Lamb(params.items(), lr=0.01, blocks=BLOCKS, fused=fused, **ROUNDED)
            walk(opt, params, range(2))
            found.append(snapshot(opt, params))
    finally:
        layerwise.set_num_threads(before)
    same(*found)


SCRIPT = """
    import pickle, sys, torch
    sys.path.insert(0, sys.argv[1])
    from torch_front.storing import made, snapshot, walk
    from layerwise.torch import Lamb
    model, saved, options = pickle.load(open(sys.argv[2], "rb"))
    params = made(shapes={name: tuple(p.shape) for name, p in model.items()}, seed=9)
    opt = Lamb(params.items(), lr=0.01, **options)
    opt.load_state_dict(saved)
    for name, p in params.items():
        p.data.copy_(model[name])
    walk(opt, params, range(3, 6))
    pickle.dump(snapshot(opt, params), open(sys.argv[3], "wb"))
"""


@pytest.mark.slow  # two imports of PyTorch; that a checkpoint goes on is tried within a process as well
@pytest.mark.parametrize(
    "options", [ROUNDED, {"master_weights": "split24", "state_dtype": "int8", "rounding": "stochastic", "seed": 7}]
)
def test_a_new_process_goes_on(tmp_path, options):
    params = made(shapes=SHAPES)
    opt = Lamb(params.items(), lr=0.01, **options)
    walk(opt, params, range(3))
    before = {name: p.detach().clone() for name, p in params.items()}
    with (tmp_path / "saved").open("wb") as file:
        pickle.dump((before, opt.state_dict(), options), file)
    walk(opt, params, range(3, 6))
    tests = str(Path(__file__).parent.parent)
    given = [sys.executable, "-c", textwrap.dedent(SCRIPT), tests, str(tmp_path / "saved"), str(tmp_path / "found")]
    subprocess.run(given, check=True)
    with (tmp_path / "found").open("rb") as file:
        same(pickle.load(file), snapshot(opt, params))


@engines
def test_each_group_for_itself(fused):
    """And float32 has nothing to round."""
    params, twin = made(shapes=SHAPES), made(shapes=SHAPES)
    wide = Parameter(torch.ones(9, 7))
    groups = [
        {"params": [("matrix", params["matrix"]), ("wide", wide)], "rounding": "stochastic", "seed": 3},
        {"params": [("like", params["like"])]},
    ]
    opt, plain = Lamb(groups, lr=1e-3, fused=fused), Lamb([("like", twin["like"])], lr=1e-3, fused=fused)
    alike = Parameter(torch.ones(9, 7))
    calm = Lamb([("wide", alike)], lr=1e-3, fused=fused)
    for t in range(3):
        give({**params, "wide": wide}, t)
        twin["like"].grad, alike.grad = params["like"].grad, wide.grad
        for one in (opt, plain, calm):
            one.step()
    by_one_engine(opt, plain)
    assert torch.equal(params["like"], twin["like"])
    assert torch.allclose(wide, alike, rtol=1e-6, atol=0)


def test_replicas_stay_alike():
    """Each rounds by itself, by the same bits."""
    found = []
    for _ in range(2):
        params = made(shapes=SHAPES)
        opt = Lamb(params.items(), lr=0.01, **ROUNDED)
        walk(opt, params, range(3))
        found.append(snapshot(opt, params))
    same(*found)


def test_a_name_is_the_same_with_wrappers_around_it():
    found = []
    for prefix in ("", "module.", "_orig_mod."):
        params = made(shapes=SHAPES)
        opt = Lamb([(prefix + name, p) for name, p in params.items()], lr=0.01, **ROUNDED)
        walk(opt, params, range(2))
        found.append(snapshot(opt, params))
    same(found[0], found[1])
    same(found[0], found[2])


def test_a_captured_step_draws_by_the_count_on_the_device():
    found = []
    for capturable in (False, True):
        params = made(shapes=SHAPES)
        opt = Lamb(params.items(), lr=0.01, capturable=capturable, fused=False, **ROUNDED)
        walk(opt, params, range(3))
        found.append(snapshot(opt, params))
    differ = [(found[0][key] != found[1][key]).double().mean().item() for key in found[0]]
    assert max(differ) < 1e-3  # coefficients are computed on the device then
