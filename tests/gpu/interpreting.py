"""Triton's interpreter, made to round as GPUs do, and fast enough for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Builder, Function = interpreter.InterpreterBuilder, interpreter.InterpretedFunction


@contextmanager
def faithfully() -> Iterator[None]:
    """Let the interpreter round float32 to bfloat16, rather than cut digits off, and run one kernel at a time."""
    patched: set[int] = set()
    cast, run, call, lock = Builder.cast_impl, Function.run, Function.__call__, threading.RLock()
    binary = Builder.binary_op

    def rounded(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
            return interpreter.TensorHandle(src.data.astype(ml_dtypes.bfloat16).view(np.uint16), tl.bfloat16)
        if src.dtype.scalar == tl.bfloat16 and dst_type.scalar == tl.float32:  # also below the least normal number
            return interpreter.TensorHandle((src.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        return cast(self, src, dst_type)

    def typed(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        """Triton 3.9 would fill a mask with numbers of the dtype that was compared, and then refuse it."""
        found = binary(self, lhs, rhs, op)
        return interpreter.TensorHandle(found.data, tl.int1) if found.data.dtype == np.bool_ else found

    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock, np.errstate(over="ignore"):  # infinity, where a dtype ends
            patched.clear()
            return run(self, *args, **kwargs)

    def quickly(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Patch the language once for each module and launch, and not at every call of a function."""
        if id(self.fn.__globals__) in patched:
            return self.rewrite()(*args, **kwargs)
        patched.add(id(self.fn.__globals__))
        return call(self, *args, **kwargs)

    # How it writes bound conversions down differs between versions.
    with (
        patch.object(Builder, "create_fp_trunc", rounded),
        patch.object(Builder, "cast_impl", rounded),
        patch.object(Builder, "binary_op", typed),
        patch.object(Function, "run", alone),
        patch.object(Function, "__call__", quickly),
        remembering(),
    ):
        yield


@contextmanager
def remembering() -> Iterator[None]:
    """Let the interpreter look up what it computes at every operation, where most of its time goes."""
    dtypes: dict[str, Any] = {}
    shapes: dict[tuple[int, ...], Any] = {}
    types: dict[Any, dict[str, Any]] = {}
    dtype_of, tensor, block = interpreter._get_np_dtype, tl.tensor.__init__, tl.block_type.__init__
    options = interpreter.interpreter_builder.options

    def known_dtype(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = dtype_of(kind)
        return dtypes[name]

    def known_shape(self: Any, handle: Any, kind: Any) -> None:
        key = tuple(kind.shape.values) if kind.is_block() else ()
        if key not in shapes:
            tensor(self, handle, kind)
            shapes[key] = self.numel, self.shape
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.numel, self.shape = shapes[key]

    def known_type(self: Any, element: Any, shape: Any) -> None:
        key = element.name, *(getattr(n, "value", n) for n in shape)
        if key not in types:
            block(self, element, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key])

    with (
        patch.object(interpreter, "_get_np_dtype", known_dtype),
        patch.object(interpreter.TensorHandle, "__post_init__", lambda self: None),
        patch.object(tl.tensor, "__init__", known_shape),
        patch.object(tl.block_type, "__init__", known_type),
        # It would check each operation on 32 bits for overflow, by eight others; no tensor here has so many elements.
        patch.object(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False)),
    ):
        yield
