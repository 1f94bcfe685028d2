"""Products of matrices in fewer digits than those of the arithmetic.

Operands are rounded to the dtype of the products, and sums are at least float32: a result is rounded once, when it
becomes an operand of the next product. If the device has no units for that dtype, or the library no such product, an
operand keeps its own dtype and is rounded to as many digits: the result is the same, only not faster. A large product
that is known to be symmetric is computed in blocks up to the diagonal, and mirrored, in two thirds of the time.

A namespace has `multiplies(x, dtype)`, which returns its own name of that dtype, or None if the device of `x` does not
multiply in it. It may have a `product` whose sum stays in float32, `weighted` in one pass, and `halves(x)`, which tells
whether symmetric products of x are faster in blocks.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

from layerwise.rules.arrays import is_complex
from layerwise.rules.requests import Array, Functions

HALVES = {"float16": 11, "bfloat16": 8}  # dtypes of 16 bits, and the digits of their numbers
BLOCKS = 4  # along each side of a symmetric product
WORTH = 512  # the number of rows from which blocks are faster on one thread of a processor
WIDE = ("float64", "complex128")


def operand(xp: Functions, x: Array, dtype: str | None) -> Array:
    """Return x as a product takes it: rounded to the digits of a 16-bit dtype, or unchanged for other dtypes."""
    if dtype not in HALVES:
        return x
    native = xp.multiplies(x, dtype) if hasattr(xp, "multiplies") else None
    return _with_digits(x, HALVES[dtype]) if native is None else xp.asarray(x, dtype=native)


def _with_digits(x: Array, digits: int) -> Array:
    """Return x rounded to this many binary digits, by arithmetic that every library has (Veltkamp 1968)."""
    own = 53 if any(name in str(x.dtype).lower() for name in WIDE) else 24
    far = x * (2.0 ** (own - digits) + 1)
    return far - (far - x)


def product(xp: Functions, x: Array, y: Array, dtype: str | None) -> Array:
    """Return x·y as the next product takes it."""
    return operand(xp, _summed(xp, x, y), dtype)


def worth_halving(rows: int, threads: int) -> bool:
    """Return True if a processor computes a symmetric product of this many rows faster in blocks."""
    return rows >= WORTH * sqrt(threads)


def symmetric(xp: Functions, x: Array, y: Array) -> Array:
    """Return x·y, which is known to be symmetric, in the dtype of the sum."""
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


def quadratic(xp: Functions, G: Array, a: float, b: float, c: float, dtype: str | None) -> Array:
    """Return a + b·G + c·G² as the next product takes it."""
    if hasattr(xp, "weighted") and not _in_blocks(xp, G):
        return operand(xp, xp.weighted(G, a, b, c), dtype)
    squared = symmetric(xp, G, G)
    n, own = G.shape[-1], squared.dtype
    G, one = xp.asarray(G, dtype=own), xp.reshape(xp.eye(n, dtype=own), (1, n, n))
    return operand(xp, a * one + (b * G + c * squared), dtype)
