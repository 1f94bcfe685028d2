"""The random bits pass for random, and rounding by them is unbiased. Bounds are of five standard deviations."""

from __future__ import annotations

import numpy as np
import pytest
from storage.worlds import floats

from layerwise.numpy._arrays import BITS
from layerwise.storage import quantized_groups, sixteen_bits
from layerwise.storage.bits import key_of, keys_at_step, random

N = 10**6
LOW = np.arange(N, dtype=np.int64)


def drawn(seed=0, name="w", whose="", lower=False, step=1, low=LOW, high=0):
    return random(keys_at_step(key_of(seed, name, whose, lower), (step, 0)), low, high).astype(np.uint32)


def correlation(a, b):
    """Return the correlation of two streams, in its standard deviations under independence."""
    centred = (one.astype(np.float64) - (2**32 - 1) / 2 for one in (a, b))
    return float(np.mean(np.multiply(*centred)) / (2.0**64 / 12) * np.sqrt(len(a)))


STREAMS = {
    "weights": {},
    "state": {"whose": "state"},
    "later": {"step": 12345},
    "seeded": {"seed": 2**62 + 1},
    "far": {"high": 3},
}


@pytest.mark.parametrize("which", STREAMS)
def test_every_bit_is_set_half_of_the_time(which):
    bits = drawn(**STREAMS[which])
    for place in range(32):
        ones = int(np.count_nonzero(bits & np.uint32(1 << place)))
        assert abs(ones - N / 2) < 5 * np.sqrt(N) / 2, place
    assert abs(bits.mean() - (2**32 - 1) / 2) < 5 * 2**32 / np.sqrt(12 * N)
    counts = np.bincount(bits >> np.uint32(24), minlength=256)
    chi2 = float(((counts - N / 256) ** 2 / (N / 256)).sum())
    assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)


def test_halves_that_a_state_shares_are_independent():
    upper, lower = drawn(whose="state"), drawn(whose="state", lower=True)
    assert abs(correlation(upper, lower)) < 5
    for a, b in ((28, 28), (28, 24), (24, 28)):
        pairs = ((upper >> np.uint32(a)) & 15) * 16 + ((lower >> np.uint32(b)) & 15)
        counts = np.bincount(pairs, minlength=256)
        chi2 = float(((counts - N / 256) ** 2 / (N / 256)).sum())
        assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)
    assert not np.any(lower & 0xFFFF)


def test_neighbours_are_not_correlated():
    bits = drawn()
    for lag in (1, 2, 3, 64, 768, 1024, 4096, 16384, 65536):
        assert abs(correlation(bits[:-lag], bits[lag:])) < 5, lag


@pytest.mark.parametrize("other", [{"step": 2}, {"seed": 1}, {"whose": "state"}, {"name": "v"}, {"high": 1}], ids=str)
def test_streams_are_not_correlated(other):
    one, two = drawn(), drawn(**other)
    assert abs(correlation(one, two)) < 5
    # Of streams that were permutations of each other, these would be equal.
    for place in (16, 20, 24, 28, 31):  # formats use the upper half
        differ = int(np.count_nonzero((one ^ two) & np.uint32(1 << place)))
        assert abs(differ - N / 2) < 5 * np.sqrt(N) / 2, place
    assert not np.array_equal(np.sort(one), np.sort(two))


def test_no_bit_of_a_stream_follows_one_bit_of_its_index():
    bits = drawn(low=LOW[: 1 << 16])
    for flipped in range(16):
        changed = bits ^ drawn(low=LOW[: 1 << 16] ^ (1 << flipped))
        for place in range(16, 32):  # those that formats use
            ones = int(np.count_nonzero(changed & np.uint32(1 << place)))
            # A pair of indices counts twice, so the deviation is √2 larger.
            assert abs(ones - 2**15) < 5 * np.sqrt(2.0**16 / 2), (flipped, place)


ROUND = {"bfloat16": (sixteen_bits.round_bf16, 8), "float16": (sixteen_bits.round_f16, 11)}


@pytest.mark.parametrize("x", [1.001, -0.3, 3.14159, 1e-3, 2.0**-20 * 1.2345])
@pytest.mark.parametrize("dtype", ROUND)
def test_rounding_at_random_is_unbiased(dtype, x):
    """x lies at a fraction f of the way between its neighbours; it goes up n·f times, ± √(n·f·(1 − f))."""
    x, (rounding, digits) = float(np.float32(x)), ROUND[dtype]
    exponent = max(int(np.floor(np.log2(abs(x)))), -14 if dtype == "float16" else -126)
    unit = 2.0 ** (exponent - digits + 1)
    below = np.floor(x / unit) * unit
    f = (x - below) / unit
    found = rounding(BITS, np.full(N, x, np.float32), drawn().astype(np.int64)).astype(np.float64)
    assert set(np.unique(found)) <= {below, below + unit}
    ups = int(np.count_nonzero(found > below))
    # 13 or 16 random bits are drawn: they say f to 2^-13 at worst.
    assert abs(ups - N * f) < 5 * np.sqrt(N * f * (1 - f)) + N * 2.0**-13 * (digits == 11 and exponent < -14)


@pytest.mark.parametrize("dtype", ROUND)
def test_numbers_that_fit_stay(dtype):
    fits = np.arange(2**16, dtype=np.uint32)
    x = floats(fits << 16) if dtype == "bfloat16" else fits.astype(np.uint16).view(np.float16).astype(np.float32)
    x = x[np.isfinite(x)]
    random_bits = drawn(low=np.arange(len(x))).astype(np.int64)
    for r in (random_bits, np.full(len(x), 2**32 - 1), np.zeros(len(x), np.int64)):
        np.testing.assert_array_equal(ROUND[dtype][0](BITS, x, r).view(np.uint32), x.view(np.uint32))


SHARES = (np.arange(2**16) * 2**8 + 2**7).astype(np.float32)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("size", [0.01, 0.7, 4.2, 60.9, 9000.0])
def test_groups_have_the_right_mean(size, signed):
    """Of the number where there are signs, otherwise of its root, or the least that there is; sizes are in scales."""
    x = np.full((len(SHARES), 64), np.float32(size * 2.0**-14) ** (1 if signed else 2), np.float32)
    x[:, 0] = 1
    codes = quantized_groups.encode(BITS, x, signed, np.broadcast_to(SHARES[:, None], x.shape))[0][:, 1]
    found = quantized_groups.size_of(BITS, codes.astype(np.int64), np.float32(1), signed).astype(np.float64)
    wanted = size if signed else max(size, quantized_groups.LOWEST / 16)
    assert abs(found.mean() - wanted) < 1e-4 * max(wanted, 0.1)
    assert len(set(codes)) == 1 + (wanted == size)


def test_places_of_a_block_are_independent():
    """Of products with one hash, too: counts of a block spread as if its elements were drawn one by one."""
    upper = drawn(whose="state").reshape(-1, 64).astype(np.float64) / 2.0**32
    correlations = np.corrcoef(upper.T)[~np.eye(64, dtype=bool)]
    assert abs(correlations).max() < 5.5 / np.sqrt(len(upper))
    assert abs((correlations**2).mean() * len(upper) - 1) < 0.2
    for share in (0.5, 0.1, 0.01):
        counts = (upper < share).sum(1)
        assert abs(counts.var() / (64 * share * (1 - share)) - 1) < 0.1
