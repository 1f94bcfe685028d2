"""Every kernel as it is compiled for GPUs: nothing spilled, and sixteen bytes moved at once where tensors allow it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import KERNELED

# Some minutes of compiling; otherwise float32 and usual options are compiled.
EXTENT = "all" if os.environ.get("LAYERWISE_TEST_ALL") else "few"
ROOT = Path(__file__).resolve().parents[2]


def compiled(*args):
    return printed("gpu.compiling", *args)


def printed(program, *args):
    env = {key: x for key, x in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "tests"), env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", program, *args]
    told = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=600)
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def all_phases(kernels, extent):
    names = {one["kernel"] for one in kernels}
    own = {f"{module}.{phase}" for module in ("passes", "planes") for phase in ("measure", "apply")}
    programs = {one["flags"].get("APPLY") for one in kernels}
    return own <= names and all(
        any(f"printed.{case.name.lower()}:" in str(name) for name in programs)
        for case in KERNELED
        if extent != "formats" or case.name in ("Lamb", "Lars", "Adafactor")
    )


@pytest.mark.parametrize("target", ["sm_90", "sm_80"] if EXTENT == "all" else ["sm_90"])
def test_for_nvidia(target):
    check_for_nvidia(target, EXTENT)


@pytest.mark.slow
def test_formats_for_nvidia():
    check_for_nvidia("sm_90", "formats")


def check_for_nvidia(target, extent):
    kernels = compiled(target, extent)
    assert all_phases(kernels, extent)
    for one in kernels:
        # Where tiles, or sums in float64, take many registers, the assembler puts a few numbers aside.
        many = one["kernel"].startswith("planes.") or one["kernel"].endswith(".measure")
        assert one["stack"] <= (32 if many else 0), one
        assert not one["flushed"], one  # √v of a v below 1e-38 is not 0
        assert one["local"] == 0, one
        wide = sum(n for kind, n in one["memory"].items() if ".v2.b64" in kind or ".v4.b32" in kind)
        assert bool(wide) == (one["flags"].get("ALIGNED") == "True" or int(one["flags"].get("VECTOR", 1)) > 1), one


@pytest.mark.slow
def test_for_amd():
    kernels = compiled("gfx942", EXTENT)
    assert all_phases(kernels, EXTENT)
    for one in kernels:
        assert [one[name] for name in ("vgpr_spill_count", "private_segment_fixed_size")] == [0, 0], one
        assert one["sgpr_spill_count"] <= 8, one  # of what all lanes share, in one kernel of unusual dtypes
