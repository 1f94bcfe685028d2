"""Numbers in 8 bits, in groups that share a scale.

Groups are 64 consecutive elements of one row of a tensor: of p[i], flattened; of a vector, of itself. The last of a row
may be shorter. What is stored of x is a root of it, in units of which the largest of the group has as many as 8 bits
hold:

    signed:      x = sign(c)·(c·s)²,   s = √max|x| / 127
    not signed:  x = (c·s)⁴,           s = ⁴√max x / 255

A linear grid would have nothing left for the small ones: v is a square, and spans twice the powers of ten that g does.
With √v alone, moments of gradients 500 times smaller than the largest of their group still come to 0, and the step m/√v
is then far too long.

Codes are rounded at random, so that what changes by less than a code in each step changes all the same: an average
decays, and reaches 0. Signed numbers have the mean x, as averages of gradients should. Of the others the code has the
right mean, which to second order gives that of 1/√x. A number that is not 0 has at least the code 4: no momentum of the
lowest codes, whose rounding is coarse, is divided by what is smaller still.

A number that is not finite has the highest code, the others of its group the lower ones, and the scale the sign minus.
"""

from __future__ import annotations

from typing import Any

from layerwise.storage import Coded

GROUP = 64
SIGNED, UNSIGNED = 127.0, 255.0
LOWEST = 4.0  # code of a number that is not 0, where there are no signs
LEAST = 4096  # elements of a tensor: of smaller ones the state stays float32


def count(length: int) -> int:
    """Return the number of groups in a row of this length."""
    return -(-length // GROUP)


def encode(xp: Any, x: Any, signed: bool, drawn: Any = None) -> tuple[Any, Any]:
    """Return codes, as floats, and scales of the rows of a matrix; by numbers from 0 to 1, or rounded to nearest."""
    rows, length = x.shape
    groups, most = count(length), SIGNED if signed else UNSIGNED
    grouped = _grouped(xp, x)
    size = abs(grouped)
    known = size < float("inf")
    root = xp.sqrt(xp.where(known, size, 0.0))
    root = root if signed else xp.sqrt(root)
    largest, all_known = xp.amax(root, 2), xp.all(known, 2)
    # Divided by an array: PyTorch on CUDA and XLA would multiply by the reciprocal of a number.
    top = xp.where(all_known, xp.full_like(largest, most), xp.full_like(largest, most - 1))
    scale = largest / top
    inverse = xp.where(scale > 0, 1.0 / xp.where(scale > 0, scale, 1.0), 0.0)
    code = root * inverse[:, :, None]
    code = xp.where(code > top[:, :, None], top[:, :, None], code)
    codes = xp.round(code) if drawn is None else drawn_code(xp, code, _grouped(xp, drawn), signed)
    if signed:
        codes = xp.where(grouped < 0, -xp.where(known, codes, most), xp.where(known, codes, most))
    else:
        codes = xp.where(known, xp.where((root > 0) & (codes < LOWEST), LOWEST, codes), most)
    scale = xp.where(all_known, scale, -xp.where(scale > 0, scale, 1.0))
    return codes.reshape(rows, groups * GROUP)[:, :length], scale


def fraction(b: Any, drawn: Any) -> Any:
    """Return a number from 0 to 1 that 32 random bits make; `b` is a library's view of bits."""
    return b.as_floats(drawn >> 8) * 2.0**-24


def drawn_code(xp: Any, code: Any, drawn: Any, signed: bool) -> Any:
    """Return one of the two whole numbers beside a code that is not below 0."""
    low = xp.floor(code)
    over = code - low
    if signed:  # so that the mean of the squares is the square
        return xp.where(drawn * (2.0 * low + 1.0) < over * (code + low), low + 1.0, low)
    return xp.where(drawn < over, low + 1.0, low)


def decode(xp: Any, codes: Any, scale: Any, signed: bool) -> Any:
    """Return the numbers of the rows of a matrix, given codes as floats."""
    rows, length = codes.shape
    groups = scale.shape[1]
    wide = xp.broadcast_to(scale[:, :, None], (rows, groups, GROUP)).reshape(rows, groups * GROUP)[:, :length]
    root = codes * abs(wide)
    lost = (wide < 0) & (abs(codes) == (SIGNED if signed else UNSIGNED))
    square = xp.where(lost, float("inf"), root * root)
    return xp.where(root < 0, -square, square) if signed else square * square


def _grouped(xp: Any, x: Any) -> Any:
    """Return the rows of a matrix as groups; 0 fills the last up."""
    rows, length = x.shape
    groups = count(length)
    by = groups * GROUP - length
    x = x if by == 0 else xp.concat([x, xp.broadcast_to(xp.zeros_like(x[:, :1]), (rows, by))], 1)
    return x.reshape(rows, groups, GROUP)


EIGHT = Coded("int8", "_scale", ("int8", "uint8"), encode, decode, (2, 4))
