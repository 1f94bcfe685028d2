"""The compiled engine's storage formats, bit for bit those of layerwise/storage, on numbers that are hard to round.

A step of LARS without a ratio, with lr = 1, takes weights of 0 to −g, and momentum to g: whatever numbers are to be
stored, they come from the gradient as they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engines.worlds import needed

from layerwise.engines import Job
from layerwise.engines.compiled import CompiledEngine
from layerwise.rules import lamb, lars
from layerwise.rules.requests import Now
from layerwise.storage import Format, JobFormats
from layerwise.storage.bits import Key
from layerwise.storage.formatted_arrays import FormattedArray
from layerwise.storage.index import index_of
from layerwise.storage.quantized_groups import EIGHT
from layerwise.storage.quantized_groups import num_groups as groups_in
from layerwise.torch.arrays._library import BITS

pytestmark = needed
KEY, T = Key(0x12345678, 0x9ABCDEF0), 2**33 + 7
ODD = [0.0, -0.0, 1.0, -1.0, 3.38e38, 3.4e38, -3.4e38, 1e-40, -1e-45, 65504.0, 65519.0, 65520.0, 1e6, 6e-8, 2.0**-14]
ODD += [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11]  # halves, that go to the even neighbour
WEIGHTS = [
    (None, False, 0),
    (None, True, 0),
    (None, True, 2**32 - 40),
    (8, True, 2**32 - 40),
    (8, False, 0),
    (16, False, 0),
]
SHAPES = [(5000,), (9, 70), (1, 1), (130, 257)]


def numbers(shape, odd=False):
    """Numbers of all sizes, in random order."""
    rng = np.random.default_rng(0)
    n = int(np.prod(shape))
    found = rng.standard_normal(n) * 10.0 ** rng.uniform(-9, 4, n)
    if odd:
        found[: len(ODD)] = ODD[:n]
        found[len(ODD) : len(ODD) + 3] = (np.nan, np.inf, -np.inf)[: max(0, n - len(ODD))]
    with np.errstate(over="ignore"):
        return torch.from_numpy(rng.permutation(found).astype(np.float32).reshape(shape))


def stepped(p, momentum, g, formats, index, t, lr=1.0, row_dims=1):
    h = lars.Lars(lr=lr, momentum=0.0 if momentum is None else 0.5, adapt=False, lr_in_momentum=False)
    storage = JobFormats((*formats, None), index, row_dims) if any(formats) else None
    engine, job = CompiledEngine(), Job(lars, h, p, lars.State(momentum, None), storage=storage)
    assert engine.reasons_to_decline([job]) == [""]
    engine.prepare([job]).step([g], [Now(t, lr, 0.0)])


def same(x, y):
    return bool(((x == y) | ((x != x) & (y != y))).all())


@pytest.mark.parametrize(("kept", "drawn", "offset"), WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_weights(shape, dtype, drawn, kept, offset):
    g = -numbers(shape, odd=True)
    rest = None if kept is None else torch.zeros(shape, dtype=torch.int16 if kept == 16 else torch.int8)
    form, index = Format(rest, KEY if drawn else None), replace(index_of(shape), offset=offset)
    expected, lacking = FormattedArray(torch.zeros(shape, dtype=dtype), form, index, 1, BITS).encode(-g, T)
    p = torch.zeros(shape, dtype=dtype)
    stepped(p, None, g, (form if drawn or kept else None, None), index, T)
    assert same(p, expected.to(dtype))
    assert rest is None or torch.equal(rest, lacking.to(rest.dtype))


@pytest.mark.parametrize("offset", [0, 2**32 - 40, 2**33 + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_beside_gradients_of_their_dtype(dtype, offset):
    """Weights and gradients of bfloat16 are computed with where they lie: −lr·g has more bits than they."""
    g, form, lr = numbers((9, 700), odd=True).to(torch.bfloat16), Format(None, KEY), 0.3
    index, p = replace(index_of(g.shape), offset=offset), torch.zeros(g.shape, dtype=torch.bfloat16)
    expected, _ = FormattedArray(p, form, index, 1, BITS).encode(-(torch.tensor(lr) * g.float()), T)
    stepped(p, None, g.to(dtype), (form, None), index, T, lr)
    assert same(p, expected.to(p.dtype))


@pytest.mark.parametrize(("key", "offset"), [(None, 0), (KEY, 0), (KEY, 2**32 - 40)])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 4, 64)], ids=str)
def test_groups_with_sign(shape, key, offset):
    g = numbers(shape)
    g.view(-1)[: g.numel() // 3] *= 1e-30
    if g.numel() > 400:
        g.view(-1)[130], g.view(-1)[390] = -torch.inf, torch.nan
    dims = min(1, len(shape) - 1)
    scale, codes = (
        torch.zeros(*shape[:dims], -(-int(np.prod(shape[dims:])) // 64)),
        torch.zeros(shape, dtype=torch.int8),
    )
    form, index = Format(scale, key, EIGHT), replace(index_of(shape), offset=offset)
    expected, scales = FormattedArray(codes, form, index, dims, BITS).encode(g, T)
    p = torch.zeros(shape)
    stepped(p, codes, g, (None, form), index, T, row_dims=dims)
    assert torch.equal(codes, expected.to(torch.int8))
    assert same(scale, scales)
    # Read back: with a gradient of 0 and lr = 1, the weights move by half of what is stored.
    found = FormattedArray(codes.clone(), Format(scale.clone(), None, EIGHT), index, dims, BITS).decode()
    p.zero_()
    stepped(p, codes, torch.zeros(shape), (None, form), index, 2, row_dims=dims)
    assert same(p, -0.5 * found)


def squares(count):
    """Gradients whose squares lie on and beside the borders between two codes of their groups, as well as anywhere."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 240, count) + rng.choice([0.0, 0.5, 0.4999, 0.5001, 0.3], count)
    codes[::64] = 240
    sizes = np.repeat(2.0 ** rng.uniform(-30, 7, -(-count // 64)).round(), 64)[:count]
    roots = 2.0 ** (codes // 16) * (1 + codes % 16 / 16) - 1
    return torch.from_numpy((roots * 2.0**-15 * sizes).astype(np.float32))


def check_groups_without_sign(g, key, index):
    """LAMB with β₂ = 0 has g² as its second moment."""
    scale, codes = torch.zeros(-(-len(g) // 64)), torch.zeros(len(g), dtype=torch.uint8)
    form = Format(scale, key, EIGHT)
    expected, scales = FormattedArray(codes, form, index, 0, BITS).encode(g * g, 9)
    storage = JobFormats((None, None, form, None), index, 0)
    state = lamb.State(torch.zeros(len(g)), codes, None)
    job = Job(lamb, lamb.Lamb(lr=1.0, betas=(0.0, 0.0), adapt=False), torch.zeros(len(g)), state, storage=storage)
    CompiledEngine().prepare([job]).step([g], [Now(9, 1.0, 0.0)])
    assert torch.equal(codes, expected.to(torch.uint8))
    assert same(scale, scales)


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("length", [64 * 600, 5000])
def test_groups_without_sign(length, key):
    g = squares(length)
    g[640:704] *= torch.logspace(0, -12, 64)
    g[700:900:7], g[960], g[1030] = 0, torch.inf, torch.nan
    check_groups_without_sign(g, key, index_of(g.shape))


@pytest.mark.parametrize("odd", [False, True], ids=["usual", "odd"])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 5, 33)], ids=str)
def test_whole_arrays_are_read_and_written_as_the_text_says(shape, odd):
    """By the extension, for rules without kernels: the same codes, remainders and numbers."""
    dims = int(len(shape) > 1)
    rows, length = int(np.prod(shape[:dims])), int(np.prod(shape[dims:]))
    scales = (rows, groups_in(length)) if dims else (groups_in(length),)
    coded = [
        (dtype, Format(torch.zeros(scales), key, EIGHT)) for dtype in (torch.int8, torch.uint8) for key in (None, KEY)
    ]
    low = [
        (dtype, Format(beside and torch.zeros(shape, dtype=beside), key, None))
        for dtype in (torch.bfloat16, torch.float16)
        for beside, key in ((None, KEY), (torch.int16, None), (torch.int8, None), (torch.int8, KEY))
    ]
    for dtype, form in coded + low:
        x = numbers(shape, odd)
        x = x.abs() if dtype is torch.uint8 else x
        stored = FormattedArray(torch.zeros(shape, dtype=dtype), form, index_of(shape), dims, BITS)
        for t in (1, T):
            array, beside = stored.encode(x, t)
            assert stored.write(x, t)
            torch.testing.assert_close(stored.array, array.to(dtype), rtol=0, atol=0, equal_nan=True)
            if beside is not None:
                torch.testing.assert_close(form.beside, beside.to(form.beside.dtype), rtol=0, atol=0)
            torch.testing.assert_close(stored.read(), stored.decode(), rtol=0, atol=0, equal_nan=True)
    assert not stored.write(x.double(), 1)
