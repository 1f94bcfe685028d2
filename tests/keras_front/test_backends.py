"""layerwise.keras on its backends, each in a process of its own: Keras takes one when it is first imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from xla import quick_flags

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_backend(backend):
    if find_spec("keras") is None:
        pytest.skip("needs keras")
    paths = os.pathsep.join([*sys.path, str(HERE.parent)])
    flags = ["--xla_force_host_platform_device_count=2", *quick_flags()]
    own = {
        "XLA_FLAGS": " ".join(flags),
        "KERAS_BACKEND": backend,
        "JAX_ENABLE_X64": "1",
        "PYTHONPATH": paths,
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, HERE / "checks.py"], env={**os.environ, **own}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "check_errors" in done.stdout
