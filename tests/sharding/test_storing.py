"""Few bytes on many ranks: the same codes, remainders and random bits, however the tensors are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sharding.ranks import RanksFailed
from sharding.storing import FORMATS, SPLIT

from layerwise.storage import groups
from layerwise.torch import Lars
from sharding import storing

WHERE = [(2, "fsdp"), (3, "fsdp"), (4, "hybrid"), (2, "columns"), (4, "strided"), (3, "rows")]
FIRST = "split24 and int8"
FAST = {(3, "fsdp", form) for form in FORMATS} | {(2, "columns", FIRST), (4, "strided", FIRST)}
# Whose groups of 64 would be cut: these keep float32.
VECTOR = {"vector"}
CUT = {"columns": {"odd", "stack"}, "strided": VECTOR, "fsdp on 3": VECTOR, "rows on 3": VECTOR}


def slow_unless(fast: Any) -> Any:
    """Return every layout with every format, all but these slow."""
    every = [(*where, form) for where in WHERE for form in FORMATS]
    return [pytest.param(*one, marks=() if one in fast else pytest.mark.slow) for one in every]


def same(ours: dict[str, Any], theirs: dict[str, Any], but: Any = ()) -> None:
    assert ours.keys() == theirs.keys() or but
    for key, x in theirs.items():
        if not any(key.startswith(one) for one in but):
            np.testing.assert_array_equal(ours[key], x, err_msg=key)


@pytest.mark.parametrize(("world", "layout", "form"), slow_unless(FAST))
def test_the_same_bits_where_no_sum_matters(ranks, world, layout, form):
    """Codes, scales, remainders, and bfloat16 by the same random bits."""
    whole, _ = ranks.run(1, storing.of_elements, "whole", FORMATS[form], 2)[0]
    found, storage = ranks.run(world, storing.of_elements, layout, FORMATS[form], 2)[0]
    names = list(storing.SHAPES)
    other = [name for name in names if "int8" not in storage[name]["state"].values() and storing.SHAPES[name] != (7, 5)]
    other = other if "int8" in form or form == "split" else []
    assert set(other) == (CUT.get(layout) or CUT.get(f"{layout} on {world}") or set()) or not other
    same(found, whole, but=[*other, *(f"{names.index(name)} " for name in other)])


@pytest.mark.parametrize(("world", "layout", "form"), slow_unless({(3, "fsdp", FIRST), (2, "columns", FIRST)}))
def test_the_path_is_the_same_within_a_code(ranks, world, layout, form):
    """Sums over ranks differ in the last digit of float64, and coefficients seldom do."""
    (whole, _, warned, _), *_ = ranks.run(1, storing.stepped, "whole", FORMATS[form], 3)
    assert not warned
    (found, storage, warned, _), *_ = ranks.run(world, storing.stepped, layout, FORMATS[form], 3)
    for i, name in enumerate(storing.SHAPES):
        x, y = whole[f"{name} in full"], found[f"{name} in full"]
        as_asked = not storage[name]["why"]
        assert np.abs(x - y).max() < (2e-3 if as_asked else 2e-2) * np.abs(x).max(), name
        if as_asked and "int8" in storage[name]["state"].values():
            codes, ours = whole[f"{i} exp_avg"], found[f"{i} exp_avg"]
            assert np.abs(codes - ours).max() <= 1, name
            assert (codes == ours).mean() > 0.99, name


@pytest.mark.parametrize(("world", "layout"), [(2, "columns"), pytest.param(3, "fsdp", marks=pytest.mark.slow)])
def test_what_would_be_cut_stays_float32_and_says_so(ranks, world, layout):
    for _, storage, warned, _ in ranks.run(world, storing.stepped, layout, SPLIT, 1):
        cut = CUT.get(layout) or CUT[f"{layout} on {world}"]
        for name in cut:
            assert set(storage[name]["state"].values()) == {"float32"}
            assert all("would cut groups of 64" in why for why in storage[name]["why"].values())
            assert any(f"'exp_avg' of {name} is stored in float32" in one for one in warned), warned
        assert len(warned) == 2 * len(cut)


def test_replicas_are_alike(ranks):
    prints = [one[-1] for one in ranks.run(4, storing.stepped, "hybrid", SPLIT, 2)]
    assert prints[:2] == prints[2:]
    assert prints[0] != prints[1]


def test_one_collective_a_round_as_before(ranks):
    assert ranks.run(2, storing.collectives, "fsdp") == [1, 1]


@pytest.mark.parametrize(
    ("option", "ours", "theirs"),
    [
        ("seed", 3, 4),
        ("rounding", "stochastic", None),
        ("state_dtype", "int8", "bfloat16"),
        ("master_weights", "split", "split24"),
    ],
)
def test_ranks_that_store_otherwise_are_found(ranks, option, ours, theirs):
    for outcome in ranks.outcomes(2, storing.disagreeing, "fsdp", option, ours, theirs):
        assert outcome.error == "SynchronizationError"
        assert f"`{option}`" in outcome.traceback or "the dtype of" in outcome.traceback


@pytest.mark.parametrize(
    ("world", "layout", "how", "form"),
    [
        (2, "fsdp", "dcp", "split24 and int8"),
        pytest.param(1, "whole", "dcp", "split", marks=pytest.mark.slow),
        (2, "columns", "full", "split24 and int8"),
        pytest.param(1, "fsdp", "dcp", "split", marks=pytest.mark.slow),
        pytest.param(3, "rows", "dcp", "stochastic and bfloat16", marks=pytest.mark.slow),
        pytest.param(4, "hybrid", "from rank 0", "split", marks=pytest.mark.slow),
        pytest.param(2, "hybrid", "flat", "split", marks=pytest.mark.slow),
    ],
)
def test_others_go_on_with_the_same_numbers(ranks, tmp_path, world, layout, how, form):
    """Four ranks save, and others load what they saved."""
    world = 4 if layout == "hybrid" else world
    before, after = ranks.run(4, storing.saved, "fsdp", FORMATS[form], str(tmp_path), how)[0]
    loaded, gone_on = ranks.run(world, storing.resumed, layout, FORMATS[form], str(tmp_path), how)[0]
    names = list(storing.SHAPES)
    cut = CUT.get(layout, set())
    same(loaded, before, but=[f"{names.index(name)} exp" for name in cut])
    for name in cut:
        for key, signed in ((f"{names.index(name)} exp_avg", True), (f"{names.index(name)} exp_avg_sq", False)):
            codes, scale = before[key].reshape(len(before[key]), -1), before[f"{key}_scale"]
            wanted = groups.decode(np, codes, scale, signed).reshape(loaded[key].shape)
            np.testing.assert_allclose(loaded[key], wanted, rtol=1e-6, err_msg=key)
    for name in names:
        x, y = after[f"{name} in full"], gone_on[f"{name} in full"]
        assert np.abs(x - y).max() < (2e-2 if name in cut else 2e-3) * np.abs(x).max(), name


def test_codes_do_not_become_numbers(ranks, tmp_path):
    """torch.distributed.checkpoint converts dtypes of tensors of one name, and would make 127 of the largest code."""
    ranks.run(2, storing.saved, "fsdp", SPLIT, str(tmp_path), "dcp")
    with pytest.raises(RanksFailed, match=r"(?i)mismatch"):
        ranks.run(2, storing.into_numbers, "fsdp", str(tmp_path))


@pytest.mark.parametrize("layout", ["fsdp", pytest.param("columns", marks=pytest.mark.slow)])
def test_weights_in_full(ranks, layout):
    for full, found, alike in ranks.run(2, storing.full_and_back, layout):
        assert alike
        for one in found:
            same(one, full)


@pytest.mark.slow
def test_lars_too(ranks):
    (whole, *_), *_ = ranks.run(1, storing.stepped, "whole", SPLIT, 2, Lars)
    (found, *_), *_ = ranks.run(4, storing.stepped, "fsdp", SPLIT, 2, Lars)
    assert np.abs(whole["odd in full"] - found["odd in full"]).max() < 1e-3
