"""Cached launches of compiled kernels: Triton takes longer to find one again than to launch it."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from hashlib import sha256
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.compiler import CompiledKernel

from layerwise.engines.gpu.kernels import formats, tables

RUN = triton.JITFunction.run
# Triton does not see for itself which of these a kernel was compiled with.
COLUMNS = [(name, x.value) for of in (tables, formats) for name, x in vars(of).items() if isinstance(x, tl.constexpr)]


class KernelConstants:
    """The properties for which a kernel is compiled: dtypes, functions and numbers, which it reads as attributes.

    Triton knows equal ones by their `cache_key`, also on disk, and by their text.
    """

    def __init__(self, **given: object) -> None:
        self.given = given
        for name, x in given.items():
            setattr(self, name, tl.constexpr(x) if type(x) is int else x)

    @cached_property
    def cache_key(self) -> str:
        known = [(name, getattr(x, "cache_key", x)) for name, x in self.given.items()]
        return sha256(f"{known} {COLUMNS}".encode()).hexdigest()

    def __repr__(self) -> str:
        return self.cache_key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelConstants) and self.cache_key == other.cache_key

    def __hash__(self) -> int:
        return hash(self.cache_key)


class Kernels:
    """Kernels with their compiled versions for some constants and alignments.

    `launch(kernel, programs, …)` is like `kernel[(programs,)](…)`. That returns its compiled kernel, and
    `compiled[grid](…)` launches it again, with all arguments in the order of the signature, as in Triton's tutorials.
    Arguments of one kernel always have the same dtypes; the last one is the record of its constants.
    """

    def __init__(self) -> None:
        self._compiled: dict[Hashable, tuple[Any, KernelConstants]] = {}

    def launch(
        self, kernel: triton.JITFunction, programs: int, *args: object, num_warps: int = 4, **constants: object
    ) -> None:
        """Launch this many programs."""
        alignment = [x.data_ptr() % 16 == 0 for x in args if isinstance(x, Tensor)]
        key = id(kernel), *constants.values(), *alignment
        known = self._compiled.get(key)
        if known is not None and triton.JITFunction.run is RUN:  # otherwise a launch hook (a profiler) is installed
            compiled, of = known
            compiled[programs, 1, 1](*args, of)
            return
        of = KernelConstants(**constants)
        compiled = kernel[(programs,)](*args, of, num_warps=num_warps)
        if isinstance(compiled, CompiledKernel):
            self._compiled[key] = compiled, of
