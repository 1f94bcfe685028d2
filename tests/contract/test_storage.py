"""Weights and state in few bytes: what is stored in which format, how near it is, and by which bits it is rounded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from cases import CASES, case_of
from contract.apis import APIS, Arrays, NumPy, Run, arrays, as_dtype, walk

from layerwise import Blocks
from layerwise.errors import ContradictionError, HyperparameterError, StateError
from layerwise.numpy._arrays import BITS
from layerwise.options import checks
from layerwise.rules.states import is_signed
from layerwise.storage import CodedFormat, options, quantized_groups
from layerwise.storage import sixteen_bits as formats
from layerwise.storage.coded import CODED

pytestmark = pytest.mark.offers("state_dtype")
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
forms = pytest.mark.parametrize("form", ["bfloat16", "int8"])

# Two tensors of 4096 elements and more, in one of which 64 divides no row, and one that is too small for few bytes.
SHAPES = {"w": (64, 80), "v": (4100,), "b": (7,)}
MATRIX = {"w": (64, 128)}
EVERYTHING = {"master_weights": "split24", "rounding": "stochastic", "state_dtype": "int8", "seed": 3}
WHOLE = {"lr": 0.01, "relative_step": False, "beta1": 0.9}  # of Adafactor


def made(api, name, shapes=SHAPES, dtype="bfloat16", **options) -> Run:
    return api.make(name, arrays(0, shapes), dtype=dtype, **options)


def full(run: Run, name: str) -> np.ndarray:
    """The weights as precisely as they are held."""
    kept, p = run.state()[name], as_dtype(run.weights()[name], "float32")
    if "remainder" not in kept:
        return kept.get("master", p)
    rest = kept["remainder"]
    return formats.join_bf16(BITS, p, BITS.integers(rest), 8 * rest.itemsize)


def kept_of(case, shape: tuple[int, ...], options) -> Iterator[tuple[str, tuple[int, ...]]]:
    shapes = case.rule.shapes(case.hyper(**options).fit(shape, (), 1e-7), shape)
    return ((field, one) for field, one in shapes._asdict().items() if one is not None)


# ---- which format


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@each
def test_large_tensors_are_stored_as_asked_and_small_ones_and_means_in_float32(api, case, form):
    run = api.busy(case.name, arrays(0, SHAPES), dtype="bfloat16", state_dtype=form)
    state = walk(run, [0]).state()
    for name, shape in SHAPES.items():
        scales = {"w": (64, 2), "v": (65,)}.get(name)
        for field, stored in kept_of(case, shape, case.busy):
            low = name != "b" and stored == shape
            codes = "int8" if is_signed(case.rule, field) else "uint8"
            assert state[name][field].shape == stored
            assert state[name][field].dtype == ((codes if form == "int8" else form) if low else "float32"), field
            scale = state[name].get(f"{field}_unit")
            assert (None if scale is None else scale.shape) == (scales if low and form == "int8" else None), field


@forms
def test_one_number_of_each_layer_stays_float32(api, form):
    """Also where each element is a layer, and there are as many numbers as elements."""
    for blocks, shape in ((None, (1,)), ({"v": "each"}, (8192,))):
        run = api.make("AdamMini", {"v": np.ones(8192)}, dtype="float32", state_dtype=form, blocks=blocks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of blocks that cut groups
            run.step({"v": np.ones(8192)})
        found = run.state()["v"]["exp_avg_sq"]
        assert (found.dtype, found.shape) == (np.float32, shape)


def test_means_stay_float32_where_there_are_as_many_as_elements(api):
    """The columns' of one row."""
    run = made(api, "Adafactor", {"w": (1, 4100)}, state_dtype="int8", lr=0.01, min_dim_size_to_factor=0)
    kept = walk(run, [0]).state()["w"]["exp_avg_sq_col"]
    assert (np.size(kept), kept.dtype) == (4100, np.float32)


def test_state_dtype_may_say_it_of_each_field(api):
    run = walk(made(api, "Lamb", state_dtype={"exp_avg": "int8", "exp_avg_sq": "float32"}), [0])
    assert [run.state()["w"][key].dtype for key in ("exp_avg", "exp_avg_sq")] == [np.int8, np.float32]
    stored = {"exp_avg_sq_row": "float32", "exp_avg_sq": "int8", "exp_avg": "bfloat16"}
    run = walk(made(api, "Adafactor", **WHOLE, min_dim_size_to_factor=1, state_dtype=stored), [0])
    assert {key: x.dtype.name for key, x in run.state()["w"].items() if key.startswith("exp")} == {
        "exp_avg": "bfloat16",
        "exp_avg_sq_row": "float32",
        "exp_avg_sq_col": "float32",
    }
    assert run.state()["v"]["exp_avg_sq"].dtype == np.uint8


REFUSED = [
    (
        "Lamb",
        {"master_weights": "all"},
        "`master_weights` must be False, True, 'split', or 'split24', but is 'all'",
    ),
    ("Lamb", {"master_weights": 1}, "`master_weights` must be"),
    ("Lamb", {"rounding": "up"}, "`rounding` must be None, 'nearest', or 'stochastic', but is 'up'"),
    ("Lamb", {"state_dtype": "int4"}, "`state_dtype` must be None, 'float32', 'bfloat16', or 'int8'"),
    ("Lamb", {"state_dtype": "float16"}, "`state_dtype` must be None, 'float32', 'bfloat16', or 'int8'"),
    ("Lamb", {"state_dtype": 8}, "`state_dtype` must be None, 'float32', 'bfloat16', or 'int8'"),
    (
        "Lamb",
        {"state_dtype": {"mu": "int8"}},
        "`state_dtype` names 'mu', but the state has exp_avg, exp_avg_sq, and norm.",
    ),
    *(
        ("Lamb", {"seed": seed}, f"`seed` must be an integer ≥ 0 and < 2^63, but is {seed}")
        for seed in (-1, 1.5, 2**63, True)
    ),
    (
        "Adafactor",
        {"state_dtype": {"exp_avg_sq_row": "int8"}},
        "float32 for 'exp_avg_sq_row', a mean of rows or columns",
    ),
    ("AdamMini", {"state_dtype": {"exp_avg_sq": "bfloat16"}}, "float32 for 'exp_avg_sq', one number of each layer"),
]


@pytest.mark.parametrize(("name", "options", "says"), REFUSED, ids=str)
def test_an_unknown_format_is_refused(api, name, options, says):
    with pytest.raises(HyperparameterError) as found:
        made(api, name, **options)
    assert says in str(found.value)


def test_two_options_may_not_give_a_field_two_dtypes(api):
    with pytest.raises(ContradictionError, match=r"as in (momentum_dtype|dtype_momentum), but is 'int8'"):
        made(api, "Adafactor", **WHOLE, momentum_dtype="bfloat16", state_dtype="int8")


# ---- how near it is


@pytest.mark.parametrize("form", ["int8", "bfloat16", "split"])
@each
@pytest.mark.thinned(2)
def test_every_api_stores_the_same_numbers(api, case, form):
    """Sums differ in their last digits, and codes where a number lies between two of them."""
    stored = {"master_weights": "split"} if form == "split" else {"state_dtype": form, "rounding": "stochastic"}
    options = case.consistent({**case.usual(), **case.busy, "lr": 0.01}) | stored
    engine = {"engine": None if api.name == "NumPy" else "rule"} if api.has("engines") else {}
    runs = made(api, case.name, **options, **engine), made(NumPy(), case.name, **options, engine="rule")
    for run in runs:
        walk(run, range(3))
    (ours, theirs), (weights, wanted) = ([run.state() for run in runs], [run.weights() for run in runs])
    for name in SHAPES:
        assert np.mean(weights[name] == wanted[name]) > 0.995, name
        for field, x in theirs[name].items():
            if field != "remainder":  # of weights that differ in their last digit
                _alike(ours[name][field], x, field)


def _alike(ours: np.ndarray, theirs: np.ndarray, field: str) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape) or field == "step"
    x, y = ours.astype(np.float64), theirs.astype(np.float64)
    if ours.dtype.kind in "iu":
        assert np.max(abs(x - y)) <= 1, field
        assert np.mean(abs(x - y)) < 4e-3, field
        return
    size = np.max(abs(y), initial=1e-30)
    np.testing.assert_allclose(x, y, rtol=0, atol=2.0**-7 * size, err_msg=field)
    # A statistic of rows or columns has few numbers, one of which a single code may change.
    assert np.sum(abs(x - y) > 2e-5 * size) <= max(2, 4e-3 * x.size), field


@pytest.mark.every
@each
@forms
@pytest.mark.offers("in_place")
def test_the_path_is_near_that_in_float32(api, case, form):
    """0.12 of its length in 8 bits, 0.02 in bfloat16; weights of small tensors, and what has no state, are the same.

    Where a step jumps, the sign of one of few numbers is 0.04 of the length.
    """
    small = 0.04 if case.jumps else 0.02
    options = {key: x for key, x in case.usual().items() if key in ("lr", "relative_step")}
    start, runs = arrays(0, SHAPES), []
    for stored in ({}, {"state_dtype": form}):
        runs.append(walk(api.make(case.name, start, dtype="float32", **{**options, "lr": 1e-3}, **stored), range(6)))
    path, near = (run.weights() for run in runs)
    for name in SHAPES:
        error = np.linalg.norm(near[name] - path[name]) / np.linalg.norm(path[name] - start[name])
        few = {x.dtype.name for x in runs[1].state()[name].values()} & {"int8", "uint8", "bfloat16"}
        assert (0 < error < (0.12 if form == "int8" else small)) if few else error < 1e-5, (name, error)


@pytest.mark.parametrize("engine", [None, "rule"])
@each
@pytest.mark.thinned(1)
def test_split_weights_are_float32_masters_bit_for_bit(api, case, engine):
    options = {"engine": engine} if api.has("engines") else {}
    split, master = (
        walk(api.busy(case.name, arrays(0, SHAPES), dtype="bfloat16", master_weights=form, **options), range(5))
        for form in ("split", True)
    )
    for name in SHAPES:
        wanted = full(master, name)
        np.testing.assert_array_equal(full(split, name).view(np.uint32), wanted.view(np.uint32))
        assert np.mean(split.weights()[name] != master.weights()[name]) < 2e-3  # ties alone
    assert np.any(wanted != master.weights()[name])


# ---- rounding at random


@pytest.mark.parametrize(("dtype", "place"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_steps_of_a_tenth_of_a_place_are_taken_at_random_and_lost_to_nearest(api, dtype, place):
    for rounding, wanted in ((None, 0.0), ("nearest", 0.0), ("stochastic", place)):
        options = {"lr": place / 1e-3 / 10, "momentum": 0.0, "rounding": rounding}
        run = api.make("Lars", {"w": np.ones((100, 100))}, dtype=dtype, **options)
        for _ in range(10):
            run.step({"w": np.ones((100, 100))})
        moved = 1 - run.weights()["w"].mean()
        assert abs(moved - wanted) <= (5 * place / 100 if wanted else 0), rounding


def test_random_bits_are_those_of_the_seed_and_the_name(api):
    """And of nothing else: neither order nor company matter."""
    start = {name: np.ones((64, 64)) for name in ("a", "b")}

    def moved(weights: Arrays = start, **options: int) -> Arrays:
        run = api.make("Lars", weights, dtype="bfloat16", lr=1.0, momentum=0.0, rounding="stochastic", **options)
        for _ in range(2):
            run.step({name: np.ones((64, 64)) for name in weights})
        return run.weights()

    found, other = moved(), moved(seed=1)
    for again in (moved(seed=0), moved({"b": start["b"], "a": start["a"]}), moved({"a": start["a"]})):
        assert all(np.array_equal(x, found[name]) for name, x in again.items())
    assert np.mean(found["a"] != found["b"]) > 0.05
    assert np.mean(found["a"] != other["a"]) > 0.05


def rounded(api, saved, field, **options) -> dict[str | None, np.ndarray]:
    """A field after a step from a state, by each way of rounding."""
    found = {}
    for rounding in (None, "stochastic", "nearest"):
        run = made(api, dtype="float32", rounding=rounding, shapes={"w": (64, 80)}, **options)
        run.load(saved)
        found[rounding] = walk(run, [1]).state()["w"][field]
        assert found[rounding].dtype == as_dtype(0, "bfloat16").dtype
    return found


@pytest.mark.filterwarnings("ignore:the checkpoint was written with other options")
def test_bfloat16_that_a_state_brought_is_rounded_at_random(api):
    one = walk(made(api, "Lamb", {"w": (64, 80)}, "float32", state_dtype="bfloat16"), [0])
    found = rounded(api, one.save(), "exp_avg", name="Lamb")
    np.testing.assert_array_equal(found[None], found["stochastic"])
    assert np.mean(found[None] != found["nearest"]) > 0.1


@pytest.mark.filterwarnings("ignore:the checkpoint was written with other options")
def test_momentum_dtype_alone_rounds_to_nearest(api):
    options = {**WHOLE, "momentum_dtype": "bfloat16"}
    one = walk(made(api, "Adafactor", {"w": (64, 80)}, "float32", **options), [0])
    found = rounded(api, one.save(), "exp_avg", name="Adafactor", **options)
    np.testing.assert_array_equal(found[None], found["nearest"])
    assert np.mean(found[None] != found["stochastic"]) > 0.1
    asked = made(api, "Adafactor", {"w": (64, 80)}, "float32", **options, state_dtype={"exp_avg": "bfloat16"})
    asked.load(one.save())
    np.testing.assert_array_equal(walk(asked, [1]).state()["w"]["exp_avg"], found["stochastic"])


# ---- groups and blocks


@pytest.mark.offers("blocks", "in_place")
@pytest.mark.parametrize("blocks", [4, "each", Blocks((32, 32)), Blocks(2, axis=1)], ids=str)
def test_groups_belong_to_the_tensor_and_not_to_its_blocks(api, blocks):
    one, other = (
        walk(made(api, "Lamb", MATRIX, "float32", state_dtype="int8", adapt=False, blocks=given), range(3))
        for given in ({"w": blocks}, None)
    )
    np.testing.assert_allclose(one.weights()["w"], other.weights()["w"], rtol=0, atol=1e-6)
    assert np.mean(one.state()["w"]["exp_avg"] != other.state()["w"]["exp_avg"]) < 1e-3


@pytest.mark.offers("blocks", "in_place")
@pytest.mark.parametrize(
    ("shape", "cut"), [((64, 128), Blocks((40, 88), axis=1)), ((8192,), Blocks((40, 8152)))], ids=str
)
def test_blocks_that_would_cut_groups_keep_float32_and_say_so(api, shape, cut):
    """Also if a state comes in 8 bits."""
    blocks, shapes = {"blocks": {"w": cut}, "adapt": False}, {"w": shape}
    run = made(api, "Lamb", shapes, "float32", state_dtype={"exp_avg": "int8"}, **blocks)
    with pytest.warns(UserWarning, match=r"'exp_avg' of '?w'? .* instead of 8 bits"):
        walk(run, [0])
    assert run.state()["w"]["exp_avg"].dtype == np.float32
    compact = walk(made(api, "Lamb", shapes, "float32", state_dtype="int8", adapt=False), [0])
    fresh = api.make("Lamb", compact.weights(), dtype="float32", **blocks)
    fresh.load(compact.save())
    for one in (fresh, compact):
        walk(one, [1])
    assert {key: x.dtype for key, x in fresh.state()["w"].items() if key != "step"} == {
        "exp_avg": np.float32,
        "exp_avg_sq": np.float32,
    }
    np.testing.assert_allclose(fresh.weights()["w"], compact.weights()["w"], rtol=0, atol=1e-6)


# ---- from one form to another


@pytest.mark.offers("in_place")
@pytest.mark.parametrize("to", [None, "float32", "bfloat16", "int8"])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_a_state_is_put_in_the_form_that_is_asked_for_or_stays(api, form, to):
    run = walk(made(api, "Lamb", dtype="float32", state_dtype=form), range(3))
    other = api.make("Lamb", run.weights(), dtype="float32", state_dtype=to)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load(run.save())
    for one in (run, other):
        walk(one, [3])
    wanted, found = run.state()["w"], other.state()["w"]
    assert found["exp_avg"].dtype == (to or form)
    assert ("exp_avg_unit" in found) == ((to or form) == "int8")
    if to in (None, form):
        assert all(np.array_equal(wanted[key], x) for key, x in found.items())
    np.testing.assert_allclose(other.weights()["w"], run.weights()["w"], rtol=0, atol=4e-3)
    if to == "float32":
        exact = walk(made(api, "Lamb", dtype="float32"), range(4)).state()["w"]["exp_avg_sq"]
        assert np.linalg.norm(found["exp_avg_sq"] - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.offers("change")
@pytest.mark.parametrize("to", [True, "split", "split24", False])
@pytest.mark.parametrize("form", [True, "split", "split24", False])
def test_weights_may_change_their_form_between_steps(api, form, to):
    run = walk(made(api, "Lamb", lr=0.01, master_weights=form), range(3))
    before = full(run, "w")
    run.change(master_weights=to)
    run.set_lr(0.0)
    walk(run, [3])
    after, shown = full(run, "w"), run.weights()["w"]
    assert {"master", "remainder"} & run.state()["w"].keys() == (
        {"master"} if to is True else {"remainder"} if to else set()
    )
    if to in (True, "split"):
        np.testing.assert_array_equal(after, before)
    elif to:
        assert np.all(abs(after - before) <= 2.0**-16 * abs(before))
    assert np.all(abs(after - shown) <= abs(shown) * 2.0**-8)
    if not to and form:
        assert np.all(abs(shown - before) <= abs(before) * 2.0**-8)


@pytest.mark.offers("change")
def test_state_may_change_its_form_between_steps(api):
    run = walk(made(api, "Lamb", dtype="float32"), range(2))
    before = run.state()["w"]["exp_avg"]
    for form, dtype in (("int8", np.int8), ("bfloat16", "bfloat16"), ("float32", np.float32)):
        run.change(state_dtype={"exp_avg": form}, betas=(0.999, 0.999))
        state = walk(run, [2]).state()["w"]
        assert state["exp_avg"].dtype == (as_dtype(0, "bfloat16").dtype if dtype == "bfloat16" else dtype)
        assert ("exp_avg_unit" in state) == (form == "int8")
        assert state["exp_avg_sq"].dtype == np.float32
    assert np.linalg.norm(state["exp_avg"] - before) < 0.1 * np.linalg.norm(before)


@pytest.mark.offers("skip")
def test_a_step_that_is_skipped_changes_no_code(api):
    run = walk(made(api, "Lamb", skip_nonfinite=True, **EVERYTHING), range(2))
    before = run.bits(), {name: {k: x.tobytes() for k, x in one.items()} for name, one in run.state().items()}
    grads = arrays(12, SHAPES)
    grads["w"][0, 0] = np.nan
    run.step(grads)
    assert run.skipped == 1
    assert before == (run.bits(), {n: {k: x.tobytes() for k, x in one.items()} for n, one in run.state().items()})


def test_weights_in_float32_have_nothing_beside_them(api):
    one = walk(made(api, "Lamb", dtype="float32", master_weights="split", rounding="stochastic"), range(2))
    other = walk(made(api, "Lamb", dtype="float32"), range(2))
    assert one.bits() == other.bits()
    assert not {"master", "remainder"} & one.state()["w"].keys()


def test_every_class_takes_the_options_of_storage(api):
    assert {name for name, one in APIS.items() if one.has("state_dtype")} == {"NumPy", "Torch", "Jax"}
    for case in CASES:
        assert made(api, case.name, **EVERYTHING, **({"lr": 0.1} if case_of(case.name).usual().get("lr") else {}))


# ---- a new format


FOUR = {"state_dtype": "int4", "master_weights": "split24"}


def _in_fours(b, x, signed, drawn=None):
    """Codes of 4 bits, in proportion to the numbers of their group."""
    xp, (rows, length) = b.xp, x.shape
    most, count = (7.0 if signed else 15.0), quantized_groups.num_groups(length)
    size = xp.concat([abs(x), xp.zeros_like(xp.broadcast_to(x[:, :1], (rows, count * 64 - length)))], 1)
    scale = xp.amax(size.reshape(rows, count, 64), 2) / most
    ratio = x / xp.where(_of_each(xp, scale, length) > 0, _of_each(xp, scale, length), 1.0)
    return (xp.round(ratio) if drawn is None else xp.floor(ratio + drawn * 2.0**-24)), scale


def _of_fours(b, codes, scale, signed):
    return codes * _of_each(b.xp, scale, codes.shape[1])


def _of_each(xp, scale, length):
    rows, count = scale.shape
    return xp.broadcast_to(scale[:, :, None], (rows, count, 64)).reshape(rows, count * 64)[:, :length]


@pytest.mark.offers("in_place", "change")
def test_a_new_format_is_its_mathematics_and_an_entry_in_the_list(api, monkeypatch):
    monkeypatch.setitem(CODED, "int4", CodedFormat("int4", "_scale4", ("int8", "uint8"), _in_fours, _of_fours))
    monkeypatch.setattr(options, "DTYPES", checks.dtype("float32", "bfloat16", *CODED))
    run = walk(made(api, "Lamb", **FOUR), range(3))
    state = run.state()
    assert {key: x.dtype for key, x in state["w"].items() if key != "step"} == {
        "exp_avg": np.int8,
        "exp_avg_scale4": np.float32,
        "exp_avg_sq": np.uint8,
        "exp_avg_sq_scale4": np.float32,
        "remainder": np.int8,
    }
    assert np.abs(state["w"]["exp_avg"]).max() == 7
    assert "exp_avg_scale4" not in state["b"]
    again = api.make("Lamb", run.weights(), dtype="bfloat16", **FOUR)
    again.load(run.save())
    assert walk(again, [3]).bits() == walk(run, [3]).bits()
    with api.raises(StateError, match="exp_avg_scale4"):
        again.load(run.spoiled("w", "exp_avg_scale4", lambda x: x[:, :1]))
    run.change(state_dtype="float32")
    walk(run, [4])
    assert not any(key.endswith("_scale4") for key in run.state()["w"])
    assert run.state()["w"]["exp_avg"].dtype == np.float32
