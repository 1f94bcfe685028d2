"""Where there is no GPU, kernels run in Triton's interpreter, on tensors in the machine's memory."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="kernels need Triton")


@pytest.fixture(autouse=True, scope="session")
def _faithful_interpreter():
    if torch.cuda.is_available():
        yield
        return
    from gpu.interpreting import faithfully

    with faithfully():
        yield
