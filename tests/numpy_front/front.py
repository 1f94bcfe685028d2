"""What the tests of the NumPy front share."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import CASES
from contract.apis import SHAPES, bits

FRONTS = [case.numpy for case in CASES]
fronts = pytest.mark.parametrize("front", FRONTS)

# Settings under which every part of the state matters.
BUSY: dict[Any, dict[str, Any]] = {case.numpy: case.busy for case in CASES}
DTYPES = [np.dtype(name) for name in ("float16", "float32", "float64", ml_dtypes.bfloat16)]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


def busy(front: Any, **options: Any) -> Any:
    return front(**{**BUSY[front], **options})


def arrays(seed: int, shapes: Any = SHAPES, dtype: Any = np.float64) -> dict[str, Any]:
    """Named arrays of normal numbers, made in float64 and rounded."""
    draw = np.random.default_rng(seed)
    return {name: np.asarray(draw.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}


def copies(named: Any) -> dict[str, Any]:
    return {name: array.copy() for name, array in named.items()}


def everything(opt: Any, weights: Any) -> Any:
    """All that an error must leave as it was."""
    return bits(weights), bits(opt.state_dict()), opt.parameters, opt.skipped
