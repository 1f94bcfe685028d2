"""Where there is no GPU, kernels run in Triton's interpreter, on tensors in the machine's memory."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported anywhere

pytest.importorskip("triton", reason="kernels need Triton")


@pytest.fixture(autouse=True, scope="session")
def _faithful_interpreter():
    if torch.cuda.is_available():
        yield
        return
    from gpu.interpreting import faithfully

    with faithfully():
        yield
