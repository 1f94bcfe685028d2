"""With `reproducible=True`, the same bits on any number of ranks and however tensors are cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sharding.layouts import LAYOUTS
from sharding.models import FRONTS, same
from sharding.test_trajectories import alone, shared_stats

from sharding import runs

fronts = pytest.mark.parametrize("front", FRONTS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def check(ranks: Any, front: Any, layout: str | int, dtype: torch.dtype, **options: Any) -> None:
    options["reproducible"] = True
    world = runs.layout_of(layout)[0]
    found = shared_stats(ranks.run(world, runs.stepped, front, layout, dtype, options))
    for one in found:
        same(one, alone(front, dtype, **options))


@each_layout
@fronts
def test_every_layout(ranks, front, layout):
    check(ranks, front, layout, torch.float32)


@each_layout
@fronts
@pytest.mark.needs("max_grad_norm")
def test_clip(ranks, front, layout):
    check(ranks, front, layout, torch.float32, max_grad_norm=0.5)
