"""The measurements of a step, in readable form."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from layerwise.engines import Stats
from layerwise.layout.pieces import Piece
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Array

Shape = tuple[int, ...]


def join_pieces(measured: Sequence[Stats], pieces: Sequence[Piece]) -> dict[str, Array]:
    """Return the measurements of a tensor's pieces, joined: numbers, or arrays of one number per block."""
    blocked = pieces[0].part is not None
    each = [_of_piece(stats, piece.shape, piece.block_dims) for stats, piece in zip(measured, pieces, strict=True)]
    joined = {key: np.concatenate([one[key] for one in each]) for key in each[0]}
    return joined if blocked else {key: float(value[0]) for key, value in joined.items()}


def _of_piece(stats: Stats, shape: Shape, block_dims: Shape) -> dict[str, Array]:
    blocks = prod(shape[d] for d in block_dims)
    root_n = sqrt(max(1, prod(shape) // max(1, blocks)))
    found = {key: np.broadcast_to(np.ravel(value), blocks).astype(float) for key, value in stats.items()}
    return with_norms_and_rms(found, root_n)


def clipped_flag(measured: Stats, h: Any, weight_decay: float) -> Array:
    """Return 1 if a bound on the ratio or the update was reached, otherwise 0, in the form of the measurements."""
    ratio = np.asarray(measured["trust_ratio"], np.float32)  # in which it may have been held to its bounds
    found = np.zeros(ratio.shape, bool)
    if getattr(h, "clip_threshold", None) is not None:
        found |= np.asarray(measured["update_rms"] > h.clip_threshold)
    if getattr(h, "trust_clip", None) is not None:
        low, high = (np.float32(np.nan if bound is None else bound) for bound in h.trust_clip)
        found |= (ratio <= low) | (ratio >= high)
    if getattr(h, "max_weight_norm", None) is not None and "weight_norm" in measured:
        found |= np.asarray(measured["weight_norm"] > h.max_weight_norm)
    if hasattr(h, "trust_clip"):  # otherwise it is not a ratio of norms
        norms = (np.asarray(measured[key]) for key in ("weight_norm", "update_norm"))
        found &= has_trust_ratio(h, weight_decay) and np.logical_and(*norms)
    return np.where(np.isnan(ratio), np.nan, found)[()]


def has_trust_ratio(h: Hyper, weight_decay: float) -> bool:
    adapt = getattr(h, "adapt", False)
    return bool(weight_decay != 0 if adapt == "decayed" else adapt)


def with_norms_and_rms(found: dict[str, Array], root_n: float) -> dict[str, Array]:
    """Return norms and root mean squares of n numbers; a rule measures only one of the two."""
    for what in ("weight", "update"):
        if f"{what}_norm" in found:
            found[f"{what}_rms"] = found[f"{what}_norm"] / root_n
        elif f"{what}_rms" in found:
            found[f"{what}_norm"] = found[f"{what}_rms"] * root_n
    return found
