"""Storage formats, as device functions.

Printed from layerwise/storage by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.common import as_float, as_int, at_least, bits_of, float_of


@triton.jit
def mix(x, between):
    y0 = (x ^ (x >> 16)) * 0x21f0aaad
    y1 = ((y0 ^ (y0 >> 15)) ^ between) * 0xd35a2d97
    return y1 ^ (y1 >> 15)

@triton.jit
def at_step(first, second, low, high):
    y0 = mix(low ^ first, 0)
    y1 = mix((y0 ^ (second & 0xfffffffe)) ^ high, 0) & 0xfffffffe
    return y0, y1 | (second & 1)

@triton.jit
def random(k0, k1, low, high):
    y0 = mix((low >> 6) ^ k0, (k1 & 0xfffffffe) ^ (high * 0x9e3779b9))
    y1 = y0 * (mix(low & 63, 0) | 1)
    return (y1 ^ (y1 >> 16)) << ((k1 & 1) * 16)

@triton.jit
def turn(step):
    return step * 0x9e3779b9

@triton.jit
def scale_signed(most):
    return at_least(most & 0x7f800000, 0xa800000) - 0x7000000

@triton.jit
def scale_unsigned(most):
    return at_least(most & 0x7f800000, 0x28800000) - 0x7000000

@triton.jit
def code_signed(size, scale, added):
    return (bits_of(size + scale) - bits_of(scale) + added) >> 20

@triton.jit
def code_unsigned(size, scale, added):
    return (bits_of(size + scale) - bits_of(scale) + added) >> 19

@triton.jit
def size_signed(code, scale):
    return (float_of((code << 20) + 0x3f800000) - 1.0) * scale

@triton.jit
def size_unsigned(code, scale):
    return (float_of((code << 19) + 0x3f800000) - 1.0) * scale

@triton.jit
def round_bf16(x, drawn):
    y0 = bits_of(x) & 0x7fffffff
    y1 = tl.where(y0 <= 0x7f7f0000, drawn >> 16, tl.where(y0 <= 0x7f800000, 0x8000, 0))
    return float_of((bits_of(x) + y1) & 0xffff0000)

@triton.jit
def round_f16(x, drawn):
    y0 = bits_of(x) & 0x7fffffff
    y1 = float_of(tl.where(y0 < 0x38800000, y0, 0)) * 1099511627776.0
    y2 = as_float((as_int(y1) + (drawn >> 16)) >> 16) * 5.960464477539063e-08
    y3 = float_of(bits_of(y2) | (bits_of(x) & 0x80000000))
    y4 = float_of((bits_of(x) + (drawn >> 19)) & 0xffffe000)
    return tl.where(y0 > 0x477fe000, x, tl.where(y0 < 0x38800000, y3, y4))

@triton.jit
def join_bf16(p, rest, KEPT: tl.constexpr):
    y0 = tl.where((bits_of(p) & 0x7fffffff) == 0, at_least(rest, 0), rest)
    return float_of(bits_of(p) + (y0 << (16 - KEPT)))

@triton.jit
def join_f16(p, rest, KEPT: tl.constexpr):
    y0 = bits_of(p) & 0x7fffffff
    y1 = tl.where((bits_of(p) & 0x80000000) > 0, rest > 0, rest < 0)
    y2 = (y1 & ((y0 & 0x7fffff) == 0)) & (y0 > 0x38800000)
    y3 = (at_least(y0, 0x38800000) >> 23) - 10 - tl.where(y2, 1, 0)
    y4 = as_float(rest) * (float_of(y3 << 23) * (1.0 / (1 << KEPT)))
    return tl.where(y0 < 0x7f800000, p + y4, p)

@triton.jit
def split_bf16(x, KEPT: tl.constexpr):
    y0 = (bits_of(x) + ((1 << (16 - KEPT)) >> 1)) >> (16 - KEPT)
    y1 = y0 << (16 - KEPT)
    y2 = ((y1 & 0xffff) >> (16 - KEPT)) - tl.where((y1 & 0x8000) > 0, 1 << KEPT, 0)
    return tl.where(x == x, float_of(((y1 + 0x8000) >> 16) << 16), x), tl.where(x == x, y2, 0)

@triton.jit
def split_bf16_drawn(x, drawn, KEPT: tl.constexpr):
    y0 = (bits_of(x) + (drawn >> (32 - (16 - KEPT)))) >> (16 - KEPT)
    y1 = y0 << (16 - KEPT)
    y2 = ((y1 & 0xffff) >> (16 - KEPT)) - tl.where((y1 & 0x8000) > 0, 1 << KEPT, 0)
    return tl.where(x == x, float_of(((y1 + 0x8000) >> 16) << 16), x), tl.where(x == x, y2, 0)

@triton.jit
def split_f16(x, KEPT: tl.constexpr):
    y0 = bits_of(x) & 0x7fffffff
    y1 = (at_least(y0, 0x38800000) >> 23) - 10
    y2 = float_of(y0) * float_of((254 - y1) << 23) * (1 << KEPT)
    y3 = tl.where(y0 <= 0x477fe000, y2, 0.0)
    y4 = as_int(y3) + tl.where(y3 - as_float(as_int(y3)) >= 0.5, 1, 0)
    y5 = bits_of(x) & 0x80000000
    y6 = (1 << KEPT) >> 1
    y7 = (y4 + tl.where(y5 > 0, y6 - 1, y6)) >> KEPT
    y8 = float_of(bits_of(as_float(y7) * float_of(y1 << 23)) | y5)
    y9 = y4 - (y7 << KEPT)
    return tl.where(y0 <= 0x477fe000, y8, x), tl.where(y0 <= 0x477fe000, tl.where(y5 > 0, -y9, y9), 0)

@triton.jit
def split_f16_drawn(x, drawn, KEPT: tl.constexpr):
    y0 = bits_of(x) & 0x7fffffff
    y1 = (at_least(y0, 0x38800000) >> 23) - 10
    y2 = float_of(y0) * float_of((254 - y1) << 23) * (1 << KEPT)
    y3 = tl.where(y0 <= 0x477fe000, y2, 0.0)
    y4 = as_int((y3 - as_float(as_int(y3))) * 65536.0) + (drawn >> 16)
    y5 = as_int(y3) + tl.where(y4 >= 0x10000, 1, 0)
    y6 = bits_of(x) & 0x80000000
    y7 = (1 << KEPT) >> 1
    y8 = (y5 + tl.where(y6 > 0, y7 - 1, y7)) >> KEPT
    y9 = float_of(bits_of(as_float(y8) * float_of(y1 << 23)) | y6)
    y10 = y5 - (y8 << KEPT)
    return tl.where(y0 <= 0x477fe000, y9, x), tl.where(y0 <= 0x477fe000, tl.where(y6 > 0, -y10, y10), 0)
