"""PyTorch's tensors where the GPU engine can step them, and that engine with work cut so small that all is crossed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cases import KERNELED
from engines.worlds import LAYOUTS, Stepping, World, as_torch, make_job, mapped, numbers, stored

from layerwise import engines
from layerwise.engines.assignment import prepare
from layerwise.engines.gpu import GpuEngine
from layerwise.engines.gpu.layout import ChunkSizes
from layerwise.engines.gpu.proof import Proof
from layerwise.engines.rule import RuleEngine
from layerwise.torch.arrays._library import Tensors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = ChunkSizes(
    chunk=256,
    block=128,
    lanes=2,
    wide=(1, 8, 32),
    grouped=(1, 2, 64),
    narrow=(8, 4, 4),
    single=(64, 1, 1),
    tiles=2,
    entries=64,
    strips=2,
)
RULE = RuleEngine(Tensors(), None, 1 << 12)


def there(array: np.ndarray) -> torch.Tensor:
    """On the device; there, as here, it has the strides of the array."""
    here = as_torch(array)
    if DEVICE == "cpu":
        return here
    return torch.empty_strided(here.shape, here.stride(), dtype=here.dtype, device=DEVICE).copy_(here)


@dataclass(frozen=True)
class Gpu(World):
    def engine(self, required: bool = True) -> Any:
        return Stepping(GpuEngine(sizes=SMALL), *([] if required else [RULE]))


GPU = Gpu("gpu", RULE, there, lambda a: a.clone(memory_format=torch.preserve_format), LAYOUTS[:4])


def had(case: Any, **options: Any) -> dict[str, Any]:
    """Return those of the options that an optimizer has."""
    return {name: value for name, value in options.items() if name in case.options}


def proving(warns: bool = True) -> Any:
    """Return an engine whose kernels owe a proof, also on tensors in the machine's memory."""
    engine = GpuEngine(sizes=SMALL)
    engine.proof = Proof(RULE, warns)
    return engine


# ---- lists of jobs, prepared once and stepped several times

cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
ENGINE = GpuEngine(sizes=SMALL)


def jobs_of(case: Any, shapes: Any, dtypes: tuple[str, str, str] = ("float32",) * 3, **options: Any) -> list[Any]:
    """Jobs on the device, with those of the options that the optimizer has."""
    made = [make_job(case, case.hyper(**had(case, **options)), shape, (), i, dtypes) for i, shape in enumerate(shapes)]
    return [mapped(job, GPU.array) for job in made]


def copies(jobs: Any) -> list[Any]:
    return [mapped(job, GPU.copy) for job in jobs]


def given(job: Any, **more: Any) -> engines.Job:
    """The job as an engine is given it."""
    return engines.Job(job.rule, job.h, job.p, job.state, job.block_dims, **more)


def prepared(jobs: Any, *table: Any) -> Any:
    """The jobs, prepared by the engine or by a table of engines."""
    return prepare(table or (ENGINE,), [given(job) for job in jobs])


def step(ready: Any, jobs: Any, nows: Any = None, skip: Any = None, grads: Any = None) -> None:
    ready.step(grads or [job.g for job in jobs], nows or [job.now for job in jobs], skip)


def near(ours: Any, theirs: Any, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """All that two lists of jobs store is the same but for roundings."""
    for one, other in zip(ours, theirs, strict=True):
        for x, y in zip(stored(one), stored(other), strict=True):
            np.testing.assert_allclose(numbers(x), numbers(y), rtol=rtol, atol=atol)
