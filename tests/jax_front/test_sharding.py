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
MOST = 900  # seconds that all checks together may take: a collective that nobody joins waits for ever


# One of each kind, with another optimizer and number of devices each time.
FAST = {
    "under_jit-Adafactor-4", "in_parts-Adafactor-8", "stays_where_it_is-Lars", "gathers_nothing-Lamb",
    "in_the_type-Lars", "keeps_its_types-Lars", "by_what_jax_knows-Lamb", "does_not_guess-Lars",
    "bits_of_parts", "stored-Lamb-4", "stored_in_parts-Lars-4",
}  # fmt: skip
assert CHECKS.keys() >= FAST


@pytest.fixture(scope="module")
def outcomes(request):
    """The host is told to stand for several devices before JAX starts, so in a process of its own."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    checks = [i.callspec.params["check"] for i in request.session.items if i.path == Path(__file__)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "jax_front.on_devices", *checks],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("check", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CHECKS])
def test_on_several_devices(check, outcomes):
    assert not outcomes[check], outcomes[check]
