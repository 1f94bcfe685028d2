"""How far numbers in fewer bits are off, over all sizes that they have."""

from __future__ import annotations

import numpy as np
import pytest
from storage.worlds import floats

from layerwise.numpy._arrays import BITS
from layerwise.storage import groups, weights


def numbers(n=20000, seed=0, spread=8.0):
    draw = np.random.default_rng(seed)
    return (draw.normal(size=n) * np.exp2(draw.uniform(-spread, spread, n))).astype(np.float32)


def test_24_bits_are_off_by_at_most_2_to_the_minus_16():
    x = numbers(spread=100.0)
    p, rest = weights.split_bf16(BITS, x, 8)
    back = weights.join_bf16(BITS, p, rest, 8)
    assert np.all(abs(back.astype(np.float64) - x) <= 2.0**-16 * abs(x.astype(np.float64)))
    assert np.any(back != x)


@pytest.mark.parametrize("kept", [16, 8])
def test_float16_and_a_remainder_are_off_by_parts_of_the_last_place(kept):
    """Half a part, and one more where a negative number lies half-way, which 2^kept parts leave no room for."""
    x = numbers()
    p, rest = weights.split_f16(BITS, x, kept)
    back = weights.join_f16(BITS, p, rest, kept)
    unit = np.exp2(np.maximum(np.floor(np.log2(abs(p))), -14) - 10)
    assert np.all(abs(back.astype(np.float64) - x) <= 1.5 * unit * 2.0**-kept)


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_within_half_a_code(signed):
    x = numbers(64 * 50).reshape(50, 64)
    x = x if signed else x * x
    codes, scale = groups.encode(np, x, signed)
    root = abs(x.astype(np.float64)) ** (0.5 if signed else 0.25)
    assert np.all(abs(abs(codes) * scale[:, :] - root) <= scale * (0.5 + 1e-4))
    assert np.all(np.max(abs(codes), 1) == (127 if signed else 255))
    assert np.all((codes == 0) | (np.sign(codes) == np.sign(x)))


def test_what_is_zero_stays_zero():
    for signed in (True, False):
        codes, scale = groups.encode(np, np.zeros((2, 100), np.float32), signed)
        assert not codes.any()
        assert not scale.any()
        assert not groups.decode(np, codes, scale, signed).any()


def test_a_group_with_nan_or_inf_is_nan():
    x = np.ones((1, 192), np.float32)
    x[0, 5], x[0, 70] = np.nan, np.inf
    with np.errstate(all="ignore"):
        back = groups.decode(np, *groups.encode(np, x, True), True)
    assert np.isnan(back[0, :128]).all()
    np.testing.assert_array_equal(back[0, 128:], x[0, 128:])


def test_the_largest_finite_numbers_are_rounded_as_to_nearest():
    x = floats([0x7F7F0000, 0x7F7F0001, 0x7F7FFFFF, 0xFF7F8000, 0x7F800000])
    found = weights.round_bf16(BITS, x, np.full(len(x), 0xFFFFFFFF))
    np.testing.assert_array_equal(found, x)  # what is no number of bfloat16 is left to the dtype
