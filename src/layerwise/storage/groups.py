"""Numbers in 8 bits, in groups that share a scale.

Groups are 64 consecutive elements of one row of a tensor: of p[i], flattened; of a vector, of itself. The last of a row
may be shorter. What is stored of x is a root of it, in units of which the largest of the group has as many as 8 bits
hold:

    signed:      x = sign(c)·(c·s)²,   s = √max|x| / 127
    not signed:  x = (c·s)⁴,           s = ⁴√max x / 255

A linear grid would have nothing left for the small ones: v is a square, and spans twice the powers of ten that g does.
With √v alone, moments of gradients 500 times smaller than the largest of their group still come to 0, and the step m/√v
is then far too long.
"""

from __future__ import annotations

from typing import Any

GROUP = 64
SIGNED, UNSIGNED = 127.0, 255.0
LEAST = 4096  # elements of a tensor: of smaller ones the state stays float32


def count(length: int) -> int:
    """Return the number of groups in a row of this length."""
    return -(-length // GROUP)


def encode(xp: Any, x: Any, signed: bool) -> tuple[Any, Any]:
    """Return codes, as floats, and scales of the rows of a matrix."""
    rows, length = x.shape
    groups = count(length)
    grouped = _padded(xp, x, groups * GROUP - length).reshape(rows, groups, GROUP)
    size = abs(grouped)
    root = xp.sqrt(size) if signed else xp.sqrt(xp.sqrt(size))
    largest = xp.amax(root, 2)
    # Divided by an array: PyTorch on CUDA and XLA would multiply by the reciprocal of a number.
    scale = largest / xp.full_like(largest, SIGNED if signed else UNSIGNED)
    finite = (scale > 0) & (scale < float("inf"))  # else all are 0, or the scale says that there are nan or inf
    inverse = xp.where(finite, 1.0 / xp.where(finite, scale, 1.0), 0.0)[:, :, None]
    codes = xp.round(xp.where(finite[:, :, None], root, 0.0) * inverse)
    codes = xp.where(grouped < 0, -codes, codes) if signed else codes
    return codes.reshape(rows, groups * GROUP)[:, :length], scale


def decode(xp: Any, codes: Any, scale: Any, signed: bool) -> Any:
    """Return the numbers of the rows of a matrix, given codes as floats."""
    rows, length = codes.shape
    groups = scale.shape[1]
    wide = xp.broadcast_to(scale[:, :, None], (rows, groups, GROUP)).reshape(rows, groups * GROUP)[:, :length]
    root = codes * wide
    square = root * root
    return xp.where(root < 0, -square, square) if signed else square * square


def _padded(xp: Any, x: Any, by: int) -> Any:
    return x if by == 0 else xp.concat([x, xp.broadcast_to(xp.zeros_like(x[:, :1]), (x.shape[0], by))], 1)
