"""Arrays as people have them: of any layout, in one buffer, mapped from a file, gradients of any real kind."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from numpy_front.front import DTYPES, arrays, bits, busy, close, copies, dtypes, fronts

from layerwise.errors import ContradictionError, ParameterError
from layerwise.numpy import Lamb
from layerwise.numpy._steps import OccupiedMemory


@fronts
def test_step_is_step_all_of_one(front):
    one, all_, a, b = busy(front), busy(front), arrays(4), arrays(4)
    for t in range(3):
        grads = arrays(40 + t)
        for name in a:
            assert one.step(name, a[name], grads[name]) is None
        assert all_.step_all(b, grads) is None
    assert bits(a) == bits(b)
    assert bits(one.state_dict()) == bits(all_.state_dict())


@fronts
@pytest.mark.needs("max_grad_norm")
def test_the_norm_of_all_gradients_needs_step_all(front):
    opt, weights = front(max_grad_norm=0.5), arrays(4)
    with pytest.raises(
        ContradictionError, match=r"`max_grad_norm` must be None for step\(\), but is 0\.5\. .*step_all"
    ):
        opt.step("matrix", weights["matrix"], weights["matrix"])
    assert bits(weights) == bits(arrays(4))
    front(max_grad_norm=0).step("matrix", weights["matrix"], weights["matrix"])


# ---- layouts


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


@draws(10)
@given(of_grad=st.sampled_from(sorted(LAYOUTS)), dtype=st.sampled_from(DTYPES[1:3]))
@pytest.mark.parametrize("layout", LAYOUTS)
@fronts
def test_layouts_do_not_matter(front, layout, of_grad, dtype):
    opt, plain, w = busy(front), busy(front), arrays(1, {"w": (4, 3, 2)}, dtype)
    laid_out = {"w": LAYOUTS[layout](w["w"])}
    for t in range(2):
        g = arrays(t + 2, {"w": (4, 3, 2)}, dtype)["w"]
        plain.step("w", w["w"], g)
        opt.step("w", laid_out["w"], LAYOUTS[of_grad](g))
    close(laid_out, w, 1e-14 if dtype == np.float64 else 1e-6)
    if layout == "strided":  # elements between those of the array are left alone
        base = laid_out["w"].base
        assert (base == 77.0).sum() == base.size - laid_out["w"].size


def test_weights_mapped_from_a_file_are_written_there(tmp_path):
    mapped = np.memmap(tmp_path / "w", dtype=np.float32, mode="w+", shape=(3, 2))
    mapped[...] = 1
    w = np.ones((3, 2), np.float32)
    for one in (mapped, w):
        busy(Lamb).step("w", one, np.full((3, 2), 0.5))
    mapped.flush()
    assert np.fromfile(tmp_path / "w", np.float32).tobytes() == w.tobytes()


# ---- gradients


@fronts
@pytest.mark.needs("max_grad_norm")
def test_gradients_are_never_written_to(front):
    options = {"max_grad_norm": 0.1, "max_grad_norm_per_tensor": 0.1, "max_grad_value": 0.1, "maximize": True}
    opt, weights, grads = busy(front, **options), arrays(5), arrays(6)
    for g in grads.values():
        g.flags.writeable = False
    for _ in range(3):
        opt.step_all(weights, grads)
    assert bits(grads) == bits(arrays(6))


OF_ANY_KIND = {
    "list": lambda g: g.tolist(),
    "whole numbers": lambda g: g.astype(np.int64),
    "bytes": lambda g: g.astype(np.uint8),
    "float16": lambda g: g.astype(np.float16),
    "bfloat16": lambda g: g.astype(ml_dtypes.bfloat16),
    "longdouble": lambda g: g.astype(np.longdouble),
    "matrix": np.asmatrix,
    "broadcast": lambda g: np.broadcast_to(g[:1], g.shape),
}


@fronts
@pytest.mark.parametrize("kind", OF_ANY_KIND)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_gradients_may_be_of_any_real_kind(front, kind):
    g, a, b = np.array([[1.0, 2.0]] * 2), np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])
    busy(front).step("w", a, OF_ANY_KIND[kind](g))
    busy(front).step("w", b, g)
    np.testing.assert_allclose(a, b, rtol=1e-15)  # the rule may take one, and kernels the other


@fronts
@pytest.mark.parametrize("engine", [None, "rule"])
def test_gradients_of_one_step_may_be_of_several_dtypes(front, engine):
    """Small tensors are stacked, and NumPy itself stacks no bfloat16 with float16."""
    shapes = {dtype.name: (2, 3) for dtype in DTYPES}
    together, apart = arrays(9, shapes, np.float32), arrays(9, shapes, np.float32)
    opt, others = busy(front, engine=engine), {name: busy(front, engine=engine) for name in shapes}
    for t in range(2):
        grads = {name: g.astype(name) for name, g in arrays(30 + t, shapes).items()}
        opt.step_all(together, grads)
        for name, g in grads.items():
            others[name].step(name, apart[name], g)
    close(together, apart, 1e-6)


def reaching(own):
    """Gradients that lie in the weights themselves: their own, of one another (those of Σ a·b), reversed."""
    return {"a": own["a"], "b": own["c"], "c": own["b"], "d": own["d"][::-1]}


@fronts
@pytest.mark.parametrize("blocks", [None, {"d": (1, 3)}], ids=["whole", "blocks"])
def test_weights_may_be_gradients(front, blocks):
    shapes = dict.fromkeys("abc", (3,)) | {"d": (4,)}
    aliased, apart = arrays(7, shapes), arrays(7, shapes)
    one, other = busy(front, blocks=blocks), busy(front, blocks=blocks)
    for _ in range(3):
        one.step_all(aliased, reaching(aliased))
        other.step_all(apart, copies(reaching(apart)))
    assert bits(aliased) == bits(apart)


@fronts
def test_a_gradient_that_overflows_the_arithmetic_is_skipped(front):
    w, opt = np.ones(3, np.float32), busy(front, skip_nonfinite=True)
    opt.step("w", w, np.array([1e300, 0.0, 0.0]))
    assert opt.skipped == 1
    np.testing.assert_array_equal(w, 1)


# ---- memory that is shared


TIED = {
    "same": lambda e: (e, e),
    "view": lambda e: (e, e[:]),
    "transposed": lambda e: (e, e.T),
    "flat": lambda e: (e, e.reshape(-1)),
    "overlapping": lambda e: (e[:2], e[1:]),
    "reversed": lambda e: (e, e[::-1]),
    "reversed, in part": lambda e: (e[:2], e[1:][::-1]),
}


@pytest.mark.parametrize("tie", TIED)
def test_tied_weights_are_refused_and_not_moved(tie):
    first, second = TIED[tie](np.arange(1.0, 10.0).reshape(3, 3))
    weights, opt = {"embed": first, "head": second}, Lamb()
    before = bits(weights)
    with pytest.raises(ParameterError, match="'embed' and 'head'"):
        opt.step_all(weights, {name: np.ones(w.shape) for name, w in weights.items()})
    assert bits(weights) == before
    assert opt.num_parameters == 0


def test_neighbours_in_one_buffer_are_not_tied():
    flat = np.arange(1.0, 13.0)
    grid = flat.reshape(4, 3)
    for views in ((flat[:6], flat[6:]), (flat[::2], flat[1::2]), (grid[:, :1], grid[:, 1:])):
        weights, before = dict(zip("ab", views, strict=True)), flat.copy()
        busy(Lamb).step_all(weights, {name: np.ones(w.shape) for name, w in weights.items()})
        assert (flat != before).all()


def test_memory_inside_other_memory_is_told_from_shared_memory():
    """The second lies between the elements of the first; the gradient is the end of the first."""
    buffer = np.arange(1.0, 13.0)
    both = {"spread": buffer[0::2], "inside": buffer[1:4:2]}
    [apart] = OccupiedMemory([*both], [*both.values()]).apart([buffer[8:]])
    assert not np.shares_memory(apart, buffer)
    with pytest.raises(ParameterError, match="'spread' and 'late' share memory"):
        OccupiedMemory([*both, "late"], [*both.values(), buffer[9:]])


def test_weights_of_another_shape_and_the_same_strides_are_refused_later():
    opt = Lamb(lr=0.1)
    for _ in range(2):
        opt.step_all({"a": np.ones((4, 3))}, {"a": np.ones((4, 3))})
    with pytest.raises(ParameterError, match=r"had the shape \(4, 3\) and now have \(2, 3\)"):
        opt.step_all({"a": np.ones((2, 3))}, {"a": np.ones((4, 3))})  # the gradient is as it was


def test_measurements_are_of_the_last_step_of_each_name_whichever_others_it_took():
    opt, weights = Lamb(lr=0.1), {name: np.ones(4) for name in "ab"}
    for names in ("ab", "a", "ab"):
        norms = {name: np.linalg.norm(weights[name]) for name in "ab"}
        opt.step_all(weights, {name: np.ones(4) for name in names})
    assert {name: found["weight_norm"] for name, found in opt.stats().items()} == pytest.approx(norms)


def test_weights_that_overlap_themselves_are_refused():
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3, writeable=True)
    opt = Lamb()
    with pytest.raises(ParameterError, match="among their own elements"):
        opt.step("w", windows, np.ones((4, 3)))
    assert not opt.parameters


# ---- the arithmetic


@fronts
@dtypes
def test_floating_point_errors_neither_crash_nor_half_step(front, dtype):
    """Whatever NumPy is set to do about them. The setting stays as it was."""
    options = {"max_grad_value": 1.0, **({"max_grad_norm": 1.0} if "max_grad_norm" in front._names() else {})}
    for value in (5e-324, 1e-38, 1e300, np.inf, np.nan):
        strict, loose = busy(front, **options), busy(front, **options)
        a, b = arrays(8, dtype=dtype), arrays(8, dtype=dtype)
        grads = {name: np.full(w.shape, value) for name, w in a.items()}
        with np.errstate(divide="raise", over="raise", under="raise", invalid="raise"):
            before = np.geterr()
            for _ in range(2):
                strict.step_all(a, grads)
            strict.stats()
            state = strict.state_dict()
            assert np.geterr() == before
        for _ in range(2):
            loose.step_all(b, grads)
        assert bits(a) == bits(b)
        assert bits(state) == bits(loose.state_dict())
