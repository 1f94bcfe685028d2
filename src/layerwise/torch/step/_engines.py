"""The engines that step PyTorch's tensors, in order of preference."""

from __future__ import annotations

import os
from typing import Any

from torch.autograd.graph import increment_version

from layerwise import checks
from layerwise.engines import Candidate, Engine, choose, compiled, gpu, insisting
from layerwise.engines.rule import RuleEngine
from layerwise.errors import ContradictionError, EngineError, sentence
from layerwise.hyper import Hyper
from layerwise.torch.step._exact import ReproducibleTensors
from layerwise.torch.step._namespace import LIBRARY, DifferentiableTensors

# A step makes a dozen tensors of the size of what it works on. PyTorch returns those of large tensors to the system
# and requests them again, which costs more than the arithmetic; slices of this size it keeps.
SLICE = 1 << 19
# Up to this size the calls of a step cost more than its arithmetic.
STACK = 1 << 12
RULE = RuleEngine(LIBRARY, SLICE, STACK)
GPU = gpu.candidate(RULE)
COMPILED = compiled.candidate(increment_version)
ENGINES = (COMPILED, GPU, Candidate("rule", RULE))
KERNELS = {"cpu": COMPILED, "cuda": GPU}  # as the GPU engine takes no other device
FUSED, EXACT, EXACT_RULE = "fused", "reproducible", "reproducible by the rule"
DIFFERENTIABLE = RuleEngine(DifferentiableTensors())
REPRODUCIBLE = RuleEngine(ReproducibleTensors(), SLICE, STACK)
EXACTLY = (compiled.candidate(increment_version, exact=True), Candidate("rule", REPRODUCIBLE))


def set_bucket_size(elements: int) -> None:
    """Set how many elements of sharded tensors the reference implementation steps at once.

    All processes must set the same. It holds new moments for that many elements while their sums are exchanged. More
    elements go in buckets, each of which costs one all-reduce a round. The compiled engine has no buckets.

    Args:
        elements: The number of elements on one process.
    """
    way_out = "Pass the elements that one process holds of a bucket, such as 2**27."
    RULE.bucket_size = REPRODUCIBLE.bucket_size = int(checks.integer(1)("elements", elements, way_out))


def engine_name(fused: Any, reproducible: Any = False, differentiable: Any = False) -> str | None:
    """Return the name of the engine that these options require, or None."""
    checks.one_of(None, True, False)("fused", fused, "None picks the fastest engine, True requires a fused one.")
    checks.FLAG("reproducible", reproducible, "Pass True or False.")
    for option, on, beside, other, why in (
        ("fused", fused, "differentiable", differentiable, "Kernels are not differentiated through."),
        ("fused", fused, "reproducible", reproducible, "One engine steps all tensors, on any number of processes."),
        ("differentiable", differentiable, "reproducible", reproducible, "Autograd does not follow exact sums."),
    ):
        if on is True and other is True:
            allowed = "None or False" if option == "fused" else "False"
            raise ContradictionError(sentence(option, f"{allowed} when {beside}=True", True, why))
    plain, exact = {None: (None, EXACT), True: (FUSED, EXACT), False: ("rule", EXACT_RULE)}[fused]
    name: str | None = exact if reproducible else plain
    engines_of(name, differentiable=False)
    return name


def is_exact(engine: str | None) -> bool:
    """Return True if the required engine adds up exactly."""
    return engine in (EXACT, EXACT_RULE)


def check_device(engine: str | None, name: str, device: str) -> None:
    """Raise if the required engine cannot step a parameter on this kind of device."""
    if engine == FUSED:
        _check_fused(name, device)
    if is_exact(engine) and device == "mps":
        raise EngineError(f"reproducible=True adds up in float64, but {name} is on {device}, which has none. Drop it.")


def check_rule(engine: str | None, h: Hyper) -> None:
    """Raise if the required engine cannot step by a rule."""
    if is_exact(engine) and h.of_matrices:
        why = "Products of matrices are summed in an order that depends on where numbers lie. Drop it."
        raise ContradictionError(sentence("reproducible", f"False for {h.optimizer}", True, why))


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
    if is_exact(name):
        return (REPRODUCIBLE,) if name == EXACT_RULE else choose(None, EXACTLY)
    return insisting([row for row in ENGINES if row.name != "rule"]) if name == FUSED else choose(name, ENGINES)
