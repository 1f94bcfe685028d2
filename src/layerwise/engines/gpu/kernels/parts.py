"""Device functions that the rules' kernels share: reading tables and tensors, preparing gradients, adding up."""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.tables import (
    ANSWERS,
    BASE,
    CHUNKS,
    COEFFICIENTS,
    COUNT,
    COUNTER,
    FIRST,
    FLOAT32,
    FLOAT64,
    G_SCALE,
    GRAD_HIGH,
    GRAD_LOW,
    GRADIENT,
    INT64,
    JOB,
    KIND,
    LAM,
    LAYER,
    LR,
    OPERANDS,
    PROGRAM,
    PROGRAM_PART,
    PROGRAM_ROW,
    SIGN,
    VALUE,
    VARYING,
    T,
)

# ---- tables


@triton.jit
def value_of(step_params, jobs, j, mask, WHICH: tl.constexpr):
    """Return a field of these jobs' `now` in float64, wherever it lies."""
    raw = tl.load(step_params + (VALUE + WHICH) * jobs + j, mask, other=0)
    kind = tl.load(step_params + (KIND + WHICH) * jobs + j, mask, other=0)
    x = raw.to(tl.float64, bitcast=True)
    single = tl.load(raw.to(tl.pointer_type(tl.float32)), mask & (kind == FLOAT32), other=0.0).to(tl.float64)
    double = tl.load(raw.to(tl.pointer_type(tl.float64)), mask & (kind == FLOAT64), other=0.0)
    integer = tl.load(raw.to(tl.pointer_type(tl.int64)), mask & ((kind == INT64) | (kind == COUNTER)), other=0)
    x = tl.where(kind == FLOAT32, single, tl.where(kind == FLOAT64, double, x))
    x = tl.where((kind == INT64) | (kind == COUNTER), integer.to(tl.float64), x)
    return tl.where(kind == COUNTER, x + 1, x)  # a counter has counted the steps before this one


@triton.jit
def now_of(step_params, coefficients, jobs, j, mask):
    """Copy the fields of `now` to the coefficients of these jobs, and return t, lr and lam."""
    t, lr = value_of(step_params, jobs, j, mask, T), value_of(step_params, jobs, j, mask, LR)
    lam, g_scale = value_of(step_params, jobs, j, mask, LAM), value_of(step_params, jobs, j, mask, G_SCALE)
    t = tl.where(mask, t, 1.0)  # past the last job, a count that keeps all coefficients finite
    row = coefficients + j * COEFFICIENTS
    tl.store(row + T, t, mask)
    tl.store(row + LR, lr, mask)
    tl.store(row + LAM, lam, mask)
    tl.store(row + G_SCALE, g_scale, mask)
    return t, lr, lam


@triton.jit
def chunk_of(layers, chunks, c, CHUNK: tl.constexpr):
    """Return chunk c's layer, its job, its first element in the tensor, its length, and the place of its sums."""
    layer = tl.load(chunks + PROGRAM * c + PROGRAM_ROW)
    row, part = layers + layer.to(tl.int64) * LAYER, tl.load(chunks + PROGRAM * c + PROGRAM_PART)
    start = part.to(tl.int64) * CHUNK
    n = tl.minimum(tl.load(row + COUNT) - start, CHUNK).to(tl.int32)
    return layer, tl.load(row + JOB), tl.load(row + BASE) + start, n, tl.load(row + FIRST) + part


@triton.jit
def array(pointers, job, begin, WHICH: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return where this operand has the element `begin`."""
    return element(tl.load(pointers + job * OPERANDS + WHICH), begin, DTYPE, ALIGNED)


@triton.jit
def gradient(step_params, job, jobs, begin, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    return element(tl.load(step_params + GRADIENT * jobs + job), begin, DTYPE, ALIGNED)


@triton.jit
def element(address, begin, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    at = address.to(tl.pointer_type(DTYPE)) + begin
    # The hint stands here because the compiler attaches it to the operation that makes the pointer.
    return tl.multiple_of(at, 16) if ALIGNED else at


@triton.jit
def read(at, mask, COMPUTE: tl.constexpr, FULL: tl.constexpr, LAST: tl.constexpr = False):
    """Load numbers; those read for the LAST time in a step need not stay in caches."""
    if FULL:
        return tl.load(at, eviction_policy="evict_first" if LAST else "").to(COMPUTE)
    return tl.load(at, mask, other=0.0, eviction_policy="evict_first" if LAST else "").to(COMPUTE)


@triton.jit
def write(at, x, mask, FULL: tl.constexpr, LAST: tl.constexpr = False):
    if at.dtype.scalar.element_ty.primitive_bitwidth == 16:
        x = x.to(tl.float32)  # float32 can be converted to every dtype of 16 bits
    x = x.to(at.dtype.scalar.element_ty)
    if FULL:
        tl.store(at, x, eviction_policy="evict_first" if LAST else "")
    else:
        tl.store(at, x, mask, eviction_policy="evict_first" if LAST else "")


@triton.jit
def goes(skip, SKIPS: tl.constexpr):
    """Return whether the step is taken, which only the device may know."""
    if SKIPS:
        return tl.load(skip) == 0
    return True


@triton.jit
def count(step_params, coefficients, jobs, job, begin):
    """Count the step of this job if its count lives on the device; the program at the tensor's beginning does it."""
    counts = (tl.load(step_params + (KIND + T) * jobs + job) == COUNTER) & (begin == 0)
    counter = tl.load(step_params + (VALUE + T) * jobs + job).to(tl.pointer_type(tl.int64))
    tl.store(counter, tl.load(coefficients + job * COEFFICIENTS + T).to(tl.int64), counts)


# ---- arithmetic; comparisons in this order, so that nan stays nan


@triton.jit
def at_least(x, low):
    return tl.where(x < low, low, x)


@triton.jit
def at_most(x, high):
    return tl.where(x > high, high, x)


@triton.jit
def one_minus_power(log_b, t):
    """Return 1 − b^t in float64."""
    return 1 - tl.exp(t * log_b)


@triton.jit
def wants(coefficients, job, divisor, COMPUTE: tl.constexpr):
    """Load what the gradients of this job are scaled, clipped and divided by."""
    row = coefficients + job * COEFFICIENTS
    scale, sign = tl.load(row + G_SCALE), tl.load(row + SIGN)
    low, high = tl.load(row + GRAD_LOW), tl.load(row + GRAD_HIGH)
    return scale.to(COMPUTE), sign.to(COMPUTE), low.to(COMPUTE), high.to(COMPUTE), divisor.to(COMPUTE)


@triton.jit
def ready(g, wanted, mask, READY: tl.constexpr):
    """Return the gradient ready for use (rules/parts.py): g / g_scale, negated, clipped by value and by norms.

    Past the end of a layer it stays 0, which bounds above 0 would change.
    """
    if READY:
        scale, sign, low, high, divisor = wanted
        return tl.where(mask, at_most(at_least(g / scale * sign, low), high) / divisor, 0.0)
    return g


@triton.jit
def root(x):
    """Return √x, also for float32 below its least normal number, of which `tl.sqrt` makes 0."""
    if x.dtype.scalar == tl.float32:
        return tl.sqrt_rn(x)
    return tl.sqrt(x)


# ---- sums


@triton.jit
def squared(x):
    """Return x² in float64, where the square of no float32 is 0 or infinite unless x is."""
    wide = x.to(tl.float64)
    return wide * wide


@triton.jit
def sum_of_layer(row, partials, LANES: tl.constexpr):
    """Add up the partial sums of a layer's chunks."""
    return sum_of(partials + tl.load(row + FIRST), tl.load(row + CHUNKS).to(tl.int32), LANES)


@triton.jit
def sum_of(partials, n, LANES: tl.constexpr):
    """Add up n numbers, always in the same order."""
    lanes = tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float64)
    i = 0
    while i < n:
        total += tl.load(partials + i + lanes, i + lanes < n, other=0.0)
        i += LANES
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=VARYING)
def add_up(layers, partials, sums, LANES: tl.constexpr):
    """Add up the partial sums of each layer."""
    layer = tl.program_id(0)
    tl.store(sums + layer, sum_of_layer(layers + layer.to(tl.int64) * LAYER, partials, LANES))


@triton.jit(do_not_specialize=VARYING)
def answer(
    coefficients, layers, partials, sums, answers, n, sums_stride, skip,
    ANSWER_OF: tl.constexpr, ADD: tl.constexpr, LAST: tl.constexpr, SKIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Add up both sums of each layer, and in the LAST round make the rule's answers of them."""
    layer = tl.program_id(0)
    row = layers + layer.to(tl.int64) * LAYER
    if ADD:
        pp, xx = sum_of_layer(row, partials, LANES), sum_of_layer(row, partials + sums_stride, LANES)
        tl.store(sums + layer, pp)
        tl.store(sums + n + layer, xx)
    else:
        pp, xx = tl.load(sums + layer), tl.load(sums + n + layer)
    if LAST and goes(skip, SKIPS):  # a skipped step leaves the measurements of the step before
        ANSWER_OF(coefficients + tl.load(row + JOB) * COEFFICIENTS, answers + layer * ANSWERS, pp, xx)


@triton.jit(do_not_specialize=VARYING)
def square(
    step_params, coefficients, pointers, layers, chunks, clips, partials, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    READY: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute Σg² of each chunk, with g ready but for the division by its norm."""
    _, job, begin, n, place = chunk_of(layers, chunks, tl.program_id(0), CHUNK)
    at = gradient(step_params, job, jobs, begin, GRAD, ALIGNED)
    wanted = wants(coefficients, job, tl.full((), 1.0, tl.float64), COMPUTE)
    gg = tl.zeros((BLOCK,), tl.float64)
    full = n // BLOCK * BLOCK
    for i in range(0, full, BLOCK):
        gg += square_at(at, wanted, i, n, COMPUTE, BLOCK, True)
    if full < n:
        gg += square_at(at, wanted, full, n, COMPUTE, BLOCK, False)
    tl.store(partials + place, tl.sum(gg, 0))


@triton.jit
def square_at(
    at, wanted, i, n,
    COMPUTE: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    e = i + tl.arange(0, BLOCK)
    return squared(ready(read(at + e, e < n, COMPUTE, FULL), wanted, e < n, True))
