"""What commands set for their process is put back."""

from __future__ import annotations

import pytest

import layerwise


@pytest.fixture
def threads():
    torch = pytest.importorskip("torch")
    ours, theirs = layerwise.get_num_threads(), torch.get_num_threads()
    yield
    layerwise.set_num_threads(ours)
    torch.set_num_threads(theirs)
