"""Tensors of another library, which the extension knows by their DLPack table: here PyTorch's under another type."""

from __future__ import annotations

import sys

import pytest
import torch
from engines.worlds import needed

from layerwise.engines import Job, compiled
from layerwise.rules import lamb
from layerwise.rules.requests import Now

pytestmark = needed
_native = compiled._native


class Other(torch.Tensor):
    """A tensor of a library that the extension does not know."""


def other(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype).as_subclass(Other)


@pytest.fixture
def known():
    assert not _native.reaches(other(2))
    assert compiled.register_plain(Other, Other)
    yield
    assert not _native.open_plain(Other, Other, None)
    assert not _native.reaches(other(2))
    if before := sys.modules.get("layerwise.paddle._arrays"):
        compiled.register_plain(before.paddle.Tensor, before.EagerParamBase)


@pytest.mark.usefixtures("known")
def test_they_are_stepped_where_they_lie():
    p, g, m, v = other(4, 3).T, other(3, 4), other(3, 4) * 0, other(3, 4) * 0
    place = p.data_ptr()
    job = Job(lamb, lamb.Lamb(weight_decay=0.1), p, lamb.State(m, v, None))
    compiled.CompiledEngine().prepare([job]).step([g], [Now(1, 0.5, 0.1)])
    assert p.data_ptr() == place
    assert torch.allclose(p, other(3, 4) * 0.5)
    assert torch.allclose(v, other(3, 4) * 0.001)


@pytest.mark.usefixtures("known")
def test_floating_numbers_in_memory_are_in_reach():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert _native.reaches(other(2, 3, dtype=dtype))
    freed = other(2)
    freed.untyped_storage().resize_(0)
    for out_of_reach in (other(2, dtype=torch.int64), other(2).to("meta"), freed):
        assert not _native.reaches(out_of_reach)
