"""Compiles what steps launch, for GPUs that need not be here, and prints what became of it: JSON, a line a kernel.

It is a program because Triton decides when it is imported whether it compiles or interprets. Jobs lie in the machine's
memory; every launch is compiled for the target instead.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from cases import KERNELED
from engines.worlds import WORLDS, Stepping, make_job, mapped
from gpu.storing import FORMS, gradient_of, now_of, stored_job
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from layerwise.engines.gpu import engine

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
STATED = ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
OPTIONS: list[dict[str, Any]] = [{}, {"max_grad_norm": 0.5}]
DTYPES = [("float32",) * 3, ("bfloat16", "bfloat16", "float32"), ("float64",) * 3, ("float16", "float16", "bfloat16")]
BLOCKS = [
    ((), (300, 72)),
    ((), (300, 71)),
    ((0,), (5, 16, 48)),
    ((), (24, 16, 3, 3)),
    ((), (24, 16, 1, 1)),
    ((), (300,)),
]


class Elsewhere:
    """Stands for a driver of the target."""

    def __init__(self, target: GPUTarget) -> None:
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device=None: 0


IN_FORMATS = {"Lamb": FORMS, "Lars": FORMS[:2], "Adafactor": FORMS[:2]}
STORED = [(320, 128), (300, 71), (300,)]


def compiled(target: GPUTarget, extent: str) -> dict[Any, Any]:
    driver.set_active(Elsewhere(target))
    found: dict[Any, Any] = {}
    run = jit.JITFunction.run

    def noted(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        flags = {key: str(x) for key, x in kwargs.items() if key.isupper()}
        found[kernel.hash] = (f"{self.__module__.rsplit('.')[-1]}.{self.__name__}", flags, kernel)
        return kernel

    jit.JITFunction.run = noted
    engine.DEVICES = ("cpu",)
    for case in KERNELED:
        if extent != "formats":
            plain(case, 1 if extent == "few" else None)
        elif case.name in IN_FORMATS:
            in_formats(case)
    return found


def plain(case: Any, few: int | None) -> None:
    for options in OPTIONS[:few]:
        for dtypes in DTYPES[:few]:
            h = case.hyper(**{name: x for name, x in options.items() if name in case.options})
            jobs = [make_job(case, h, s, b, 0, dtypes) for b, s in BLOCKS]
            Stepping(engine.GpuEngine(None)).step([mapped(job, WORLDS[1].array) for job in jobs])


def in_formats(case: Any) -> None:
    """Compile steps of tensors in formats. Rules call the same functions for them, so a few are enough."""
    for form in IN_FORMATS[case.name]:
        jobs = [stored_job(case, shape, form) for shape in STORED]
        jobs = [job for job in jobs if not engine.declined(job)]
        grads, nows = [gradient_of(job, 1) for job in jobs], [now_of(job, 1, 1) for job in jobs]
        engine.GpuEngine(None).prepare(jobs).step(grads, nows)


def report(found: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for name, flags, kernel in found.values():
        one = {"kernel": name, "flags": flags}
        if "ptx" in kernel.asm:
            one["memory"] = Counter(re.findall(r"((?:ld|st)\.global[.:\w]*)", kernel.asm["ptx"]))
            one["flushed"] = Counter(re.findall(r"\b(\w+(?:\.\w+)*\.ftz[.\w]*)", kernel.asm["ptx"]))
            one["local"] = len(re.findall(r"(?:ld|st)\.local", kernel.asm["ptx"]))
            one |= resources(kernel.asm["cubin"])
        if "amdgcn" in kernel.asm:
            one |= {name: stated(name, kernel.asm["amdgcn"]) for name in STATED}
        yield one


def stated(name: str, assembly: str) -> int:
    """What its metadata says."""
    [number] = re.findall(rf"^\s*\.{name}:\s*(\d+)$", assembly, re.MULTILINE)
    return int(number)


def resources(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    [(registers, stack)] = re.findall(r"REG:(\d+) STACK:(\d+)", told.stdout)
    return {"registers": int(registers), "stack": int(stack)}


if __name__ == "__main__":
    for line in report(compiled(TARGETS[sys.argv[1]], sys.argv[2])):
        print(json.dumps(line))
