"""Storage formats (layerwise/storage) in kernels: reading and writing stored numbers.

All else in the kernels and in the printed functions is of numbers as they are computed with. The form of an array is a
few bits, constant in each kernel: none of them for plain numbers, rounded to nearest. FORMATS has those of all arrays
of a job, the weights first. An array in some form is a tuple: where its numbers and what is beside them begin, the keys
of this step, and the place of its first element in the whole tensor.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import element, read, write
from layerwise.engines.gpu.kernels.tables import OPERANDS, STORAGE, columns
from layerwise.storage import bits, groups, weights

number: Any = tl.constexpr

# forms: rounded at random, with a remainder of 16 or of 8 bits, codes of 8 bits; and whether elements do not follow one
# another in the whole tensor as they do in memory. They stand on the left of operators, because in Triton's interpreter
# what kernels are given are plain integers, which do not know them.
RANDOM, SPLIT16, SPLIT8, CODES, WALKS = (number(1 << n) for n in range(5))
BITS = 5  # of each form
PADS = number(1 << 25)  # of a job: its rows end within groups

# what a job has besides arrays: what is beside its weights and its states, their keys, how long a row is, without and
# with what its last group lacks, where its planes are and the first of its layers, and its place in the whole tensor
BESIDE, _keys = (number(n) for n in (0, 5))
KEYS, ROW, PADDED, PLANES, FIRST_LAYER, OFFSET = _keys, *columns(5, 10)
INNER, MIDDLE, STRIDE_INNER, STRIDE_MIDDLE, STRIDE_OUTER, JOB_STORAGE = columns(6, 15)

GROUP, SIGNED, UNSIGNED = (number(n) for n in (groups.GROUP, groups.SIGNED, groups.UNSIGNED))
LOWEST = number(groups.LOWEST)
FIRST, SECOND, UPPER, TURN = (number(n) for n in (bits.FIRST, bits.SECOND, bits.UPPER, bits.TURN))
SIGN, MAGNITUDE = number(weights.SIGN), number(weights.MAGNITUDE)
INFINITE, BF16_MOST = number(weights.INFINITE), number(weights.BF16_MOST)
F16_MOST, F16_NORMAL = number(weights.F16_MOST), number(weights.F16_NORMAL)
ROUNDER = number(1.5 * 2.0**23)  # added to a smaller number and taken away, it leaves an integer: ties to even

# ---- where things lie


@triton.jit
def storage_of(pointers, job, FORMATS: tl.constexpr):
    if FORMATS:
        pointers = tl.load(pointers + job * OPERANDS + STORAGE).to(tl.pointer_type(tl.int64))
    return pointers


@triton.jit
def rows_at(storage, begin, FORMATS: tl.constexpr):
    """Return the first element of a chunk's first row, its column there, and how long rows are, where they are padded.

    There `begin`, and what chunks and groups are counted in, is of rows that end with whole groups.
    """
    column, length, padded = 0, 0, 0
    if PADS & FORMATS:
        length, padded = tl.load(storage + ROW), tl.load(storage + PADDED)
        row = begin // padded
        begin, column = row * length, (begin - row * padded).to(tl.int32)
        length, padded = length.to(tl.int32), padded.to(tl.int32)
    return begin, column, length, padded


@triton.jit
def block_of(rows, i, n, FORMATS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the elements and groups of a block, counted from the chunk's first, and the mask of the existing ones."""
    e = i + tl.arange(0, BLOCK)
    mask = e < n
    j, there = e, mask
    if FORMATS:
        j = i // GROUP + tl.arange(0, BLOCK // GROUP)
        there = j * GROUP < n
    if PADS & FORMATS:
        _, column, length, padded = rows
        row = (column + e) // padded
        column = column + e - row * padded
        e, mask = row * length + column, mask & (column < length)
    return e, j, mask, there


@triton.jit
def keyed(storage, step_params, job, width, WHICH: tl.constexpr, TURNS: tl.constexpr):
    """Return the keys of this step, which is the last of a job's step parameters, and what is added to random bits."""
    key, step = tl.load(storage + KEYS + WHICH), tl.load(step_params + job * width + width - 1)
    turn = low(step) * TURN
    if TURNS:
        step = step * 0
    else:
        turn = turn * 0
    first = mix(low(step) ^ low(key), 0)
    return first, mix(first ^ low(key >> 32) ^ low(step >> 32), 0), turn


@triton.jit
def walk_of(storage):
    """Return the places in the whole tensor of elements that follow one another in memory."""
    strides = tl.load(storage + STRIDE_INNER), tl.load(storage + STRIDE_MIDDLE), tl.load(storage + STRIDE_OUTER)
    return tl.load(storage + OFFSET), tl.load(storage + INNER), tl.load(storage + MIDDLE), strides


@triton.jit
def stored(
    at, storage, step_params, job, width, begin, group, WHICH: tl.constexpr, FORMATS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Return an array from the element `begin` on, whose group is `group`; `at` is the place of its numbers."""
    FORM: tl.constexpr = FORMATS >> 5 * WHICH & 31
    beside, keys, walk = at, (), ()
    if CODES & FORM:
        beside = tl.load(storage + BESIDE + WHICH).to(tl.pointer_type(tl.float32)) + group
    if SPLIT16 & FORM:
        beside = element(tl.load(storage + BESIDE + WHICH), begin, tl.int16, ALIGNED)
    if SPLIT8 & FORM:
        beside = element(tl.load(storage + BESIDE + WHICH), begin, tl.int8, ALIGNED)
    if RANDOM & FORM:
        keys = keyed(storage, step_params, job, width, WHICH, CODES & FORM != 0)
        if WALKS & FORM:
            walk = walk_of(storage)
        else:
            begin += tl.load(storage + OFFSET)
    return at, beside, keys, begin, walk


# ---- reading and writing


@triton.jit
def recall(
    at, block, WHICH: tl.constexpr, FORMATS: tl.constexpr, COMPUTE: tl.constexpr, FULL: tl.constexpr,
    LAST: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """Load numbers in some form, and OTHER beyond the end."""
    FORM: tl.constexpr = FORMATS >> 5 * WHICH & 31
    e, j, mask, there = block
    x = read(at[0] + e, mask, tl.float32 if FORM else COMPUTE, FULL, LAST, OTHER)
    if CODES & FORM:
        scale = read(at[1] + j, there, tl.float32, FULL, LAST)
        x = decode(x, scale, at[0].dtype.scalar.element_ty == tl.int8)
        x = x if FULL else tl.where(mask, x, OTHER)
    if (SPLIT16 | SPLIT8) & FORM:
        KEPT: tl.constexpr = 16 if SPLIT16 & FORM else 8
        rest = read(at[1] + e, mask, tl.int32, FULL, LAST, 0)
        x = join_bf16(x, rest, KEPT) if at[0].dtype.scalar.element_ty == tl.bfloat16 else join_f16(x, rest, KEPT)
    return x.to(COMPUTE)


@triton.jit
def keep(at, x, block, WHICH: tl.constexpr, FORMATS: tl.constexpr, FULL: tl.constexpr, LAST: tl.constexpr):
    """Store numbers in some form."""
    FORM: tl.constexpr = FORMATS >> 5 * WHICH & 31
    e, j, mask, there = block
    if FORM == 0:
        write(at[0] + e, x, mask, FULL, LAST)
    elif CODES & FORM:
        drawn = mask
        if RANDOM & FORM:
            drawn = random(at[2], index_of(at[3] + e, at[4], FORM))
        codes, scale = encode(x, mask, drawn, at[0].dtype.scalar.element_ty == tl.int8, RANDOM & FORM != 0, FULL)
        write(at[0] + e, codes, mask, FULL, LAST)
        write(at[1] + j, scale, there, FULL, LAST)
    else:
        keep_weights(at, x.to(tl.float32), e, mask, FORM, FULL, LAST)


@triton.jit
def keep_weights(at, x, e, mask, FORM: tl.constexpr, FULL: tl.constexpr, LAST: tl.constexpr):
    DRAWN: tl.constexpr = RANDOM & FORM != 0
    BF16: tl.constexpr = at[0].dtype.scalar.element_ty == tl.bfloat16
    drawn = x
    if DRAWN:
        drawn = random(at[2], index_of(at[3] + e, at[4], FORM))
    if (SPLIT16 | SPLIT8) & FORM:
        KEPT: tl.constexpr = 16 if SPLIT16 & FORM else 8
        if BF16:
            x, rest = split_bf16(x, drawn, KEPT, DRAWN)
        else:
            x, rest = split_f16(x, drawn, KEPT, DRAWN)
        write(at[1] + e, rest, mask, FULL, LAST)
    elif BF16:
        x = round_bf16(x, drawn)
    else:
        x = round_f16(x, drawn)
    write(at[0] + e, x, mask, FULL, LAST)


# ---- random bits (storage/bits.py)


@triton.jit
def low(x):
    """Return the lower 32 bits."""
    return x.to(tl.uint32)


@triton.jit
def mix(x, between):
    x = (x ^ (x >> 16)) * FIRST
    x = (x ^ (x >> 15) ^ between) * SECOND
    return x ^ (x >> 15)


@triton.jit
def random(keys, i):
    return mix(low(i) ^ keys[0], keys[1] ^ (low(i >> 32) * UPPER)) + keys[2]


@triton.jit
def index_of(e, walk, FORM: tl.constexpr):
    """Return the places in the whole tensor."""
    if WALKS & FORM:
        offset, inner, middle, strides = walk
        outer = e // inner
        last = outer // middle
        e = (e - outer * inner) * strides[0] + (outer - last * middle) * strides[1] + last * strides[2] + offset
    return e


# ---- weights (storage/weights.py)


@triton.jit
def bits_of(x):
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def float_of(u):
    return u.to(tl.float32, bitcast=True)


@triton.jit
def round_bf16(x, drawn):
    u = bits_of(x)
    return tl.where((u & MAGNITUDE) <= BF16_MOST, float_of((u + (drawn >> 16)) & 0xFFFF0000), x)


@triton.jit
def round_f16(x, drawn):
    u = bits_of(x)
    size = u & MAGNITUDE
    is_small = size < F16_NORMAL
    units = float_of(tl.where(is_small, size, 0)) * 1099511627776.0  # 2^40
    units = (units.to(tl.int32) + (drawn >> 16).to(tl.int32)) >> 16
    small = float_of(bits_of(units.to(tl.float32) * 5.9604644775390625e-08) | (u & SIGN))  # 2^-24
    return tl.where(size > F16_MOST, x, tl.where(is_small, small, float_of((u + (drawn >> 19)) & 0xFFFFE000)))


@triton.jit
def split_bf16(x, drawn, KEPT: tl.constexpr, DRAWN: tl.constexpr):
    u = bits_of(x)
    if KEPT == 8:
        if DRAWN:
            u += drawn >> 24
        else:
            u += 128
        u = u >> 8 << 8
    rest = ((u & 0xFFFF) >> (16 - KEPT)).to(tl.int32) - tl.where((u & 0x8000) > 0, 1 << KEPT, 0)
    return tl.where(x == x, float_of((u + 0x8000) >> 16 << 16), x), tl.where(x == x, rest, 0)


@triton.jit
def join_bf16(p, rest, KEPT: tl.constexpr):
    u = bits_of(p)
    rest = tl.where(((u & MAGNITUDE) == 0) & (rest < 0), 0, rest) << (16 - KEPT)
    return tl.where(p == p, float_of(u + rest.to(tl.uint32, bitcast=True)), p)


@triton.jit
def place_f16(size):
    """Return the exponent, as float32 has it, of the last place of a float16 of this magnitude."""
    return (tl.where(size < F16_NORMAL, F16_NORMAL, size) >> 23) - 10


@triton.jit
def split_f16(x, drawn, KEPT: tl.constexpr, DRAWN: tl.constexpr):
    u = bits_of(x)
    sign, size = u & SIGN, u & MAGNITUDE
    place, inside = place_f16(size), (size <= F16_MOST) & (x == x)
    fine = float_of(size) * float_of((254 - place) << 23) * (1 << KEPT)
    whole = tl.where(inside, fine, 0.0).to(tl.int32)
    over = tl.where(inside, fine, 0.0) - whole.to(tl.float32)
    up = (over * 65536.0).to(tl.int32) + (drawn >> 16).to(tl.int32) >= 65536 if DRAWN else over >= 0.5
    whole += tl.where(inside & up, 1, 0)
    p = (whole + (1 << KEPT >> 1) - (sign >> 31).to(tl.int32)) >> KEPT
    rest = whole - (p << KEPT)
    found = float_of(bits_of(p.to(tl.float32) * float_of(place << 23)) | sign)
    return tl.where(inside, found, x), tl.where(inside, tl.where(sign > 0, -rest, rest), 0)


@triton.jit
def join_f16(p, rest, KEPT: tl.constexpr):
    u = bits_of(p)
    size = u & MAGNITUDE
    # What lies below a power of two is counted in the places that numbers have there.
    towards_zero = tl.where((u & SIGN) != 0, rest > 0, rest < 0)
    below = towards_zero & ((size & 0x7FFFFF) == 0) & (size > F16_NORMAL)
    place = float_of((place_f16(size) - tl.where(below, 1, 0)) << 23)
    whole = p + rest.to(tl.float32) * (place * (1.0 / (1 << KEPT)))
    return tl.where((p == p) & (size < INFINITE), whole, p)


# ---- groups of 8 bits (storage/groups.py)


@triton.jit
def bent(x, SIGNS: tl.constexpr):
    """Return the root that is stored of a magnitude."""
    x = tl.sqrt_rn(x)
    return x if SIGNS else tl.sqrt_rn(x)


@triton.jit
def encode(x, mask, drawn, SIGNS: tl.constexpr, DRAWN: tl.constexpr, FULL: tl.constexpr):
    """Return the codes of whole groups, and the scale of each."""
    if not FULL:
        x = tl.where(mask, x, 0.0)
    x = tl.reshape(x.to(tl.float32), (mask.numel // GROUP, GROUP))
    size = tl.abs(x)
    known = size < float("inf")
    root = bent(tl.where(known, size, 0.0), SIGNS)
    most: tl.constexpr = SIGNED if SIGNS else UNSIGNED
    broken = tl.max(tl.where(known, 0, 1), 1) > 0
    top = tl.where(broken, most - 1, tl.full((), most, tl.float32))
    scale = tl.div_rn(tl.max(root, 1), top)
    some = scale > 0
    inverse = tl.div_rn(tl.full((), 1.0, tl.float32), tl.where(some, scale, 1.0))
    code = root * tl.where(some, inverse, 0.0)[:, None]
    # The choice stands between product and sum, which would otherwise be made together and rounded once.
    code = tl.where(code > top[:, None], top[:, None], code)
    if DRAWN:
        codes = drawn_code(code, tl.reshape(drawn, (mask.numel // GROUP, GROUP)), SIGNS)
    else:
        codes = code + ROUNDER - ROUNDER
    if not SIGNS:
        codes = tl.where((root > 0) & (codes < LOWEST), LOWEST, codes)
    codes = tl.where(known, codes, most)
    if SIGNS:
        codes = tl.where(x < 0, -codes, codes)
    return tl.reshape(codes.to(tl.int32), mask.shape), tl.where(broken, -tl.where(some, scale, 1.0), scale)


@triton.jit
def drawn_code(code, drawn, SIGNS: tl.constexpr):
    """Return one of the two whole numbers beside a code."""
    drawn = (drawn >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    low_code = code.to(tl.int32).to(tl.float32)
    over = code - low_code
    up = drawn * (2.0 * low_code + 1.0) < over * (over + 2.0 * low_code) if SIGNS else drawn < over
    return low_code + tl.where(up, 1.0, 0.0)


@triton.jit
def decode(codes, scale, SIGNS: tl.constexpr):
    wide = tl.broadcast_to(scale[:, None], (codes.numel // GROUP, GROUP))
    wide = tl.reshape(wide, codes.shape)
    root = codes * tl.abs(wide)
    most: tl.constexpr = SIGNED if SIGNS else UNSIGNED
    square = tl.where((wide < 0) & (tl.abs(codes) == most), float("inf"), root * root)
    return tl.where(root < 0, -square, square) if SIGNS else square * square
