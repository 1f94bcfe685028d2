"""The engines that step PyTorch's tensors, in order of preference."""

from __future__ import annotations

import os
from typing import Any

from layerwise import checks
from layerwise.engines import Candidate, Engine, choose, gpu, compiled
from layerwise.engines.rule import RuleEngine
from layerwise.errors import EngineError
from layerwise.torch import _tensors
from layerwise.torch._namespace import DifferentiableTensors, Tensors

# A step makes a dozen tensors of the size of what it works on. PyTorch returns those of large tensors to the system
# and asks for them anew, which costs more than the arithmetic; slices of this size it keeps.
SLICE = 1 << 19
# Up to this size the calls of a step cost more than its arithmetic.
STACK = 1 << 12
RULE = RuleEngine(Tensors(), SLICE, STACK)
GPU = gpu.candidate(RULE)
CPU = compiled.candidate(GPU.engine or RULE, _tensors.written, GPU.insisting)
ENGINES = (CPU, GPU, Candidate("rule", RULE))  # each leaves to the next what it does not take
KERNELS = {"cpu": CPU, "cuda": GPU, "xpu": GPU}
FUSED = "fused"
DIFFERENTIABLE = RuleEngine(DifferentiableTensors())


def set_bucket_size(elements: int) -> None:
    """How many elements of sharded tensors the rule steps side by side on one process; all have to say the same.

    It holds new moments for all of them while it waits for the others' sums: a bucket costs one all-reduce a round. The
    compiled engine holds none, and knows no buckets.
    """
    way_out = "Pass the elements that one process holds of a bucket, such as 2**27."
    RULE.bucket_size = int(checks.integer(1)("elements", elements, way_out))


def engine_name(fused: Any) -> str | None:
    """The name of the engine that `fused` asks for, if there is one."""
    checks.one_of(None, True, False)("fused", fused, "None takes the fastest engine, True insists on a fused one.")
    name: str | None = {None: None, True: FUSED, False: "rule"}[fused]
    engine_of(name, differentiable=False)
    return name


def check_fused(name: str, device: str) -> None:
    """Raise where there are no kernels for a parameter, which `fused=True` insists on."""
    row = KERNELS.get(device)
    interpreted = device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted or (row is not None and row.engine is not None):
        return
    reason = f"there are none for {device}" if row is None else row.declined
    raise EngineError(f"fused=True has no kernels for {name}: {reason}. Pass fused=None, which takes what there is.")


def engine_of(name: str | None, differentiable: bool) -> Engine:
    """The engine of that name, or the fastest there is."""
    if differentiable:
        return DIFFERENTIABLE
    if name != FUSED:
        return choose(name, ENGINES)
    kernels = [row for row in ENGINES if row.name != "rule"]
    there = next((row for row in kernels if row.engine is not None), kernels[0])
    return choose(there.name, ENGINES)
