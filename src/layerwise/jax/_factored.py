"""Statistics by rows and columns as optax keeps them: without the dimension that the mean ran over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np


def _dims(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return optax's second largest and largest dimension: v_row is the mean over the latter, v_col over the former."""
    order = np.argsort(shape)
    return int(order[-2]), int(order[-1])


def from_factored(shape: tuple[int, ...], ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[Any, Any, Any]:
    if ours[0] is None:
        return None, None, theirs[2]
    second, largest = _dims(shape)
    over_largest, over_second = jnp.expand_dims(theirs[0], largest), jnp.expand_dims(theirs[1], second)
    return (over_largest, over_second, None) if largest > second else (over_second, over_largest, None)


def to_factored(shape: tuple[int, ...], theirs: Sequence[Any], ours: Sequence[Any]) -> tuple[Any, Any, Any]:
    if ours[0] is None:
        return theirs[0], theirs[1], ours[2]
    second, largest = _dims(shape)
    over_largest, over_second = (ours[0], ours[1]) if largest > second else (ours[1], ours[0])
    return jnp.squeeze(over_largest, largest), jnp.squeeze(over_second, second), theirs[2]
