"""Storage formats in plain Python, a number at a time, written from their descriptions.

`python tests/reference/storage.py` prints the table of vectors that every library is compared with.
"""

from __future__ import annotations

import json
import math
import struct
from fractions import Fraction
from hashlib import blake2b

# ---- float32, bfloat16 and float16 as bits


def bits32(x):
    """Return the bits of a number, rounded to float32."""
    try:
        return struct.unpack("<I", struct.pack("<f", x))[0]
    except OverflowError:
        return 0x7F800000 if x > 0 else 0xFF800000


def float32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def rounded32(x):
    return float32(bits32(x))


def float16(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def nearest_bf16(bits):
    """Return the upper half of a float32, rounded to nearest, ties to even."""
    if math.isnan(float32(bits)):
        return None  # there are many
    upper, lower = bits >> 16, bits & 0xFFFF
    return upper + (lower > 0x8000 or (lower == 0x8000 and upper & 1))


def nearest_f16(x):
    if math.isnan(x):
        return None
    try:
        return struct.unpack("<H", struct.pack("<e", x))[0]
    except OverflowError:
        return 0x7C00 if x > 0 else 0xFC00


# ---- random bits


def mixed(x, between=0):
    x ^= x >> 16
    x = x * 0x21F0AAAD % 2**32
    x ^= x >> 15
    x ^= between
    x = x * 0xD35A2D97 % 2**32
    return x ^ x >> 15


def key(seed, name, whose, lower):
    digest = blake2b(f"{seed}\0{name}\0{whose}".encode(), digest_size=8).digest()
    first, second = struct.unpack("<II", digest)
    return first, second // 2 * 2 + lower


def random_bits(keys, step, index):
    """Return 32 bits of the element with this index, at a step; the lower half alone, in front, if the key is odd.

    They are a product of the hash of its block of 64 with an odd number for its place there, folded once.
    """
    second, lower = keys[1] // 2 * 2, keys[1] % 2
    k0 = mixed(step % 2**32 ^ keys[0])
    k1 = mixed(k0 ^ second ^ step >> 32) // 2 * 2
    block = mixed(index % 2**32 // 64 ^ k0, k1 ^ (index >> 32) * 0x9E3779B9 % 2**32)
    product = block * (mixed(index % 64) // 2 * 2 + 1) % 2**32
    bits = product ^ product // 2**16
    return bits * 2**16 % 2**32 if lower else bits


def turned_bits(keys, step, index):
    """Return 32 bits of an element of a group: its bits at step 0, turned by the golden ratio in each step."""
    return (random_bits(keys, 0, index) + step * 0x9E3779B9) % 2**32


# ---- rounded at random


def stochastic_bf16(bits, random):
    """Return the upper half that stays when 16 random bits are added below it."""
    if bits & 0x7FFFFFFF > 0x7F7F0000:
        return nearest_bf16(bits)
    return bits + (random >> 16) >> 16


def stochastic_f16(bits, random):
    """Return the float16: with 13 random bits below it, or in units of 2^-24, counted to 16 places, with 16."""
    x = float32(bits)
    if bits & 0x7FFFFFFF > bits32(65504.0):
        return nearest_f16(x)
    sign, size = bits & 2**31, bits & 0x7FFFFFFF
    if float32(size) < 2.0**-14:
        units = (int(Fraction(float32(size)) * 2**40) + (random >> 16)) >> 16
        return units | sign >> 16
    exponent, fraction = divmod(size + (random >> 19), 2**23)
    return (exponent - 127 + 15 << 10) + (fraction >> 13) | sign >> 16


# ---- split in two


def split_bf16(bits, kept, random=None):
    """Return the upper half, rounded to nearest with ties away from zero, and what lies beside it, an integer."""
    if math.isnan(float32(bits)):
        return None, 0
    if kept == 8:
        bits = (bits + (128 if random is None else random >> 24)) // 256 * 256
    upper = (bits + 2**15) // 2**16
    return upper, (bits - upper * 2**16) // 2 ** (16 - kept)


def joined_bf16(upper, rest, kept):
    return float32(upper * 2**16 + rest * 2 ** (16 - kept))


def last_place(size):
    """Return the last place of a float16 of this magnitude."""
    exponent = -14 if size < 2.0**-14 else math.frexp(size)[1] - 1
    return Fraction(2) ** (exponent - 10)


def split_f16(bits, kept, random=None):
    """Return the same for float16: x is counted in 2^-kept of the last place."""
    x = float32(bits)
    if math.isnan(x) or abs(x) > 65504:
        return nearest_f16(x), 0
    unit = last_place(abs(x))
    fine = Fraction(abs(x)) / unit * 2**kept
    over = fine - int(fine)
    up = over >= Fraction(1, 2) if random is None else int(over * 65536) + (random >> 16) >= 65536
    whole = int(fine) + up
    sign = int(math.copysign(1, x))
    units = (sign * whole + 2 ** (kept - 1)) >> kept  # ties to the larger number
    return nearest_f16(math.copysign(float(units * unit), x)), sign * whole - (units << kept)


def joined_f16(p, rest, kept):
    x = Fraction(float16(p))
    size = abs(x) if rest * x >= 0 else abs(x) * Fraction(4095, 4096)  # below p: the place that numbers have there
    return rounded32(float(x + rest * last_place(float(size)) / 2**kept))


# ---- 8 bits in groups


def rows_of(rows, length):
    """Yield the places of each group: 64 elements of a row, the last perhaps fewer."""
    for row in range(rows):
        for start in range(0, length, 64):
            yield [row * length + i for i in range(start, min(start + 64, length))]


DIGITS = {True: 3, False: 4}  # of the fraction that a code has
LEAST_SCALE = {True: 2.0**-120, False: 2.0**-60}


def stored_size(x, signed):
    """Return what is stored of a number: its size or, without signs, its root, which is that of float64, rounded."""
    return abs(x) if signed else rounded32(math.sqrt(abs(x)))


def encoded(numbers, rows, signed, randoms=None):
    """Return codes and scales of float32 numbers."""
    highest = 127 if signed else 255
    codes, scales = [highest] * len(numbers), []
    for group in rows_of(rows, len(numbers) // rows):
        finite = [i for i in group if math.isfinite(numbers[i])]
        top = max((stored_size(numbers[i], signed) for i in finite), default=0.0)
        power = 2.0 ** (math.frexp(top)[1] - 1) if top >= 2.0**-126 else 0.0
        scale = max(power * 2.0**-14, LEAST_SCALE[signed])
        for i in finite:
            size = stored_size(numbers[i], signed)
            grown = min(rounded32(size + scale), 2.0**128)  # whose bits are those of infinity
            codes[i] = code(grown / scale, signed, None if randoms is None else randoms[i])
            if not signed and size > 0:
                codes[i] = max(codes[i], 4)
        for i in group:
            codes[i] *= -1 if signed and numbers[i] < 0 else 1
        scales.append(scale if len(finite) == len(group) else -scale)
    return codes, scales


def code(grown, signed, random):
    """Return a code of a number from 1 on: the places of its fraction that are kept are counted from there."""
    exponent = math.frexp(grown)[1] - 1
    places = 23 - DIGITS[signed]  # that are not kept
    below = int(Fraction(grown) / Fraction(2) ** (exponent - 23)) - 2**23  # the fraction, in its last places
    added = 2 ** (places - 1) if random is None else random >> 32 - places
    return (exponent * 2**23 + below + added) // 2**places


def decoded(codes, scales, rows, signed):
    numbers = [0.0] * len(codes)
    for group, scale in zip(rows_of(rows, len(codes) // rows), scales, strict=True):
        for i in group:
            exponent, digits = divmod(abs(codes[i]), 2 ** DIGITS[signed])
            size = rounded32((2.0**exponent * (1 + digits / 2 ** DIGITS[signed]) - 1) * abs(scale))
            if scale < 0 and abs(codes[i]) == (127 if signed else 255):
                size = math.inf
            numbers[i] = math.copysign(size, codes[i]) if signed else rounded32(size * size)
    return numbers


# ---- the table

INF, NAN = float("inf"), float("nan")
# What is odd about float32: zeros, subnormals of each dtype, ties, what lies around the largest finite numbers.
ODD = [bits32(x) for x in (0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 65504.0, -65504.0, 65505.0, 65519.0, 65520.0, 1e6)]
ODD += [0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x00008000, 0x00010000, 0x80018000]
ODD += [0x7F7F0000, 0x7F7F0001, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0xFF7F8000, 0xFF7FFFFF, 0x7F7EFFFF]
ODD += [0x3F808000, 0x3F818000, 0xBF808000, 0x3F807FFF, 0x3F808001, 0x3F800080, 0x3F80FF80, 0x3F8000FF]
ODD += [bits32(x) for x in (2.0**-14, 2.0**-14 - 2.0**-30, 2.0**-24, 2.0**-25, 2.0**-26, 1.5 * 2.0**-24, -(2.0**-25))]
ODD += [
    bits32(x)
    for x in (1 - 2.0**-13, 2.0**-13 - 2.0**-26, 1 + 2.0**-11, 2047.5, 2048.5, 0.1, -0.3, 1e-5, 1e-7, 6e-8, 3.1415927)
]
DRAWS = (0, 0x0000FFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678)
KEYS = [(0, "w", "", False), (0, "w", "state", False), (0, "w", "state", True), (2**63 - 1, "é", "", False)]
STEPS = (1, 2, 1000, 2**31, 2**32 - 1, 2**32, 2**53)
INDICES = (0, 1, 2, 63, 64, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 12345)


def drawn(n, salt):
    return [mixed(i ^ salt, salt) for i in range(n)]


def spread(n, salt, signed):
    """Return float32 numbers over many powers of ten, some of them 0."""
    numbers = []
    for a, b in zip(drawn(n, salt), drawn(n, salt + 1), strict=True):
        x = rounded32(10.0 ** (a / 2**32 * 8 - 6) * (1 + b / 2**32))
        numbers.append(0.0 if b % 17 == 0 else -x if signed and b % 2 else x)
    return numbers


def group_cases():
    """Yield numbers, rows, and whether they are signed."""
    for signed in (True, False):
        yield spread(2 * 150, 5, signed), 2, signed
        yield spread(130, 6, signed), 1, signed
        yield [0.0] * 70, 1, signed
        yield [float32(0x7F7FFFFF), 1.0] + [1e-30] * 66 + [float32(0x00800000)] * 4, 1, signed
        yield [1.0] * 64 + [INF] + [2.0] * 63 + [NAN, 1.0], 1, signed


def table():
    """Return all vectors; floats as bits, so that nan, -0.0 and all digits stay what they are."""
    inputs = ODD + [x for x in drawn(60, 3) if not math.isnan(float32(x))]
    inputs += [bits32(x) for x in spread(40, 9, True)]
    randoms = [(DRAWS + tuple(drawn(1, i)))[i % (len(DRAWS) + 1)] for i in range(len(inputs))]
    pairs = list(zip(inputs, randoms, strict=True))
    splits = {f"{dtype}-{kept}": split for dtype, split in SPLITS.items() for kept in (16, 8)}
    return {
        "bits": [[*k, step, i, random_bits(key(*k), step, i)] for k in KEYS for step in STEPS for i in INDICES],
        "inputs": inputs,
        "randoms": randoms,
        "stochastic": {
            "bfloat16": [stochastic_bf16(x, r) for x, r in pairs],
            "float16": [stochastic_f16(x, r) for x, r in pairs],
        },
        "nearest": {name: [split(x, int(name.rpartition("-")[2])) for x in inputs] for name, split in splits.items()},
        "drawn": {name: [split(x, 8, r) for x, r in pairs] for name, split in splits.items() if name.endswith("-8")},
        "turned": [[*k, step, i, turned_bits(key(*k), step, i)] for k in KEYS[1:3] for step in STEPS for i in INDICES],
        "groups": [_group(*case, drawn) for drawn in (False, True) for case in group_cases()],
    }


SPLITS = {"bfloat16": split_bf16, "float16": split_f16}


def _group(numbers, rows, signed, at_random):
    randoms = drawn(len(numbers), 17) if at_random else None
    codes, scales = encoded(numbers, rows, signed, randoms)
    return {
        "randoms": randoms,
        "signed": signed,
        "rows": rows,
        "numbers": list(map(bits32, numbers)),
        "codes": codes,
        "scales": list(map(bits32, scales)),
        "decoded": list(map(bits32, decoded(codes, scales, rows, signed))),
    }


def text():
    """Return the table as JSON, a list a line."""
    return json.dumps(table(), separators=(",", ":")).replace('],"', '],\n"').replace('},"', '},\n"') + "\n"


if __name__ == "__main__":
    print(text(), end="")
