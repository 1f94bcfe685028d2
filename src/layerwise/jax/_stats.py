"""The measurements of a step, stored in the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

import jax
import jax.numpy as jnp

from layerwise.errors import StateError
from layerwise.jax._drive import Task, entries
from layerwise.jax._slots import is_ours
from layerwise.jax._trees import name_of
from layerwise.telemetry import with_both


def measured(stats: Sequence[Mapping[str, Any]], tasks: Sequence[Task], blocked: bool, dtype: Any) -> dict[str, Any]:
    """Return the measurements of a tensor's pieces, joined: numbers, or arrays with one number a block."""
    each = [_of_piece(one, task, dtype) for one, task in zip(stats, tasks, strict=True)]
    joined = {key: jnp.concatenate([one[key] for one in each]) for key in each[0]}
    return joined if blocked else {key: value[0] for key, value in joined.items()}


def _of_piece(stats: Mapping[str, Any], task: Task, dtype: Any) -> dict[str, Any]:
    blocks = prod(task.shape[d] for d in task.block_dims)
    root_n = sqrt(max(1, entries(task)))
    found = {key: jnp.broadcast_to(jnp.ravel(jnp.asarray(x, dtype)), (blocks,)) for key, x in stats.items()}
    return with_both(found, root_n)


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
    return is_ours(x)


def _is_measured(x: Any) -> bool:
    return isinstance(x, dict) and "trust_ratio" in x
