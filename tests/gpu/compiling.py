"""Compiles and launches what steps launch, for GPUs that need not be here, and prints it: JSON, a line for each kernel,
and one for each optimizer's launches.

It is a program because Triton decides when it is imported whether it compiles or interprets. Jobs lie in the machine's
memory. The driver of the target launches nothing and notes with what it was asked to.
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

import torch
import triton
from cases import KERNELED
from engines.worlds import WORLDS, Stepping, make_job, mapped
from gpu.storing import FORMS, gradient_of, now_of, stored_job
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from layerwise import engines
from layerwise.engines.gpu import GpuEngine, launch, specialization

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
    """Stands for a driver of the target, with a device on which any kernel fits."""

    def __init__(self, target: GPUTarget) -> None:
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device=None: 0
        self.utils = self
        self.launched: list[Any] = []

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return 1, 2, 32, 0, 1024

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 20}

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        return lambda *args: self.launched.append([metadata.name, *map(given, args)])


def given(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    return type(x).__name__ if type(x).__name__ == "LazyDict" else str(x)  # of hooks, for each launch


LAUNCHED = ("Lamb", "Adafactor")
IN_FORMATS = {"Lamb": FORMS, "Lars": FORMS[:2], "Adafactor": FORMS[:2]}
STORED = [(320, 128), (300, 71), (300,)]


def main(target: GPUTarget, extent: str) -> Iterator[dict[str, Any]]:
    device, found, searched, run = Elsewhere(target), {}, [], jit.JITFunction.run
    driver.set_active(device)

    def noted(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=extent != "few", **kwargs)
        flags = {key: str(x) for key, x in args[-1].given.items()}
        found[kernel.hash] = (f"{self.__module__.rsplit('.')[-1]}.{self.__name__}", flags, kernel)
        searched.append(kernel)
        return kernel

    jit.JITFunction.run = noted
    specialization.DEVICES = ("cpu",)
    for case in KERNELED:
        if extent == "all":
            plain(case)
        elif extent == "formats":
            in_formats(case) if case.name in IN_FORMATS else None
        else:
            launch.RUN = noted  # or it takes the tests for somebody who looks at all launches
            yield from launches(case, device, searched)
    for name, flags, kernel in found.values():
        yield {"kernel": name, "flags": flags} | resources(kernel.asm)


def plain(case: Any) -> None:
    for options in OPTIONS:
        for dtypes in DTYPES:
            h = case.hyper(**{name: x for name, x in options.items() if name in case.options})
            jobs = [make_job(case, h, s, b, 0, dtypes) for b, s in BLOCKS]
            Stepping(GpuEngine()).step([mapped(job, WORLDS[1].array) for job in jobs])


def launches(case: Any, device: Elsewhere, searched: list[Any]) -> Iterator[dict[str, Any]]:
    """Step twice without anything that may skip steps, and twice with each of two such numbers, one of them aligned."""
    jobs = [mapped(make_job(case, case.hyper(), s, b, 0), WORLDS[1].array) for b, s in BLOCKS]
    ready = GpuEngine().prepare([engines.Job(j.rule, j.h, j.p, j.state, j.block_dims) for j in jobs])
    skips = torch.zeros(32, dtype=torch.bool)
    for skip in (None, skips[0], skips[1])[: 3 if case.name in LAUNCHED else 1]:
        found = []
        for _ in range(2):
            device.launched, before = [], len(searched)
            ready.step([j.g for j in jobs], [j.now for j in jobs], skip)
            found.append({"given": device.launched, "searched": len(searched) - before})
        yield {"optimizer": case.name, "steps": found}


def in_formats(case: Any) -> None:
    """Compile steps of tensors in formats. Rules call the same functions for them, so a few are enough."""
    for form in IN_FORMATS[case.name]:
        jobs = [stored_job(case, shape, form) for shape in STORED]
        jobs = [job for job in jobs if not specialization.why_declined(job)]
        grads, nows = [gradient_of(job, 1) for job in jobs], [now_of(job, 1, 1) for job in jobs]
        GpuEngine().prepare(jobs).step(grads, nows)


def stated(name: str, assembly: str) -> int:
    """What its metadata says."""
    [number] = re.findall(rf"^\s*\.{name}:\s*(\d+)$", assembly, re.MULTILINE)
    return int(number)


def resources(asm: Any) -> dict[str, Any]:
    """What a kernel moves at once, and what it puts aside for want of registers."""
    if "amdgcn" in asm:
        return {name: stated(name, asm["amdgcn"]) for name in STATED}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        told = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    [(registers, stack)] = re.findall(r"REG:(\d+) STACK:(\d+)", told.stdout)
    return {
        "memory": Counter(re.findall(r"((?:ld|st)\.global[.:\w]*)", asm["ptx"])),
        "flushed": Counter(re.findall(r"\b(\w+(?:\.\w+)*\.ftz[.\w]*)", asm["ptx"])),
        "local": len(re.findall(r"(?:ld|st)\.local", asm["ptx"])),
        "registers": int(registers),
        "stack": int(stack),
    }


if __name__ == "__main__":
    for line in main(TARGETS[sys.argv[1]], sys.argv[2]):
        print(json.dumps(line))
