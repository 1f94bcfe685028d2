"""How far numbers in fewer bits are off, over all sizes that they have."""

from __future__ import annotations

import numpy as np
import pytest
from storage.worlds import floats

from layerwise.numpy._arrays import BITS
from layerwise.storage import quantized_groups, sixteen_bits


def numbers(n=20000, seed=0, spread=8.0):
    draw = np.random.default_rng(seed)
    return (draw.normal(size=n) * np.exp2(draw.uniform(-spread, spread, n))).astype(np.float32)


@pytest.mark.parametrize("drawn", [None, 0, 1, 2**31, 2**32 - 1])
def test_24_bits_round_within_half_a_place_or_a_whole_one_at_random(drawn):
    x = np.concatenate([numbers(spread=100.0), floats([0x7F7F0000, 0x7F7F7FFF, 0xFF7F0000, 0x00800000])])
    p, rest = sixteen_bits.split_bf16(BITS, x, 8, None if drawn is None else np.full(len(x), drawn))
    back = sixteen_bits.join_bf16(BITS, p, rest, 8)
    assert np.all(abs(back.astype(np.float64) - x) <= 2.0 ** -(16 if drawn is None else 15) * abs(x.astype(np.float64)))
    assert np.any(back != x)
    odd = floats([0x7F800000, 0xFF800000, 0x7FC00000])
    lost = sixteen_bits.join_bf16(
        BITS, *sixteen_bits.split_bf16(BITS, odd, 8, None if drawn is None else np.full(3, drawn)), 8
    )
    assert not np.isfinite(lost).any()


@pytest.mark.parametrize("kept", [16, 8])
def test_float16_and_a_remainder_are_off_by_parts_of_the_last_place(kept):
    """Half of 2^-8, and nothing but float32's own error with 16 bits, also where a number lies half-way."""
    halves = np.arange(1024, 1040, dtype=np.float32) + 0.5
    x = np.concatenate([numbers(), halves, -halves])
    p, rest = sixteen_bits.split_f16(BITS, x, kept)
    back = sixteen_bits.join_f16(BITS, p, rest, kept)
    unit = np.exp2(np.maximum(np.floor(np.log2(abs(p))), -14) - 10)
    assert np.all(abs(back.astype(np.float64) - x) <= 0.5 * unit * 2.0**-kept)


@pytest.mark.parametrize(("drawn", "off"), [(None, 0.5), (0, 1.0), (2**24 - 1, 1.0)])
@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_within_a_code(signed, drawn, off):
    x = numbers(64 * 50).reshape(50, 64)
    x = x if signed else x * x
    codes, scale = quantized_groups.encode(BITS, x, signed, None if drawn is None else np.full_like(x, drawn))
    size = abs(x.astype(np.float64)) ** (1 if signed else 0.5)
    fraction, exponent = np.frexp(1 + size / scale)
    code = (8 if signed else 16) * (exponent - 1 + 2 * fraction - 1)
    code = code if signed else np.maximum(code, quantized_groups.LOWEST)
    assert np.all(abs(abs(codes) - code) <= off + 1e-3)
    assert np.all(np.max(abs(codes), 1) >= (112 if signed else 224))
    assert np.all(abs(codes) < (quantized_groups.SIGNED if signed else quantized_groups.UNSIGNED))
    assert np.all((codes == 0) | (np.sign(codes) == np.sign(x)))
    assert signed or np.all(codes[x > 0] >= quantized_groups.LOWEST)


def test_zeros_stay_zero():
    most = np.full((2, 100), 2.0**24 - 1)
    for signed in (True, False):
        codes, scale = quantized_groups.encode(BITS, np.zeros((2, 100), np.float32), signed, most)
        assert not codes.any()
        assert not quantized_groups.decode(BITS, codes, scale, signed).any()


@pytest.mark.parametrize("signed", [True, False])
def test_a_nonfinite_number_leaves_the_rest_of_its_group_unchanged(signed):
    x = np.ones((1, 192), np.float32)
    x[0, 5], x[0, 70], x[0, 71], x[0, 128:] = np.nan, np.inf, -np.inf if signed else np.inf, 0
    x[0, 130] = np.inf
    back = quantized_groups.decode(BITS, *quantized_groups.encode(BITS, x, signed), signed)
    np.testing.assert_array_equal(back[0, [70, 71, 130]], x[0, [70, 71, 130]])
    assert not np.isfinite(back[0, 5])
    rest = np.isfinite(x)
    np.testing.assert_allclose(back[rest], x[rest], rtol=2.0**-13)


def test_scales_that_are_not_finite_say_so_of_the_group():
    back = quantized_groups.decode(BITS, np.ones((1, 128), np.float32), np.array([[np.inf, 1]], np.float32), True)
    assert not np.isfinite(back[0, :64]).any()
    assert np.isfinite(back[0, 64:]).all()


def test_the_largest_finite_numbers_are_rounded_as_to_nearest():
    x = floats([0x7F7F0000, 0x7F7F0001, 0x7F7FFFFF, 0xFF7F8000, 0x7F800000])
    found = sixteen_bits.round_bf16(BITS, x, np.full(len(x), 0xFFFFFFFF))
    np.testing.assert_array_equal(found, floats([0x7F7F0000, 0x7F7F0000, 0x7F800000, 0xFF800000, 0x7F800000]))


@pytest.mark.parametrize("kept", [16, 8])
def test_a_weight_set_to_zero_drops_its_old_remainder(kept):
    rest = np.array([-1, -5, -(1 << (kept - 1))])
    for zero in (0.0, -0.0):
        assert np.all(sixteen_bits.join_bf16(BITS, np.full(3, zero, np.float32), rest, kept) == 0)
