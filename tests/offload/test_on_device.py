"""Everything about offloaded steps, in processes that have a device which stands in for an accelerator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(HERE.parent), *filter(None, sys.path)])


NEWER = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="needs a newer PyTorch"
)


@NEWER
def test_offloaded_steps():
    """One process does all of it, because it takes seconds to start."""
    given = ["-q", "-x", "-p", "no:cacheprovider", "-p", "offload.stand_in", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *given, *map(str, sorted((HERE / "on_device").glob("check_*.py")))],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": PATHS, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@NEWER
@pytest.mark.slow
def test_offloaded_steps_of_sharded_parameters(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "offload.sharded", str(rank), "2", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
