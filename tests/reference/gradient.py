"""The gradient as it is to be used, alike for the three optimizers."""

import math

import numpy as np

from .tensors import clip, indices, norm, sum_of_squares


def prepare(grads, maximize, max_grad_value, max_grad_norm_per_tensor, max_grad_norm):
    """Negate, clip each element, clip each block by its norm, clip all by their common norm, in this order.

    `grads` maps every name to the list of its blocks; so does the result.
    """
    prepared = {}
    for name, blocks in grads.items():
        prepared[name] = [_alone(g, maximize, max_grad_value, max_grad_norm_per_tensor) for g in blocks]
    if max_grad_norm:
        total = math.sqrt(math.fsum([sum_of_squares(g) for blocks in prepared.values() for g in blocks]))
        for name, blocks in prepared.items():
            prepared[name] = [_shorten(g, total, max_grad_norm) for g in blocks]
    return prepared


def _alone(g, maximize, max_grad_value, max_grad_norm_per_tensor):
    """What a block's gradient goes through without regard to the others."""
    out = np.empty(g.shape)
    for i in indices(g):
        out[i] = -g[i] if maximize else g[i]
        out[i] = clip(out[i], *bounds_of(max_grad_value))
    if max_grad_norm_per_tensor:
        out = _shorten(out, norm(out), max_grad_norm_per_tensor)
    return out


def bounds_of(max_grad_value):
    """(low, high), of a pair or of c as (−c, c); None is no bound, and 0 or None instead of a pair are none."""
    if isinstance(max_grad_value, tuple):
        return max_grad_value
    return (-max_grad_value, max_grad_value) if max_grad_value else (None, None)


def _shorten(g, length, bound):
    """g / max(1, length / bound)"""
    # Python's max keeps its first argument where that is NaN, and a NaN must not get lost.
    divisor = max(length / bound, 1.0)
    out = np.empty(g.shape)
    for i in indices(g):
        out[i] = g[i] / divisor
    return out
