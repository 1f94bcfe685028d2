"""The measurements of a step, stored in the state."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import jax
import jax.numpy as jnp

from layerwise.errors import StateError
from layerwise.jax._drive import Task, real
from layerwise.jax._trees import name_of
from layerwise.rules.asks import Stepped, Sum
from layerwise.telemetry import with_both


def measured(stepped: Sequence[Stepped], tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the measurements of a tensor's pieces, joined: numbers, or arrays with one number a block."""
    each = [_of_piece(one, task) for one, task in zip(stepped, tasks, strict=True)]
    joined = {key: jnp.concatenate([one[key] for one in each]) for key in each[0]}
    blocked = bool(tasks[0].block_dims) or len(tasks) > 1
    return joined if blocked else {key: value[0] for key, value in joined.items()}


def _of_piece(stepped: Stepped, task: Task) -> dict[str, Any]:
    blocks, dtype = prod(task.shape[d] for d in task.block_dims), real(task.dtype)
    each = ((key, jnp.ravel(jnp.asarray(x, dtype))) for key, x in stepped.stats.items())
    return with_both({key: jnp.broadcast_to(x, (blocks,)) for key, x in each}, sqrt(max(1, task.entries(Sum(None)))))


def stats(state: Any) -> dict[str, dict[str, Any]]:
    """Return the measurements of the last step by parameter: arrays, with one number for each block of it.

    Args:
        state: A state of an optimizer made with stats=True, or one that contains it, as that of optax.chain does.
    """
    ours = [one for one in jax.tree.leaves(state, is_leaf=_is_ours) if _is_ours(one)]
    if not ours or all(one.stats is None for one in ours):
        raise StateError("no step has been measured for this state. Make the optimizer with stats=True.")
    found: dict[str, dict[str, Any]] = {}
    for one in ours:
        paths, _ = jax.tree_util.tree_flatten_with_path(one.stats, is_leaf=_is_measured)
        found |= {name_of(path): value for path, value in paths}
    return found


def _is_ours(x: Any) -> bool:
    return isinstance(x, tuple) and type(x).__module__ == "layerwise.jax.optimizers"


def _is_measured(x: Any) -> bool:
    return isinstance(x, dict) and "trust_ratio" in x
