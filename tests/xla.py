"""How XLA is asked to compile quickly, without caring how fast the result is, and how to compile as users do."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

QUICK = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    # Most of the time went into lowering each fusion through MLIR; LLVM's instructions can be written at once.
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}

# What XLA does where nothing is asked of it.
USUAL = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": 32,
}


def compiled(jitted: Any, *arguments: Any) -> Any:
    """Return the program of a jitted function for such arguments, in CI optimized as users have it."""
    lowered = jitted.lower(*arguments)
    if not os.environ.get("CI"):
        return lowered.compile()
    known = {flag.removeprefix("--").partition("=")[0] for flag in quick_flags()}
    return lowered.compile(compiler_options={flag: value for flag, value in USUAL.items() if flag in known})


@cache
def quick_flags() -> list[str]:
    """Return those of the flags that the installed XLA knows: one that it does not know would end the process."""
    spec = find_spec("jaxlib")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(next(iter(spec.submodule_search_locations)))
    known = {flag for library in _libraries(folder) for flag in QUICK if _contains(library, flag)}
    return [f"--{flag}={value}" for flag, value in QUICK.items() if flag in known]


def _libraries(folder: Path) -> Iterator[Path]:
    yield from (path for pattern in ("libjax_common.*", "xla_extension.*") for path in folder.glob(pattern))


def _contains(library: Path, flag: str) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(flag.encode() + b"\0") >= 0
