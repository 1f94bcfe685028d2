"""Weights and state in few bytes: what is stored, that it is PyTorch's, and that a run goes on from it."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from numpy_front.front import BUSY, arrays, bits, busy, copies, everything, fronts

import layerwise.numpy as numpy_front
import layerwise.torch as torch_front
from layerwise import Blocks
from layerwise.errors import ContradictionError, HyperparameterError, StateError
from layerwise.numpy import Adafactor, AdamMini, Lamb, Lars
from layerwise.numpy._arrays import BITS
from layerwise.registry import ENTRIES
from layerwise.storage import weights as formats

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = {"w": (64, 80), "v": (4100,), "b": (7,)}
EVERYTHING = {"master_weights": "split24", "rounding": "stochastic", "state_dtype": "int8", "seed": 3}
STORED = {
    "8 bits": {"state_dtype": "int8"},
    "bfloat16": {"state_dtype": "bfloat16", "rounding": "stochastic"},
    "split": {"master_weights": "split"},
    "masters": {"master_weights": True, "state_dtype": "bfloat16"},
    "everything": EVERYTHING,
}
stored = pytest.mark.parametrize("options", STORED.values(), ids=STORED)


def trained(opt, steps=3, dtype=BF16, shapes=SHAPES, weights=None, first=0):
    """Return weights after some steps."""
    weights = arrays(0, shapes, dtype) if weights is None else weights
    for i in range(first, first + steps):
        opt.step_all(weights, arrays(10 + i, shapes, dtype))
    return weights


def field(opt, name, key):
    return opt.state_dict()[f"{name}/{key}"]


def joined(weights, opt, name="w"):
    rest = field(opt, name, "remainder")
    p = weights[name].astype(np.float32)
    return formats.join_bf16(BITS, p, BITS.integers(rest), 8 * rest.itemsize)


def test_what_is_stored():
    opt = Lamb(**EVERYTHING)
    trained(opt, 1)
    state = opt.state_dict()
    assert {key: (state[key].dtype.name, state[key].shape) for key in state if key.startswith("w/exp")} == {
        "w/exp_avg": ("int8", (64, 80)),
        "w/exp_avg_scale": ("float32", (64, 2)),
        "w/exp_avg_sq": ("uint8", (64, 80)),
        "w/exp_avg_sq_scale": ("float32", (64, 2)),
    }
    assert state["v/exp_avg_scale"].shape == (65,)
    assert state["w/remainder"].dtype == np.int8
    assert state["b/exp_avg"].dtype == np.float32  # a small tensor
    assert state["seed"] == 3


@pytest.mark.thinned(1)
@fronts
@stored
def test_the_same_as_pytorch_s_rule(front, options):
    """Sums differ in their last digits between the two, and codes where a number lies between two of them."""
    torch = pytest.importorskip("torch")
    ours = busy(front, engine="rule", **options)
    weights = arrays(0, SHAPES, BF16)
    named = [(k, torch.nn.Parameter(torch.tensor(w.astype(np.float32)).bfloat16())) for k, w in weights.items()]
    given = {"lr": ours.lr, **{k: v for k, v in BUSY[front].items() if k != "lr"}}
    theirs = getattr(torch_front, front.__name__)(named, **given, fused=False, **options)
    for i in range(4):
        grads = arrays(10 + i, SHAPES, BF16)
        ours.step_all(weights, grads)
        for name, p in named:
            p.grad = torch.tensor(grads[name].astype(np.float32)).bfloat16()
        theirs.step()
    for name, p in named:
        same = weights[name].astype(np.float32) == p.detach().float().numpy()
        assert same.mean() > 0.998, name
        for key, value in theirs.state[p].items():
            if key != "step":
                alike(field(ours, name, key), value.float().numpy(), key)


def alike(ours, theirs, key):
    assert ours.shape == theirs.shape
    if key == "remainder":
        return  # of weights that differ in their last digit
    if ours.dtype.kind in "iu":
        difference = abs(ours.astype(int) - theirs.astype(int))
        assert difference.max() <= 1
        assert np.mean(difference) < 2e-3
        return
    ours, size = ours.astype(np.float32), np.max(abs(theirs), initial=1e-30)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2.0**-7 * size)
    # A statistic of rows or columns has few numbers, one of which a single code may change.
    assert np.sum(abs(ours - theirs) > 2e-6 * size) <= max(1, 2e-3 * ours.size), key


@pytest.mark.thinned(1)
@fronts
@pytest.mark.parametrize("engine", [None, "rule"])
def test_split_weights_are_masters_bit_for_bit(front, engine):
    split, master = (busy(front, engine=engine, master_weights=kind) for kind in ("split", True))
    ours, theirs = trained(split, 6), trained(master, 6)
    full = field(master, "w", "master")
    np.testing.assert_array_equal(joined(ours, split).view(np.uint32), full.view(np.uint32))
    assert np.mean(ours["w"] != theirs["w"]) < 1e-3  # ties alone
    assert np.any(full != theirs["w"].astype(np.float32))


@pytest.mark.thinned(1)
@fronts
@stored
def test_a_run_goes_on_bit_for_bit(front, options):
    one, other = busy(front, **options), busy(front, **{**options, "seed": 99})
    weights = trained(one, 2)
    other.load_state_dict(one.state_dict())
    ours, theirs = trained(one, 2, weights=copies(weights), first=2), trained(other, 2, weights=weights, first=2)
    assert bits(ours) == bits(theirs)
    assert bits(one.state_dict()) == bits(other.state_dict())


def test_order_and_company_do_not_matter():
    one, other = Lars(rounding="stochastic"), Lars(rounding="stochastic")
    together = trained(one, 3)
    alone = arrays(0, SHAPES, BF16)
    for i in range(3):
        grads = arrays(10 + i, SHAPES, BF16)
        for name in reversed(SHAPES):
            other.step(name, alone[name], grads[name])
    assert bits(together) == bits(alone)


def test_seeds_differ():
    found = [trained(Lamb(rounding="stochastic", seed=seed), 2)["w"] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.mean(found[0] != found[2]) > 0.1


def test_small_steps_are_not_lost():
    """A step of a tenth of a last place: to nearest none is taken, at random one in ten is."""
    weights = {kind: {"w": np.ones((100, 100), BF16)} for kind in ("nearest", "stochastic")}
    for kind, named in weights.items():
        opt = Lars(lr=2.0**-8 / 1e-3 / 10, momentum=0, rounding=kind)
        for _ in range(10):
            opt.step("w", named["w"], np.ones((100, 100), np.float32))
    moved = {kind: 1 - float(named["w"].astype(np.float64).mean()) for kind, named in weights.items()}
    assert moved["nearest"] == 0
    assert abs(moved["stochastic"] - 2.0**-8) < 5 * 2.0**-8 / 100


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_small_state_stays_float32(stored):
    trained(opt := Lamb(state_dtype=stored), 1)
    assert [field(opt, name, "exp_avg").dtype.name for name in SHAPES] == [stored, stored, "float32"]


def after_loading(state, steps, make, **options):
    """Return the momentum after some steps from a state, by each way of rounding."""
    found = {}
    for rounding in (None, "stochastic", "nearest"):
        opt = make(rounding=rounding, seed=3, **options)
        opt.load_state_dict(state)
        trained(opt, steps, np.float32, first=1)
        found[rounding] = field(opt, "w", "exp_avg")
        assert found[rounding].dtype == BF16
    return found


def test_bfloat16_that_a_state_brought_is_rounded_at_random():
    one = Lamb(state_dtype="bfloat16", seed=3)
    trained(one, 1, np.float32)
    found = after_loading(one.state_dict(), 1, Lamb)
    np.testing.assert_array_equal(found[None], found["stochastic"])
    assert np.mean(found[None] != found["nearest"]) > 0.1


def test_momentum_dtype_alone_rounds_to_nearest():
    options = {"lr": 0.01, "relative_step": False, "beta1": 0.9, "momentum_dtype": "bfloat16"}
    one = Adafactor(**options)
    trained(one, 1, np.float32)
    found = after_loading(one.state_dict(), 1, Adafactor, **options)
    np.testing.assert_array_equal(found[None], found["nearest"])
    assert np.mean(found[None] != found["stochastic"]) > 0.1
    asked = after_loading(one.state_dict(), 1, Adafactor, **options, state_dtype={"exp_avg": "bfloat16"})
    np.testing.assert_array_equal(asked[None], found["stochastic"])


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("blocks", [None, "each"])
def test_a_number_of_each_layer_stays_float32(dtype, blocks):
    """Also where each element is a layer, and there are as many numbers as elements."""
    opt, w = AdamMini(state_dtype=dtype, blocks={"w": blocks} if blocks else None), {"w": np.ones(8192, np.float32)}
    opt.step_all(w, {"w": np.ones(8192, np.float32)})
    state = opt.state_dict()
    assert state["w/exp_avg_sq"].dtype == np.float32
    assert state["w/exp_avg_sq"].shape == ((8192,) if blocks else (1,))
    with pytest.raises(HyperparameterError, match="float32 for 'exp_avg_sq', one number of each layer"):
        AdamMini(state_dtype={"exp_avg_sq": dtype})


def test_statistics_are_not_asked_for_in_few_bytes():
    with pytest.raises(HyperparameterError, match="float32 for 'exp_avg_sq_row', a mean of rows or columns"):
        Adafactor(state_dtype={"exp_avg_sq_row": "int8"})
    Adafactor(state_dtype={"exp_avg_sq_row": "float32", "exp_avg_sq": "int8"})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_float32_state_loads_into_8_bits_and_back(dtype):
    plain, compact, again = Lamb(), Lamb(state_dtype="int8"), Lamb(state_dtype=dtype)
    weights = trained(plain, 3)
    compact.load_state_dict(plain.state_dict())
    trained(compact, 1, weights=copies(weights), first=3)
    assert field(compact, "w", "exp_avg").dtype == np.int8
    again.load_state_dict(compact.state_dict())
    trained(again, 1, weights=weights, first=3)
    assert field(again, "w", "exp_avg").dtype.name == dtype
    assert "w/exp_avg_scale" not in again.state_dict()


def test_a_compact_state_stays_where_nothing_else_is_said():
    compact, plain = Lamb(state_dtype="int8"), Lamb()
    weights = trained(compact, 2)
    plain.load_state_dict(compact.state_dict())
    trained(plain, 1, weights=weights, first=2)
    assert field(plain, "w", "exp_avg").dtype == np.int8


def test_weights_go_from_one_form_to_another():
    opt = Lamb(master_weights=True)
    weights = trained(opt, 3)
    full = field(opt, "w", "master")
    for kind, most in (("split", 0), ("split24", 2.0**-16), (True, 2.0**-16)):
        opt.master_weights = kind
        opt.lr = 0.0
        trained(opt, 1, weights=weights)
        now = field(opt, "w", "master") if kind is True else joined(weights, opt)
        assert np.all(abs(now - full) <= most * abs(full))
    opt.master_weights = False
    trained(opt, 1, weights=weights)
    assert not {"w/master", "w/remainder"} & opt.state_dict().keys()


def test_options_are_attributes():
    opt = Lamb(seed=5)
    assert (opt.master_weights, opt.rounding, opt.state_dtype, opt.seed) == (False, None, None, 5)
    trained(opt, 1)
    opt.set_options(state_dtype={"exp_avg": "int8"}, rounding="nearest")
    trained(opt, 1)
    assert field(opt, "w", "exp_avg").dtype == np.int8
    assert field(opt, "w", "exp_avg_sq").dtype == np.float32
    assert "state_dtype={'exp_avg': 'int8'}" in repr(opt)
    opt.clear_state()
    trained(opt, 1)
    assert field(opt, "w", "exp_avg").dtype == np.int8


@pytest.mark.parametrize("blocks", [4, "each", Blocks((32, 32)), Blocks(2, axis=1)], ids=str)
def test_blocks(blocks):
    """Groups belong to the tensor: the codes of its first step are those of the tensor as one."""
    shapes = {"w": (64, 128)}
    one, other = (Lamb(state_dtype="int8", adapt=False, blocks=given) for given in ({"w": blocks}, None))
    ours, theirs = (trained(opt, 3, np.float32, shapes) for opt in (one, other))
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=0, atol=1e-6)
    assert np.mean(field(one, "w", "exp_avg") != field(other, "w", "exp_avg")) < 1e-3


def test_blocks_that_would_cut_groups_keep_float32_and_say_so():
    opt = Lamb(state_dtype={"exp_avg": "int8"}, blocks={"w": Blocks((40, 88), axis=1)})
    with pytest.warns(UserWarning, match=r"'exp_avg' of 'w' .* not in 8 bits"):
        trained(opt, 1, shapes={"w": (64, 128)})
    assert field(opt, "w", "exp_avg").dtype == np.float32
    compact = Lamb(state_dtype="int8")
    weights = trained(compact, 1, shapes={"w": (64, 128)})
    opt.load_state_dict(compact.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(opt, 1, shapes={"w": (64, 128)}, weights=weights)
    assert field(opt, "w", "exp_avg").dtype == np.float32


def test_adafactor_s_statistics_stay_float32():
    opt = Adafactor(lr=0.01, relative_step=False, beta1=0.9, state_dtype="int8", min_dim_size_to_factor=1)
    trained(opt, 2, shapes={"w": (4200, 2), "column": (4200, 1)})
    for name in ("w", "column"):
        found = {key: x.dtype.name for key, x in opt.state_dict().items() if key.startswith(f"{name}/exp_avg_sq")}
        assert set(found.values()) <= {"float32", "uint8"}
        assert all(dtype == "float32" for key, dtype in found.items() if key.endswith(("row", "col")))
    assert field(opt, "w", "exp_avg").dtype == np.int8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"master_weights": "all"}, "`master_weights` must be one of False, True, 'split', 'split24', but is 'all'"),
        ({"rounding": "up"}, "`rounding` must be one of None, 'nearest', 'stochastic', but is 'up'"),
        ({"state_dtype": "int4"}, "`state_dtype` must be one of 'float32', 'bfloat16', 'int8'"),
        ({"state_dtype": {"mu": "int8"}}, "`state_dtype` must be names among exp_avg, exp_avg_sq, norm, but is ['mu']"),
        ({"seed": -1}, "`seed` must be an integer ≥ 0 and < 2^63, but is -1"),
        ({"seed": 1.5}, "`seed` must be an integer"),
    ],
    ids=str,
)
def test_bad_options(options, sentence):
    torch = pytest.importorskip("torch")
    for make in (lambda: Lamb(**options), lambda: torch_front.Lamb([torch.zeros(2, requires_grad=True)], **options)):
        with pytest.raises(HyperparameterError) as error:
            make()
        assert sentence in str(error.value)


def test_formats_that_contradict_each_other():
    given = {"beta1": 0.9, "momentum_dtype": "bfloat16", "state_dtype": "int8"}
    with pytest.raises(ContradictionError, match="as momentum_dtype has it"):
        Adafactor(lr=0.01, relative_step=False, **given)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("w/exp_avg_scale", None),
        ("w/exp_avg_scale", lambda x: x[:, :1]),
        ("w/exp_avg_scale", lambda x: x.astype(np.float64)),
        ("w/exp_avg", lambda x: x.astype(np.uint8)),
        ("w/exp_avg", lambda x: x.astype(np.int16)),
        ("w/remainder", lambda x: x.astype(np.int32)),
        ("w/remainder", lambda x: x[:3]),
        ("seed", lambda x: np.array(-1)),
    ],
)
def test_a_state_that_cannot_be_right_changes_nothing(key, change):
    opt = Lamb(**EVERYTHING)
    weights = trained(opt, 1)
    state, before = opt.state_dict(), everything(opt, weights)
    if change is None:
        del state[key]
    else:
        state[key] = change(state[key])
    with pytest.raises(StateError):
        opt.load_state_dict(state)
    assert everything(opt, weights) == before


def test_the_state_goes_through_a_file(tmp_path):
    opt = Lamb(**{**EVERYTHING, "state_dtype": {"exp_avg": "bfloat16", "exp_avg_sq": "int8"}})
    weights = trained(opt, 2)
    np.savez(tmp_path / "state.npz", **opt.state_dict())
    again = Lamb(**{**EVERYTHING, "state_dtype": {"exp_avg": "bfloat16", "exp_avg_sq": "int8"}})
    with np.load(tmp_path / "state.npz") as state:
        again.load_state_dict(state)
    assert bits(trained(opt, 1, weights=copies(weights), first=2)) == bits(trained(again, 1, weights=weights, first=2))


def test_all_classes_take_the_options():
    for name in ENTRIES:
        assert getattr(numpy_front, name)(lr=0.1, **EVERYTHING).seed == 3
