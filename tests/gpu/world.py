"""PyTorch's tensors where the GPU engine can step them, and that engine with work cut so small that all is crossed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from engines.worlds import LAYOUTS, Stepping, World, as_torch

from layerwise.engines.gpu.call import Sizes
from layerwise.engines.gpu.engine import GpuEngine
from layerwise.engines.rule import RuleEngine
from layerwise.torch.step._namespace import Tensors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Sizes(
    chunk=256,
    block=128,
    lanes=2,
    wide=(1, 8, 32),
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
    def engine(self, insisting: bool = True) -> Any:
        return Stepping(GpuEngine(None if insisting else RULE, SMALL), *([] if insisting else [RULE]))


GPU = Gpu("gpu", RULE, there, lambda a: a.clone(memory_format=torch.preserve_format), LAYOUTS[:4])


def had(case: Any, **options: Any) -> dict[str, Any]:
    """Return those of the options that an optimizer has."""
    return {name: value for name, value in options.items() if name in case.options}
