"""The engines that step PyTorch's tensors, in order of preference."""

from __future__ import annotations

import os
from typing import Any

from torch.autograd.graph import increment_version

from layerwise import checks
from layerwise.engines import Candidate, Engine, choose, compiled, gpu, insisting
from layerwise.engines.rule import RuleEngine
from layerwise.errors import ContradictionError, EngineError, sentence
from layerwise.torch.step._namespace import LIBRARY, DifferentiableTensors

# A step makes a dozen tensors of the size of what it works on. PyTorch returns those of large tensors to the system
# and requests them again, which costs more than the arithmetic; slices of this size it keeps.
SLICE = 1 << 19
# Up to this size the calls of a step cost more than its arithmetic.
STACK = 1 << 12
MATRIX = 1 << 15  # the same of products
RULE = RuleEngine(LIBRARY, SLICE, STACK, matrix_size=MATRIX)
GPU = gpu.candidate(RULE)
COMPILED = compiled.candidate(increment_version)
ENGINES = (COMPILED, GPU, Candidate("rule", RULE))
KERNELS = {"cpu": COMPILED, "cuda": GPU}  # as the GPU engine takes no other device
FUSED = "fused"
DIFFERENTIABLE = RuleEngine(DifferentiableTensors())


def set_bucket_size(elements: int) -> None:
    """Set how many elements of sharded tensors the reference implementation steps at once.

    All processes must set the same. It holds new moments for that many elements while their sums are exchanged. More
    elements go in buckets, each of which costs one all-reduce a round. The compiled engine has no buckets.

    Args:
        elements: The number of elements on one process.
    """
    way_out = "Pass the elements that one process holds of a bucket, such as 2**27."
    RULE.bucket_size = int(checks.integer(1)("elements", elements, way_out))


def engine_name(fused: Any, differentiable: Any = False) -> str | None:
    """Return the name of the engine that these options require, or None."""
    checks.one_of(None, True, False)("fused", fused, "None picks the fastest engine, True requires a fused one.")
    if fused is True and differentiable is True:
        why = "Kernels are not differentiated through."
        raise ContradictionError(sentence("fused", "None or False when differentiable=True", True, why))
    name = {None: None, True: FUSED, False: "rule"}[fused]
    engines_of(name, differentiable=False)
    return name


def check_device(engine: str | None, name: str, device: str) -> None:
    """Raise if the required engine cannot step a parameter on this kind of device."""
    if engine == FUSED:
        _check_fused(name, device)


def _check_fused(name: str, device: str) -> None:
    """Raise if `fused=True` requires kernels that a parameter does not have."""
    row = KERNELS.get(device)
    interpreted = device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted or (row is not None and row.engine is not None):
        return
    reason = f"there are none for {device}" if row is None else row.declined
    raise EngineError(f"fused=True has no kernels for {name}: {reason}. Pass fused=None, which picks an engine.")


def engines_of(name: str | None, differentiable: bool) -> tuple[Engine, ...]:
    """Return the engines that may step, in order of preference, if options require those of this name."""
    if differentiable:
        return (DIFFERENTIABLE,)
    return insisting([row for row in ENGINES if row.name != "rule"]) if name == FUSED else choose(name, ENGINES)
