"""The noise scale over ranks is that of one process with the same micro-batches, whatever wraps the model."""

from __future__ import annotations

import numpy as np
import pytest
from sharding.models import same
from sharding.wrappings import WRAPPINGS

from sharding import noise

MEASURED = ["FSDP2", "DDP", "FSDP2, resharded after forward", "FSDP2, offloaded", "HSDP", "TP", "TP and FSDP2"]
# FSDP2 and DDP each have a way of their own to send at the end; the others are FSDP2's or have none.
BOTH_WAYS = MEASURED[:2]


@pytest.mark.parametrize(
    ("wrapping", "synchronized"),
    [
        pytest.param(
            wrapping,
            synchronized,
            id=f"{wrapping}, sent {'each time' if synchronized else 'at the end'}",
            marks=() if wrapping in BOTH_WAYS or synchronized == bool(i % 2) else pytest.mark.slow,
        )
        for i, wrapping in enumerate(MEASURED)
        for synchronized in (True, False)
    ],
)
def test_estimates(ranks, wrapping, synchronized):
    world = WRAPPINGS[wrapping][0]
    found = ranks.run(world, noise.estimates, wrapping, synchronized, True)
    for estimates, _ in found:
        np.testing.assert_allclose(estimates, noise.alone(noise.replicas(wrapping)), rtol=1e-9)
    unmeasured = ranks.run(world, noise.estimates, wrapping, synchronized, False)
    for (_, weights), (_, others) in zip(found, unmeasured, strict=True):
        same({"weights": weights}, {"weights": others})


@pytest.mark.parametrize("wrapping", ["FSDP2", "DDP"])
def test_one_collective(ranks, wrapping):
    for seen in ranks.run(WRAPPINGS[wrapping][0], noise.collectives, wrapping):
        [(name, numbers)] = seen
        assert name.startswith("allreduce")
        assert numbers < 10


@pytest.mark.parametrize(
    ("sizes", "passes", "errors"),
    [
        ([4, 3], [1, 1], ["SynchronizationError", "SynchronizationError"]),
        ([4, [4, 3]], [2, 2], ["SynchronizationError", "HyperparameterError"]),
        ([4, 4], [2, 3], ["SynchronizationError", "SynchronizationError"]),
        ([4, 4], [2, 0], ["SynchronizationError", "GradientError"]),
        ([4, 0], [1, 1], ["SynchronizationError", "HyperparameterError"]),
    ],
)
def test_ranks_that_disagree_are_told(ranks, sizes, passes, errors):
    """Nobody waits for ever, and nobody measures anything."""
    assert ranks.run(2, noise.misuse, sizes, passes) == [[one] for one in errors]


def test_flat_parameters_are_refused(ranks):
    found = ranks.outcomes(2, noise.collectives, "FSDP1")
    assert [one.error for one in found] == ["ParameterError"] * 2
    assert all("is a flat shard" in one.traceback for one in found)
