"""layerwise.keras on its backends, each in a process of its own: Keras takes one when it is first imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from xla import quick_flags

pytestmark = pytest.mark.slow
PROMISES = Path(__file__).with_name("promises.py")


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_every_promise_is_kept_on(backend):
    if find_spec("keras") is None:
        pytest.skip("needs keras")
    own = {
        "XLA_FLAGS": " ".join(["--xla_force_host_platform_device_count=2", *quick_flags()]),
        "KERAS_BACKEND": backend,
        "JAX_ENABLE_X64": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", PROMISES],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
