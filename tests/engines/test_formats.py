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
from layerwise.rules import lars
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


def stepped(p: torch.Tensor, momentum: torch.Tensor | None, g: torch.Tensor, storage: Storage, t: int) -> None:
    h = lars.Lars(lr=1.0, momentum=0.0 if momentum is None else 0.5, adapt=False, lr_in_momentum=False)
    engine = CompiledEngine()
    job = Job(lars, h, p, lars.State(momentum), storage=storage)
    assert not engine.declines(job)
    prepared = engine.prepare([job])
    prepared.step([g], [Now(t, 1.0, 0.0)])


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
    stepped(p, None, g, Storage((form, None), index), 2**33 + 7)
    assert same(p, expected.to(dtype))
    assert rest is None or torch.equal(rest, lacking.to(rest.dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_groups(shape):
    g = numbers(shape, odd=False)
    g.view(-1)[: g.numel() // 3] *= 1e-30
    if g.numel() > 400:
        g.view(-1)[130], g.view(-1)[390] = torch.inf, torch.nan
    rows = () if len(shape) == 1 else shape[:1]
    scale = torch.zeros(*rows, -(-g[0].numel() // 64) if rows else -(-shape[0] // 64))
    codes = torch.zeros(shape, dtype=torch.int8)
    form = Format(scale)
    expected, scales = Stored(codes, form, index_of(shape), len(rows), BITS).encode(g, 1)
    p = torch.zeros(shape)
    stepped(p, codes, g, Storage((None, form), index_of(shape), len(rows)), 1)
    assert torch.equal(codes, expected.to(torch.int8))
    assert same(scale, scales)
    # Read back: with a gradient of 0 and lr = 1, the weights move by half of what is stored.
    found = Stored(codes.clone(), Format(scale.clone()), index_of(shape), len(rows), BITS).read()
    p.zero_()
    stepped(p, codes, torch.zeros(shape), Storage((None, form), index_of(shape), len(rows)), 2)
    assert same(p, -0.5 * found)
