"""One step on arrays as people have them: any layout, any dtype, any size."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cases import CASES
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from numpy_front.front import DTYPES, SHAPES, arrays, bits, busy, close, copies, dtypes, everything, fronts

from layerwise.errors import ContradictionError, ParameterError
from layerwise.numpy import Adafactor, Lamb
from layerwise.numpy._memory import Occupied

pytestmark = pytest.mark.every

TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(12))
def test_follows_the_reference(case, seed):
    options = case.drawn(100 + seed)
    opt, oracle = case.numpy(**options), case.reference(**options)
    weights = arrays(seed)
    expected = copies(weights)
    for t in range(4):
        grads = arrays(1000 * seed + t)
        opt.step_all(weights, grads)
        expected = oracle.step(expected, grads)
        close(weights, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 0.5},
        {"max_grad_norm_per_tensor": 0.5},
        {"max_grad_value": 0.3},
        {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.4, "max_grad_value": 0.3, "maximize": True},
        {"max_grad_norm": 0, "max_grad_norm_per_tensor": 0, "max_grad_value": 0},
        {"max_grad_norm": 1e9},
    ],
    ids=str,
)
def test_clipping(case, options):
    opt, oracle = case.numpy(lr=0.1, **options), case.reference(lr=0.1, **options)
    weights = arrays(1)
    expected = copies(weights)
    for t in range(3):
        grads = arrays(10 + t)
        opt.step_all(weights, grads)
        expected = oracle.step(expected, grads)
    close(weights, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@dtypes
def test_every_dtype_follows_the_reference(case, dtype):
    opt, oracle = case.numpy(lr=0.1), case.reference(lr=0.1)
    weights = arrays(2, dtype=dtype)
    expected = {name: w.astype(np.float64) for name, w in weights.items()}
    for t in range(3):
        grads = arrays(20 + t, dtype=dtype)
        opt.step_all(weights, grads)
        expected = oracle.step(expected, {name: g.astype(np.float64) for name, g in grads.items()})
    assert {w.dtype for w in weights.values()} == {dtype}
    close(weights, expected, TOLERANCE[dtype.name])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.needs("max_grad_norm")
def test_dtypes_share_a_global_norm(case):
    opt, oracle = case.numpy(lr=0.1, max_grad_norm=0.5), case.reference(lr=0.1, max_grad_norm=0.5)
    weights = {dtype.name: arrays(2, {"w": (3, 2)}, dtype)["w"] for dtype in DTYPES}
    expected = {name: w.astype(np.float64) for name, w in weights.items()}
    for t in range(3):
        grads = {dtype.name: arrays(20 + t, {"w": (3, 2)}, dtype)["w"] for dtype in DTYPES}
        opt.step_all(weights, grads)
        expected = oracle.step(expected, {name: g.astype(np.float64) for name, g in grads.items()})
    for name, w in weights.items():
        # The norm itself is rounded to float32 where its terms are.
        close({name: w}, {name: expected[name]}, max(TOLERANCE[name], 1e-6))
        assert w.dtype.name == name


@fronts
@pytest.mark.parametrize("dtype", [DTYPES[0], DTYPES[3]], ids=lambda dtype: dtype.name)
def test_low_precision_is_computed_in_float32_and_rounded_once(front, dtype):
    opt, wide = busy(front), busy(front)
    weights = arrays(3, dtype=dtype)
    for t in range(3):
        grads = arrays(30 + t, dtype=dtype)
        widened = {name: w.astype(np.float32) for name, w in weights.items()}
        wide.load_state_dict(opt.state_dict())
        wide.step_all(widened, {name: g.astype(np.float32) for name, g in grads.items()})
        opt.step_all(weights, grads)
        assert bits(weights) == bits({name: w.astype(dtype) for name, w in widened.items()})
        assert_same_state(opt, wide)
    kept = {array.dtype.name for key, array in opt.state_dict().items() if key.rpartition("/")[2].startswith("exp_avg")}
    assert kept <= {"float32"}


def assert_same_state(opt, wide):
    """But for rounding in float32, because a norm that a state is made of may be added up in another order."""
    ours, theirs = opt.state_dict(), wide.state_dict()
    assert set(ours) == set(theirs)
    for key, array in ours.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, theirs[key], rtol=0, atol=1e-6 * np.max(np.abs(array), initial=0.0))
        else:
            np.testing.assert_array_equal(array, theirs[key])


@fronts
def test_step_is_step_all_of_one(front):
    one, all_ = busy(front), busy(front)
    a, b = arrays(4), arrays(4)
    for t in range(3):
        grads = arrays(40 + t)
        for name in a:
            assert one.step(name, a[name], grads[name]) is None
        assert all_.step_all(b, grads) is None
    assert bits(a) == bits(b)
    assert bits(one.state_dict()) == bits(all_.state_dict())


@fronts
@pytest.mark.needs("max_grad_norm")
def test_global_clipping_needs_all_gradients(front):
    opt, weights = front(max_grad_norm=0.5), arrays(4)
    with pytest.raises(
        ContradictionError, match=r"`max_grad_norm` must be None for step\(\), but is 0\.5\. .*step_all"
    ):
        opt.step("matrix", weights["matrix"], weights["matrix"])
    assert bits(weights) == bits(arrays(4))
    front(max_grad_norm=0).step("matrix", weights["matrix"], weights["matrix"])


@draws(25)
@given(
    order=st.permutations(list(SHAPES)), cut=st.integers(0, len(SHAPES)), seed=st.integers(0, 10**6), lr=st.booleans()
)
@fronts
def test_order_of_names_does_not_matter(front, order, cut, seed, lr):
    options = {"lr": (lambda step: 0.1 / (1 + step)) if lr else 0.1}
    opt, other = busy(front, **options), busy(front, **options)
    weights, permuted = arrays(seed), {name: arrays(seed)[name] for name in order}
    for t in range(3):
        grads = arrays(seed + t + 1)
        opt.step_all(weights, grads)
        other.step_all(permuted, {name: grads[name] for name in order[:cut]})
        for name in order[cut:]:
            other.step(name, permuted[name], grads[name])
    assert bits(weights) == bits({name: permuted[name] for name in weights})


@draws(10)
@given(order=st.permutations(list(SHAPES)), seed=st.integers(0, 10**6))
@fronts
@pytest.mark.needs("max_grad_norm")
def test_order_of_names_only_rounds_the_global_norm(front, order, seed):
    opt, other = busy(front, max_grad_norm=0.5), busy(front, max_grad_norm=0.5)
    weights, permuted = arrays(seed), {name: arrays(seed)[name] for name in order}
    for t in range(3):
        grads = arrays(seed + t + 1)
        opt.step_all(weights, grads)
        other.step_all(permuted, {name: grads[name] for name in order})
    close(permuted, weights)


def strided(array):
    wide = np.full(tuple(2 * n + 1 for n in array.shape), 77.0, dtype=array.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in array.shape)]
    view[...] = array
    return view


LAYOUTS = {
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.T.copy().T,
    "swapped": lambda a: a.swapaxes(0, 1).copy().swapaxes(0, 1),
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "strided": strided,
    "unaligned": lambda a: np.frombuffer(bytearray(b"x" + a.tobytes()), a.dtype, offset=1).reshape(a.shape),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}


@draws(15)
@given(seed=st.integers(0, 10**6), of_grad=st.sampled_from(sorted(LAYOUTS)), dtype=st.sampled_from(DTYPES[1:3]))
@pytest.mark.parametrize("layout", LAYOUTS)
@fronts
def test_layout_does_not_matter(front, layout, seed, of_grad, dtype):
    opt, plain = busy(front), busy(front)
    w = arrays(seed, {"w": (4, 3, 2)}, dtype)
    laid_out = {"w": LAYOUTS[layout](w["w"])}
    for t in range(2):
        g = arrays(seed + t + 1, {"w": (4, 3, 2)}, dtype)["w"]
        plain.step("w", w["w"], g)
        opt.step("w", laid_out["w"], LAYOUTS[of_grad](g))
    close(laid_out, w, 1e-14 if dtype == np.float64 else 1e-6)


@fronts
def test_elements_between_strides_are_left_alone(front):
    view = strided(np.ones((3, 2)))
    busy(front).step("w", view, np.ones((3, 2)))
    assert (view != 1).all()
    assert (view.base == 77.0).sum() == view.base.size - view.size


@fronts
def test_memory_mapped_weights(front, tmp_path):
    mapped = np.memmap(tmp_path / "w", dtype=np.float32, mode="w+", shape=(3, 2))
    mapped[...] = 1
    w, opt = np.ones((3, 2), np.float32), busy(front)
    opt.step("w", mapped, np.full((3, 2), 0.5))
    busy(front).step("w", w, np.full((3, 2), 0.5))
    mapped.flush()
    assert np.fromfile(tmp_path / "w", np.float32).tobytes() == w.tobytes()


@fronts
@pytest.mark.needs("max_grad_norm")
def test_gradients_are_never_written_to(front):
    options = {"max_grad_norm": 0.1, "max_grad_norm_per_tensor": 0.1, "max_grad_value": 0.1, "maximize": True}
    opt, weights, grads = busy(front, **options), arrays(5), arrays(6)
    for g in grads.values():
        g.flags.writeable = False
    before = bits(grads)
    for _ in range(3):
        opt.step_all(weights, grads)
    assert bits(grads) == before


@fronts
@pytest.mark.parametrize(
    "convert",
    [
        lambda g: g.tolist(),
        lambda g: g.astype(np.int64),
        lambda g: g.astype(np.uint8),
        lambda g: g.astype(np.float16),
        lambda g: g.astype(DTYPES[3]),
        lambda g: g.astype(np.longdouble),
        lambda g: np.asmatrix(g),
        lambda g: np.broadcast_to(g[:1], g.shape),
    ],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_gradients_of_any_real_kind(front, convert):
    g = np.array([[1.0, 2.0], [1.0, 2.0]])
    a, b = np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])
    busy(front).step("w", a, convert(g))
    busy(front).step("w", b, g)
    np.testing.assert_allclose(a, b, rtol=1e-15)  # the rule may take one, and kernels the other


@fronts
def test_weights_may_be_their_own_gradient(front):
    a, b = np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])
    busy(front).step("w", a, a)
    busy(front).step("w", b, b.copy())
    assert a.tobytes() == b.tobytes()


@fronts
def test_weights_may_be_the_gradient_of_other_weights(front):
    # The gradients of Σ a·b.
    aliased, apart = arrays(7, {"a": (3,), "b": (3,)}), arrays(7, {"a": (3,), "b": (3,)})
    one, other = busy(front), busy(front)
    for _ in range(3):
        one.step_all(aliased, {"a": aliased["b"], "b": aliased["a"]})
        other.step_all(apart, copies({"a": apart["b"], "b": apart["a"]}))
    assert bits(aliased) == bits(apart)


@fronts
def test_weights_may_be_the_gradient_of_their_own_blocks(front):
    a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 3.0, 4.0])
    one, other = busy(front, blocks=(1, 3)), busy(front, blocks=(1, 3))
    for _ in range(3):
        one.step("w", a, a[::-1])
        other.step("w", b, b[::-1].copy())
    assert a.tobytes() == b.tobytes()


SQUARE = np.arange(1.0, 10.0).reshape(3, 3)
TIED = {
    "same": lambda e: (e, e),
    "view": lambda e: (e, e[:]),
    "transposed": lambda e: (e, e.T),
    "flat": lambda e: (e, e.reshape(-1)),
    "overlapping": lambda e: (e[:2], e[1:]),
    "reversed": lambda e: (e, e[::-1]),
}


@fronts
@pytest.mark.parametrize("tie", TIED)
def test_tied_weights_are_refused(front, tie):
    first, second = TIED[tie](SQUARE.copy())
    weights = {"embed": first, "head": second}
    opt, before = busy(front), bits(weights)
    with pytest.raises(ParameterError, match="'embed' and 'head'"):
        opt.step_all(weights, {name: np.ones(w.shape) for name, w in weights.items()})
    assert bits(weights) == before
    assert opt.num_parameters == 0


@fronts
def test_neighbours_in_one_buffer_are_not_tied(front):
    flat = np.arange(1.0, 13.0)
    grid = flat.reshape(4, 3)
    for views in ((flat[:6], flat[6:]), (flat[::2], flat[1::2]), (grid[:, :1], grid[:, 1:])):
        weights = dict(zip(("a", "b"), views, strict=True))
        before = flat.copy()
        busy(front).step_all(weights, {name: np.ones(w.shape) for name, w in weights.items()})
        assert (flat != before).all()


@fronts
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
@pytest.mark.needs("max_grad_norm")
def test_empty_arrays(front, shape):
    for options in ({}, {"max_grad_norm": 1.0}, {"max_grad_norm_per_tensor": 1.0, "blocks": 1}):
        for dtype in DTYPES:
            opt, calm = busy(front, **options), busy(front, **options)
            weights, alone = {"empty": np.ones(shape, dtype), "w": np.ones(2, dtype)}, {"w": np.ones(2, dtype)}
            for t in range(2):
                grads = {"empty": np.ones(shape), "w": np.array([1.0, t])}
                opt.step_all(weights, grads)
                calm.step_all(alone, {"w": grads["w"]})
            assert opt.parameters == {"empty": shape, "w": (2,)}
            assert weights["w"].tobytes() == alone["w"].tobytes()
            assert all(np.isfinite(value).all() for value in opt.stats()["empty"].values())
            again = busy(front, **options)
            again.load_state_dict(opt.state_dict())
            assert bits(again.state_dict()) == bits(opt.state_dict())


@fronts
@dtypes
@pytest.mark.parametrize("options", [{}, {"max_grad_norm_per_tensor": 0.1}, {"max_grad_value": 0.1}], ids=str)
def test_numbers_are_arrays_too(front, dtype, options):
    number, vector = np.array(2.0, dtype), np.array([2.0], dtype)
    a, b = busy(front, **options), busy(front, **options)
    for g in (0.5, -1.5):
        a.step("w", number, np.float32(g))
        b.step("w", vector, np.array([g], np.float32))
    assert number.shape == ()
    assert number.tobytes() == vector.tobytes()


NASTY = [0.0, -0.0, 5e-324, 1e-310, 1e-45, 1e-38, 1e-7, 6e4, 1e38, 1e300, np.inf, -np.inf, np.nan]


@fronts
@dtypes
@pytest.mark.parametrize(
    "options", [{}, {"max_grad_norm": 1.0}, {"max_grad_norm_per_tensor": 1.0, "max_grad_value": 1.0}]
)
def test_floating_point_errors_neither_crash_nor_half_step(front, dtype, options):
    for value in NASTY:
        strict, loose = busy(front, **options), busy(front, **options)
        a, b = arrays(8, dtype=dtype), arrays(8, dtype=dtype)
        grads = {name: np.full(w.shape, value) for name, w in a.items()}
        for _ in range(2):
            with np.errstate(all="raise"):
                strict.step_all(a, grads)
                strict.stats()
                state = strict.state_dict()
            loose.step_all(b, grads)
        assert bits(a) == bits(b)
        assert bits(state) == bits(loose.state_dict())


@fronts
def test_error_state_is_left_as_it_was(front):
    with np.errstate(divide="raise", over="warn", under="ignore", invalid="call"):
        before = np.geterr()
        busy(front).step("w", np.ones(2), np.array([np.inf, 0.0]))
        assert np.geterr() == before


@fronts
def test_nan_spreads_unless_it_is_skipped(front):
    for skip in (False, True):
        opt, weights = busy(front, skip_nonfinite=skip), arrays(9)
        opt.step_all(weights, arrays(10))
        before = everything(opt, weights)
        for count, bad in enumerate((np.nan, np.inf, -np.inf), start=1):
            grads = arrays(11)
            grads["vector"][2] = bad
            opt.step_all(weights, grads)
            if skip:
                after = everything(opt, weights)
                assert (after[0], after[2], opt.skipped) == (before[0], before[2], count)
                assert {**after[1], "skipped": None} == {**before[1], "skipped": None}
            else:
                assert np.isnan(weights["vector"]).any()
                assert np.isfinite(weights["matrix"]).all()
                assert opt.skipped == 0


@fronts
@dtypes
def test_skipped_steps_leave_no_trace(front, dtype):
    opt, calm = (busy(front, skip_nonfinite=True, lr=lambda step: 0.1 / (step + 1)) for _ in range(2))
    a, b = arrays(9, dtype=dtype), arrays(9, dtype=dtype)
    for t in range(3):
        grads = arrays(90 + t, dtype=dtype)
        opt.step_all(a, grads)
        calm.step_all(b, grads)
        opt.step_all(a, {**grads, "scalar": np.array(np.nan, dtype)})
        opt.step("matrix", a["matrix"], np.full((4, 3), np.inf))
    assert bits(a) == bits(b)
    assert opt.skipped == 6
    assert opt.parameters == calm.parameters


@fronts
def test_a_step_without_gradients_is_none(front):
    opt, weights = busy(front, lr=lambda step: 0.1 * (step + 1)), arrays(12)
    for grads in ({}, dict.fromkeys(weights)):
        opt.step_all(weights, grads)
    opt.step_all({}, {})
    assert bits(weights) == bits(arrays(12))
    assert (opt.num_parameters, opt.steps) == (len(weights), 0)
    assert opt.lr == 0.1


def test_the_example_of_the_module():
    w = np.array([3.0, 4.0])
    Lamb(lr=0.1).step("w", w, np.array([1.0, 1.0]))
    np.testing.assert_allclose(w, [2.646446609407, 3.646446609407], rtol=0, atol=1e-12)


@fronts
def test_a_gradient_that_overflows_the_arithmetic_is_skipped(front):
    w, opt = np.ones(3, np.float32), busy(front, skip_nonfinite=True)
    opt.step("w", w, np.array([1e300, 0.0, 0.0]))
    assert opt.skipped == 1
    np.testing.assert_array_equal(w, 1)


def test_memory_inside_other_memory():
    # The second lies between the elements of the first; the gradient is the end of the first.
    buffer = np.arange(1.0, 13.0)
    spread, inside = buffer[0::2], buffer[1:4:2]
    assert Occupied({"spread": spread, "inside": inside}).check_distinct() is None
    grad = buffer[8:]
    assert not np.shares_memory(Occupied({"spread": spread, "inside": inside}).apart(grad), buffer)
    with pytest.raises(ParameterError, match="'spread' and 'late' share memory"):
        Occupied({"spread": spread, "inside": inside, "late": buffer[9:]}).check_distinct()


def test_weights_that_overlap_themselves():
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3, writeable=True)
    with pytest.raises(ParameterError, match="among their own elements"):
        Lamb().step("w", windows, np.ones((4, 3)))
    assert not Lamb().parameters


def test_the_epsilon_is_of_the_dtype_of_this_step():
    settings = {"eps": (None, 1e-3), "eps_mode": "clamp", "factored": False, "lr": 1.0, "clip_threshold": None}
    grads = np.full(3, 1e-12)
    opt, w = Adafactor(**settings), np.ones(3, np.float16)
    opt.step("w", w, grads)
    fine = np.ones(3)
    opt.step("w", fine, grads)
    np.testing.assert_allclose(fine, 0.0, atol=1e-3)  # u = g/√V = 1, and not g/eps of float16


@dtypes
def test_the_epsilon_of_each_dtype(dtype):
    settings = {"eps_mode": "clamp", "factored": False, "lr": 1.0, "clip_threshold": None}
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert np.float64(1.0) < dtype.type(1.0 + eps)
    assert dtype.type(1.0 + eps / 4) == 1.0
    found, asked = np.ones((2, 3), dtype)
    Adafactor(**settings, eps=(None, 1e-3)).step("w", found, np.full(3, eps / 4, dtype))
    Adafactor(**settings, eps=(eps, 1e-3)).step("w", asked, np.full(3, eps / 4, dtype))
    np.testing.assert_array_equal(found, asked)
    assert (found < 1).all()
