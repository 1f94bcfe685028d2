"""Every kernel as it is compiled for GPUs: nothing spilled, and sixteen bytes moved at once where tensors allow it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def compiled(*args):
    env = {key: x for key, x in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "tests"), env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "gpu.compiling", *args]
    told = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=600)
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


@pytest.mark.heavy
def test_for_hopper():
    kernels = compiled("sm_90")
    names = {one["kernel"] for one in kernels}
    assert {"lamb.measure", "lamb.apply", "lars.measure", "lars.apply", "parts.square"} <= names
    for one in kernels:
        assert one["stack"] == one["local"] == 0, one
        wide = sum(n for kind, n in one["memory"].items() if ".v2.b64" in kind or ".v4.b32" in kind)
        assert bool(wide) == (one["flags"].get("ALIGNED") == "True"), one


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_for_others(target):
    assert len(compiled(target, "--few")) > 8
