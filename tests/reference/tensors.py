"""Sums over the elements of one tensor, and the cutting of a tensor into blocks."""

import math

import numpy as np


def indices(tensor):
    """Every index of the tensor; the one index () of a 0-d tensor, none of an empty one."""
    return list(np.ndindex(tensor.shape))


def sum_of_squares(tensor):
    """Σ xᵢ²"""
    return math.fsum([tensor[i] * tensor[i] for i in indices(tensor)])


def norm(tensor):
    """‖x‖ = √Σ xᵢ²"""
    return math.sqrt(sum_of_squares(tensor))


def rms(tensor):
    """RMS(x) = √(Σ xᵢ² / n); 0 for a tensor without elements."""
    if tensor.size == 0:
        return 0.0
    return math.sqrt(sum_of_squares(tensor) / tensor.size)


def clip(value, low, high):
    """The value bounded to [low, high], where None is no bound."""
    if low is not None and value < low:
        return low
    if high is not None and value > high:
        return high
    return value


def at_least(value, low):
    """The value, or `low` where it is below that; nan stays nan."""
    return low if value < low else value


def with_norm(x, wanted):
    """x at the norm that is wanted; x itself where that is 0, or its own."""
    found = norm(x)
    if not (wanted > 0 and found > 0):
        return x
    out = np.empty(x.shape)
    for i in indices(x):
        out[i] = x[i] * (wanted / found)
    return out


def trust_ratio(h, weight_norm, update_norm, lam, most=None, eps=0.0):
    """clip(min(‖p‖, most) / (‖r‖ + eps), low, high), no norm below min_norm; 1 where h has it off"""
    if h.adapt is False or (h.adapt == "decayed" and lam == 0):
        return 1.0
    weight_norm, update_norm = at_least(weight_norm, h.min_norm), at_least(update_norm, h.min_norm)
    if weight_norm == 0 or update_norm == 0:
        return h.zero_norm_ratio
    phi = weight_norm if most is None else min(weight_norm, most)
    return clip(phi / (update_norm + eps), *(h.trust_clip or (None, None)))


def stepped(state, p, r, size, keep_norm, radial):
    """p − size·r with a part of the step along p taken out, or with the norm that p keeps."""
    weight_norm, out = norm(p), np.empty(p.shape)
    along = math.fsum([p[i] * r[i] for i in indices(p)])
    excess = 0.0 if radial is None or weight_norm == 0 else (1 - radial) * along / weight_norm**2
    for i in indices(p):
        out[i] = p[i] - size * (r[i] - excess * p[i])
    if keep_norm == "first":
        state["R"] = state.get("R") or weight_norm
    if keep_norm:
        wanted = state["R"] if keep_norm == "first" else weight_norm
        out = with_norm(out if norm(out) > 0 else p, wanted)
    return out


def agreeing(u, g):
    """u where its sign is g's, 0 elsewhere, over the share of such elements or 0.001 if that is less; and the share."""
    agree = {i: math.copysign(1, u[i]) == math.copysign(1, g[i]) and u[i] != 0 and g[i] != 0 for i in indices(u)}
    share = sum(agree.values()) / max(1, len(agree))
    if any(math.isnan(u[i]) for i in indices(u)):
        share = math.nan
    masked = np.empty(u.shape)
    for i in indices(u):
        masked[i] = (u[i] if agree[i] else 0 * u[i]) / at_least(share, 1e-3)
    return masked, share


def divide(a, b):
    """a / b as IEEE 754 has it: dividing by zero gives an infinity or NaN."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b


def cut(tensor, block):
    """The blocks of a tensor as tensors of their own.

    `block` is None (the whole tensor is the only block), (axis, sizes), or (axis, sizes, drop); with drop all sizes
    are 1 and the blocks have no such axis.
    """
    if block is None:
        return [np.array(tensor, dtype=np.float64)]
    axis, drop = block[0] % tensor.ndim, len(block) > 2 and block[2]
    blocks = []
    for place in _places(block):
        piece = np.array(tensor[(slice(None),) * axis + (place,)], dtype=np.float64)
        blocks.append(piece.reshape(piece.shape[:axis] + piece.shape[axis + 1 :]) if drop else piece)
    return blocks


def join(blocks, shape, block):
    """The tensor of the given shape whose `cut` gives these blocks."""
    if block is None:
        return blocks[0]
    axis = block[0] % len(shape)
    tensor = np.empty(shape, dtype=np.float64)
    for piece, place in zip(blocks, _places(block), strict=True):
        part = tensor[(slice(None),) * axis + (place,)]
        part[...] = piece.reshape(part.shape)
    return tensor


def _places(block):
    """Where along the axis each block lies."""
    places, start = [], 0
    for size in block[1]:
        places.append(slice(start, start + size))
        start += size
    return places
