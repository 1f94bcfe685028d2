"""However the parameters lie on ranks, the steps are those of one process that has them whole."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES
from sharding.layouts import LAYOUTS
from sharding.models import FRONTS, TOLERANCE, close, same

import layerwise.torch
from layerwise.torch import Adafactor, Came, Lars, SinkGD
from sharding import runs

fronts = pytest.mark.parametrize("front", FRONTS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
MANY = ["hybrid", "several meshes"]  # where whatever is asked of the whole model is easily counted twice


def alone(
    front: Any, dtype: torch.dtype, without: tuple[str, ...] = (), steps: int = runs.STEPS, **options: Any
) -> Any:
    """Step in one process that has everything whole, once for each combination of arguments."""
    return _alone(front, dtype, without, steps, tuple(sorted(options.items())))


@cache
def _alone(
    front: Any, dtype: torch.dtype, without: tuple[str, ...], steps: int, options: tuple[tuple[str, Any], ...]
) -> Any:
    return runs.stepped(front, None, dtype, dict(options), without, steps)


def check(
    ranks: Any, front: Any, layout: str | int, dtype: torch.dtype, without: tuple[str, ...] = (), **options: Any
) -> None:
    world = runs.layout_of(layout)[0]
    found = shared_stats(ranks.run(world, runs.stepped, front, layout, dtype, options, without))
    close(found[0], alone(front, dtype, without, **options), TOLERANCE[dtype], (layout, options))
    for other in found[1:]:
        same(other, found[0])


def shared_stats(found: list[Any]) -> list[Any]:
    """With measurements of blocks that only some ranks know told to all."""
    known = {name: np.copy(x) for name, x in found[0]["stats"].items()}
    for one in found[1:]:
        for name, x in one["stats"].items():
            known[name] = np.where(np.isnan(known[name]), x, known[name])
    assert not any(np.isnan(x).any() for x in known.values())
    return [{**one, "stats": known} for one in found]


@pytest.mark.slow
@each_layout
def test_the_layouts_hold_what_they_are_given(ranks, layout):
    """An elementwise optimizer does not notice how parameters lie: what differs here is the tests' own doing."""
    check(ranks, torch.optim.AdamW, layout, torch.float64)


@each_layout
@fronts
def test_layouts(ranks, front, layout):
    check(ranks, front, layout, torch.float64)


@each_layout
def test_a_scaler_is_told_what_the_step_will_find(ranks, layout):
    for flag, shared in ranks.run(runs.layout_of(layout)[0], runs.flagged, Lars, layout):
        assert flag is shared


@pytest.mark.parametrize("front", [Adafactor, Came, SinkGD, Lars])
@pytest.mark.every
def test_a_rank_without_a_column_of_a_weight(ranks, front):
    """FSDP2 says that it has no row either, which is not so for statistics by rows, and for blocks."""
    wanted = runs.by_uneven_columns(front, sharded=False)
    found = ranks.run(4, runs.by_uneven_columns, front)
    assert [x.shape[1] for x in found] == [2, 2, 1, 0]
    np.testing.assert_allclose(np.concatenate(found, 1), wanted, 0, 1e-12)


def test_measurements_of_a_tensor_without_elements(ranks):
    first, second = ranks.run(2, runs.measured_empty)
    np.testing.assert_equal(np.stack([first, second]), [[0] * 4 + [np.nan] * 4, [np.nan] * 4 + [0] * 4])


@pytest.mark.parametrize("layout", ["fsdp on 4", "several meshes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@fronts
@pytest.mark.thinned(1, 2)
def test_dtypes(ranks, front, layout, dtype):
    check(ranks, front, layout, dtype)


@pytest.mark.parametrize("layout", ["fsdp on 3", "two-dimensional"])
@fronts
@pytest.mark.thinned(1, 2)
def test_by_the_rule(ranks, front, layout):
    check(ranks, front, layout, torch.float64, fused=False)


@pytest.mark.parametrize(("layout", "fused"), [*((layout, None) for layout in MANY), (MANY[0], False)])
@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
def test_the_norm_of_all_gradients(ranks, front, layout, fused):
    check(ranks, front, layout, torch.float64, fused=fused, max_grad_norm=0.5)


@pytest.mark.parametrize("layout", MANY)
@fronts
@pytest.mark.thinned(1, 2)
def test_parameters_without_gradients(ranks, front, layout):
    """They wait, and count no step, as long as no rank has one."""
    check(ranks, front, layout, torch.float64, without=("first.embed", "second.narrow", "bare.scalar"))


@pytest.mark.parametrize(("layout", "only"), [("tensor parallel on 2", ""), ("fsdp on 2", "third.one")])
@fronts
@pytest.mark.thinned(1, 2)
def test_gradients_that_are_redistributed_at_times(ranks, front, layout, only):
    """Also those of a parameter of which a rank holds nothing."""
    wanted = runs.redistributed_at_times(front, None, only)
    for found in ranks.run(2, runs.redistributed_at_times, front, layout, only):
        close(found, wanted, TOLERANCE[torch.float64])


@pytest.mark.parametrize("layout", ["fsdp on 4", "two-dimensional", "several meshes"])
@fronts
@pytest.mark.kinds("factored", "numbers of a layer")
@pytest.mark.thinned(1, 2)
def test_state_lies_as_its_parameter_does(ranks, front, layout):
    """So that torch.distributed.checkpoint can cut it anew."""
    for found in ranks.run(runs.layout_of(layout)[0], runs.layout_of_state, front, layout):
        assert any(key != "step" for _, key in found)
        assert [where for where, (alike, _) in found.items() if not alike] == []
        assert [where for where, (_, cut) in found.items() if not cut] == []


@fronts
def test_state_of_offloaded_parameters_stays_with_them(ranks, front):
    """Their mesh is of the device that computes, and they are in the host's memory."""
    assert ranks.run(1, runs.places_of_offloaded_state, front) == [{"cpu"}]


@fronts
@pytest.mark.thinned(1, 2)
def test_master_weights(ranks, front):
    check(ranks, front, "fsdp on 3", torch.bfloat16, master_weights=True)


@pytest.mark.parametrize("factored", ["largest", "matrix", (0, 1), ((0,), (1, 2)), False], ids=str)
def test_factoring(ranks, factored):
    check(ranks, Adafactor, "two-dimensional", torch.float64, factored=factored)


def test_momentum_in_a_dtype_of_its_own(ranks):
    check(ranks, Adafactor, "fsdp on 3", torch.float64, momentum_dtype="bfloat16")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.thinned(1, 2)
def test_drawn_layouts_and_options(ranks, case, seed):
    check(ranks, getattr(layerwise.torch, case.name), seed, torch.float64, **case.drawn(seed))
