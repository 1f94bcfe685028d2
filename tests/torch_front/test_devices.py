"""Devices that no engine has kernels for, as MPS and XPU are: the reference implementation steps them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils import backend_registration

from layerwise.catalog.registry import ENTRIES
from layerwise.torch.step import _engines

FAR = Path(__file__).with_name("far.py")


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="needs a newer PyTorch"
)
def test_all_optimizers_step_on_a_device_without_kernels():
    done = subprocess.run(
        [sys.executable, str(FAR), "elsewhere"],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [entry.name for entry in ENTRIES.values()]


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_kernels_are_for_no_such_device(device):
    from layerwise.engines.gpu import specialization

    assert device not in specialization.DEVICES
    with pytest.raises(_engines.EngineError, match=f"there are none for {device}"):
        _engines.check_device(_engines.FUSED, "w", device, SimpleNamespace(hyper=ENTRIES["Lamb"].hyper))
