"""Flat shards of Megatron's distributed optimizer, recognized by its maps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerwise.errors import HyperparameterError, ParameterError, sentence
from layerwise.torch.flat._boxes import Stretch
from layerwise.torch.flat._segments import MappedParameter, Segments, segments_of
from layerwise.torch.groups._members import without_wrappers

# Parameters of the model, and the shards that are stepped for them, group by group.
LISTS = (("model_fp32_groups", "shard_fp32_groups"), ("model_float16_groups", "shard_fp32_from_float16_groups"))
ATTRIBUTES = ("optimizer", "buffers", "gbuf_ranges", "data_parallel_group", "model_chunks", *LISTS[0], *LISTS[1])
WAY_OUT = (
    "Pass each member of `chained_optimizers` of what get_megatron_optimizer returned on its own. Megatron-FSDP has "
    "no such shards."
)


def from_megatron(optimizer: object) -> Segments:
    """Return a description of the shards of Megatron's DistributedOptimizer.

    All ranks of its data-parallel group call this together. A rank has shards only of parameters of which it holds a
    part. It gets empty ones of the others, so that all ranks list the same tensors. Put an optimizer of the result's
    `param_groups()` in place of Megatron's: `optimizer.optimizer = Lamb(segments.param_groups())`.

    Args:
        optimizer: Megatron's DistributedOptimizer.
    """
    distributed = _distributed(optimizer)
    names, inner = _names(distributed), distributed.optimizer
    params = [p for buffer in distributed.buffers for p in buffer.param_index_map]
    _check_whole(distributed, [(names[p], p) for p in params])
    shards = _with_empty_ones(distributed, params, names)
    # Megatron's own multipliers and marks stay in the group with an optimizer's options.
    options = {*inner.defaults, "params"}
    kept = [{key: x for key, x in group.items() if key not in options} for group in inner.param_groups]
    segments = segments_of(shards, False, kept)
    groups: list[list[Tensor]] = [[] for _ in inner.param_groups]
    for p, one in zip(params, shards, strict=True):
        distributed.model_param_group_index_map[p] = one.of_group, len(groups[one.of_group])
        groups[one.of_group].append(one.p)
    for group, own in zip(inner.param_groups, groups, strict=True):  # as in the map, in any form of access
        group["params"] = own
    return segments


def _distributed(optimizer: object) -> Any:
    chain = getattr(optimizer, "chained_optimizers", [optimizer])
    found = chain[0] if len(chain) == 1 else None
    if not all(hasattr(found, each) for each in ATTRIBUTES):
        raise HyperparameterError(
            sentence("optimizer", "a DistributedOptimizer of megatron.core", type(optimizer).__name__, WAY_OUT)
        )
    return found


def _names(distributed: Any) -> dict[Tensor, str]:
    """Return the name of each parameter of the model, after the name of its chunk if there are several."""
    chunks = distributed.model_chunks
    return {
        p: (f"model{i}." if len(chunks) > 1 else "") + without_wrappers(name)
        for i, chunk in enumerate(chunks)
        for name, p in chunk.named_parameters()
    }


def _check_whole(distributed: object, params: Sequence[tuple[str, Tensor]]) -> None:
    """Raise if parameters are slices of tensors: the shards of this group do not add up to their norms."""
    state = sys.modules.get("megatron.core.parallel_state")
    asked = ("get_tensor_model_parallel_world_size", "get_expert_tensor_parallel_world_size")
    sizes = [getattr(state, each)() for each in asked if hasattr(state, each)]
    own = getattr(distributed, "tp_group", None)
    cut = [name for name, p in params if getattr(p, "tensor_model_parallel", False)]
    if cut and max([*sizes, 1 if own is None else own.size()]) > 1:
        raise ParameterError(
            f"{cut[0]} is tensor parallel: its shards are of a slice, but a step needs the norms of the whole "
            "tensor. Use Megatron without tensor parallelism, or FSDP2 with parallelize_module."
        )


def _shards(distributed: Any) -> Iterator[tuple[Tensor, tuple[Tensor, int, int, int]]]:
    """Yield the shards that this rank steps of the model's parameters, with their groups, starts and ends."""
    buckets = (one for maps in distributed.gbuf_ranges for each in maps.values() for one in each)
    ranges = {p: each["param"] for bucket in buckets for p, each in bucket["param_map"].items()}
    for models, shards in LISTS:
        both = zip(getattr(distributed, models), getattr(distributed, shards), strict=True)
        for number, (params, own) in enumerate(both):
            for i, p in enumerate(params):
                # Shards of float32 parameters are views that autograd tracks, and optimizers refuse those.
                own[i] = own[i] if own[i] is None or own[i].is_leaf else own[i].detach()
                yield p, (own[i], number, ranges[p].start, ranges[p].end)


def _with_empty_ones(distributed: Any, params: Sequence[Tensor], names: Mapping[Tensor, str]) -> list[MappedParameter]:
    """Return a shard of every parameter, in the same order on all ranks."""
    here, group = dict(_shards(distributed)), distributed.data_parallel_group
    # Ranks with the same shards, if there are several instances of the optimizer.
    replicas = getattr(distributed.model_chunks[0], "inter_dist_opt_group", None)
    replicas = replicas if replicas is not None and dist.get_world_size(replicas) > 1 else None
    said: list[Any] = [None] * dist.get_world_size(group)
    mine = {names[p]: (number, getattr(shard, "dtype", None)) for p, (shard, number, _, _) in here.items()}
    dist.all_gather_object(said, mine, group=group)
    # Only ranks that hold a part of a parameter know its group, and whether it has a shard.
    where = {name: each for one in said for name, each in one.items()}
    if any(dtype is None for _, dtype in where.values()):
        way_out = "Set use_precision_aware_optimizer=False, so that the optimizer gets float32 weights."
        kind = type(distributed).__name__
        raise HyperparameterError(sentence("optimizer", "one with shards in float32", kind, way_out))
    found = []
    for p in params:
        number, dtype = where[names[p]]
        empty = nn.Parameter(torch.empty(0, dtype=dtype, device=p.device))
        shard, _, start, end = here.get(p, (empty, number, 0, 0))
        stretch = Stretch(names[p], tuple(p.shape), start, end, 0)
        found.append(MappedParameter(names[p], shard, [stretch], group, replicas, number))
    return found
