"""Tensors of another library, which the extension knows by their DLPack table: here PyTorch's under another type."""

import subprocess
import sys

CODE = """
import torch
from layerwise import _native
from layerwise.engines import Job
from layerwise.engines.compiled import CompiledEngine, know_plain
from layerwise.rules import lamb
from layerwise.rules.asks import Now


class Other(torch.Tensor):
    pass


def other(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype).as_subclass(Other)


assert not _native.reaches(other(2))
assert know_plain(Other, Other)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    assert _native.reaches(other(2, 3, dtype=dtype)), dtype
assert not _native.reaches(other(2, dtype=torch.int64))
assert not _native.reaches(other(2).to("meta"))

p, g, m, v = other(4, 3).T, other(3, 4), other(3, 4) * 0, other(3, 4) * 0
prepared = CompiledEngine().prepare([Job(lamb, lamb.Lamb(weight_decay=0.1), p, lamb.State(m, v))])
place = p.data_ptr()
prepared.step([g], [Now(1, 0.5, 0.1)])
assert p.data_ptr() == place
assert torch.allclose(p, other(3, 4) * 0.5), p
assert torch.allclose(v, other(3, 4) * 0.001), v
p.untyped_storage().resize_(0)
assert not _native.reaches(p)

assert not _native.open_plain(Other, Other, None)
assert not _native.reaches(other(2))
"""


def test_they_are_stepped_where_they_lie():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
