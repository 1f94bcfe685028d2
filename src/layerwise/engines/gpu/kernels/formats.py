"""Storage formats (layerwise/storage) in kernels: reading and writing stored numbers.

All else in the kernels and in the printed functions is of numbers as they are computed with. The form of an array is a
few bits, constant in each kernel: none of them for plain numbers, rounded to nearest. FORMATS has those of all arrays
of a job, the weights first. An array in some form is a tuple: where its numbers and what is beside them begin, the keys
of this step, and the place of its first element in the whole tensor.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import common
from layerwise.engines.gpu.kernels import tables as col
from layerwise.engines.gpu.printed import storage as printed
from layerwise.storage import quantized_groups

number, columns = col.number, col.columns

# forms: rounded at random, with a remainder of 16 or of 8 bits, codes of 8 bits. They stand on the left of operators,
# because in Triton's interpreter what kernels are given are plain integers, which do not know them.
RANDOM, SPLIT16, SPLIT8, CODES = (number(1 << n) for n in range(4))
BITS = 4  # of each form

# what a job has besides arrays: what is beside its weights and its states, their keys, and its place in the whole
BESIDE, KEYS = number(0), number(5)
OFFSET, JOB_STORAGE = columns(2, 10)

GROUP, SIGNED, UNSIGNED = (
    number(n) for n in (quantized_groups.GROUP, quantized_groups.SIGNED, quantized_groups.UNSIGNED)
)
LOWEST = number(quantized_groups.LOWEST)
ROUNDER = number(1.5 * 2.0**23)  # added to a smaller number and taken away, it leaves an integer: ties to even

# ---- where things lie


@triton.jit
def storage_of(pointers, C: tl.constexpr):
    """Return a job's row of what formats need; `pointers` are the job's."""
    if C.FORMATS:
        pointers = tl.load(pointers + col.STORAGE).to(tl.pointer_type(tl.int64))
    return pointers


@triton.jit
def block_of(i, n, C: tl.constexpr):
    """Return the elements and groups of a block, counted from the chunk's first, and the mask of the existing ones."""
    e = i + tl.arange(0, C.BLOCK)
    mask = e < n
    j, there = e, mask
    if C.FORMATS:
        j = i // GROUP + tl.arange(0, C.BLOCK // GROUP)
        there = j * GROUP < n
    return e, j, mask, there


@triton.jit
def keys_of_step(storage, params, WHICH: tl.constexpr, TURNS: tl.constexpr):
    """Return the keys of this step, and what is added to random bits."""
    key, step = tl.load(storage + KEYS + WHICH), tl.load(params + col.STEP)
    turned = printed.turn(low_word(step))
    if TURNS:
        step = step * 0
    else:
        turned = turned * 0
    k0, k1 = printed.at_step(low_word(key), low_word(key >> 32), low_word(step), low_word(step >> 32))
    return k0, k1, turned


@triton.jit
def formatted_at(at, storage, params, begin, WHICH: tl.constexpr, C: tl.constexpr):
    """Return an array from the element `begin` on; `at` is the place of its numbers."""
    FORM: tl.constexpr = C.FORMATS >> 4 * WHICH & 15
    beside, keys = at, ()
    if CODES & FORM:
        beside = tl.load(storage + BESIDE + WHICH).to(tl.pointer_type(tl.float32)) + begin // GROUP
    if SPLIT16 & FORM:
        beside = common.element(tl.load(storage + BESIDE + WHICH), begin, tl.int16, C.ALIGNED)
    if SPLIT8 & FORM:
        beside = common.element(tl.load(storage + BESIDE + WHICH), begin, tl.int8, C.ALIGNED)
    if RANDOM & FORM:
        keys = keys_of_step(storage, params, WHICH, CODES & FORM != 0)
        begin += tl.load(storage + OFFSET)
    return at, beside, keys, begin


# ---- reading and writing


@triton.jit
def load_formatted(
    at, block, WHICH: tl.constexpr, FULL: tl.constexpr, LAST: tl.constexpr, OTHER: tl.constexpr, C: tl.constexpr
):
    """Load numbers in some form, and OTHER beyond the end."""
    FORM: tl.constexpr = C.FORMATS >> 4 * WHICH & 15
    e, j, mask, there = block
    x = common.read(at[0] + e, mask, tl.float32 if FORM else C.COMPUTE, FULL, LAST, OTHER)
    if CODES & FORM:
        scale = common.read(at[1] + j, there, tl.float32, FULL, LAST)
        x = decode(x, scale, at[0].dtype.scalar.element_ty == tl.int8)
        x = x if FULL else tl.where(mask, x, OTHER)
    if (SPLIT16 | SPLIT8) & FORM:
        KEPT: tl.constexpr = 16 if SPLIT16 & FORM else 8
        rest = common.read(at[1] + e, mask, tl.int32, FULL, LAST, 0)
        BF16: tl.constexpr = at[0].dtype.scalar.element_ty == tl.bfloat16
        x = printed.join_bf16(x, rest, KEPT) if BF16 else printed.join_f16(x, rest, KEPT)
    return x.to(C.COMPUTE)


@triton.jit
def store_formatted(at, x, block, WHICH: tl.constexpr, FULL: tl.constexpr, LAST: tl.constexpr, C: tl.constexpr):
    """Store numbers in some form."""
    FORM: tl.constexpr = C.FORMATS >> 4 * WHICH & 15
    e, j, mask, there = block
    if FORM:
        drawn = mask
        if RANDOM & FORM:
            drawn = drawn_bits(at, e)
        if CODES & FORM:
            x, scale = encode(x, mask, drawn, at[0].dtype.scalar.element_ty == tl.int8, RANDOM & FORM != 0, FULL)
            common.write(at[1] + j, scale, there, FULL, LAST)
        else:
            x, rest = rounded(x.to(tl.float32), drawn, at[0].dtype.scalar.element_ty == tl.bfloat16, FORM)
            if (SPLIT16 | SPLIT8) & FORM:
                common.write(at[1] + e, rest, mask, FULL, LAST)
    common.write(at[0] + e, x, mask, FULL, LAST)


@triton.jit
def rounded(x, drawn, BF16: tl.constexpr, FORM: tl.constexpr):
    """Return weights as they are stored, and what is left of them, which only split ones keep."""
    KEPT: tl.constexpr = 16 if SPLIT16 & FORM else 8
    rest = x
    if (SPLIT16 | SPLIT8) & FORM == 0:
        x = printed.round_bf16(x, drawn) if BF16 else printed.round_f16(x, drawn)
    elif RANDOM & FORM:
        x, rest = printed.split_bf16_drawn(x, drawn, KEPT) if BF16 else printed.split_f16_drawn(x, drawn, KEPT)
    else:
        x, rest = printed.split_bf16(x, KEPT) if BF16 else printed.split_f16(x, KEPT)
    return x, rest


# ---- random bits


@triton.jit
def low_word(x):
    """Return the lower 32 bits."""
    return x.to(tl.uint32)


@triton.jit
def drawn_bits(at, e):
    """Return the random bits of these elements of an array."""
    _, _, keys, begin = at
    i = begin + e
    return printed.random(keys[0], keys[1], low_word(i), low_word(i >> 32)) + keys[2]


# ---- groups of 8 bits (storage/quantized_groups.py)


@triton.jit
def stored_root(x, SIGNS: tl.constexpr):
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
    root = stored_root(tl.where(known, size, 0.0), SIGNS)
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
        share = printed.fraction(tl.reshape(drawn, (mask.numel // GROUP, GROUP)))
        codes = printed.drawn_signed(code, share) if SIGNS else printed.drawn_unsigned(code, share)
    else:
        codes = code + ROUNDER - ROUNDER
    if not SIGNS:
        codes = tl.where((root > 0) & (codes < LOWEST), LOWEST, codes)
    codes = tl.where(known, codes, most)
    if SIGNS:
        codes = tl.where(x < 0, -codes, codes)
    return tl.reshape(codes.to(tl.int32), mask.shape), tl.where(broken, -tl.where(some, scale, 1.0), scale)


@triton.jit
def decode(codes, scale, SIGNS: tl.constexpr):
    wide = tl.broadcast_to(scale[:, None], (codes.numel // GROUP, GROUP))
    wide = tl.reshape(wide, codes.shape)
    root = codes * tl.abs(wide)
    most: tl.constexpr = SIGNED if SIGNS else UNSIGNED
    square = tl.where((wide < 0) & (tl.abs(codes) == most), float("inf"), root * root)
    return tl.where(root < 0, -square, square) if SIGNS else square * square
