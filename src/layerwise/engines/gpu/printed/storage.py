"""Storage formats, as device functions.

Printed from layerwise/storage by `make generate`: change that, not this file.
"""

# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import as_float, as_int, at_least, bits_of, float_of


@triton.jit
def mix(x, between):
    x_ = x ^ (x >> 16)
    x__ = x_ * 0x21f0aaad
    x___ = (x__ ^ (x__ >> 15)) ^ between
    x____ = x___ * 0xd35a2d97
    return x____ ^ (x____ >> 15)

@triton.jit
def at_step(first, second, low, high):
    first_ = mix(low ^ first, 0)
    return first_, mix((first_ ^ second) ^ high, 0)

@triton.jit
def random(k0, k1, low, high):
    return mix(low ^ k0, k1 ^ (high * 0x9e3779b9))

@triton.jit
def turn(step):
    return step * 0x9e3779b9

@triton.jit
def fraction(drawn):
    return as_float(drawn >> 8) * 5.960464477539063e-08

@triton.jit
def round_bf16(x, drawn):
    u = bits_of(x)
    size = u & 0x7fffffff
    added = tl.where(size <= 0x7f7f0000, drawn >> 16, tl.where(size <= 0x7f800000, 0x8000, 0))
    return float_of((u + added) & 0xffff0000)

@triton.jit
def round_f16(x, drawn):
    u = bits_of(x)
    size = u & 0x7fffffff
    units = (as_int(float_of(tl.where(size < 0x38800000, size, 0)) * 1099511627776.0) + (drawn >> 16)) >> 16
    sign = u & 0x80000000
    small = float_of(bits_of(as_float(units) * 5.960464477539063e-08) | sign)
    normal = float_of((u + (drawn >> 19)) & 0xffffe000)
    return tl.where(size > 0x477fe000, x, tl.where(size < 0x38800000, small, normal))

@triton.jit
def join_bf16(p, rest, KEPT: tl.constexpr):
    u = bits_of(p)
    held = tl.where((u & 0x7fffffff) == 0, at_least(rest, 0), rest)
    return float_of(u + (held << (16 - KEPT)))

@triton.jit
def join_f16(p, rest, KEPT: tl.constexpr):
    u = bits_of(p)
    size = u & 0x7fffffff
    below = (tl.where((u & 0x80000000) > 0, rest > 0, rest < 0) & ((size & 0x7fffff) == 0)) & (size > 0x38800000)
    part = float_of(((at_least(size, 0x38800000) >> 23) - 10 - tl.where(below, 1, 0)) << 23) * (1.0 / (1 << KEPT))
    return tl.where(size < 0x7f800000, p + as_float(rest) * part, p)

@triton.jit
def split_bf16(x, KEPT: tl.constexpr):
    is_number = x == x
    dropped = 16 - KEPT
    added = (1 << dropped) >> 1
    u = ((bits_of(x) + added) >> dropped) << dropped
    p = ((u + 0x8000) >> 16) << 16
    rest = ((u & 0xffff) >> dropped) - tl.where((u & 0x8000) > 0, 1 << KEPT, 0)
    return tl.where(is_number, float_of(p), x), tl.where(is_number, rest, 0)

@triton.jit
def split_bf16_drawn(x, drawn, KEPT: tl.constexpr):
    is_number = x == x
    dropped = 16 - KEPT
    added = drawn >> (32 - dropped)
    u = ((bits_of(x) + added) >> dropped) << dropped
    p = ((u + 0x8000) >> 16) << 16
    rest = ((u & 0xffff) >> dropped) - tl.where((u & 0x8000) > 0, 1 << KEPT, 0)
    return tl.where(is_number, float_of(p), x), tl.where(is_number, rest, 0)

@triton.jit
def split_f16(x, KEPT: tl.constexpr):
    u = bits_of(x)
    size = u & 0x7fffffff
    inside = size <= 0x477fe000
    place = (at_least(size, 0x38800000) >> 23) - 10
    fine = tl.where(inside, float_of(size) * float_of((254 - place) << 23) * (1 << KEPT), 0.0)
    whole = as_int(fine)
    over = fine - as_float(whole)
    up = over >= 0.5
    whole_ = whole + tl.where(up, 1, 0)
    sign = u & 0x80000000
    half = tl.where(sign > 0, ((1 << KEPT) >> 1) - 1, (1 << KEPT) >> 1)
    p = (whole_ + half) >> KEPT
    found = float_of(bits_of(as_float(p) * float_of(place << 23)) | sign)
    rest = whole_ - (p << KEPT)
    return tl.where(inside, found, x), tl.where(inside, tl.where(sign > 0, -rest, rest), 0)

@triton.jit
def split_f16_drawn(x, drawn, KEPT: tl.constexpr):
    u = bits_of(x)
    size = u & 0x7fffffff
    inside = size <= 0x477fe000
    place = (at_least(size, 0x38800000) >> 23) - 10
    fine = tl.where(inside, float_of(size) * float_of((254 - place) << 23) * (1 << KEPT), 0.0)
    whole = as_int(fine)
    over = fine - as_float(whole)
    up = as_int(over * 65536.0) + (drawn >> 16) >= 0x10000
    whole_ = whole + tl.where(up, 1, 0)
    sign = u & 0x80000000
    half = tl.where(sign > 0, ((1 << KEPT) >> 1) - 1, (1 << KEPT) >> 1)
    p = (whole_ + half) >> KEPT
    found = float_of(bits_of(as_float(p) * float_of(place << 23)) | sign)
    rest = whole_ - (p << KEPT)
    return tl.where(inside, found, x), tl.where(inside, tl.where(sign > 0, -rest, rest), 0)

@triton.jit
def drawn_signed(code, share):
    low = as_float(as_int(code))
    over = code - low
    return tl.where(share * (2.0 * low + 1.0) < over * (over + 2.0 * low), low + 1.0, low)

@triton.jit
def drawn_unsigned(code, share):
    low = as_float(as_int(code))
    over = code - low
    return tl.where(share < over, low + 1.0, low)
