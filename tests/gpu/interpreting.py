"""Triton's interpreter, made to round as GPUs do, and fit for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Builder, Function = interpreter.InterpreterBuilder, interpreter.InterpretedFunction


@contextmanager
def faithfully() -> Iterator[None]:
    """It rounds float32 to bfloat16, rather than to cut digits off, and takes one kernel at a time."""
    patched: set[int] = set()
    cast, run, call, lock = Builder.cast_impl, Function.run, Function.__call__, threading.RLock()

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

    # How it writes bound conversions down differs between versions.
    with (
        patch.object(Builder, "create_fp_trunc", rounded),
        patch.object(Builder, "cast_impl", rounded),
        patch.object(Function, "run", alone),
        patch.object(Function, "__call__", quickly),
    ):
        yield
