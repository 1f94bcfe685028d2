"""Reports say which engine is available, why others are not, and how many threads it has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from layerwise.engines import Candidate, choose_engines, compiled, processor
from layerwise.errors import EngineError


def test_without_the_extension_the_rule_serves(monkeypatch):
    monkeypatch.setattr(compiled, "_native", None)
    monkeypatch.setitem(sys.modules, "layerwise._native", None)
    monkeypatch.delattr("layerwise._native", raising=False)
    row = compiled.candidate(Served())
    assert row.engine is None
    assert row.declined.startswith("the compiled extension cannot be imported (")
    table = (row, Candidate("rule", Served()))
    assert choose_engines(None, table) == (table[1].engine,)
    with pytest.raises(EngineError, match="cannot be imported"):
        choose_engines("compiled", table)


def test_a_wheel_without_the_extension_says_what_it_is(monkeypatch, tmp_path):
    package = tmp_path / "layerwise"
    (package / "engines").mkdir(parents=True)
    (package / "_native.pyi").touch()
    monkeypatch.setitem(sys.modules, "layerwise._native", None)
    monkeypatch.delattr("layerwise._native", raising=False)
    monkeypatch.setattr(compiled, "__file__", str(package / "engines" / "compiled.py"))
    assert compiled.reason_missing() == compiled.PURE
    (package / "_native.cpython-310.so").touch()
    assert compiled.reason_missing().startswith("the compiled extension cannot be imported (")


class Served:
    def step(self, jobs):
        return [{} for _ in jobs]


def groups(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    membership = root / "membership"
    membership.write_text("5:memory:/x\n0::/a/b\n")
    return membership


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu_dot_max": "max 100000\n"}, None),
        ({"a__b__cpu_dot_max": "150000 100000\n"}, 1.5),
        ({"a__cpu_dot_max": "100000 100000\n", "a__b__cpu_dot_max": "300000 100000\n"}, 1.0),
        ({"a__b__cpu_dot_max": "nonsense\n"}, None),
    ],
)
def test_quota_of_control_groups(files, quota, tmp_path):
    assert processor.cgroup_quota(tmp_path, groups(tmp_path, **files)) == quota


@pytest.mark.parametrize(("quota", "count"), [(0.5, 1), (1.5, 2), (None, 3)])
def test_there_are_no_more_threads_than_the_quota_pays_for(quota, count, monkeypatch):
    """Part of a processor's time is worth a thread."""
    monkeypatch.setattr(processor, "cgroup_quota", lambda: quota)
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    assert processor.available_processors() == count
