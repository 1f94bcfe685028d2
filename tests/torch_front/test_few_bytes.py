"""State in 16 and 8 bits under PyTorch: its bytes, what may happen to it between steps, and that rounding it does no
harm.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from reference.former_codes import check, former_state
from torch.nn import Parameter
from torch_front.front import bits, busy, fronts, in_slices
from torch_front.storing import engines, give, made, same, snapshot, walk

from layerwise.errors import ContradictionError, StateError
from layerwise.torch import SGD, AdamW, Lamb, Lars, Muon
from layerwise.torch.arrays import _library
from layerwise.torch.checkpoints._saving import saved_state

pytestmark = pytest.mark.thinned(1, 2)
SHAPES = {"matrix": (70, 65), "like": (70, 65), "vector": (4100,), "small": (63, 65), "bias": (17,), "other": (17,)}
ROUNDED = {"rounding": "stochastic", "state_dtype": "bfloat16"}


def dtypes(opt: Any, p: Any) -> dict[str, Any]:
    return {key: x.dtype for key, x in opt.state[p].items() if key != "step"}


# ---- what there is


@pytest.mark.parametrize(
    ("options", "of_a_weight"),
    [
        ({}, 10.0),
        ({"master_weights": True}, 14.0),
        ({"master_weights": "split24", "state_dtype": "int8"}, 5 + 2 * 4 / 64),
        ({"master_weights": "split", "state_dtype": "int8"}, 6 + 2 * 4 / 64),
        (ROUNDED, 6.0),
    ],
)
def test_storage_says_the_bytes_of_weights_and_state(options, of_a_weight):
    params = made(shapes={"w": (256, 256)})
    opt = Lamb(params.items(), **options)
    before = opt.storage()
    assert before["w"]["bytes"] / 2**16 == of_a_weight
    walk(opt, params, [0])
    assert opt.storage() == before
    stored = [params["w"], *(x for key, x in opt.state[params["w"]].items() if key != "step")]
    assert before["w"]["bytes"] == sum(x.nbytes for x in stored)
    assert before["w"]["weights"] == {True: "bfloat16+32", "split": "bfloat16+16", "split24": "bfloat16+8"}.get(
        options.get("master_weights"), "bfloat16"
    )


@pytest.mark.parametrize("form", ["float32", "bfloat16", torch.int8])
def test_storage_says_the_format_of_each_field_and_why(form):
    opt = Lamb(made(torch.float32, SHAPES).items(), state_dtype=form)
    word = "int8" if form is torch.int8 else form
    for name, row in opt.storage().items():
        low = name in ("matrix", "like", "vector") and word != "float32"
        assert row["state"]["exp_avg"] == (word if low else "float32")
        assert ("exp_avg" in row["why"]) == (not low and word != "float32")


@pytest.mark.parametrize("quick", [None, "bfloat16"])
@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_of_muon_storage_says_the_momentum_s_format_and_the_dtype_of_products(monkeypatch, form, quick):
    """The momentum is stored by the option of all state, and the device has a say in the products."""
    monkeypatch.setattr(_library, "_quick", lambda device: quick)
    params = made(torch.float32, {"w": (70, 65)}) | {"wide": Parameter(torch.ones(70, 65, dtype=torch.float64))}
    row, wide = Muon(params.items(), state_dtype=form).storage().values()
    assert row["state"] == {"momentum_buffer": form}
    assert row["products"] == (quick or "float32")
    assert wide["products"] == "float64"
    [row] = Muon([("w", params["w"])], ns_dtype="float16").storage().values()
    assert row["products"] == "float16"


@pytest.mark.parametrize("option", [{"state_dtype": "int8"}, {"rounding": "stochastic"}, {"master_weights": "split"}])
def test_options_without_derivatives_are_refused(option):
    with pytest.raises(ContradictionError, match=next(iter(option))):
        Lamb([("w", Parameter(torch.ones(4, 4)))], **option, differentiable=True)


# ---- what happens between steps


def test_groups_have_formats_of_their_own_and_parameters_may_rest():
    params = made(shapes=SHAPES)
    matrix = params.pop("matrix")
    opt = Lamb(params.items(), state_dtype="int8", master_weights="split24")
    opt.add_param_group({"params": [("matrix", matrix)], "state_dtype": "bfloat16", "master_weights": "split"})
    params["matrix"] = matrix
    walk(opt, params, range(2))
    assert dtypes(opt, matrix) == {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16, "remainder": torch.int16}
    kept = bits(dict(opt.state[matrix]))
    give(params, 2)
    matrix.grad = None
    opt.step()
    assert bits(dict(opt.state[matrix])) == kept
    opt.clear_state("vector")
    walk(opt, params, [3])
    assert (opt.state[params["vector"]]["step"], opt.state[params["vector"]]["exp_avg"].dtype) == (1, torch.int8)
    assert sorted(opt.stats()) == sorted(params)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("exp_avg_unit", None),
        ("remainder", torch.zeros(70, 65)),
        ("exp_avg", torch.zeros(70, 65, dtype=torch.uint8)),
        ("exp_avg_unit", torch.ones(70, 3)),
    ],
    ids=str,
)
def test_state_spoiled_between_steps_is_named(key, value):
    params = made(shapes=SHAPES)
    opt = Lamb(params.items(), state_dtype="int8", master_weights="split")
    walk(opt, params, range(2))
    one = opt.state[params["matrix"]]
    kept = one.pop(key)
    if value is not None:
        one[key] = value
    with pytest.raises(StateError, match=f"{key}' of matrix|'{key}' is missing"):
        walk(opt, params, [2])
    one[key] = kept
    walk(opt, params, [2])


def test_a_remainder_beside_weights_that_lack_nothing_is_refused():
    params = made(torch.float32, {"w": (3,)})
    opt = Lamb(params.items())
    walk(opt, params, [0])
    opt.state[params["w"]]["remainder"] = torch.zeros(3, dtype=torch.int8)
    with pytest.raises(StateError, match="'remainder' of w must be absent for weights"):
        walk(opt, params, [1])


def test_momentum_in_8_bits_may_be_turned_off_and_on():
    params = made(shapes=SHAPES)
    opt = SGD(params.items(), lr=0.1, momentum=0.9, state_dtype="int8")
    walk(opt, params, [0])
    for momentum in (0.0, 0.9):
        opt.param_groups[0]["momentum"] = momentum
        walk(opt, params, [1])
    assert opt.state[params["matrix"]]["momentum_buffer"].dtype == torch.int8


def test_momentum_in_8_bits_takes_lr_in_or_out_by_its_scale():
    params, other = made(torch.float32, SHAPES), made(torch.float32, SHAPES)
    opt = Lars(params.items(), lr=0.25, lr_in_momentum=True, state_dtype="int8")
    walk(opt, params, range(2))
    new = Lars(other.items(), lr=0.25, lr_in_momentum=False)
    new.load_state_dict(opt.state_dict())
    ours, theirs = new.state[other["matrix"]], opt.state[params["matrix"]]
    assert torch.equal(ours["momentum_buffer"], theirs["momentum_buffer"])
    assert torch.allclose(ours["momentum_buffer_unit"] * 0.25, theirs["momentum_buffer_unit"])


# ---- the bits of rounding


def alike(ours: Any, theirs: Any) -> None:
    """Sums in another order are others in the last digit of float32, which rounding seldom shows."""
    for key, x in ours.items():
        assert torch.allclose(x.double(), theirs[key].double(), rtol=1e-2, atol=1e-5), key
        if x.dtype == torch.bfloat16:
            assert (x == theirs[key]).double().mean() > 0.99, key


def _run(front: Any = Lamb, steps: int = 3, prefix: str = "", turned: bool = False, **options: Any) -> Any:
    params, given = made(shapes=SHAPES), made(shapes=SHAPES)
    if turned:
        params = dict(reversed(params.items()))
    named = [(prefix + name, p) for name, p in params.items()]
    groups = [{"params": [one]} for one in named] if turned else named
    opt = busy(front, groups, **{"lr": 0.01, **ROUNDED, **options})
    for t in range(steps):
        give(given, t)
        for name, p in params.items():
            p.grad = given[name].grad
        opt.step()
    return snapshot(opt, params)


@engines
@fronts
def test_neither_order_nor_groups_nor_slices_change_what_is_rounded(front, fused, monkeypatch):
    unclipped = {"max_grad_norm": None} if "max_grad_norm" in front._hyper.__dataclass_fields__ else {}
    found = _run(front, fused=fused, **unclipped)
    if fused is False:
        in_slices(monkeypatch, 2000)
    alike(found, _run(front, fused=fused, turned=True, **unclipped))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_replicas_and_wrapped_models_round_alike(prefix):
    """By the name without the wrapper's prefix."""
    same(_run(prefix=prefix), _run())


def test_a_captured_step_draws_by_the_count_on_the_device():
    found = [_run(capturable=capturable, fused=False) for capturable in (False, True)]
    differ = [(x != found[1][key]).double().mean().item() for key, x in found[0].items()]
    assert max(differ) < 1e-3  # coefficients are computed on the device then


# ---- over many steps


@pytest.mark.parametrize("rounding", [None, "nearest"])
def test_an_average_whose_decay_is_near_one_moves_unless_rounded_to_nearest(rounding):
    """v of constant gradients comes to their square; in bfloat16 to nearest it stops where a step is half a place."""
    p = Parameter(torch.zeros(64, 64))
    opt = AdamW([("w", p)], betas=(0.9, 0.999), state_dtype={"exp_avg_sq": "bfloat16"}, rounding=rounding)
    for _ in range(1500):
        p.grad = torch.ones_like(p)
        opt.step()
    mean = opt.state[p]["exp_avg_sq"].float().mean().item()
    assert (abs(mean / (1 - 0.999**1500) - 1) < 0.01) == (rounding is None), mean
    assert rounding is None or mean < 0.6


@pytest.mark.parametrize(("cls", "lr"), [(Lamb, 1e-3), (AdamW, 1e-3), (SGD, 1e-2)])
def test_momentum_in_8_bits_comes_to_rest_without_gradients(cls, lr):
    p = Parameter(torch.ones(64, 64))
    opt = cls([("w", p)], lr=lr, weight_decay=0.0, state_dtype="int8", **{"momentum": 0.9} if cls is SGD else {})
    for t in range(350):
        p.grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(t))
        if t >= 10:
            p.grad[:, ::2] = 0
        if t == 300:
            rested = p.detach().clone()
        opt.step()
    assert torch.equal(p[:, ::2], rested[:, ::2])
    assert not torch.equal(p[:, 1::2], rested[:, 1::2])


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95)])
@pytest.mark.parametrize("spike", [1e4, 1e7, 1e30, float("inf")])
def test_an_outlier_makes_no_step_of_its_neighbours_long(spike, betas):
    p, lr = Parameter(torch.zeros(64, 64)), 1e-3
    opt = AdamW([("w", p)], lr=lr, weight_decay=0.0, betas=betas, state_dtype="int8")
    windows = []
    for t in range(221):
        p.grad = 1 + 0.5 * torch.randn(64, 64, generator=torch.Generator().manual_seed(t))
        if t == 100:
            p.grad[:, 0] = spike
        if t % 10 == 1:
            windows.append(p.detach()[:, 1:].clone())
        opt.step()
    longest = max((abs(a - b).max() / 10 / lr).item() for a, b in pairwise(windows))
    assert longest < 3
    if spike in (1e4, float("inf")):  # what 8 bits still hold goes on as before
        assert abs((windows[-2] - windows[-1]).mean() / 10 / lr - 0.9) < 0.05


@pytest.mark.parametrize("blocks", [None, 128], ids=["whole", "blocks"])
@pytest.mark.parametrize("shapes", [{"vector": (8192,)}, {"matrix": (180, 70)}], ids=["vector", "matrix"])
def test_slices_have_whole_groups(shapes, blocks, monkeypatch):
    """Of a vector with blocks as well, whose slices are counted in blocks."""
    name = next(iter(shapes))
    found = []
    for size in (1 << 19, 3000):
        in_slices(monkeypatch, size)
        params = made(torch.float32, shapes)
        given = {name: blocks if name == "vector" else 18} if blocks else None
        opt = Lamb(params.items(), state_dtype="int8", blocks=given, fused=False)
        walk(opt, params, range(2))
        found.append(snapshot(opt, params))
    for key, x in found[0].items():
        assert torch.allclose(x.double(), found[1][key].double(), rtol=1e-5, atol=1e-9), key


@pytest.mark.parametrize("wanted", [None, "int8"])
def test_codes_of_a_former_format_are_loaded_as_numbers(wanted):
    params, (stored, numbers) = made(shapes={"matrix": (70, 65)}), former_state()
    opt = Lamb(params.items(), state_dtype=wanted)
    state = {"step": torch.tensor(3.0), **{key: torch.from_numpy(x) for key, x in stored.items()}}
    opt.load_state_dict({**opt.state_dict(), "state": {0: saved_state(state)}})
    [loaded] = opt.state.values()
    assert loaded.keys() == {"step", *numbers}
    assert {loaded[key].dtype for key in numbers} == {torch.float32}
    check(loaded, numbers)
    walk(opt, params, range(1))
    assert dtypes(opt, params["matrix"])["exp_avg"] == (torch.float32 if wanted is None else torch.int8)
