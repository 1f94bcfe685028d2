"""A block is exactly what it would be as a tensor of its own: its step, its state, its measurements, its numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cases import CASES, case_of
from contract.apis import arrays, bits, close

from layerwise import Blocks
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, StateError

pytestmark = pytest.mark.offers("blocks")
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
FEW = [(Blocks(3), (6, 4)), (Blocks("each", axis=1), (3, 4, 2)), (Blocks((4, 2, 3), axis=-1), (2, 4, 9))]
MORE = [
    (Blocks(3, axis=-2), (6, 4)),
    (Blocks(2, axis=-1), (3, 2, 4)),
    (Blocks(1), (6, 4)),
    (Blocks(4), (8,)),
    (Blocks("each"), (5,)),
    (Blocks("each"), (3, 4, 2)),
    (Blocks((4, 2, 3)), (9, 4)),
    (Blocks((1, 1, 1)), (3, 4)),
    (Blocks((3,)), (3, 4)),
    (Blocks([2, 2]), (4,)),
]
COUNT = re.compile("step$|_pow")  # as PyTorch or Paddle call what counts steps
IN_PLACE = pytest.mark.offers("blocks", "in_place")  # where no step is compiled


def sizes(blocks, shape):
    length = shape[blocks.axis]
    if blocks.split == "each":
        return (1,) * length
    return (length // blocks.split,) * blocks.split if isinstance(blocks.split, int) else blocks.split


def apart(blocks, array):
    """Return the blocks as arrays of their own."""
    pieces = np.split(array, np.cumsum(sizes(blocks, array.shape))[:-1], axis=blocks.axis)
    drop = blocks.split == "each"
    return {str(i): (np.squeeze(one, axis=blocks.axis) if drop else one).copy() for i, one in enumerate(pieces)}


def agree(api, name, blocks, shape, options, dtype="float64", tolerance=1e-11):
    """Step the whole with blocks, and the blocks as tensors of their own, and compare all that can be seen."""
    w = arrays(1, {"w": shape})["w"]
    run = api.make(name, {"w": w}, dtype=dtype, blocks={"w": blocks}, **options)
    alone = api.make(name, apart(blocks, w), dtype=dtype, **options)
    for t in range(4):
        # One block much larger than the others, and one without gradient: norms of the whole would show.
        g = arrays(10 + t, {"w": shape})["w"]
        np.split(g, np.cumsum(sizes(blocks, shape))[:-1], axis=blocks.axis)[0][:] *= 0 if t == 2 else 30
        run.step({"w": g})
        alone.step(apart(blocks, g))
        close(apart(blocks, run.weights()["w"]), alone.weights(), tolerance, options)
    ours, theirs = run.stats()["w"], list(alone.stats().values())
    close(ours, {key: [one[key] for one in theirs] for key in theirs[0]}, 100 * tolerance, options)
    assert {np.shape(value) for value in ours.values()} == {(len(theirs),)}
    whole, *kept = (
        {field: np.size(x) for field, x in state.items() if x is not None and not COUNT.search(field)}
        for state in (run.state()["w"], *alone.state().values())
    )
    assert whole == {field: sum(one[field] for one in kept) for field in kept[0]}


def fitting(options, blocks):
    """Return options under which blocks of several lengths are factored alike."""
    if "factored" in options and isinstance(blocks.split, tuple):
        own = options["factored"] if options["factored"] in ("last", False) else "last"
        return {**options, "factored": own, "min_dim_size_to_factor": 0}
    return options


@pytest.mark.parametrize(("blocks", "shape"), FEW, ids=str)
@each
def test_a_block_is_a_tensor_of_its_own(api, case, blocks, shape):
    agree(api, case.name, blocks, shape, fitting(case.drawn(1), blocks))


@IN_PLACE
@pytest.mark.parametrize(("blocks", "shape"), [*FEW, *MORE], ids=str)
@each
def test_a_block_is_a_tensor_of_its_own_under_all_options(api, case, blocks, shape):
    bounds = {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.3, "max_grad_value": 0.4}
    clipped = {**case.usual(), **{key: x for key, x in bounds.items() if key in case.options}}
    for options in (clipped, case.drawn(2), {**case.drawn(3), "engine": "rule"}):
        agree(api, case.name, blocks, shape, fitting(options, blocks))


@IN_PLACE
@pytest.mark.parametrize("axes", [(0, 1), (1, 0)], ids=str)
@each
def test_blocks_of_each_entry_of_two_axes_are_those_of_one_as_long_as_both(api, case, axes):
    w, g = (arrays(seed, {"w": (2, 3, 5, 4)})["w"] for seed in (1, 10))
    found = []
    for shape, axis in ((w.shape, axes), ((6, 5, 4), 0)):
        blocks = {"w": Blocks("each", axis=axis)}
        run = api.make(case.name, {"w": w.reshape(shape)}, dtype="float64", blocks=blocks, lr=0.1)
        run.step({"w": g.reshape(shape)})
        found.append({"w": run.weights()["w"].reshape(w.shape)})
    close(*found, 1e-11)


@IN_PLACE
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-3)])
@pytest.mark.parametrize(("blocks", "shape"), FEW, ids=str)
@each
def test_a_block_is_a_tensor_of_its_own_in_every_dtype(api, case, blocks, shape, dtype, tolerance):
    agree(api, case.name, blocks, shape, {"lr": 0.01}, dtype, tolerance)


@IN_PLACE
@pytest.mark.parametrize(
    "factored", ["largest", "matrix", (1, 0), (-1, -3), ((0, 1), 2), ((0,), (1, 2)), (0, 3)], ids=str
)
@pytest.mark.parametrize(
    "blocks", [Blocks(2), Blocks("each"), Blocks("each", 2), Blocks(2, 1), Blocks((2, 2))], ids=str
)
def test_each_block_is_factored_as_a_tensor_of_its_own(api, factored, blocks):
    for smallest in (0, 3):
        options = {"factored": factored, "beta1": 0.9, "min_dim_size_to_factor": smallest}
        agree(api, "Adafactor", blocks, (4, 4, 6), options)


@pytest.mark.parametrize(
    ("options", "shape"), [({"factored": "largest"}, (6, 3, 4)), ({"min_dim_size_to_factor": 2}, (6, 4))], ids=str
)
def test_blocks_that_would_be_factored_differently_are_refused(api, options, shape):
    refused(api, ContradictionError, ("'w'", "factored"), "Adafactor", np.ones(shape), Blocks((1, 5)), options)


def refused(api, error, words, name, layer, blocks, options):
    """Expect an error when the optimizer is made, as JAX has it, or at the step, which then changes nothing."""
    weights, made = {"good": np.ones(3), "w": layer}, []
    with pytest.raises(error) as caught:  # noqa: PT012
        made.append(api.make(name, weights, blocks={"w": blocks, "good": None}, **options))
        made[0].step(weights)
    assert [word for word in ("w", *words) if word not in str(caught.value)] == []
    for run in made:
        assert bits(run.weights()) == bits(weights)
        assert run.state() == {}


MISFITS = [
    (Blocks(4), (6, 2), ("divide axis 0", "(6, 2)")),
    (Blocks(4, axis=-1), (6, 2), ("divide axis 1", "lengths")),
    (Blocks((4, 4)), (6, 2), ("add up to axis 0", "(4, 4)")),
    (Blocks((2, 2)), (6, 2), ("add up to axis 0", "(6, 2)")),
    (Blocks(2, axis=2), (6, 2), ("axis 2", "(6, 2)")),
    (Blocks(2, axis=-3), (6, 2), ("axis -3", "Blocks(")),
    (Blocks("each"), (), ("axis 0", "()")),
]


@pytest.mark.parametrize(("blocks", "shape", "words"), MISFITS)
def test_blocks_that_do_not_fit_are_refused_by_name_and_nothing_changes(api, blocks, shape, words):
    refused(api, ParameterError, words, "Lamb", np.ones(shape), blocks, {})


@pytest.mark.offers("blocks", "patterns")
def test_a_saved_state_that_the_blocks_do_not_fit_is_refused(api):
    run = api.busy("NovoGrad", {"w": np.ones((6, 2))})
    run.step({"w": np.ones((6, 2))})
    other = api.busy("NovoGrad", {"w": np.ones((6, 2))}, blocks={"w": 3})
    with pytest.raises(StateError, match=r"\bw\b.*\((3|1), 1\).*\((3|1), 1\)"):
        other.load(run.save())


@pytest.mark.parametrize(("blocks", "shape"), FEW, ids=str)
@each
def test_a_run_with_blocks_goes_on_from_its_checkpoint_bit_for_bit(api, case, blocks, shape):
    run = api.busy(case.name, arrays(5, {"w": shape}), blocks={"w": blocks})
    run.step(arrays(50, {"w": shape}))
    again = api.again(run)
    for one in (run, again):
        one.step(arrays(51, {"w": shape}))
    assert run.bits() == again.bits()
    assert bits(run.state()) == bits(again.state())


@each
@pytest.mark.parametrize(("blocks", "shape"), FEW, ids=str)
def test_the_order_in_memory_does_not_matter(case, blocks, shape):
    found = []
    for order in "CF":
        opt, w = case.numpy(**case.busy, blocks=blocks), np.array(arrays(4, {"w": shape})["w"], order=order)
        for t in range(2):
            opt.step("w", w, np.array(arrays(40 + t, {"w": shape})["w"], order=order))
        found.append({"w": w})
    close(found[1], found[0], 1e-14)


# ---- how blocks are given


@pytest.mark.offers("blocks", "patterns")
def test_blocks_are_given_by_name_before_pattern_or_by_a_function(api):
    shapes = {"a.qkv": (6, 2), "b.qkv": (6, 2), "b.out": (6, 2)}
    given = {"*.qkv": 3, "a.qkv": Blocks(2, axis=-1)}
    for blocks in (given, lambda name: given.get(name, 3 if name.endswith("qkv") else None)):
        run = api.busy("Lamb", arrays(1, shapes), blocks=blocks)
        run.step(arrays(2, shapes))
        found = {name: np.shape(one["trust_ratio"]) for name, one in run.stats().items()}
        assert found == {"a.qkv": (2,), "b.qkv": (3,), "b.out": ()}


@pytest.mark.offers("blocks", "patterns")
def test_blocks_may_be_given_for_all(api):
    run = api.busy("Lamb", arrays(1, {"a": (4, 3), "b": (2, 5)}), blocks=2)
    run.step(arrays(2, {"a": (4, 3), "b": (2, 5)}))
    assert [one["trust_ratio"].shape for one in run.stats().values()] == [(2,), (2,)]


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ({"w": 0}, "`blocks"),
        ({"w": "all"}, "`blocks"),
        ({"w": ()}, "`blocks"),
        ({"w": (2, 0)}, "`blocks"),
        ({"w": True}, "`blocks"),
        ({"w": 1.5}, "an integer ≥ 1 or 'each' or a sequence of lengths, but is 1.5"),
    ],
    ids=str,
)
def test_values_that_are_not_blocks_are_refused(api, blocks, words):
    with pytest.raises(HyperparameterError) as caught:
        api.busy("Lamb", {"w": np.ones((6, 2))}, blocks=blocks).step({"w": np.ones((6, 2))})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "split", [0, -1, 1.5, True, None, "every", (), (2, 0), (2, -1), (2, 1.0), (True,), {2, 3}, b"ab"], ids=repr
)
def test_a_split_must_be_a_number_or_lengths(split):
    with pytest.raises(HyperparameterError) as caught:
        Blocks(split)
    assert str(caught.value).startswith("`split` must be an integer ≥ 1 or 'each' or a sequence of lengths, ")
    assert f"but is {split!r}. " in str(caught.value)


# ---- blocks keep to themselves


@pytest.mark.parametrize("name", ["Lamb", "Lars"])
def test_a_block_of_zeros_does_not_affect_other_blocks(api, name):
    run = api.make(name, {"w": np.array([0.0, 0.0, 3.0, 4.0])}, lr=0.1, blocks={"w": 2})
    alone = api.make(name, {"w": np.array([3.0, 4.0])}, lr=0.1)
    run.step({"w": np.array([1.0, 2.0, 1.0, 2.0])})
    alone.step({"w": np.array([1.0, 2.0])})
    np.testing.assert_allclose(run.weights()["w"][2:], alone.weights()["w"], rtol=1e-15)
    assert run.stats()["w"]["trust_ratio"][0] == 1


@each
def test_a_nan_stays_in_its_block(api, case):
    run = api.busy(case.name, {"w": np.ones((4, 2))}, blocks={"w": 2})
    run.step({"w": np.array([[np.nan, 1], [1, np.nan], [1, 1], [1, 2]])})
    w = run.weights()["w"]
    whole = np.isnan(w[:2]).all()
    assert whole or (np.isnan(np.diag(w[:2])).all() and not case_of(case.name).rounds)  # then in its elements
    assert np.isfinite(w[2:]).all()


@pytest.mark.offers("blocks", "in_place", "state_dtype")
@pytest.mark.parametrize(("shape", "blocks"), [((7,), "each"), ((7, 1), Blocks("each", 1)), ((7, 3), 7)], ids=str)
def test_random_bits_are_those_of_the_element_whatever_the_blocks(api, shape, blocks):
    """Also where a block is one element; SGD knows no blocks otherwise."""
    found, w = [], np.linspace(1, 2, 21)[: np.prod(shape)].reshape(shape)
    for own in (None, {"w": blocks}):
        options = {"lr": 1e-3, "rounding": "stochastic", "engine": "rule"}
        run = api.make("SGD", {"w": w}, dtype="bfloat16", blocks=own, **options)
        for _ in range(5):
            run.step({"w": np.ones(shape)})
        found.append(run.bits())
    assert found[0] == found[1]
