"""The engines that step PyTorch's tensors, in order of preference."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch.autograd.graph import increment_version

from layerwise.engines import Candidate, Engine, Job, StepInputs, compiled, gpu, required_engines
from layerwise.engines.programs import printed_for
from layerwise.engines.rule import RuleEngine
from layerwise.errors import ContradictionError, EngineError, sentence
from layerwise.options import checks
from layerwise.torch.arrays._library import LIBRARY, DifferentiableTensors
from layerwise.torch.arrays._list_formats import StoredLists
from layerwise.torch.arrays._list_functions import ListsOfTensors
from layerwise.torch.groups._rules import RuleOptions

# A step creates a dozen tensors of the size that it works on. PyTorch returns the memory of large tensors to the system
# and requests it again, which costs more than the arithmetic; slices of this size it keeps.
SLICE = 1 << 19
# Up to this size the calls of a step cost more than its arithmetic.
STACK = 1 << 12
MATRIX = 1 << 15  # the same for products
RULE = RuleEngine(LIBRARY, SLICE, STACK, matrix_size=MATRIX)
GPU = gpu.candidate(RULE)
COMPILED = compiled.candidate(increment_version)
KERNELS = {"cpu": COMPILED, "cuda": GPU}  # the GPU engine takes no other device
FUSED, FOREACH = "fused", "foreach"
DIFFERENTIABLE = RuleEngine(DifferentiableTensors())


class ForeachEngine(RuleEngine):
    """The rule on lists of tensors. On a CPU, where calls cost less than memory, only if no other engine may step
    in.
    """

    def __init__(self, anywhere: bool) -> None:
        super().__init__(ListsOfTensors(), None, STACK, lists=StoredLists, name=FOREACH)
        self._anywhere = anywhere

    def reasons_to_decline(self, jobs: Sequence[Job], given: Sequence[StepInputs] | None = None) -> list[str]:
        """Decline tensors in host memory, unless lists are required."""
        on_host = "" if self._anywhere else "on a CPU, lists are slower than one tensor at a time"
        return [on_host if job.p.device.type == "cpu" else "" for job in jobs]


LISTS = Candidate(FOREACH, ForeachEngine(anywhere=False), required=ForeachEngine(anywhere=True))
ENGINES = (COMPILED, GPU, LISTS, Candidate("rule", RULE))
# The rows that options allow, by `fused` and `foreach`, and the name of what they require.
WAYS = {
    (None, None): None,
    (True, None): FUSED,
    (True, False): FUSED,
    (None, True): FOREACH,
    (False, True): FOREACH,
    (False, None): "without kernels",
    (None, False): "without lists",
    (False, False): "rule",
}
LEFT = {
    None: ("compiled", "gpu", FOREACH, "rule"),
    FUSED: ("compiled", "gpu"),
    FOREACH: (FOREACH,),
    "without kernels": (FOREACH, "rule"),
    "without lists": ("compiled", "gpu", "rule"),
    "rule": ("rule",),
}


def set_bucket_size(elements: int) -> None:
    """Set how many elements of sharded tensors the reference implementation steps at once, and `foreach` of any
    tensors.

    All processes must set the same number. The memory of new moments for that many elements is held while their sums
    are exchanged. More elements are stepped in buckets, each of which costs one all-reduce per round. The compiled
    engine has no buckets.

    A list of tensors, as `foreach` steps it, has at most this many elements, or is one tensor. A step needs memory for
    a few arrays of that size, and a few calls for each list.

    Args:
        elements: The number of elements on one process.
    """
    way_out = "Pass the number of elements that one process holds of a bucket, such as 2**27."
    most = int(checks.integer(1)("elements", elements, way_out))
    for engine in (RULE, LISTS.engine, LISTS.required):
        engine.bucket_size = most  # type: ignore[union-attr]


def engine_name(fused: Any, foreach: Any = None, differentiable: object = False) -> str | None:
    """Return the name of the engine that these options require, or None."""
    checks.one_of(None, True, False)("fused", fused, "None picks the fastest engine; True requires a fused one.")
    checks.one_of(None, True, False)("foreach", foreach, "None picks the fastest engine; True requires this one.")
    if fused is True and foreach is True:
        raise ContradictionError(sentence("foreach", "None or False when fused=True", True, "Drop one of them."))
    for name, value in (("fused", fused), ("foreach", foreach)):
        if value is True and differentiable is True:
            why = "Kernels cannot be differentiated."
            raise ContradictionError(sentence(name, "None or False when differentiable=True", True, why))
    way = WAYS[fused, foreach]
    engines_of(way, differentiable=False)
    return way


def check_device(engine: str | None, name: str, device: str, of: RuleOptions) -> None:
    """Raise if the required engine cannot step a parameter by this rule on this kind of device."""
    if engine == FUSED:
        if printed_for(of.hyper) is None:
            raise EngineError(f"{of.hyper.optimizer} has no fused kernels. Leave out fused=True.")
        _check_fused(name, device)


def _check_fused(name: str, device: str) -> None:
    """Raise if `fused=True` requires kernels that a parameter does not have."""
    row = KERNELS.get(device)
    interpreted = device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted or (row is not None and row.engine is not None):
        return
    reason = f"there are none for {device}" if row is None else row.declined
    raise EngineError(
        f"fused=True has no kernels for {name}: {reason}. Pass fused=None to pick an engine automatically."
    )


def engines_of(name: str | None, differentiable: bool) -> tuple[Engine, ...]:
    """Return the engines that may step, in order of preference; only those of this name if options require it."""
    if differentiable:
        return (DIFFERENTIABLE,)
    rows = [row for row in ENGINES if row.name in LEFT[name]]
    if name in (FUSED, FOREACH):
        return required_engines(rows)
    return tuple(row.engine for row in rows if row.engine is not None)
