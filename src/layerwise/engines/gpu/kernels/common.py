"""Device functions that the rules' kernels share: reading tables and tensors, preparing gradients, adding up."""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels import tables as col

# ---- tables


@triton.jit
def row_and_part(programs, c):
    """Return what program c works on: a row of another table, and the part of it."""
    return tl.load(programs + col.PROGRAM * c + col.PROGRAM_ROW), tl.load(programs + col.PROGRAM * c + col.PROGRAM_PART)


@triton.jit
def coefficients_of(params):
    """Return the address of a job's coefficients, in its row of step parameters."""
    return (params + col.NUMBERS).to(tl.pointer_type(tl.float64), bitcast=True)


@triton.jit
def gradient(params, begin, C: tl.constexpr):
    """Return the address of the element `begin` of a job's gradient."""
    return element(tl.load(params + col.GRADIENT), begin, C.GRAD, C.ALIGNED)


@triton.jit
def element(address, begin, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    at = address.to(tl.pointer_type(DTYPE)) + begin
    # The hint is here because the compiler attaches it to the operation that makes the pointer.
    return tl.multiple_of(at, 16) if ALIGNED else at


@triton.jit
def read(at, mask, COMPUTE: tl.constexpr, FULL: tl.constexpr, LAST: tl.constexpr = False, OTHER: tl.constexpr = 0.0):
    """Load numbers. Those that a step reads for the LAST time need not stay in caches."""
    if FULL:
        return tl.load(at, eviction_policy="evict_first" if LAST else "").to(COMPUTE)
    return tl.load(at, mask, other=OTHER, eviction_policy="evict_first" if LAST else "").to(COMPUTE)


@triton.jit
def write(at, x, mask, FULL: tl.constexpr, LAST: tl.constexpr = False):
    if at.dtype.scalar.element_ty.primitive_bitwidth == 16 and at.dtype.scalar.element_ty.is_floating():
        x = x.to(tl.float32)  # float32 can be converted to every dtype of 16 bits
    x = x.to(at.dtype.scalar.element_ty)
    if FULL:
        tl.store(at, x, eviction_policy="evict_first" if LAST else "")
    else:
        tl.store(at, x, mask, eviction_policy="evict_first" if LAST else "")


@triton.jit
def load_any_dtype(address, kind, at, mask, OTHER: tl.constexpr, HALVES: tl.constexpr = True):
    """Load numbers of any dtype as float64; of 16 bits only if HALVES."""
    single = tl.load(address.to(tl.pointer_type(tl.float32)) + at, mask & (kind == col.FLOAT32), other=OTHER)
    double = tl.load(address.to(tl.pointer_type(tl.float64)) + at, mask & (kind == col.FLOAT64), other=OTHER)
    if HALVES:
        brain = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + at, mask & (kind == col.BFLOAT16), other=OTHER)
        half = tl.load(address.to(tl.pointer_type(tl.float16)) + at, mask & (kind == col.FLOAT16), other=OTHER)
        low = tl.where(kind == col.BFLOAT16, brain.to(tl.float32), half.to(tl.float32))
        single = tl.where(kind == col.FLOAT32, single, low)
    return tl.where(kind == col.FLOAT64, double, single.to(tl.float64))


@triton.jit
def store_any_dtype(address, kind, at, x, mask, HALVES: tl.constexpr = True):
    """Store numbers in the given dtype. They are converted directly, so that none overflows on the way."""
    single = tl.where(kind == col.FLOAT64, 0.0, x).to(tl.float32)
    tl.store(address.to(tl.pointer_type(tl.float32)) + at, single, mask & (kind == col.FLOAT32))
    tl.store(address.to(tl.pointer_type(tl.float64)) + at, x, mask & (kind == col.FLOAT64))
    if HALVES:
        half = tl.where(kind == col.FLOAT16, single, 0.0).to(tl.float16)
        tl.store(address.to(tl.pointer_type(tl.bfloat16)) + at, single.to(tl.bfloat16), mask & (kind == col.BFLOAT16))
        tl.store(address.to(tl.pointer_type(tl.float16)) + at, half, mask & (kind == col.FLOAT16))


@triton.jit
def is_step_taken(skip, C: tl.constexpr):
    """Return True unless the step is skipped, which may be known only on the device."""
    if C.SKIPS:
        return tl.load(skip) == 0
    return True


@triton.jit
def count_step(params, begin):
    """Count the job's step, if its count is on the device. Only the program at the beginning of the tensor does so."""
    address = tl.load(params + col.COUNTER)
    counts = (address != 0) & (begin == 0)
    counter = address.to(tl.pointer_type(tl.int64))
    tl.store(counter, tl.load(counter, counts, other=0) + 1, counts)


# ---- arithmetic; operands are compared in this order so that nan stays nan


@triton.jit
def at_least(x, low):
    return tl.where(x < low, low, x)


@triton.jit
def at_most(x, high):
    return tl.where(x > high, high, x)


@triton.jit
def unless_off(a, x):
    """Return x, or 0 if the factor `a` is 0: an option that is off must not turn infinite numbers into nan."""
    return tl.where(a == 0, 0.0, x)


@triton.jit
def load_gradient_factors(k, divisor, C: tl.constexpr):
    """Load the numbers that scale, clip and divide the gradients of a job."""
    scale, sign = tl.load(k + col.G_SCALE).to(C.COMPUTE), tl.load(k + col.SIGN).to(C.COMPUTE)
    low, high = tl.load(k + col.GRAD_LOW).to(C.COMPUTE), tl.load(k + col.GRAD_HIGH).to(C.COMPUTE)
    unit = tl.where(divisor > 2.0**100, 2.0**-64, 1.0)  # the divisor of finite numbers need not fit their dtype
    return scale, sign, low, high, unit.to(C.COMPUTE), (divisor * unit).to(C.COMPUTE)


@triton.jit
def ready(g, wanted, READY: tl.constexpr):
    """Return the gradient ready for use (rules/parts.py): g / g_scale, negated, clipped by value and by norms."""
    if READY:
        scale, sign, low, high, unit, divisor = wanted
        return at_most(at_least(g / scale * sign, low), high) * unit / divisor
    return g


@triton.jit
def root(x):
    """Return √x, also for subnormal float32, for which `tl.sqrt` returns 0."""
    if x.dtype.scalar == tl.float32:
        return tl.sqrt_rn(x)
    return tl.sqrt(x)


@triton.jit
def bits_of(x):
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def float_of(u):
    return u.to(tl.float32, bitcast=True)


@triton.jit
def as_int(x):
    return x.to(tl.int32)


@triton.jit
def as_float(x):
    """Return integers below 2^31 as float32."""
    return x.to(tl.int32).to(tl.float32)


@triton.jit
def power(x, y):
    """Return x^y for x > 0."""
    return tl.exp2(tl.log2(x) * y)


@triton.jit
def expm1(x):
    """Return e^x − 1; near 0, where the subtraction would leave few digits, by its series."""
    near = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6)))))
    return tl.where(tl.abs(x) < 0.01, near, tl.exp(x) - 1)


# ---- sums


@triton.jit
def gradient_alone(k, p, g, s):
    """Return the gradient, whose squares are summed to bound its norm."""
    return (g,)


@triton.jit
def square_unless_plain(x, mask, PLAIN: tl.constexpr, FULL: tl.constexpr):
    """Return x if PLAIN, or else x², in float64, where the square of a float32 neither vanishes nor overflows."""
    wide = x.to(tl.float64)
    if not PLAIN:
        wide = wide * wide
    return wide if FULL else tl.where(mask, wide, 0.0)


@triton.jit
def sum_of(partials, n, C: tl.constexpr):
    """Add up n numbers, always in the same order."""
    lanes = tl.arange(0, C.LANES)
    total = tl.zeros((C.LANES,), tl.float64)
    i = 0
    while i < n:
        total += tl.load(partials + i + lanes, i + lanes < n, other=0.0)
        i += C.LANES
    return tl.sum(total, 0)
