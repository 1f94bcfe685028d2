"""The noise scale on ranks is that of one process with as many passes, however the model is wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharding.cells import DOUBLE
from sharding.counting import Collectives
from sharding.models import Small, local, named
from sharding.wrappings import WRAPPINGS
from torch.nn.parallel import DistributedDataParallel

from layerwise.torch import Lamb, NoiseScale

STEPS, PASSES, BATCH = 2, 2, 4  # the second step finds averages
TENSOR_PARALLEL = {"TP": 2, "TP and FSDP2": 2}  # how many ranks work on one batch
MEASURED = ["FSDP2", "DDP", "FSDP2, resharded after forward", "FSDP2, offloaded", "HSDP", "TP", "TP and FSDP2"]
# FSDP2 and DDP each have a way of their own to send at the end; the others are FSDP2's or have none.
BOTH_WAYS = MEASURED[:2]
LIKE_OTHERS = {"FSDP2, resharded after forward", "FSDP2, offloaded", "TP and FSDP2"}


def replicas(wrapping: str) -> int:
    return WRAPPINGS[wrapping][0] // TENSOR_PARALLEL.get(wrapping, 1)


def batch(step: int, number: int) -> torch.Tensor:
    return torch.randint(13, (BATCH, 6), generator=torch.Generator().manual_seed(100 * step + number))


def backward(model: Any, batches: Sequence[torch.Tensor], synchronized: bool = True) -> None:
    """The passes of one step; only in the last of them are gradients sent, if those before are not `synchronized`."""
    ddp = isinstance(model, DistributedDataParallel)
    for i, x in enumerate(batches):
        silent = not synchronized and i + 1 < len(batches)
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(not silent)
        with model.no_sync() if silent and ddp else nullcontext():
            (model(x) / len(batches)).backward()


def _estimated(wrapping: str | None, synchronized: bool, measured: bool, of: int = 1) -> Any:
    """What each step says of the noise, and the weights of this rank in the end; in one process, of so many."""
    rank = dist.get_rank() // TENSOR_PARALLEL.get(wrapping, 1) if wrapping else 0
    model, found = Small(DOUBLE), []
    model = WRAPPINGS[wrapping][1](model) if wrapping else model
    noise = NoiseScale(model, **({"replicas": replicas(wrapping)} if wrapping else {})) if measured else None
    opt, passes = Lamb(model.parameters(), lr=0.01), PASSES * of
    for t in range(STEPS):
        opt.zero_grad()
        backward(model, [batch(t, passes * rank + i) for i in range(passes)], synchronized)
        if noise is not None:
            found.append(tuple(noise.update(BATCH, 1 / passes)))
        opt.step()
    return found, {name: local(p).numpy().tobytes() for name, p in named(model).items()}


def _measured_and_not(wrapping: str, synchronized: bool) -> tuple[Any, bool]:
    found, weights = _estimated(wrapping, synchronized, True)
    return found, weights == _estimated(wrapping, synchronized, False)[1]


@pytest.mark.parametrize(
    ("wrapping", "synchronized"),
    [
        pytest.param(
            wrapping,
            synchronized,
            id=f"{wrapping}, sent {'each time' if synchronized else 'at the end'}",
            marks=()
            if wrapping in BOTH_WAYS or (wrapping not in LIKE_OTHERS and synchronized == bool(i % 2))
            else pytest.mark.slow,
        )
        for i, wrapping in enumerate(MEASURED)
        for synchronized in (True, False)
    ],
)
def test_the_noise_is_that_of_one_process_and_to_measure_it_changes_no_weight(ranks, wrapping, synchronized):
    wanted, _ = _estimated(None, True, True, of=replicas(wrapping))
    for estimates, same in ranks.run(WRAPPINGS[wrapping][0], _measured_and_not, wrapping, synchronized):
        np.testing.assert_allclose(estimates, wanted, rtol=1e-9)
        assert same


def _collectives(wrapping: str) -> Any:
    """Those of an update with one pass on each rank."""
    model = WRAPPINGS[wrapping][1](Small(torch.float32))
    noise = NoiseScale(model, replicas=replicas(wrapping))
    backward(model, [batch(0, dist.get_rank())])
    with Collectives() as seen:
        noise.update(BATCH)
    return seen.seen


@pytest.mark.parametrize("wrapping", BOTH_WAYS)
def test_an_update_takes_one_short_collective(ranks, wrapping):
    for seen in ranks.run(WRAPPINGS[wrapping][0], _collectives, wrapping):
        [(name, n)] = seen
        assert name.startswith("allreduce")
        assert n < 10


def test_flat_parameters_are_refused(ranks):
    found = ranks.outcomes(2, _collectives, "FSDP1")
    assert [one.error for one in found] == ["ParameterError"] * 2
    assert all("is a flat shard" in one.traceback for one in found)


def _misused(sizes: Any, passes: Any) -> list[str]:
    """The errors of an update with these sizes after as many passes, by rank, and of a right one after it."""
    rank, errors, model = dist.get_rank(), [], Small(torch.float32)  # bare, so that passes need not match
    noise = NoiseScale(model)
    for size, n in ((sizes[rank], passes[rank]), (BATCH, 2)):
        backward(model, [batch(0, i) for i in range(n)])
        try:
            noise.update(size)
        except Exception as problem:
            errors.append(type(problem).__name__)
    return errors


@pytest.mark.parametrize(
    ("sizes", "passes", "own"),
    [
        ([4, 3], [1, 1], "SynchronizationError"),
        ([4, [4, 3]], [2, 2], "HyperparameterError"),
        ([4, 4], [2, 3], "SynchronizationError"),
        ([4, 4], [2, 0], "GradientError"),
        ([4, 0], [1, 1], "HyperparameterError"),
    ],
)
def test_ranks_that_disagree_raise(ranks, sizes, passes, own):
    """Nobody waits for ever, and nobody measures anything."""
    assert ranks.run(2, _misused, sizes, passes) == [["SynchronizationError"], [own]]
