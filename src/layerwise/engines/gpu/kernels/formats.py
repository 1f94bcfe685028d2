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

GROUP, LOWEST = number(quantized_groups.GROUP), number(quantized_groups.LOWEST)
SIGNED, UNSIGNED = number(quantized_groups.SIGNED), number(quantized_groups.UNSIGNED)
PLACE_SIGNED, PLACE_UNSIGNED = number(quantized_groups.PLACE_SIGNED), number(quantized_groups.PLACE_UNSIGNED)

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
def encode(x, mask, drawn, SIGNS: tl.constexpr, DRAWN: tl.constexpr, FULL: tl.constexpr):
    """Return the codes of whole groups, and the scale of each."""
    if not FULL:
        x = tl.where(mask, x, 0.0)
    x = tl.reshape(x.to(tl.float32), (mask.numel // GROUP, GROUP))
    size = tl.abs(x)
    known = size < float("inf")
    size = tl.where(known, size, 0.0)
    broken = tl.max(tl.where(known, 0, 1), 1) > 0
    added = tl.full((), 0x80000000, tl.uint32)  # to nearest: by half of a code
    if DRAWN:
        added = tl.reshape(drawn, (mask.numel // GROUP, GROUP))
    if SIGNS:
        added = added >> (32 - PLACE_SIGNED)
        scale = common.float_of(printed.scale_signed(common.bits_of(tl.max(size, 1))))
        codes = printed.code_signed(size, scale[:, None], added).to(tl.int32)
        codes = tl.where(known, codes, SIGNED)
        codes = tl.where(x < 0, -codes, codes)
    else:
        added = added >> (32 - PLACE_UNSIGNED)
        root = tl.sqrt_rn(size)
        scale = common.float_of(printed.scale_unsigned(common.bits_of(tl.max(root, 1))))
        codes = printed.code_unsigned(root, scale[:, None], added).to(tl.int32)
        codes = tl.where((root > 0) & (codes < LOWEST), LOWEST, codes)
        codes = tl.where(known, codes, UNSIGNED)
    return tl.reshape(codes, mask.shape), tl.where(broken, -scale, scale)


@triton.jit
def decode(codes, scale, SIGNS: tl.constexpr):
    wide = tl.broadcast_to(scale[:, None], (codes.numel // GROUP, GROUP))
    wide = tl.reshape(wide, codes.shape)
    code = tl.abs(codes.to(tl.int32))
    by, bits = tl.abs(wide), code.to(tl.uint32)
    size = printed.size_signed(bits, by) if SIGNS else printed.size_unsigned(bits, by)
    most: tl.constexpr = SIGNED if SIGNS else UNSIGNED
    size = tl.where((wide < 0) & (code == most), float("inf"), size)
    return tl.where(codes < 0, -size, size) if SIGNS else size * size
