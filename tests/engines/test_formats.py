"""The compiled engine's storage formats, bit for bit those of layerwise/storage.

A step of LARS without a ratio, with lr = 1, takes weights of 0 to −g, and momentum to g: whatever numbers are to be
stored, they come from the gradient as they are.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerwise.engines import Job
from layerwise.engines.compiled import CompiledEngine
from layerwise.rules import lamb, lars
from layerwise.rules.asks import Now
from layerwise.storage import Format, Storage
from layerwise.storage.bits import Key
from layerwise.storage.index import Index, index_of
from layerwise.storage.stored import Stored
from layerwise.torch.step._namespace import BITS

KEY = Key(0x12345678, 0x9ABCDEF0)
ODD = [0.0, -0.0, 1.0, -1.0, 3.38e38, 3.4e38, -3.4e38, 1e-40, -1e-45, 65504.0, 65519.0, 65520.0, 1e6, 6e-8, 2.0**-14]
FORMS = [(None, True, 0), (None, True, 2**32 - 40), (8, True, 2**32 - 40), (8, False, 0), (16, False, 0)]
SHAPES = [(5000,), (9, 70), (3, 4, 64), (1, 1), (130, 257)]


def numbers(shape: tuple[int, ...], odd: bool) -> torch.Tensor:
    """Numbers of all sizes, in random order."""
    rng = np.random.default_rng(0)
    n = int(np.prod(shape))
    found = rng.standard_normal(n) * 10.0 ** rng.uniform(-9, 4, n)
    if odd:
        found[: len(ODD)] = ODD[:n]
        found[len(ODD) : len(ODD) + 3] = (np.nan, np.inf, -np.inf)[: max(0, n - len(ODD))]
    with np.errstate(over="ignore"):
        return torch.from_numpy(rng.permutation(found).astype(np.float32).reshape(shape))


def stepped(
    p: torch.Tensor, momentum: torch.Tensor | None, g: torch.Tensor, storage: Storage, t: int, lr: float = 1.0
) -> None:
    h = lars.Lars(lr=lr, momentum=0.0 if momentum is None else 0.5, adapt=False, lr_in_momentum=False)
    engine = CompiledEngine()
    job = Job(lars, h, p, lars.State(momentum, None), storage=storage)
    assert not engine.declines(job)
    prepared = engine.prepare([job])
    prepared.step([g], [Now(t, lr, 0.0)])


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(((x == y) | ((x != x) & (y != y))).all())


@pytest.mark.parametrize(("kept", "drawn", "offset"), FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5000,), (9, 70), (1, 1)], ids=str)
def test_weights(shape, dtype, drawn, kept, offset):
    g = -numbers(shape, odd=True)
    rest = None if kept is None else torch.zeros(shape, dtype=torch.int16 if kept == 16 else torch.int8)
    form = Format(rest, KEY if drawn and kept != 16 else None)
    whole = index_of(shape)
    index = Index(whole.shape, whole.strides, offset)
    expected, lacking = Stored(torch.zeros(shape, dtype=dtype), form, index, 1, BITS).encode(-g, 2**33 + 7)
    p = torch.zeros(shape, dtype=dtype)
    stepped(p, None, g, Storage((form, None, None), index), 2**33 + 7)
    assert same(p, expected.to(dtype))
    assert rest is None or torch.equal(rest, lacking.to(rest.dtype))


@pytest.mark.parametrize("offset", [0, 2**32 - 40, 2**33 + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_beside_gradients_of_their_dtype(dtype, offset):
    """Weights and gradients of bfloat16 are computed with where they lie: −lr·g has more bits than they."""
    g, form, lr = numbers((9, 700), odd=True).to(torch.bfloat16), Format(None, KEY), 0.3
    whole = index_of(g.shape)
    index = Index(whole.shape, whole.strides, offset)
    p = torch.zeros(g.shape, dtype=torch.bfloat16)
    expected, _ = Stored(p, form, index, 1, BITS).encode(-(torch.tensor(lr) * g.float()), 2**33 + 7)
    stepped(p, None, g.to(dtype), Storage((form, None, None), index), 2**33 + 7, lr)
    assert same(p, expected.to(p.dtype))


@pytest.mark.parametrize(("key", "offset"), [(None, 0), (KEY, 0), (KEY, 2**32 - 40)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_groups(shape, key, offset):
    g = numbers(shape, odd=False)
    g.view(-1)[: g.numel() // 3] *= 1e-30
    if g.numel() > 400:
        g.view(-1)[130], g.view(-1)[390] = -torch.inf, torch.nan
    rows = () if len(shape) == 1 else shape[:1]
    scale = torch.zeros(*rows, -(-g[0].numel() // 64) if rows else -(-shape[0] // 64))
    codes = torch.zeros(shape, dtype=torch.int8)
    form = Format(scale, key)
    whole = index_of(shape)
    index = Index(whole.shape, whole.strides, offset)
    expected, scales = Stored(codes, form, index, len(rows), BITS).encode(g, 2**33 + 7)
    p = torch.zeros(shape)
    stepped(p, codes, g, Storage((None, form, None), index, len(rows)), 2**33 + 7)
    assert torch.equal(codes, expected.to(torch.int8))
    assert same(scale, scales)
    # Read back: with a gradient of 0 and lr = 1, the weights move by half of what is stored.
    found = Stored(codes.clone(), Format(scale.clone()), index, len(rows), BITS).read()
    p.zero_()
    stepped(p, codes, torch.zeros(shape), Storage((None, form, None), index, len(rows)), 2)
    assert same(p, -0.5 * found)


def squares(count: int) -> torch.Tensor:
    """Gradients whose squares lie on and beside the borders between two codes of their groups, as well as anywhere."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, count) + rng.choice([0.0, 0.5, 0.4999, 0.5001, 0.3], count)
    codes[::64] = 255
    sizes = np.repeat(10.0 ** rng.uniform(-8, 2, -(-count // 64)), 64)[:count]
    return torch.from_numpy(((codes / 255) ** 2 * sizes).astype(np.float32))


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("length", [64 * 600, 5000])
def test_groups_without_sign(length, key):
    """LAMB with β₂ = 0 has g² as its second moment."""
    g = squares(length)
    g[640:704] *= torch.logspace(0, -12, 64)
    g[700:900:7], g[960], g[1030] = 0, torch.inf, torch.nan
    scale, codes = torch.zeros(-(-length // 64)), torch.zeros(length, dtype=torch.uint8)
    form = Format(scale, key, False)
    expected, scales = Stored(codes, form, index_of(g.shape), 0, BITS).encode(g * g, 9)
    h = lamb.Lamb(lr=1.0, betas=(0.0, 0.0), adapt=False)
    storage = Storage((None, None, form, None), index_of(g.shape), 0)
    job = Job(lamb, h, torch.zeros(length), lamb.State(torch.zeros(length), codes, None), storage=storage)
    CompiledEngine().prepare([job]).step([g], [Now(9, 1.0, 0.0)])
    assert torch.equal(codes, expected.to(torch.uint8))
    assert same(scale, scales)
