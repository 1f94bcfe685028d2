"""State in 16 and 8 bits: what has which format, how near it is, and how it comes from one to another."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from itertools import pairwise

import pytest
import torch
from torch.nn import Parameter
from torch_front.front import bits, busy, everything, fronts, in_slices, kept_of
from torch_front.storing import engines, give, held, made, same, snapshot, walk

from layerwise.errors import ContradictionError, HyperparameterError, StateError
from layerwise.torch import SGD, Adafactor, AdamMini, AdamW, Lamb, Lars, convert

SHAPES = {"matrix": (70, 65), "vector": (4100,), "small": (63, 65), "bias": (17,)}
LARGE = ("matrix", "vector")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
forms = pytest.mark.parametrize("form", list(DTYPES))


def dtypes(opt, p):
    return {key: x.dtype for key, x in opt.state[p].items() if key != "step"}


def is_alike(opt, p, key):
    return opt.state[p][key].shape == p.shape


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
@pytest.mark.parametrize("fused", [None, False])
def test_a_number_of_each_layer_is_float32(form, fused):
    """Also where each element is a layer, and there are as many numbers as elements."""
    params = made(torch.float32, {"vector": (8192,)})
    opt = AdamMini(params.items(), state_dtype=form, blocks={"vector": "each"}, fused=fused)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        walk(opt, params, range(2))
    [state] = opt.state.values()
    assert (state["exp_avg_sq"].dtype, state["exp_avg_sq"].shape) == (torch.float32, (8192,))
    assert opt.storage()["vector"]["state"]["exp_avg_sq"] == "float32"


@forms
@fronts
def test_what_has_which_format(front, form):
    """Small tensors and means of rows or columns stay float32."""
    params = made(torch.float32, SHAPES)
    opt = busy(front, params.items(), state_dtype=form)
    before = opt.storage()
    walk(opt, params, range(2))
    for name, p in params.items():
        for key in kept_of(front, tuple(p.shape)):
            low = name in LARGE and is_alike(opt, p, key)
            wanted = DTYPES[form] if low else torch.float32
            unsigned = form == "int8" and low and key == "exp_avg_sq"
            assert opt.state[p][key].dtype == (torch.uint8 if unsigned else wanted), (name, key)
            assert (key + "_scale" in opt.state[p]) == (low and form == "int8")
            assert opt.storage()[name]["state"][key] == (form if low else "float32")
            assert (key in opt.storage()[name]["why"]) == (not low and form != "float32")
        stored = [p, *(x for key, x in opt.state[p].items() if key != "step")]
        assert opt.storage()[name]["bytes"] == sum(x.nbytes for x in stored)
    assert opt.storage() == before


def test_the_bytes_of_weights_and_state():
    shapes = {"w": (256, 256)}
    for options, wanted in (
        ({}, 10.0),
        ({"master_weights": True}, 14.0),
        ({"master_weights": "split24", "state_dtype": "int8"}, 5 + 2 * 4 / 64),
        ({"master_weights": "split", "state_dtype": "int8"}, 6 + 2 * 4 / 64),
        ({"rounding": "stochastic", "state_dtype": "bfloat16"}, 6.0),
    ):
        assert Lamb(made(shapes=shapes).items(), **options).storage()["w"]["bytes"] / 2**16 == wanted
    opt = Lamb(made(shapes=shapes).items(), master_weights="split24")
    assert opt.storage()["w"]["weights"] == "bfloat16+8"


@engines
@pytest.mark.parametrize("given", [{"exp_avg": "int8"}, {"exp_avg": torch.bfloat16, "exp_avg_sq": None}, torch.int8])
def test_by_field_and_by_dtypes(given, fused):
    params = made(torch.float32, SHAPES)
    opt = Lamb(params.items(), state_dtype=given, fused=fused)
    walk(opt, params, range(2))
    first = torch.bfloat16 if isinstance(given, dict) and given["exp_avg"] == torch.bfloat16 else torch.int8
    second = torch.uint8 if given is torch.int8 else torch.float32
    found = dtypes(opt, params["matrix"])
    assert (found["exp_avg"], found["exp_avg_sq"]) == (first, second)
    torch.load(_file(opt.state_dict()), weights_only=True)


def _file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("rounding", [None, "nearest", pytest.param("stochastic", marks=pytest.mark.slow)])
def test_where_decay_is_near_one_nearest_stalls(rounding):
    """v of constant gradients comes to their square; in bfloat16 to nearest it stops where a step is half a place."""
    p = Parameter(torch.zeros(64, 64))
    opt = Lamb([("w", p)], betas=(0.9, 0.999), state_dtype={"exp_avg_sq": "bfloat16"}, rounding=rounding, fused=False)
    for _ in range(2000):
        p.grad = torch.ones_like(p)
        opt.step()
    mean = opt.state[p]["exp_avg_sq"].float().mean().item()
    wanted = 1 - 0.999**2000
    assert (abs(mean / wanted - 1) < 0.01) == (rounding != "nearest"), mean
    assert rounding != "nearest" or mean < 0.6


@pytest.mark.every
@engines
@fronts
def test_the_path_is_near_that_of_float32(front, fused):
    for form, most in (("int8", 0.12), ("bfloat16", 0.02)):
        paths = []
        for options in ({}, {"state_dtype": form}):
            params = made(torch.float32, SHAPES)
            before = {name: p.detach().clone() for name, p in params.items()}
            opt = front(params.items(), lr=1e-3, fused=fused, **options)
            walk(opt, params, range(20))
            paths.append({name: p.detach() - before[name] for name, p in params.items()})
        for name in LARGE:
            error = (paths[0][name] - paths[1][name]).norm() / paths[0][name].norm()
            low = [x for x in opt.state[params[name]].values() if x.dtype in (torch.int8, torch.uint8, torch.bfloat16)]
            assert 0 < error < most if low else error < 1e-6, (name, error)
        assert torch.allclose(paths[0]["bias"], paths[1]["bias"], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("shapes", [{"vector": (8192,)}, {"matrix": (300, 70)}], ids=["large_vector", "large_matrix"])
@pytest.mark.parametrize("blocks", [None, 128], ids=["whole", "blocks"])
def test_slices_have_whole_groups(shapes, blocks, monkeypatch):
    """Of a vector with blocks as well, whose slices are counted in blocks."""
    name = next(iter(shapes))
    found = []
    for size in (1 << 19, 2000):
        in_slices(monkeypatch, size)
        params = made(torch.float32, shapes)
        given = {name: blocks if name == "vector" else 30} if blocks else None
        opt = Lamb(params.items(), state_dtype="int8", blocks=given, fused=False)
        walk(opt, params, range(3))
        found.append(snapshot(opt, params))
    for key, x in found[0].items():
        assert torch.allclose(x.double(), found[1][key].double(), rtol=1e-5, atol=1e-9), key


# ---- what is refused


@pytest.mark.parametrize(
    ("front", "options", "problem", "named"),
    [
        (Lamb, {"state_dtype": "int4"}, HyperparameterError, "state_dtype"),
        (Lamb, {"state_dtype": torch.float16}, HyperparameterError, "state_dtype"),
        (Lamb, {"state_dtype": {"momentum": "int8"}}, HyperparameterError, "exp_avg, exp_avg_sq"),
        (Lamb, {"state_dtype": 8}, HyperparameterError, "state_dtype"),
        (Adafactor, {"state_dtype": {"exp_avg_sq_row": "int8"}}, HyperparameterError, "exp_avg_sq_row"),
        (
            Adafactor,
            {"beta1": 0.9, "momentum_dtype": "bfloat16", "state_dtype": "int8"},
            ContradictionError,
            "momentum_dtype",
        ),
        (Lamb, {"state_dtype": "int8", "differentiable": True}, ContradictionError, "state_dtype"),
        (Lamb, {"rounding": "stochastic", "differentiable": True}, ContradictionError, "rounding"),
        (Lamb, {"master_weights": "split", "differentiable": True}, ContradictionError, "master_weights"),
        (Lamb, {"master_weights": "split8"}, HyperparameterError, "split24"),
        (Lamb, {"master_weights": 1}, HyperparameterError, "master_weights"),
        (Lamb, {"rounding": "up"}, HyperparameterError, "rounding"),
        (Lamb, {"seed": -1}, HyperparameterError, "seed"),
        (Lamb, {"seed": 2**63}, HyperparameterError, "seed"),
        (Lamb, {"seed": True}, HyperparameterError, "seed"),
        (Lamb, {"seed": 0.5}, HyperparameterError, "seed"),
    ],
)
def test_what_there_is_not(front, options, problem, named):
    with pytest.raises(problem, match=named):
        front([("w", Parameter(torch.ones(4, 4)))], **options)
    opt = front([("w", Parameter(torch.ones(4, 4)))])
    before = repr(opt.param_groups)
    with pytest.raises(HyperparameterError):
        opt.add_param_group({"params": [("x", Parameter(torch.ones(4, 4)))], **options})
    assert repr(opt.param_groups) == before


def test_a_complex_parameter_is_refused_as_before():
    with pytest.raises(ValueError, match="complex"):
        Lamb([("w", Parameter(torch.ones(64, 64, dtype=torch.complex64)))], state_dtype="int8")


# ---- from one form to another


@pytest.mark.parametrize("to", [None, *DTYPES])
@forms
def test_a_checkpoint_is_put_in_the_form_that_is_asked_for(form, to):
    """Or stays in its own where none is."""
    params, other = made(torch.float32, SHAPES), made(torch.float32, SHAPES, seed=1)
    opt, new = Lamb(params.items(), state_dtype=form), Lamb(other.items(), state_dtype=to)
    walk(opt, params, range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new.load_state_dict(torch.load(_file(opt.state_dict()), weights_only=True))
    wanted = opt if to in (None, form) else None
    matrix, ours = params["matrix"], other["matrix"]
    if wanted:
        assert bits(dict(new.state[ours])) == bits(dict(opt.state[matrix]))
    assert new.state[ours]["exp_avg"].dtype == DTYPES[to or form]
    assert new.state[ours]["step"] == 3
    for name, p in other.items():
        p.data.copy_(params[name].data)
    for t in (3, 4):
        walk(opt, params, [t])
        walk(new, other, [t])
    near = torch.isclose(params["matrix"], other["matrix"], rtol=1e-2, atol=2e-3).double().mean()
    assert near > 0.99


@forms
def test_a_group_may_change_its_form_at_any_time(form):
    """Also in the mapping that it was given."""
    params = made(torch.float32, SHAPES)
    opt = Lamb(params.items(), state_dtype={"exp_avg": "bfloat16"}, fused=False)
    walk(opt, params, range(2))
    before = opt.state[params["matrix"]]["exp_avg"].float()
    opt.param_groups[0]["state_dtype"]["exp_avg"] = form
    opt.param_groups[0]["betas"] = (0.999, 0.999)
    walk(opt, params, [2])
    assert opt.state[params["matrix"]]["exp_avg"].dtype == DTYPES[form]
    opt.param_groups[0]["state_dtype"] = {"exp_avg": "float32"}
    walk(opt, params, [3])
    after = opt.state[params["matrix"]]["exp_avg"]
    assert after.dtype == torch.float32
    assert "exp_avg_scale" not in opt.state[params["matrix"]]
    assert (after - before).norm() < 0.1 * before.norm()


def test_state_of_others_goes_into_few_bytes():
    params = made(torch.float32, SHAPES)
    adam = torch.optim.Adam(params.values())
    walk(adam, params, range(3))
    opt = Lamb(params.values(), state_dtype="int8")
    opt.load_state_dict(convert(adam.state_dict(), "torch.Adam"))
    p = params["matrix"]
    assert dtypes(opt, p)["exp_avg"] == torch.int8
    walk(opt, params, [3])


def test_a_momentum_with_lr_in_it_and_without():
    """LARS's, of which the scale is converted."""
    params, other = made(torch.float32, SHAPES), made(torch.float32, SHAPES)
    opt = Lars(params.items(), lr=0.25, lr_in_momentum=True, state_dtype="int8")
    walk(opt, params, range(2))
    new = Lars(other.items(), lr=0.25, lr_in_momentum=False, state_dtype=None)
    new.load_state_dict(opt.state_dict())
    ours, theirs = new.state[other["matrix"]], opt.state[params["matrix"]]
    assert torch.equal(ours["momentum_buffer"], theirs["momentum_buffer"])
    assert torch.allclose(ours["momentum_buffer_scale"] ** 2 * 0.25, theirs["momentum_buffer_scale"] ** 2)


def test_another_group_size_is_named():
    params = made(torch.float32, SHAPES)
    opt = Lamb(params.items(), state_dtype="int8")
    walk(opt, params, range(2))
    before = everything(opt, params)
    for spoil, named in (
        (lambda one: one.update(exp_avg_scale=torch.ones(70, 3)), "each 64 elements"),
        (lambda one: one.pop("exp_avg_scale"), "missing.*exp_avg_scale"),
        (lambda one: one.update(exp_avg=one["exp_avg"].to(torch.uint8)), "int8"),
        (lambda one: one.update(exp_avg_sq=one["exp_avg_sq"].to(torch.int8)), "uint8"),
        (lambda one: one.update(exp_avg=one["exp_avg"].to(torch.int32)), "unknown.*exp_avg_scale"),
        (lambda one: one.update(exp_avg_sq_scale=torch.ones(70, 2, dtype=torch.int8)), "exp_avg_sq_scale"),
        (lambda one: one.update(remainder=torch.zeros(70, 65, dtype=torch.int16)), "remainder.*float32"),
    ):
        saved = copy.deepcopy(opt.state_dict())
        spoil(saved["state"][0])
        with pytest.raises(StateError, match=f"(?s){named}"):
            opt.load_state_dict(saved)
        assert everything(opt, params) == before


def test_a_state_spoiled_between_steps_is_named():
    params = made(shapes=SHAPES)
    opt = Lamb(params.items(), state_dtype="int8", master_weights="split")
    walk(opt, params, range(2))
    one = opt.state[params["matrix"]]
    for key, value in (
        ("exp_avg_scale", None),
        ("remainder", torch.zeros(70, 65)),
        ("exp_avg", torch.zeros(70, 65).byte()),
    ):
        kept = one.pop(key)
        if value is not None:
            one[key] = value
        give(params, 2)
        with pytest.raises(StateError, match=key):
            opt.step()
        one[key] = kept
    walk(opt, params, [2])


# ---- the rest of what happens to optimizers


@engines
@pytest.mark.parametrize("options", [{"master_weights": "split", "state_dtype": "int8"}, {"state_dtype": "bfloat16"}])
def test_copies_and_pickles_go_on(options, fused):
    found = []
    for again in (lambda x: x, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        params = made(shapes=SHAPES)
        opt = Lamb(params.items(), lr=0.01, rounding="stochastic", fused=fused, **options)
        walk(opt, params, range(2))
        opt = again(opt)
        params = dict(zip(params, opt.parameters(), strict=True))
        walk(opt, params, range(2, 4))
        found.append(snapshot(opt, params))
    same(found[0], found[1])
    same(found[0], found[2])


def test_parameters_may_come_rest_and_begin_again():
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
    assert opt.state[params["vector"]]["step"] == 1
    assert opt.state[params["vector"]]["exp_avg"].dtype == torch.int8
    assert sorted(opt.stats()) == sorted(params)


def test_a_step_that_is_skipped_changes_no_code(monkeypatch):
    from torch_front.front import told_on_device

    params = made(shapes=SHAPES)
    opt = Lamb(params.items(), state_dtype="int8", master_weights="split", rounding="stochastic", fused=False)
    walk(opt, params, range(2))
    before = snapshot(opt, params)
    told_on_device(monkeypatch, skip=True)
    walk(opt, params, [2])
    same(snapshot(opt, params), before)
    told_on_device(monkeypatch, skip=False)
    walk(opt, params, [2])
    assert not torch.equal(opt.state[params["matrix"]]["exp_avg"], before["matrix exp_avg"])


def test_a_closure_and_nan():
    params = made(shapes=SHAPES)
    opt = Lamb(params.items(), state_dtype="int8", master_weights="split", skip_nonfinite=True)

    def loss():
        give(params, 0)
        return 1.0

    assert opt.step(loss) == 1.0
    before = snapshot(opt, params)
    give(params, 1)
    params["matrix"].grad[0, 0] = float("nan")
    opt.step()
    same(snapshot(opt, params), before)
    assert opt.skipped == 1
    assert all(torch.isfinite(x).all() for x in held(opt, params).values())


@pytest.mark.parametrize(("cls", "lr"), [(Lamb, 1e-3), (AdamW, 1e-3), (SGD, 1e-2)])
def test_momentum_without_gradients_comes_to_rest(cls, lr):
    """As in float32: what is left of a momentum moves no weight any more."""
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
@pytest.mark.parametrize("spike", [1e4, 1e5, 1e7, 1e30, float("inf")])
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
    if spike <= 1e4 or spike == float("inf"):  # what 8 bits still hold goes on as before
        assert abs((windows[-2] - windows[-1]).mean() / 10 / lr - 0.9) < 0.05


def test_a_second_moment_falls_while_its_neighbours_stay_large():
    moved = {}
    for form in ("float32", "int8"):
        p = Parameter(torch.zeros(64, 64))
        opt = AdamW([("w", p)], lr=1e-4, weight_decay=0.0, betas=(0.9, 0.99), state_dtype=form)
        for t in range(1000):
            p.grad = torch.ones(64, 64)
            p.grad[:, ::2] = 1.0 if t < 100 else 0.01
            if t == 900:
                before = p.detach().clone()
            opt.step()
        moved[form] = (before - p.detach())[:, ::2].mean().item()
    assert abs(moved["int8"] / moved["float32"] - 1) < 0.1
