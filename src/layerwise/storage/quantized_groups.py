"""Numbers in 8 bits, in groups that share a scale.

Groups are 64 consecutive elements of one row of a tensor: of p[i], flattened; a vector is one row. The last group of a
row may be shorter. The stored code is a root of x, in units such that the largest number of the group has the highest
code of 8 bits:

    signed:      x = sign(c)·(c·s)²,   s = √max|x| / 127
    not signed:  x = (c·s)⁴,           s = ⁴√max x / 255

A linear grid would leave no codes for small numbers: v is a square, and spans twice as many powers of ten as g. With √v
alone, moments of gradients 500 times smaller than the largest of their group would still be stored as 0, and the step
m/√v would be far too long.

Codes are rounded at random, so that changes smaller than a code are not lost: an average decays, and reaches 0. For
signed numbers the mean of the rounded number is x, as averages of gradients need it. For the others the mean of the
code is right, which to second order is right for 1/√x. A number other than 0 has at least the code 4: a momentum must
not be divided by the lowest codes, whose rounding is coarse, or by smaller ones.

A number that is not finite gets the highest code, the other numbers of its group get lower ones, and the scale gets a
negative sign.
"""

from __future__ import annotations

from layerwise.rules.requests import Array, Functions
from layerwise.storage import CodedFormat
from layerwise.storage.bit_views import BitFunctions

GROUP = 64
SIGNED, UNSIGNED = 127.0, 255.0
LOWEST = 4.0  # the lowest code of a number other than 0, without signs
LEAST = 4096  # elements of a tensor; smaller tensors have state in float32


def num_groups(length: int) -> int:
    """Return the number of groups in a row of this length."""
    return -(-length // GROUP)


def encode(xp: Functions, x: Array, signed: bool, drawn: Array = None) -> tuple[Array, Array]:
    """Return codes, as floats, and scales of the rows of a matrix, rounded by numbers from 0 to 1, or to nearest."""
    rows, length = x.shape
    groups, most = num_groups(length), SIGNED if signed else UNSIGNED
    grouped = _grouped(xp, x)
    size = abs(grouped)
    known = size < float("inf")
    root = xp.sqrt(xp.where(known, size, 0.0))
    root = root if signed else xp.sqrt(root)
    largest, all_known = xp.amax(root, 2), xp.all(known, 2)
    # Divided by an array: by a number, PyTorch on CUDA and XLA would multiply by its reciprocal.
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


def fraction(b: BitFunctions, drawn: Array) -> Array:
    """Return a number from 0 to 1 that 32 random bits make; `b` is a library's view of bits."""
    return b.as_floats(drawn >> 8) * 2.0**-24


def drawn_code(xp: Functions, code: Array, drawn: Array, signed: bool) -> Array:
    """Return one of the two whole numbers next to a code ≥ 0."""
    low = xp.floor(code)
    over = code - low
    if signed:  # so that the mean of the squares is the square
        return xp.where(drawn * (2.0 * low + 1.0) < over * (code + low), low + 1.0, low)
    return xp.where(drawn >= 1.0 - over, low + 1.0, low)


def decode(xp: Functions, codes: Array, scale: Array, signed: bool) -> Array:
    """Return the numbers of the rows of a matrix, given codes as floats."""
    rows, length = codes.shape
    groups = scale.shape[1]
    wide = xp.broadcast_to(scale[:, :, None], (rows, groups, GROUP)).reshape(rows, groups * GROUP)[:, :length]
    root = codes * abs(wide)
    lost = (wide < 0) & (abs(codes) == (SIGNED if signed else UNSIGNED))
    square = xp.where(lost, float("inf"), root * root)
    return xp.where(root < 0, -square, square) if signed else square * square


def _grouped(xp: Functions, x: Array) -> Array:
    """Return the rows of a matrix as groups, the last one padded with 0."""
    rows, length = x.shape
    groups = num_groups(length)
    by = groups * GROUP - length
    x = x if by == 0 else xp.concat([x, xp.broadcast_to(xp.zeros_like(x[:, :1]), (rows, by))], 1)
    return x.reshape(rows, groups, GROUP)


EIGHT = CodedFormat("int8", "_scale", ("int8", "uint8"), encode, decode, (2, 4))
