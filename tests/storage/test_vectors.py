"""Every library gives the bits of the table, which is made of loops in plain Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
from reference import storage as reference
from storage.worlds import TABLE, floats, half, wanted

from layerwise.storage import quantized_groups, sixteen_bits
from layerwise.storage.bits import bits_of_group, key_of, keys_at_step, random

ROUND = {"bfloat16": sixteen_bits.round_bf16, "float16": sixteen_bits.round_f16}
SPLIT = {"bfloat16": sixteen_bits.split_bf16, "float16": sixteen_bits.split_f16}
JOIN = {"bfloat16": sixteen_bits.join_bf16, "float16": sixteen_bits.join_f16}
NAMES = ["bfloat16-16", "bfloat16-8", "float16-16", "float16-8"]


def test_the_table_is_what_the_reference_gives():
    assert json.loads(reference.text()) == TABLE


def test_random_bits(world):
    for *whose, step, index, bits in TABLE["bits"]:
        if index >> 32 and not world.wide:
            continue
        key, low, high = key_of(*whose), np.array([index & 0xFFFFFFFF]), np.array([index >> 32])
        keys = keys_at_step(key, (step & 0xFFFFFFFF, step >> 32), world.b.word)
        found = random(keys, world.array(low), world.array(high) if world.wide else 0, world.b.word)
        assert int(world.host(found)[0]) == bits, (whose, step, index)


def test_bits_of_groups_turn(world):
    for *whose, step, index, bits in TABLE["turned"]:
        if index >> 32 and not world.wide:
            continue
        low, high = np.array([index & 0xFFFFFFFF]), np.array([index >> 32])
        at = world.array(high) if world.wide else 0
        found = bits_of_group(key_of(*whose), step & 0xFFFFFFFF, world.array(low), at, world.b.word)
        assert int(world.host(found)[0]) == bits, (whose, step, index)


def compared(world, found, dtype, expected):
    bits, known = wanted(expected)
    stored = world.host(world.stored(found, dtype))
    np.testing.assert_array_equal(half(stored)[known], bits[known])
    assert np.isnan(world.host(found)[~known]).all()


@pytest.mark.parametrize("dtype", ROUND)
def test_rounded_at_random(world, dtype):
    x, r = world.array(floats(TABLE["inputs"])), world.array(np.array(TABLE["randoms"]))
    found = world.jit(lambda x, r: ROUND[dtype](world.b, x, r))(x, r)
    compared(world, found, dtype, TABLE["stochastic"][dtype])


@pytest.mark.parametrize(("name", "drawn"), [(name, drawn) for drawn in ("nearest", "drawn") for name in TABLE[drawn]])
def test_split_in_two(world, name, drawn):
    dtype, kept = name.split("-")[0], int(name.split("-")[1])
    x, r = world.array(floats(TABLE["inputs"])), world.array(np.array(TABLE["randoms"]))
    split = world.jit(lambda x, r: SPLIT[dtype](world.b, x, kept, r if drawn == "drawn" else None))
    p, rest = split(x, r)
    expected = TABLE[drawn][name]
    compared(world, p, dtype, [one for one, _ in expected])
    lacking = world.host(rest).astype(np.int64).astype(f"int{kept}")
    np.testing.assert_array_equal(lacking, [one for _, one in expected])


@pytest.mark.parametrize("name", NAMES)
def test_joined_again(world, name):
    dtype, kept = name.split("-")[0], int(name.split("-")[1])
    joined = {"bfloat16": reference.joined_bf16, "float16": reference.joined_f16}[dtype]
    pairs = [(p, rest) for p, rest in TABLE["nearest"][name] if p is not None and p & 0x7C00 != 0x7C00]
    upper, rest = np.array([p for p, _ in pairs], np.uint16), np.array([one for _, one in pairs])
    numbers = floats(upper.astype(np.uint32) << 16) if dtype == "bfloat16" else upper.view(np.float16)
    numbers, rest = world.array(numbers.astype(np.float32)), world.array(rest.astype(np.int32))
    found = world.jit(lambda p, rest: JOIN[dtype](world.b, p, world.b.integers(rest), kept))(numbers, rest)
    expected = np.array([joined(p, one, kept) for p, one in pairs], np.float32)
    np.testing.assert_array_equal(world.host(found).view(np.uint32), expected.view(np.uint32))


def test_sixteen_bits_beside_bfloat16_are_all_of_float32(world):
    bits = np.concatenate([np.array(TABLE["inputs"]), np.arange(0, 2**32, 65521)]).astype(np.uint32)
    x = bits.view(np.float32)
    p, rest = sixteen_bits.split_bf16(world.b, world.array(x), 16)
    stored, rest = world.stored(p, "bfloat16"), world.array(world.host(rest).astype(np.int64).astype(np.int16))
    back = sixteen_bits.join_bf16(world.b, world.b.as_floats(stored), world.b.integers(rest), 16)
    number = x == x
    np.testing.assert_array_equal(world.host(back).view(np.uint32)[number], bits[number])
    assert np.isnan(world.host(back)[~number]).all()


@pytest.mark.parametrize("case", range(len(TABLE["groups"])))
def test_groups(world, case):
    one = TABLE["groups"][case]
    shape = (one["rows"], -1)
    x, randoms = world.array(floats(one["numbers"]).reshape(shape)), one["randoms"]
    drawn = None if randoms is None else (np.reshape(randoms, shape) >> 8).astype(np.float32)
    given = (x,) if drawn is None else (x, world.array(drawn))
    codes, scale = world.jit(lambda x, u=None: quantized_groups.encode(world.b, x, one["signed"], u))(*given)
    codes = world.host(world.stored(codes, "int8" if one["signed"] else "uint8"))
    np.testing.assert_array_equal(codes, np.reshape(one["codes"], shape))
    found, expected = world.host(scale).ravel(), floats(one["scales"])
    np.testing.assert_array_equal(found, expected)
    back = world.jit(lambda c, s: quantized_groups.decode(world.b, world.b.as_floats(c), s, one["signed"]))(
        world.array(codes), scale
    )
    np.testing.assert_array_equal(world.host(back).ravel(), flushed(world, floats(one["decoded"])))


def flushed(world, x):
    """Return numbers as XLA has them, which takes subnormal ones for 0."""
    return x if world.wide else np.where(abs(x) < 2.0**-126, 0, x).astype(np.float32)
