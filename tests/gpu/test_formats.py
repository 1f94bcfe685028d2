"""The kernels' storage formats against those of layerwise/storage, bit for bit, on numbers that are hard to round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from engines.test_formats import ODD
from gpu.world import DEVICE

from layerwise.engines.gpu.kernels import formats
from layerwise.engines.gpu.printed import storage
from layerwise.numpy._arrays import BITS as NUMPY
from layerwise.storage import bits, quantized_groups, sixteen_bits
from layerwise.torch.arrays._library import BITS

N = 4096
KEY = bits.Key(0x9E3779B9, 0xFFFFFFF1)


def numbers():
    """All kinds of float32: of any bits, near float16's and bfloat16's ends, and what is not finite."""
    draw = np.random.default_rng(0)
    some = draw.integers(0, 1 << 32, N, np.uint32).view(np.float32)
    some[: N // 2] = draw.normal(size=N // 2) * 10.0 ** draw.integers(-9, 6, N // 2)
    special = [*ODD, np.nan, np.inf, -np.inf, -65536, 2.9e-8, 6.1e-5, 3.4028235e38]
    some[: len(special)] = special
    ends = np.array([0x7F7FFFFF, 0x7F7F0000, 0x7F7F8000, 0x477FE000, 0x477FEFFF, 0x387FFFFF, 0x00008000], np.uint32)
    some[64 : 64 + len(ends)] = ends.view(np.float32)
    return torch.from_numpy(some).to(DEVICE)


@triton.jit
def drawing(key, step, first, to, N: tl.constexpr):
    i = tl.arange(0, N)
    k0, k1 = tl.load(key), tl.load(key + 1)
    t = tl.load(step)
    k0, k1 = storage.at_step(formats.low_word(k0), formats.low_word(k1), formats.low_word(t), formats.low_word(t >> 32))
    number = tl.load(first) + i
    tl.store(to + i, storage.random(k0, k1, formats.low_word(number), formats.low_word(number >> 32)).to(tl.int64))


@pytest.mark.parametrize("step", [1, 2**31 + 5, 2**40 + 3])
@pytest.mark.parametrize("first", [0, 2**32 - 7, 2**45])
def test_random_bits(step, first):
    found = torch.zeros(64, dtype=torch.int64, device=DEVICE)
    table = (torch.tensor(x, dtype=torch.int64, device=DEVICE) for x in ([*KEY], [step], [first]))
    drawing[(1,)](*table, found, N=64)
    keys = bits.keys_at_step(KEY, (step & bits.WORD, step >> 32))
    assert found.tolist() == [bits.random(keys, i & bits.WORD, i >> 32) for i in range(first, first + 64)]


@triton.jit
def rounding(x, drawn, to, beside, back, KIND: tl.constexpr, KEPT: tl.constexpr, DRAWN: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, drawn = tl.load(x + i), formats.low_word(tl.load(drawn + i))
    if KEPT == 0:
        x = storage.round_bf16(x, drawn) if KIND == 0 else storage.round_f16(x, drawn)
    else:
        if DRAWN:
            x, rest = storage.split_bf16_drawn(x, drawn, KEPT) if KIND == 0 else storage.split_f16_drawn(x, drawn, KEPT)
        else:
            x, rest = storage.split_bf16(x, KEPT) if KIND == 0 else storage.split_f16(x, KEPT)
        tl.store(beside + i, rest)
        p = x.to(tl.bfloat16 if KIND == 0 else tl.float16).to(tl.float32)
        p = storage.join_bf16(p, rest, KEPT) if KIND == 0 else storage.join_f16(p, rest, KEPT)
        tl.store(back + i, p)
    tl.store(to + i, x)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize(("kept", "drawn"), [(0, True), (16, False), (8, False), (8, True)])
def test_weights(kind, kept, drawn):
    x = numbers()
    found, back = torch.zeros_like(x), torch.zeros_like(x)
    rest = torch.zeros(N, dtype=torch.int32, device=DEVICE)
    random = torch.randint(0, 1 << 32, (N,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with np.errstate(all="ignore"):  # of what is not chosen
        rounding[(1,)](x, random, found, rest, back, KIND=int(kind == "f16"), KEPT=kept, DRAWN=drawn, N=N)
    if not kept:
        assert same(found, getattr(sixteen_bits, f"round_{kind}")(BITS, x, random))
        return
    p, beside = getattr(sixteen_bits, f"split_{kind}")(BITS, x, kept, random if drawn else None)
    stored = p.to(torch.bfloat16 if kind == "bf16" else torch.float16).float()
    assert same(found, p)
    assert torch.equal(rest.long(), beside.long())
    assert same(back, getattr(sixteen_bits, f"join_{kind}")(BITS, stored, beside.long(), kept))


def same(x, y):
    """Bit for bit, but for which nan."""
    return bool(((x.view(torch.int32) == y.view(torch.int32)) | (x.isnan() & y.isnan())).all())


@triton.jit
def coding(x, drawn, codes, scale, back, SIGNS: tl.constexpr, DRAWN: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, N // 64)
    x = tl.load(x + i)
    found, by = formats.encode(x, i >= 0, formats.low_word(tl.load(drawn + i)), SIGNS, DRAWN, True)
    tl.store(codes + i, found)
    tl.store(scale + j, by)
    tl.store(back + i, formats.decode(found.to(tl.float32), by, SIGNS))


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("signed", [True, False])
def test_groups(signed, drawn):
    x = numbers() if signed else numbers().abs()
    x[2048:] = torch.randn(2048, generator=torch.Generator().manual_seed(0)).abs().to(DEVICE)
    x[4000:] = 0
    random = torch.randint(0, 1 << 32, (N,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    codes, back = torch.zeros(N, dtype=torch.int32, device=DEVICE), torch.zeros_like(x)
    scale = torch.zeros(N // 64, device=DEVICE)
    with np.errstate(all="ignore"):
        coding[(1,)](x, random, codes, scale, back, SIGNS=signed, DRAWN=drawn, N=N)
        # NumPy's roots are the nearest numbers; PyTorch's on a CPU need not be.
        shares = (random[None].cpu().numpy() >> 8).astype(np.float32) if drawn else None
        wanted, by = quantized_groups.encode(NUMPY, x[None].cpu().numpy(), signed, shares)
        decoded = quantized_groups.decode(NUMPY, wanted, by, signed)
    assert same(scale.cpu(), torch.from_numpy(by[0]))
    assert codes.tolist() == wanted[0].astype(int).tolist()
    assert same(back.cpu(), torch.from_numpy(decoded[0]))
