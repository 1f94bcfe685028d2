"""A block is exactly what it would be as a tensor of its own."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES, case_of
from numpy_front.front import arrays, bits, busy, close, fronts

from layerwise import Blocks
from layerwise.errors import ContradictionError, HyperparameterError, LayerwiseError, ParameterError
from layerwise.numpy import Adafactor, Lamb, Lars

CUTS = [
    (Blocks(3), (6, 4)),
    (Blocks(3, axis=-2), (6, 4)),
    (Blocks(2, axis=1), (6, 4)),
    (Blocks(2, axis=-1), (3, 2, 4)),
    (Blocks(1), (6, 4)),
    (Blocks(6), (6, 4)),
    (Blocks(4), (8,)),
    (Blocks("each"), (3, 4, 2)),
    (Blocks("each", axis=1), (3, 4, 2)),
    (Blocks("each", axis=-1), (3, 4, 2)),
    (Blocks("each"), (5,)),
    (Blocks((4, 2, 3)), (9, 4)),
    (Blocks((4, 2, 3), axis=-1), (2, 4, 9)),
    (Blocks((1, 3), axis=1), (3, 4, 2)),
    (Blocks((1, 1, 1)), (3, 4)),
    (Blocks((3,)), (3, 4)),
    (Blocks([2, 2]), (4,)),
]
cuts = pytest.mark.parametrize(("blocks", "shape"), CUTS, ids=str)


def sizes(blocks, shape):
    length = shape[blocks.axis]
    if blocks.split == "each":
        return (1,) * length
    return (length // blocks.split,) * blocks.split if isinstance(blocks.split, int) else blocks.split


def apart(blocks, array):
    """The blocks as arrays of their own."""
    ends = np.cumsum(sizes(blocks, array.shape))[:-1]
    pieces = np.split(array, ends, axis=blocks.axis)
    drop = blocks.split == "each"
    return {str(i): (np.squeeze(one, axis=blocks.axis) if drop else one).copy() for i, one in enumerate(pieces)}


def agree(front, blocks, shape, options, dtype=np.float64, tolerance=1e-12):
    """Step the whole with blocks, and the blocks as tensors of their own."""
    opt, alone = front(blocks=blocks, **options), front(**options)
    w = arrays(1, {"w": shape}, dtype)["w"]
    pieces = apart(blocks, w)
    for t in range(4):
        # One block much larger than the others, and one without gradient: norms of the whole would show.
        g = arrays(10 + t, {"w": shape}, dtype)["w"]
        first = next(iter(np.split(g, np.cumsum(sizes(blocks, shape))[:-1], axis=blocks.axis)))
        first *= 0 if t == 2 else 30
        opt.step_all({"w": w}, {"w": g})
        alone.step_all(pieces, apart(blocks, g))
        close(apart(blocks, w), pieces, tolerance)
    return opt, alone


@cuts
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_block_is_a_tensor_of_its_own(case, blocks, shape):
    for seed in range(8):
        options = case.drawn(seed)
        if isinstance(blocks.split, tuple) and options.get("factored", "last") != "last":
            options["factored"] = False
        if isinstance(blocks.split, tuple) and "factored" in options:
            options["min_dim_size_to_factor"] = 0
        agree(case.numpy, blocks, shape, options)


FACTORED = ["last", "largest", "matrix", False, (0, 1), (1, 0), (-1, -3), ((0, 1), 2), ((0,), (1, 2)), (0, 3)]


@pytest.mark.parametrize("factored", FACTORED, ids=str)
@pytest.mark.parametrize(
    "split", [Blocks(2), Blocks("each"), Blocks("each", 2), Blocks(2, 1), Blocks((2, 2)), Blocks((1, 3))]
)
def test_factored_within_each_block(factored, split):
    alike = split.split != (1, 3)  # blocks that would be factored differently are an error, see below
    for smallest in (0, 3) if alike else (0,):
        options = {"factored": factored if alike or factored != "largest" else "last", "beta1": 0.9}
        opt, alone = agree(Adafactor, split, (4, 4, 6), {**options, "min_dim_size_to_factor": smallest})
        kept = {key.rpartition("/")[2] for key in opt.state_dict() if "/" in key}
        assert kept == {key.rpartition("/")[2] for key in alone.state_dict() if "/" in key}


def test_factored_state_is_as_small_as_the_blocks_own():
    opt, alone = agree(Adafactor, Blocks(2), (8, 6), {})
    for field in ("exp_avg_sq_row", "exp_avg_sq_col"):
        own = sum(array.size for key, array in alone.state_dict().items() if key.endswith(field))
        assert opt.state_dict()[f"w/{field}"].size == own


@pytest.mark.parametrize(
    "options", [{"factored": "largest"}, {"min_dim_size_to_factor": 2}, {"factored": "largest", "beta1": 0.9}]
)
def test_blocks_that_would_be_factored_differently(options):
    opt, w = Adafactor(blocks=(1, 5), **options), np.ones((6, 3, 4) if "factored" in options else (6, 4))
    with pytest.raises(ContradictionError, match=r"'w'.*factored"):
        opt.step("w", w, np.ones(w.shape))
    assert (w == 1).all()
    assert opt.num_parameters == 0


def in_blocks(blocks, shape):
    return {"w": (blocks.axis, sizes(blocks, shape), blocks.split == "each")}


@cuts
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_blocks_follow_the_reference(case, blocks, shape):
    options = {"lr": 0.1, "weight_decay": 0.1, "max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.3}
    options = {name: value for name, value in options.items() if name in case.options}
    opt, oracle = case.numpy(blocks=blocks, **options), case.reference(blocks=in_blocks(blocks, shape), **options)
    weights = arrays(2, {"w": shape})
    expected = arrays(2, {"w": shape})
    for t in range(3):
        grads = arrays(20 + t, {"w": shape})
        opt.step_all(weights, grads)
        expected = oracle.step(expected, grads)
        close(weights, expected)


@fronts
@pytest.mark.parametrize(
    "options", [{}, {"max_grad_norm": 0.5}, {"max_grad_norm_per_tensor": 0.5}, {"max_grad_value": 0.1}], ids=str
)
def test_stats_are_the_blocks_own(front, options):
    for blocks, shape in CUTS:
        opt, alone = agree(front, blocks, shape, {"lr": 0.1, **options})
        ours, theirs = opt.stats()["w"], list(alone.stats().values())
        assert ours.keys() == theirs[0].keys()
        for key, values in ours.items():
            assert np.size(values) == len(theirs)
            np.testing.assert_allclose(values, [one[key] for one in theirs], rtol=1e-9)


@fronts
@pytest.mark.parametrize("blocks", [Blocks(1), Blocks((3,)), Blocks("each", axis=1)], ids=str)
def test_stats_of_a_single_block_are_arrays_too(front, blocks):
    opt, w = front(blocks=blocks), np.ones((3, 1))
    opt.step("w", w, np.ones((3, 1)))
    assert {np.shape(value) for value in opt.stats()["w"].values()} == {(1,)}


@fronts
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float16, 2e-3)])
def test_low_precision(front, dtype, tolerance):
    for blocks, shape in CUTS:
        agree(front, blocks, shape, {"lr": 0.01}, dtype, tolerance)


@fronts
def test_equal_lengths_are_a_number_of_blocks(front):
    ways = [
        Blocks(3),
        Blocks((2, 2, 2)),
        3,
        (2, 2, 2),
        [2, 2, 2],
        Blocks(np.int64(3)),
        lambda name: 3,
        {"w": (2, 2, 2)},
    ]
    found = []
    for way in ways:
        opt, w = busy(front, blocks=way), arrays(3, {"w": (6, 4)})
        for t in range(3):
            opt.step("w", w["w"], arrays(30 + t, {"w": (6, 4)})["w"])
        found.append(w)
    for other in found[1:]:
        close(other, found[0], 1e-14)


@fronts
def test_layout_of_blocks_does_not_matter(front):
    for blocks, shape in CUTS:
        plain, turned = busy(front, blocks=blocks), busy(front, blocks=blocks)
        w = arrays(4, {"w": shape})
        other = {"w": np.flip(np.flip(w["w"]).T.copy().T)}
        for t in range(2):
            g = arrays(40 + t, {"w": shape})["w"]
            plain.step("w", w["w"], g)
            turned.step("w", other["w"], np.asfortranarray(g))
        close(other, w, 1e-14)


@fronts
def test_state_of_blocks_resumes(front):
    for blocks, shape in CUTS:
        opt, w = busy(front, blocks=blocks), arrays(5, {"w": shape})
        opt.step("w", w["w"], np.ones(shape))
        again, v = busy(front, blocks=blocks), {"w": w["w"].copy()}
        again.load_state_dict(opt.state_dict())
        for one, its in ((opt, w), (again, v)):
            one.step("w", its["w"], arrays(50, {"w": shape})["w"])
        assert bits(w) == bits(v)
        assert bits(opt.state_dict()) == bits(again.state_dict())


MISFITS = [
    (Blocks(4), (6, 2), "divide axis 0", "(6, 2)"),
    (Blocks(4, axis=-1), (6, 2), "divide axis 1", "lengths"),
    (Blocks((4, 4)), (6, 2), "add up to axis 0", "(4, 4)"),
    (Blocks((2, 2)), (6, 2), "add up to axis 0", "(6, 2)"),
    (Blocks(2, axis=2), (6, 2), "axis 2", "(6, 2)"),
    (Blocks(2, axis=-3), (6, 2), "axis -3", "Blocks("),
    (Blocks("each"), (), "axis 0", "()"),
]


@fronts
@pytest.mark.parametrize(("blocks", "shape", "first", "second"), MISFITS)
def test_blocks_that_do_not_fit(front, blocks, shape, first, second):
    opt, w, good = busy(front, blocks={"layer": blocks}), np.ones(shape), np.ones(3)
    with pytest.raises(ParameterError) as caught:
        opt.step_all({"good": good, "layer": w}, {"good": np.ones(3), "layer": np.ones(shape)})
    assert all(word in str(caught.value) for word in ("'layer'", first, second))
    assert (w == 1).all()
    assert (good == 1).all()
    assert opt.num_parameters == 0


@fronts
def test_saved_state_that_the_blocks_do_not_fit(front):
    opt, other = busy(front), busy(front, blocks=4)
    opt.step("w", np.ones((6, 2)), np.ones((6, 2)))
    with pytest.raises(LayerwiseError, match="'w'") as caught:
        other.load_state_dict(opt.state_dict())
    assert type(caught.value).__name__ == "StateError"


@pytest.mark.parametrize(
    "split", [0, -1, 1.5, True, None, "every", (), (2, 0), (2, -1), (2, 1.0), (True,), {2, 3}, b"ab"], ids=repr
)
def test_bad_splits(split):
    with pytest.raises(HyperparameterError) as caught:
        Blocks(split)
    assert str(caught.value).startswith("`split` must be an integer ≥ 1 or 'each' or a sequence of lengths, ")
    assert f"but is {split!r}. " in str(caught.value)


@pytest.mark.parametrize("axis", [None, 1.0, True, "0", (0,)], ids=repr)
def test_bad_axes(axis):
    with pytest.raises(HyperparameterError, match=r"`axis` must be (an|one) integer.*, but is"):
        Blocks(2, axis=axis)


def test_axis_may_be_of_numpy():
    assert Blocks(np.int64(2), axis=np.int64(1)) == Blocks(2, 1)


def test_blocks_are_values():
    assert Blocks([2, 3]) == Blocks((2, 3), axis=0)
    assert len({Blocks(2), Blocks(2), Blocks("each")}) == 2


@pytest.mark.parametrize("front", [Lamb, Lars])
def test_a_block_at_zero_is_no_business_of_the_others(front):
    opt, alone = front(lr=0.1, blocks=2), front(lr=0.1)
    w, v = np.array([0.0, 0.0, 3.0, 4.0]), np.array([3.0, 4.0])
    opt.step("w", w, np.array([1.0, 2.0, 1.0, 2.0]))
    alone.step("w", v, np.array([1.0, 2.0]))
    np.testing.assert_allclose(w[2:], v, rtol=1e-15)
    assert opt.stats()["w"]["trust_ratio"][0] == 1


@fronts
def test_a_nan_stays_in_its_block(front):
    opt, w = busy(front, blocks=2), np.ones((4, 2))
    opt.step("w", w, np.array([[np.nan, 1], [1, np.nan], [1, 1], [1, 2]]))
    whole = np.isnan(w[:2]).all()
    assert whole or (np.isnan(np.diag(w[:2])).all() and not case_of(front.__name__).rounds)  # then in its elements
    assert np.isfinite(w[2:]).all()
