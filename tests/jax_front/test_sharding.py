"""Parameters on several devices: one device's numbers, and nothing moved that need not be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jax_front.on_devices import CHECKS

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def outcomes():
    """The host is told to stand for several devices before JAX starts, so in a process of its own."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "jax_front.on_devices"],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("check", CHECKS)
def test_on_several_devices(check, outcomes):
    assert not outcomes[check], outcomes[check]
