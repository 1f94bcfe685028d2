"""What on_devices.py promises, where the host stands for eight devices: on one, sums are computed otherwise."""

import os
import subprocess
import sys
from pathlib import Path

from xla import quick_flags


def test_every_promise_is_kept_on_several_devices(request):
    flags = " ".join(["--xla_force_host_platform_device_count=8", *quick_flags()])
    marks = request.config.option.markexpr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).with_name("on_devices.py")]
        + (["-m", marks] if marks else []),
        env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
