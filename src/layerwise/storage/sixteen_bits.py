"""Float32 numbers in fewer bits: rounded at random to 16 bits, or split into 16 bits and a remainder.

`b` is a library's view of bits: `bits(x)` gives those of float32 as integers from 0 to 2^32 − 1, `floats` is the
inverse, `integers` truncates a float32 to an integer, and `where` is the library's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from layerwise.rules.requests import Array
from layerwise.storage.bit_views import BitFunctions

MASTER, REMAINDER = "master", "remainder"


class Companion(NamedTuple):
    """Data stored in addition to 16-bit weights."""

    key: str  # its name in checkpoints
    dtype: str


BESIDE = {  # its names in `master_weights`
    True: Companion(MASTER, "float32"),
    "split": Companion(REMAINDER, "int16"),
    "split24": Companion(REMAINDER, "int8"),
}
KEPT = {"int16": 16, "int8": 8}  # the number of bits in a remainder
SIGN, MAGNITUDE = 0x80000000, 0x7FFFFFFF
INFINITE = 0x7F800000
BF16_MOST, F16_MOST = 0x7F7F0000, 0x477FE000  # the largest finite numbers, as float32
F16_NORMAL = 0x38800000  # 2^-14; below it float16 has units of 2^-24


def round_bf16(b: BitFunctions, x: Array, random: Array) -> Array:
    """Return one of the two bfloat16 neighbours of x, as float32, so that its mean is x. `random` are 32 bits for each.

    Beyond the largest finite number, and for numbers that are not finite, it rounds to nearest: that number is odd, so
    half a place beyond it is rounded up. A computed nan has the highest bit of its fraction set, and is truncated.
    """
    u = b.bits(x)
    size = u & MAGNITUDE
    added = b.where(size <= BF16_MOST, random >> 16, b.where(size <= INFINITE, 0x8000, 0))
    return b.floats(b.word(u + added) & 0xFFFF0000)


def round_f16(b: BitFunctions, x: Array, random: Array) -> Array:
    """Return the same for float16."""
    u = b.bits(x)
    sign, size = u & SIGN, u & MAGNITUDE
    normal = b.floats((u + (random >> 19)) & 0xFFFFE000)
    units = (b.integers(b.floats(b.where(size < F16_NORMAL, size, 0)) * 2.0**40) + (random >> 16)) >> 16
    small = b.floats(b.bits(b.as_floats(units) * 2.0**-24) | sign)
    return b.where(size > F16_MOST, x, b.where(size < F16_NORMAL, small, normal))


def split_bf16(b: BitFunctions, x: Array, kept: int, random: Array = None) -> tuple[Array, Array]:
    """Return the bfloat16 part of x, as float32, and the rest of x as a signed integer of `kept` bits.

    With 16 bits nothing is lost. With 8, the upper 24 bits of x are kept, rounded to nearest or at random. The bfloat16
    is that number rounded to nearest, ties away from zero, so that exactly 2^kept of these numbers belong to each
    bfloat16.
    """
    dropped = 16 - kept
    added = 1 << dropped >> 1 if random is None else random >> 32 - dropped
    u = (b.bits(x) + added) >> dropped << dropped
    p = (u + 0x8000) >> 16 << 16
    rest = ((u & 0xFFFF) >> dropped) - b.where((u & 0x8000) > 0, 1 << kept, 0)
    is_number = x == x
    return b.where(is_number, b.floats(b.word(p)), x), b.where(is_number, rest, 0)


def join_bf16(b: BitFunctions, p: Array, rest: Array, kept: int) -> Array:
    """Return the float32 with these parts.

    A nan stays a nan, and a remainder that a zero cannot have is ignored.
    """
    u = b.bits(p)
    held = b.where((u & MAGNITUDE) == 0, b.where(rest < 0, 0, rest), rest)
    return b.floats(b.word(u + b.shifted(held, 16 - kept)))


def split_f16(b: BitFunctions, x: Array, kept: int, random: Array = None) -> tuple[Array, Array]:
    """Return the same for float16: p, and the distance of x from it in parts of p's last place, 2^kept parts to one.

    Here ties go to the larger number, because the distance counts upwards for both signs.
    """
    u = b.bits(x)
    sign, size = u & SIGN, u & MAGNITUDE
    place, inside = _place_f16(b, size), size <= F16_MOST
    fine = b.where(inside, b.floats(size) * b.floats((254 - place) << 23) * (1 << kept), 0.0)  # exact: powers of two
    whole = b.integers(fine)
    over = fine - b.as_floats(whole)
    up = over >= 0.5 if random is None else b.integers(over * 65536.0) + (random >> 16) >= 65536
    whole = whole + b.where(up, 1, 0)
    half = b.where(sign > 0, (1 << kept >> 1) - 1, 1 << kept >> 1)  # ties upwards: each p has exactly 2^kept of x
    p = (whole + half) >> kept
    rest = whole - (p << kept)
    found = b.floats(b.bits(b.as_floats(p) * b.floats(place << 23)) | sign)
    return b.where(inside, found, x), b.where(inside, b.where(sign > 0, -rest, rest), 0)


def join_f16(b: BitFunctions, p: Array, rest: Array, kept: int) -> Array:
    """Return the same for float16.

    A remainder below a power of two counts in places of the numbers there, which are half of those above.
    """
    u = b.bits(p)
    size = u & MAGNITUDE
    below = b.where((u & SIGN) > 0, rest > 0, rest < 0) & ((size & 0x7FFFFF) == 0) & (size > F16_NORMAL)
    part = b.floats((_place_f16(b, size) - b.where(below, 1, 0)) << 23) * (1.0 / (1 << kept))
    return b.where(size < INFINITE, p + b.as_floats(rest) * part, p)


def _place_f16(b: BitFunctions, size: Array) -> Array:
    """Return the exponent, as in float32, of the last place of a float16 of this magnitude."""
    return (b.where(size < F16_NORMAL, F16_NORMAL, size) >> 23) - 10


class SixteenBit(NamedTuple):
    """Operations of a 16-bit dtype."""

    rounded: Callable[..., Array]
    split: Callable[..., tuple[Array, Array]]
    join: Callable[..., Array]


LOW = {"bfloat16": SixteenBit(round_bf16, split_bf16, join_bf16), "float16": SixteenBit(round_f16, split_f16, join_f16)}
