"""Every kernel as it is compiled for GPUs and launched there: nothing spilled, and sixteen bytes moved at once where
tensors allow it. A launch that skips Triton's search is given what Triton gave the first one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import KERNELED

# Some minutes of compiling; otherwise float32 and usual options are compiled.
EVERYTHING = os.environ.get("LAYERWISE_TEST_ALL")
ROOT = Path(__file__).resolve().parents[2]


def compiled(target, extent):
    """The kernels, and the launches of the optimizers."""
    env = {key: x for key, x in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "tests"), env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "gpu.compiling", target, extent]
    told = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=600)
    assert told.returncode == 0, told.stderr
    found = [json.loads(line) for line in told.stdout.splitlines()]
    kernels, launches = [x for x in found if "kernel" in x], [x for x in found if "steps" in x]
    named = {"Lamb", "Lars", "Adafactor"} if extent == "formats" else {case.name for case in KERNELED}
    programs = " ".join(str(one["flags"].get("APPLY")) for one in kernels)
    assert all(f"printed.{name.lower()}:" in programs for name in named)
    phases = {(phase, tiles) for phase in ("passes.measure", "passes.apply") for tiles in ("True", "False")}
    assert phases <= {(one["kernel"], one["flags"].get("LINES")) for one in kernels}
    return kernels, launches


def check_for_nvidia(kernels):
    for one in kernels:
        # Where tiles, sums in float64 or float16's formats take many registers, the assembler puts a few numbers aside.
        flags = one["flags"]
        many = flags.get("LINES") == "True" or one["kernel"] == "passes.measure"
        many = many or (flags.get("PARAM") == "fp16" and flags["FORMATS"] != "0")
        assert one["stack"] <= (32 if many else 0), one
        assert not one["flushed"], one  # √v of a v below 1e-38 is not 0
        assert one["local"] == 0, one
        wide = sum(n for kind, n in one["memory"].items() if ".v2.b64" in kind or ".v4.b32" in kind)
        assert bool(wide) == (one["flags"].get("ALIGNED") == "True"), one


def test_kernels_and_their_launches_for_nvidia():
    kernels, launches = compiled("sm_90", "few")
    check_for_nvidia(kernels)
    assert {one["kernel"].partition(".")[0] for one in kernels} == {"passes", "statistics"}
    assert {one["optimizer"] for one in launches} == {case.name for case in KERNELED}
    for one in launches:
        first, again = one["steps"]
        assert first["given"] == again["given"] != [], one["optimizer"]
        assert first["searched"]
        assert not again["searched"]


@pytest.mark.slow
@pytest.mark.repeats
@pytest.mark.parametrize("target", ["sm_90", "sm_80"])
@pytest.mark.parametrize("extent", ["formats", *(["all"] if EVERYTHING else [])])
def test_more_kernels_for_nvidia(target, extent):
    check_for_nvidia(compiled(target, extent)[0])


@pytest.mark.slow
@pytest.mark.repeats
def test_kernels_for_amd():
    for one in compiled("gfx942", "all" if EVERYTHING else "few")[0]:
        assert [one[name] for name in ("vgpr_spill_count", "private_segment_fixed_size")] == [0, 0], one
        assert one["sgpr_spill_count"] <= 8, one  # of what all lanes share, in one kernel of unusual dtypes
