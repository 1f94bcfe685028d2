"""Undescribed buffers of other packages, recognized by their marks."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from layerwise.core.plan import Shape
from layerwise.errors import ParameterError
from layerwise.torch.sharding._flat._buffers import is_known

# Packages that put flat partitions into the groups of optimizers, and how to describe these.
DESCRIBED_BY = {
    "deepspeed": "Call layerwise.torch.flat.from_deepspeed(engine) on all ranks, after deepspeed.initialize.",
    "megatron.core": "Call layerwise.torch.flat.from_megatron(optimizer) on all ranks, and use its groups.",
}


def check_own(params: Iterable[tuple[Tensor, str]], added: Collection[Tensor]) -> None:
    """Raise if a wrapper has replaced parameters by a flat partition that was not described."""
    wrapper = next((each for each in DESCRIBED_BY if each in sys.modules), None)
    if wrapper is None:
        return
    for p, name in params:
        if p.ndim != 1 or is_known(p):
            continue
        if "megatron.core" in sys.modules and not isinstance(p, nn.Parameter):  # as its shards are
            wrapper = "megatron.core"
        elif not added or p in added:
            continue
        raise ParameterError(
            f"{name} seems to be a flat partition of {wrapper}, which replaces parameters and does not say which. "
            f"{DESCRIBED_BY[wrapper]}"
        )


def is_marked(p: Tensor) -> bool:
    """Return True if FSDP1 has flattened a parameter, or may have."""
    return hasattr(p, "_is_flat_param") or hasattr(p, "_fsdp_flattened")


def check_described(name: str, p: Tensor) -> None:
    """Raise if FSDP1 has flattened a parameter, and it was not described."""
    if not is_marked(p) or is_known(p):
        return
    # Without other processes to divide among, it keeps the parameters' shapes, if it keeps the parameters.
    alone = not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
    if hasattr(p, "_is_flat_param") or (not alone and getattr(p, "_fsdp_flattened", False)):
        raise ParameterError(
            f"{name} is a flat shard of FullyShardedDataParallel, which does not say of which tensors. Call "
            "layerwise.torch.flat.from_fsdp1(model) on all ranks before creating the optimizer, or shard the model "
            "with torch.distributed.fsdp.fully_shard (FSDP2)."
        )


def tensors_in(p: Any) -> list[tuple[str, Shape]] | None:
    """Return the names and shapes of the tensors that FSDP1 has put into a parameter, or None."""
    if not hasattr(p, "_is_flat_param"):
        return None
    return [(info.param_name, shape) for info, shape in zip(p._param_infos, p._shapes, strict=True)]
