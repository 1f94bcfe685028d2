"""Parameters on several devices: one device's numbers, and nothing moved that need not be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jax_front.front import NAMES
from jax_front.on_devices import ALONE, KINDS, OF_PARTS, SLOW

TESTS = Path(__file__).parent.parent
MOST = 900  # seconds that all checks together may take: a collective that nobody joins waits for ever


@pytest.fixture(scope="module")
def outcomes(request):
    """The host is told to stand for several devices before JAX starts, so in a process of its own."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    given = [i.callspec for i in request.session.items if i.path == Path(__file__)]
    checks = [" ".join(one.params[key] for key in ("check", "kind", "name") if key in one.params) for one in given]
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


def marks(kind):
    if kind in OF_PARTS:
        return [pytest.mark.kinds("rows and columns", "factored", "numbers of a layer")]
    return [pytest.mark.slow] if kind in SLOW else []


@pytest.mark.thinned(1, 2)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in KINDS])
@pytest.mark.parametrize("name", NAMES)
def test_on_several_devices(kind, name, outcomes):
    assert not outcomes[f"{kind} {name}"], outcomes[f"{kind} {name}"]


@pytest.mark.parametrize("check", ALONE)
def test_alone(check, outcomes):
    assert not outcomes[check], outcomes[check]
