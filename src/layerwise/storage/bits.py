"""Random bits for each element. They depend only on seed, parameter, field, step and index.

Blocks of 64 elements have a hash, and each of their places a fixed odd number; its product with the hash, its upper
half added to its lower one, are the bits of an element. So an element costs one multiplication, and numbers in a block
are as independent as those of a multiplicative generator. Hash and odd numbers are the 32-bit finalizer found by C.
Wellons' hash prospector ("lowbias32", in the version of its issue 19 with a measured bias of 0.107), with a second word
of the key between its two multiplications, so that the streams of two keys are not permutations of each other:

    x = low(i)/64 ^ k0;   x ^= x >> 16;   x *= 0x21f0aaad;   x ^= x >> 15
    x = x ^ k1 ^ high(i)·0x9e3779b9;   x *= 0xd35a2d97;   x ^= x >> 15

i is the row-major index of the element in the whole tensor; k0 and k1 are made of the key and the step by the same
hash. Formats that need n bits use the upper n. State in groups uses the bits at step 0 and adds 0x9e3779b9, 2^32
divided by the golden ratio, in each step: the bits of successive steps are spread evenly, so their errors in an average
nearly cancel. Kernels get this code by `make generate`.

The fields of a state share these bits: averages that may be negative have them as they are, the others their lower half
first. Each uses little more than the 16 bits that come first.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from layerwise.rules.requests import Array

WORD = 0xFFFFFFFF
FIRST, SECOND, UPPER = 0x21F0AAAD, 0xD35A2D97, 0x9E3779B9
TURN = UPPER
BLOCK = 64
EVEN = 0xFFFFFFFE


class Key(NamedTuple):
    """The source of the random bits of one stored array, besides step and index.

    The lowest bit of `second` is not hashed: it says that the lower half of the bits comes first.
    """

    first: int
    second: int


def key_of(seed: int, name: str, whose: str, lower: bool = False) -> Key:
    """Return the key of the weights, or of the state, of a parameter."""
    digest = blake2b(f"{seed}\0{name}\0{whose}".encode(), digest_size=8).digest()
    return Key(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little") & ~1 | lower)


OfArray = Callable[[Array], Array]


def _word(x: Array) -> Array:
    """Return the lower 32 bits of Python integers and of int64 arrays; arrays of uint32 are returned as they are."""
    return x & WORD


def hash_word(x: Array, between: Array = 0, word: OfArray = _word) -> Array:
    """Return the hash of a number below 2^32, or of each in an array."""
    x = x ^ (x >> 16)
    x = word(x * FIRST)
    x = x ^ (x >> 15) ^ between
    x = word(x * SECOND)
    return x ^ (x >> 15)


def keys_at_step(key: Key, step: tuple[Array, Array], word: OfArray = _word) -> tuple[Array, Array]:
    """Return k0 and k1 at a step, given by its lower and its upper 32 bits; k1 ends as the key does."""
    low, high = step
    first = hash_word(low ^ key.first, 0, word)
    return first, hash_word(first ^ (key.second & EVEN) ^ high, 0, word) & EVEN | key.second & 1


def random(keys: tuple[Array, Array], low: Array, high: Array, word: OfArray = _word) -> Array:
    """Return 32 bits for each index `high`·2^32 + `low`."""
    return bits_of_field(shared_hash(keys, low, high, word), keys[1], word)


def shared_hash(keys: tuple[Array, Array], low: Array, high: Array, word: OfArray = _word) -> Array:
    """Return what the fields of a state share of these."""
    return folded(word(block(keys, low, high, word) * odd(low & BLOCK - 1, word)))


def block(keys: tuple[Array, Array], low: Array, high: Array, word: OfArray = _word) -> Array:
    """Return the hash of a block, given the index of any of its elements."""
    return hash_word(low >> 6 ^ keys[0], keys[1] & EVEN ^ word(high * UPPER), word)


def folded(x: Array) -> Array:
    """Return a product with its upper half added to its lower one, bit by bit."""
    return x ^ (x >> 16)


def odd(place: Array, word: OfArray = _word) -> Array:
    """Return the number of a place in a block, by which the block's hash is multiplied."""
    return hash_word(place, 0, word) | 1


def bits_of_field(shared: Array, second: Array, word: OfArray = _word) -> Array:
    """Return a field's own bits, given its k1."""
    return word(shared << (second & 1) * 16)


def bits_of_group(key: Key, step: Array, low: Array, high: Array, word: OfArray = _word) -> Array:
    """Return the 32 bits of a number in a group, given the lower 32 bits of the step."""
    return word(random(keys_at_step(key, (0, 0)), low, high, word) + turn(step, word))


def turn(step: Array, word: OfArray = _word) -> Array:
    """Return the number that a step adds to the bits of groups, given the lower 32 bits of the step."""
    return word(step * TURN)
