"""Numbers in 8 bits, in groups that share a scale.

Groups are 64 consecutive elements of one row of a tensor: of p[i], flattened; a vector is one row. The last group of a
row may be shorter. Of a number without sign its root is stored. A code is a small float: of 1 + |x|/s, or 1 + √x/s, the
exponent, which is below 16, and the first digits of the fraction, 3 beside a sign and 4 without:

    signed:      |c| < 128,  not signed:  c < 256,   s = 2^-14 of the power of two below the largest |x| or √x

So numbers below s are in equal steps, of s/8 and s/16, and larger ones in relative steps, between a sixteenth and an
eighth for the one, half of that for the other. To write a number takes a sum and a shift, to read it a difference and a
product, which round nothing else. A linear grid would leave no codes for small numbers.

Codes are rounded at random, so that changes smaller than a code are not lost: an average decays, and reaches 0. For
signed numbers the mean of the rounded number is x, as averages of gradients need it; for the others the mean of the
root is right. A root other than 0 has at least the code 4: a momentum must not be divided by the lowest codes, whose
rounding is coarse, or by smaller ones.

A number that is not finite gets the highest code, which no other has, and the scale of its group a negative sign.
"""

from __future__ import annotations

from layerwise.rules.requests import Array, Functions
from layerwise.storage import CodedFormat
from layerwise.storage.bit_views import BitFunctions

GROUP = 64
SIGNED, UNSIGNED = 127, 255  # the codes of numbers that are not finite
PLACE_SIGNED, PLACE_UNSIGNED = 20, 19  # where codes stand in the bits of a float32
ONE = 0x3F800000  # the bits of 1
EXPONENT = 0xFF << 23
BELOW = 14 << 23  # how far a scale lies below the largest number, in bits
LEAST_SIGNED, LEAST_UNSIGNED = 7 << 23, 67 << 23  # the least scales, in bits: no code stands for a subnormal number
LOWEST = 4  # the lowest code of a number other than 0, without signs
LEAST = 4096  # elements of a tensor; smaller tensors have state in float32


def num_groups(length: int) -> int:
    """Return the number of groups in a row of this length."""
    return -(-length // GROUP)


def encode(b: BitFunctions, x: Array, signed: bool, drawn: Array = None) -> tuple[Array, Array]:
    """Return codes, as floats, and scales of the rows of a matrix, rounded by random numbers (`shares`), or to nearest.

    `b` is a library's view of bits.
    """
    xp, (rows, length) = b.xp, x.shape
    grouped = _grouped(xp, x)
    size = abs(grouped)
    known = size < float("inf")
    size = xp.where(known, size, 0.0)
    size = size if signed else xp.sqrt(size)
    scale = b.floats(scale_of(b, b.bits(xp.amax(size, 2)), signed))
    place = PLACE_SIGNED if signed else PLACE_UNSIGNED
    added = 1 << place - 1 if drawn is None else b.integers(_grouped(xp, drawn)) >> 24 - place
    codes = b.as_floats(code_of(b, size, scale[:, :, None], added, signed))
    if not signed:
        codes = xp.where((size > 0) & (codes < LOWEST), float(LOWEST), codes)
    codes = xp.where(known, codes, float(SIGNED if signed else UNSIGNED))
    codes = xp.where(grouped < 0, -codes, codes) if signed else codes
    return codes.reshape(rows, num_groups(length) * GROUP)[:, :length], xp.where(xp.all(known, 2), scale, -scale)


def shares(b: BitFunctions, drawn: Array) -> Array:
    """Return the upper 24 of 32 random bits, as floats."""
    return b.as_floats(drawn >> 8)


def scale_of(b: BitFunctions, most: Array, signed: bool) -> Array:
    """Return the bits of the scale of a group, given those of its largest number."""
    power, least = most & EXPONENT, BELOW + (LEAST_SIGNED if signed else LEAST_UNSIGNED)
    return b.where(power < least, least, power) - BELOW


def code_of(b: BitFunctions, size: Array, scale: Array, added: Array, signed: bool) -> Array:
    """Return the code of a number that is not below 0, cut after these bits were added."""
    return (b.bits(size + scale) - b.bits(scale) + added) >> (PLACE_SIGNED if signed else PLACE_UNSIGNED)


def decode(b: BitFunctions, codes: Array, scale: Array, signed: bool) -> Array:
    """Return the numbers of the rows of a matrix, given codes as floats."""
    xp, wide = b.xp, _of_each(b.xp, scale, codes.shape[1])
    size = size_of(b, b.integers(abs(codes)), abs(wide), signed)
    size = xp.where((wide < 0) & (abs(codes) == (SIGNED if signed else UNSIGNED)), float("inf"), size)
    return xp.where(codes < 0, -size, size) if signed else size * size


def size_of(b: BitFunctions, code: Array, scale: Array, signed: bool) -> Array:
    """Return the number of a code that is not below 0."""
    return (b.floats(b.shifted(code, PLACE_SIGNED if signed else PLACE_UNSIGNED) + ONE) - 1.0) * scale


def decode_roots(b: BitFunctions, codes: Array, scale: Array, signed: bool) -> Array:
    """Return the numbers of codes of a former format: of |x| or √x the root, in 127 or 255 parts of the largest."""
    xp, wide = b.xp, _of_each(b.xp, scale, codes.shape[1])
    root = xp.where((wide < 0) & (abs(codes) == (SIGNED if signed else UNSIGNED)), float("inf"), abs(codes * wide))
    square = root * root
    return xp.where(codes < 0, -square, square) if signed else square * square


def _of_each(xp: Functions, scale: Array, length: int) -> Array:
    """Return the scale of each number in rows of this length."""
    rows, groups = scale.shape
    return xp.broadcast_to(scale[:, :, None], (rows, groups, GROUP)).reshape(rows, groups * GROUP)[:, :length]


def _grouped(xp: Functions, x: Array) -> Array:
    """Return the rows of a matrix as groups, the last one padded with 0."""
    rows, length = x.shape
    groups = num_groups(length)
    by = groups * GROUP - length
    x = x if by == 0 else xp.concat([x, xp.broadcast_to(xp.zeros_like(x[:, :1]), (rows, by))], 1)
    return x.reshape(rows, groups, GROUP)


EIGHT = CodedFormat("int8", "_unit", ("int8", "uint8"), encode, decode)
ROOTS = EIGHT._replace(suffix="_scale", decode=decode_roots)
