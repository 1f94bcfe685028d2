"""Products of matrices in fewer digits than those of the arithmetic.

Every operand is rounded to the dtype of the products; they are summed in at least float32, and what becomes an operand
of the next is rounded once. Where a device has no units for a dtype, or a library no such product, an operand keeps its
own dtype and has the digits of the other: the same rounding, and the speed of its own. Of a product that is symmetric,
large ones take two thirds of the time: blocks up to the diagonal, and their mirror images.

A namespace says by `multiplies(x, dtype)` what arrays of that dtype are called on the device of `x`, or None. It may
have a `product` whose sum stays in float32, and a `weighted` in one pass; `halves(x)` says whether such products of x
are faster in blocks.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

from layerwise.rules.arrays import is_complex
from layerwise.rules.asks import Array, Functions

HALVES = {"float16": 11, "bfloat16": 8}  # dtypes of 16 bits, and the digits of their numbers
BLOCKS = 4  # along each side of a symmetric product
WORTH = 512  # rows from which blocks are faster on one thread of a processor
WIDE = ("float64", "complex128")


def operand(xp: Functions, x: Array, dtype: str | None) -> Array:
    """Return x rounded to the digits of a dtype of 16 bits, or as it is."""
    if dtype not in HALVES:
        return x
    native = xp.multiplies(x, dtype) if hasattr(xp, "multiplies") else None
    return _with_digits(x, HALVES[dtype]) if native is None else xp.asarray(x, dtype=native)


def _with_digits(x: Array, digits: int) -> Array:
    """Return x rounded to so many binary digits, by arithmetic that all libraries have (Veltkamp 1968)."""
    own = 53 if any(name in str(x.dtype).lower() for name in WIDE) else 24
    far = x * (2.0 ** (own - digits) + 1)
    return far - (far - x)


def product(xp: Functions, x: Array, y: Array, dtype: str | None) -> Array:
    """Return x·y as an operand of the next."""
    return operand(xp, _summed(xp, x, y), dtype)


def worth_halving(rows: int, threads: int) -> bool:
    """Return whether a processor is faster at a symmetric product of so many rows in blocks."""
    return rows >= WORTH * sqrt(threads)


def symmetric(xp: Functions, x: Array, y: Array) -> Array:
    """Return x·y of matrices, which is known to be symmetric, as it is summed."""
    if not _in_blocks(xp, x):
        return _summed(xp, x, y)
    n = x.shape[-2]
    spans = [slice(*pair) for pair in pairwise(i * n // BLOCKS for i in range(BLOCKS + 1))]
    rows = [_summed(xp, x[:, span], y[:, :, : span.stop]) for span in spans]
    beside = [[xp.moveaxis(row[:, :, span], -1, -2) for row in rows[i + 1 :]] for i, span in enumerate(spans)]
    return xp.concat([xp.concat([row, *more], axis=-1) for row, more in zip(rows, beside, strict=True)], axis=-2)


def _in_blocks(xp: Functions, x: Array) -> bool:
    return hasattr(xp, "halves") and not is_complex(x) and bool(xp.halves(x))


def _summed(xp: Functions, x: Array, y: Array) -> Array:
    return xp.product(x, y) if hasattr(xp, "product") else x @ y


def weighted(xp: Functions, G: Array, a: float, b: float, c: float, dtype: str | None) -> Array:
    """Return a + b·G + c·G² as an operand of the next."""
    if hasattr(xp, "weighted") and not _in_blocks(xp, G):
        return operand(xp, xp.weighted(G, a, b, c), dtype)
    squared = symmetric(xp, G, G)
    n, own = G.shape[-1], squared.dtype
    G, one = xp.asarray(G, dtype=own), xp.reshape(xp.eye(n, dtype=own), (1, n, n))
    return operand(xp, a * one + (b * G + c * squared), dtype)
