"""The record of what a kernel is compiled for, by which Triton tells compiled kernels apart, also on disk."""

from __future__ import annotations

from types import SimpleNamespace

import triton.language as tl

from layerwise.engines.gpu import launch
from layerwise.engines.gpu.launch import KernelConstants


def test_kernels_are_known_by_all_that_they_read_as_constants(monkeypatch):
    first, second = (SimpleNamespace(cache_key=text) for text in ("its text", "another text"))
    of = {"STATES": 2, "READY": True, "PARAM": tl.float32, "APPLY": first}
    known = KernelConstants(**of)
    assert known == KernelConstants(**of)
    assert hash(known) == hash(KernelConstants(**of))
    assert str(known) == known.cache_key
    for name, other in {"STATES": 3, "READY": False, "PARAM": tl.float64, "APPLY": second}.items():
        assert known != KernelConstants(**of | {name: other})
    monkeypatch.setattr(launch, "COLUMNS", launch.COLUMNS[:-1])
    assert known.cache_key != KernelConstants(**of).cache_key
