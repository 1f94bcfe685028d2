"""Where there is no GPU, kernels run in Triton's interpreter, on tensors in the machine's memory."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported anywhere

pytest.importorskip("triton", reason="kernels need Triton")


@pytest.fixture(autouse=True, scope="session")
def _faithful_interpreter():
    """The interpreter rounds float32 to bfloat16 as GPUs do, and takes one kernel at a time."""
    if torch.cuda.is_available():
        yield
        return
    import ml_dtypes
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    function, patched = interpreter.InterpretedFunction, set()
    cast, run, call, lock = interpreter.InterpreterBuilder.cast_impl, function.run, function.__call__, threading.RLock()

    def rounded(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return interpreter.TensorHandle(src.data.astype(ml_dtypes.bfloat16).view(np.uint16), tl.bfloat16)
        return cast(self, src, dst_type)

    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock, np.errstate(over="ignore"):  # infinity, where a dtype ends
            patched.clear()
            return run(self, *args, **kwargs)

    def quickly(self: Any, *args: Any, **kwargs: Any) -> Any:
        """It changes the language at every call of a function; once for each module and launch is enough."""
        if id(self.fn.__globals__) in patched:
            return self.rewrite()(*args, **kwargs)
        patched.add(id(self.fn.__globals__))
        return call(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        # How it writes bound conversions down differs between versions.
        for name in ("create_fp_trunc", "cast_impl"):
            patch.setattr(interpreter.InterpreterBuilder, name, rounded)
        patch.setattr(function, "run", alone)
        patch.setattr(function, "__call__", quickly)
        yield
