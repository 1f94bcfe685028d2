"""A run that stops and goes on, on as many ranks or on others, is the run that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sharding.models import FRONTS, TOLERANCE, Small, close, same

from layerwise.torch import Adafactor
from sharding import checkpoints, runs

fronts = pytest.mark.parametrize("front", FRONTS)
CONTROL = pytest.param(torch.optim.AdamW, marks=pytest.mark.slow)  # which is of the tests, not of the library
with_control = pytest.mark.parametrize("front", [CONTROL, *FRONTS])


@pytest.fixture(scope="module")
def saved(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints by how and where they were made, each with what its run came to in the end."""
    made: dict[str, Any] = {}

    def find(front: Any, layout: str, how: str, dtype: torch.dtype, **options: Any) -> tuple[Path, Any]:
        key = repr((front, layout, how, dtype, options))
        if key not in made:
            path = tmp_path_factory.mktemp("checkpoint")
            world = runs.layout_of(layout)[0]
            found = ranks.run(world, checkpoints.trained, front, layout, dtype, options, how, str(path), False)
            made[key] = path, found[0]
        return made[key]

    return find


def resumed(
    ranks: Any, saved: Any, front: Any, pair: tuple[str, str], dtype: torch.dtype, how: str = "dcp", **options: Any
) -> tuple[Any, Any]:
    """What it is when resumed, and when it never stopped."""
    path, wanted = saved(front, pair[0], how, dtype, **options)
    world = runs.layout_of(pair[1])[0]
    found = ranks.run(world, checkpoints.trained, front, pair[1], dtype, options, how, str(path), True)
    for other in found[1:]:
        same(other, found[0])
    return found[0], wanted


@pytest.mark.parametrize("how", checkpoints.OPTIONS)
@with_control
@pytest.mark.thinned(1, 2)
def test_the_same_layout_goes_on_bit_for_bit(ranks, saved, front, how):
    same(*resumed(ranks, saved, front, ("fsdp on 2", "fsdp on 2"), torch.float32, how))


@pytest.mark.parametrize("there", ["fsdp on 2", "fsdp on 1", "tensor parallel on 2", "hybrid", "plain"])
@with_control
@pytest.mark.kinds("factored", "numbers of a layer")
@pytest.mark.thinned(1, 2)
def test_onto_another_layout(ranks, saved, front, there):
    ours, wanted = resumed(ranks, saved, front, ("fsdp on 4", there), torch.float64)
    close(ours, wanted, TOLERANCE[torch.float64])


@pytest.mark.parametrize("how", ["flat", "full", "from rank 0"])
@fronts
@pytest.mark.thinned(1, 2)
def test_onto_another_layout_in_other_ways(ranks, saved, front, how):
    ours, wanted = resumed(ranks, saved, front, ("tensor parallel on 4", "fsdp on 3"), torch.float64, how)
    close(ours, wanted, TOLERANCE[torch.float64])


@pytest.mark.parametrize("pair", [("plain", "fsdp on 4"), ("strided", "fsdp on 3")], ids=" to ".join)
@fronts
@pytest.mark.thinned(1, 2)
def test_from_other_layouts(ranks, saved, front, pair):
    ours, wanted = resumed(ranks, saved, front, pair, torch.float64)
    close(ours, wanted, TOLERANCE[torch.float64])


@fronts
@pytest.mark.thinned(1, 2)
def test_master_weights_are_part_of_it(ranks, saved, front):
    pair = "fsdp on 2", "fsdp on 2"
    same(*resumed(ranks, saved, front, pair, torch.bfloat16, master_weights=True))


def test_a_relative_step(ranks, saved):
    """To have a state to load into, PyTorch takes a step at lr=0: options that do not go with an lr must bear it."""
    options = {"lr": None, "warmup_init": True, "factored": "largest"}
    same(*resumed(ranks, saved, Adafactor, ("fsdp on 3", "fsdp on 3"), torch.float32, **options))


@fronts
@pytest.mark.needs("max_grad_norm")
@pytest.mark.thinned(1, 2)
def test_zero_redundancy_optimizer_with_a_model_group(ranks, front):
    """A process group is nothing that a checkpoint could hold, and none has to."""
    found = ranks.run(2, checkpoints.by_zero_redundancy, front)
    assert found == [(True, len(list(Small(torch.float64).parameters())))] * 2
