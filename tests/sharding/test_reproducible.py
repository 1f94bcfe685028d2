"""With `reproducible=True`, the same bits on any number of ranks and however tensors are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES
from draws import seeds
from sharding.layouts import LAYOUTS
from sharding.models import FRONTS, same
from sharding.ranks import RanksFailed
from sharding.reproducing import EXACTLY
from sharding.storing import FORMATS
from sharding.test_trajectories import alone, shared_stats

import layerwise.torch
from layerwise.torch import Adafactor, Lamb, Lars
from sharding import checkpoints, reproducing, runs, storing

fronts = pytest.mark.parametrize("front", FRONTS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
CLIPPED = ["hybrid", "several meshes"]
LONG = 300.0  # seconds for a hundred steps
NUMBERS = ["fsdp on 3", "fsdp on 4"]


def check(ranks: Any, front: Any, layout: str | int, dtype: torch.dtype, **options: Any) -> None:
    found = differences(ranks, front, layout, dtype, **options, **EXACTLY)
    assert found == []


def differences(ranks: Any, front: Any, layout: str | int, dtype: torch.dtype, **options: Any) -> list[str]:
    """The weights, state and measurements whose bits are not those of one process, on any rank."""
    found = shared_stats(ranks.run(runs.layout_of(layout)[0], runs.stepped, front, layout, dtype, options))
    wanted = alone(front, dtype, **options)
    return [name for one in found for part in wanted for name in other_bits(one[part], wanted[part])]


def other_bits(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    assert ours.keys() == theirs.keys()
    return [name for name, x in theirs.items() if np.asarray(ours[name]).tobytes() != np.asarray(x).tobytes()]


@each_layout
@fronts
@pytest.mark.kinds("rows and columns", "factored", "numbers of a layer")
@pytest.mark.thinned(1, 2)
def test_layouts(ranks, front, layout):
    check(ranks, front, layout, torch.float32)


@pytest.mark.parametrize("layout", CLIPPED)
@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
def test_the_norm_of_all_gradients(ranks, front, layout):
    check(ranks, front, layout, torch.float32, max_grad_norm=0.5, max_grad_norm_per_tensor=2.0)


@pytest.mark.parametrize("layout", ["tensor parallel on 4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@fronts
@pytest.mark.thinned(1, 2)
def test_dtypes(ranks, front, layout, dtype):
    check(ranks, front, layout, dtype, max_grad_value=0.5)


@pytest.mark.parametrize("seed", seeds(1, 4))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.thinned(1, 2)
def test_drawn_layouts_and_options(ranks, case, seed):
    check(ranks, getattr(layerwise.torch, case.name), seed, torch.float32, **case.drawn(seed))


@pytest.mark.parametrize("front", [Lamb, Adafactor])
def test_ordinary_sums_differ(ranks, front):
    """Else none of this says anything: by the same engine, with sums in the order in which ranks have them."""
    assert differences(ranks, front, "fsdp on 3", torch.float32, fused=False)


@pytest.mark.parametrize("layout", ["strided", *(pytest.param(one, marks=pytest.mark.slow) for one in NUMBERS)])
@pytest.mark.parametrize("front", [Lamb, Adafactor])
@pytest.mark.thinned(1, 2)
def test_a_hundred_steps(ranks, front, layout):
    options, world = {**EXACTLY, "max_grad_value": 1.5}, LAYOUTS[layout][0]
    [wanted] = ranks.run(1, reproducing.many, front, None, torch.float32, options, timeout=LONG)
    for one in ranks.run(world, reproducing.many, front, layout, torch.float32, options, timeout=LONG):
        assert not other_bits(one["weights"], wanted["weights"])
        assert not other_bits(one["state"], wanted["state"])


FIRST = "split24 and int8"
STORED = [
    *((3, "fsdp", {"vector"}, form) for form in FORMATS),
    (4, "strided", {"vector"}, FIRST),
    *(pytest.param(4, "strided", {"vector"}, form, marks=pytest.mark.slow) for form in FORMATS if form != FIRST),
    *(pytest.param(2, "fsdp", (), form, marks=pytest.mark.slow) for form in FORMATS),
]


@pytest.mark.parametrize(("world", "layout", "cut", "form"), STORED)
@pytest.mark.parametrize("front", [Lamb, pytest.param(Lars, marks=pytest.mark.slow)])
def test_few_bytes(ranks, world, layout, cut, form, front):
    """Where a cut leaves groups of 8 bits whole; what it would cut is stored otherwise, and so it is left out."""
    options = {**FORMATS[form], **EXACTLY}
    [(wanted, *_)] = ranks.run(1, storing.stepped, "whole", options, 4, front)
    of_cut = tuple(f"{start} " for i, name in enumerate(storing.SHAPES) if name in cut for start in (i, name))
    cut = of_cut + tuple(cut) if "int8" in FORMATS[form].values() else ()
    for found, *_ in ranks.run(world, storing.stepped, layout, options, 4, front):
        left = [key for key in wanted if not key.startswith(cut)]
        assert other_bits({key: found[key] for key in left}, {key: wanted[key] for key in left}) == []


@pytest.mark.parametrize(
    ("world", "layout"), [(2, "fsdp on 2"), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(1, "fsdp on 1")])]
)
@fronts
@pytest.mark.thinned(1, 3)
def test_others_go_on(ranks, tmp_path, front, world, layout):
    """Four ranks save, and fewer end where the four do."""
    options, path = {**EXACTLY, "max_grad_value": 1.5}, str(tmp_path)
    wanted = ranks.run(4, checkpoints.trained, front, "fsdp on 4", torch.float32, options, "dcp", path, False)
    found = ranks.run(world, checkpoints.trained, front, layout, torch.float32, options, "dcp", path, True)
    same(shared_stats(found)[0], shared_stats(wanted)[0])
    same({"weights": found[0]["weights"]}, {"weights": alone(front, torch.float32, **options)["weights"]})


def test_a_model_group(ranks):
    wanted = reproducing.alone(Lamb, EXACTLY)
    for one in ranks.run(3, reproducing.with_groups, Lamb, EXACTLY):
        assert not other_bits(one, {name: wanted[name] for name in one})


@pytest.mark.parametrize(("fused", "model_group"), [(None, False), (False, False), (False, True)])
def test_ranks_that_add_up_otherwise_are_found(ranks, fused, model_group):
    with pytest.raises(RanksFailed, match="SynchronizationError"):
        ranks.run(2, reproducing.disagreeing, Lamb, "fsdp on 2", fused, model_group)
