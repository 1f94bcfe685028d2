"""Counts the bytes that steps move, and times the host's part; prints JSON, a line for each optimizer and format.

Launches of a step of one matrix are executed. A byte counts once for each program that reads or writes it, as if caches
kept it while the program runs, and no longer. Then ten matrices are stepped with launches that do nothing.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from gpu.executed.executing import Executor, execute, use

import layerwise.torch
from layerwise.engines.gpu import GpuEngine

SHAPE = (256, 512)
WARM, TIMED = 5, 50
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "Lamb": {},
    "Lars": {},
    "Adafactor": {"scale_parameter": True},
    "Adafactor with momentum": {"scale_parameter": True, "beta1": 0.9},
    "Lans": {},
    "StableAdamW": {},
    "AdamW": {},
    "AdamMini": {},
    "NovoGrad": {},
    "Lion": {},
    "SGD": {"momentum": 0.9},
}
DRAWN, SPLIT, SPLIT24 = {"rounding": "stochastic"}, {"master_weights": "split"}, {"master_weights": "split24"}
EIGHT = {"state_dtype": "int8"}
FORMATS: Mapping[str, tuple[torch.dtype, Mapping[str, Any]]] = {
    "float32": (torch.float32, {}),
    "float32, 8-bit state": (torch.float32, EIGHT),
    "bfloat16": (torch.bfloat16, {}),
    "bfloat16 and state, drawn": (torch.bfloat16, {**DRAWN, "state_dtype": "bfloat16"}),
    "split": (torch.bfloat16, SPLIT),
    "split, 8-bit state": (torch.bfloat16, {**SPLIT, **EIGHT}),
    "split24, 8-bit state": (torch.bfloat16, {**SPLIT24, **EIGHT}),
}


def optimizer_of(name: str, label: str, matrices: int) -> Any:
    torch.manual_seed(0)
    front, (dtype, options) = getattr(layerwise.torch, name.partition(" ")[0]), FORMATS[label]
    params = [torch.nn.Parameter(torch.randn(SHAPE).to(dtype)) for _ in range(matrices)]
    for p in params:
        p.grad = torch.randn(SHAPE).to(dtype)
    return front(params, lr=1e-3, fused=True, **OPTIMIZERS[name], **options)


def counted(executor: Executor, name: str, label: str) -> dict[str, Any]:
    """Execute the first step of one matrix, and return its bytes for each parameter."""
    executor.begin()
    optimizer_of(name, label, 1).step()
    n, launches = torch.Size(SHAPE).numel(), list(executor.launches)
    return {
        "optimizer": name,
        "format": label,
        "launches": len(launches),
        "read": sum(one.read for one in launches) / n,
        "written": sum(one.written for one in launches) / n,
        "each": {f"{i} {one.kernel}": [one.read / n, one.written / n] for i, one in enumerate(launches)},
    }


def host(executor: Executor, name: str, label: str) -> float:
    """Return the processor's microseconds for a step whose launches do nothing."""
    optimizer, times = optimizer_of(name, label, 10), []
    executor.recorded = []
    try:
        for _ in range(WARM + TIMED):
            executor.recorded.clear()
            start = time.process_time()
            optimizer.step()
            times.append(time.process_time() - start)
    finally:
        executor.recorded = None
    return 1e6 * median(times[WARM:])


def main(optimizers: list[str]) -> None:
    warnings.simplefilter("ignore")  # of weights that hardly move: here nobody trains
    torch.set_num_threads(1)
    executor = execute()
    use(GpuEngine())
    for name in optimizers or OPTIMIZERS:
        for label in FORMATS:
            row = {**counted(executor, name, label), "host_us": host(executor, name, label)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
