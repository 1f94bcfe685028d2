"""Launches of compiled kernels that are kept: Triton takes longer to find one again than to launch it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import triton
from torch import Tensor
from triton.compiler import CompiledKernel

RUN = triton.JITFunction.run


class Kernels:
    """Kernels with their compiled versions for some constants and alignments.

    `kernels[kernel, programs](…)` launches like `kernel[(programs,)](…)`. That returns its compiled kernel, and
    `compiled[grid](…)` launches it again, with all arguments in the order of the signature, as in Triton's tutorials.
    Arguments of one kernel always have the same dtypes.
    """

    def __init__(self) -> None:
        self._compiled: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, launch: tuple[Any, int]) -> Callable[..., None]:
        return partial(self._launch, *launch)

    def _launch(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        """Launch so many programs; `args` are the arguments but for the kernel's constants."""
        alignment = [x.data_ptr() % 16 == 0 for x in args if isinstance(x, Tensor)]
        key = id(kernel), *options.values(), *alignment
        known = self._compiled.get(key)
        if known is not None and triton.JITFunction.run is RUN:  # else somebody looks at all launches
            compiled, constants = known
            compiled[programs, 1, 1](*args, *constants)
            return
        compiled = kernel[(programs,)](*args, **options)
        if isinstance(compiled, CompiledKernel):
            self._compiled[key] = compiled, tuple(options[name] for name in kernel.arg_names[len(args) :])
