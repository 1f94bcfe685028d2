"""What the tests of the NumPy front share."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import CASES

FRONTS = [case.numpy for case in CASES]
fronts = pytest.mark.parametrize("front", FRONTS)

# Settings under which every part of the state matters.
BUSY: dict[Any, dict[str, Any]] = {case.numpy: case.busy for case in CASES}
DTYPES = [np.dtype(name) for name in ("float16", "float32", "float64", ml_dtypes.bfloat16)]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
SHAPES = {"matrix": (4, 3), "vector": (5,), "scalar": (), "stack": (2, 3, 4)}


def busy(front: Any, **options: Any) -> Any:
    return front(**{**BUSY[front], **options})


def kept_of(front: Any, shape: tuple[int, ...]) -> list[str]:
    """Return the parts of the state that a busy optimizer keeps of an array."""
    h = front._hyper(**BUSY[front]).fit(shape, (), 1e-7)
    return [part for part, one in front._rule.shapes(h, shape)._asdict().items() if one is not None]


def arrays(seed: int, shapes: Any = None, dtype: Any = np.float64) -> dict[str, Any]:
    """Named arrays of normal numbers, made in float64 and rounded."""
    draw = np.random.default_rng(seed)
    named = SHAPES if shapes is None else shapes
    return {name: np.asarray(draw.normal(size=shape)).astype(dtype) for name, shape in named.items()}


def copies(named: Any) -> dict[str, Any]:
    return {name: array.copy() for name, array in named.items()}


def bits(named: Any) -> dict[str, Any]:
    """What two dicts of arrays must share to be the same bit for bit."""
    return {name: (a.dtype.name, a.shape, a.tobytes()) for name, a in named.items()}


def everything(opt: Any, weights: Any) -> Any:
    """All that an error must leave as it was."""
    return bits(weights), bits(opt.state_dict()), opt.parameters, opt.skipped


def close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    """Equal to `tolerance` of the largest number in each array."""
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        wanted = np.asarray(wanted).astype(np.float64)
        size = np.max(np.abs(wanted), initial=0)
        got = np.asarray(ours[name]).astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * size, err_msg=str(name))
