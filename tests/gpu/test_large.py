"""Tensors of more elements than 32 bits can count: only where there is a GPU with room for them."""

from __future__ import annotations

import pytest
import torch
from cases import KERNELED, case_of
from gpu.world import RULE

from layerwise import engines
from layerwise.engines.gpu import GpuEngine
from layerwise.rules.requests import Now

ROOM = 36 << 30  # bytes: parameter, gradient, and LAMB's moments in float32
PERIOD = 1 << 20
STEPS = 2


def room():
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


pytestmark = pytest.mark.skipif(room() < ROOM, reason=f"needs a GPU with {ROOM >> 30} GiB to spare")


def job_of(case, h, shape):
    h = h.fit(shape, (), torch.finfo(torch.bfloat16).eps)
    shapes = case.rule.shapes(h, shape)
    state = type(shapes)(*(None if s is None else torch.zeros(s, device="cuda") for s in shapes))
    return engines.Job(case.rule, h, repeated(1, shape), state)


def repeated(seed, shape):
    """The same numbers over and over, so that the norms, but for their number, are those of a small tensor."""
    torch.manual_seed(seed)
    found, row = torch.empty(shape, dtype=torch.bfloat16, device="cuda"), torch.randn(PERIOD, device="cuda").bfloat16()
    flat, full = found.view(-1), found.numel() // PERIOD
    flat[: full * PERIOD].view(full, PERIOD).copy_(row)
    flat[full * PERIOD :] = row[: found.numel() - full * PERIOD]
    return found


def stepped(engine, job):
    prepared = engine.prepare([job])
    for t in range(1, STEPS + 1):
        prepared.step([repeated(t + 1, job.p.shape)], [Now(t, 0.5, 0.1, 1.0)])
    return job.p.view(-1)


@pytest.mark.parametrize(("case", "shape", "small"), [
    *((case, ((1 << 31) + 3,), (PERIOD,)) for case in KERNELED),
    (case_of("Adafactor"), (2049, PERIOD), (3, PERIOD)),
], ids=[*(case.name for case in KERNELED), "Adafactor, factored"])  # fmt: skip
def test_every_element_is_stepped_once(case, shape, small):
    h = case.hyper(lr=0.5)
    found = stepped(GpuEngine(), job_of(case, h, shape))
    wanted = stepped(RULE, job_of(case, h, small))[:PERIOD]
    full = len(found) // PERIOD * PERIOD
    for part in (*found[:full].view(-1, PERIOD), found[full:]):
        expected = wanted[: len(part)].float()
        assert ((part.float() - expected).abs() <= 2 * 2.0**-7 * expected.abs() + 2.0**-10).all()
