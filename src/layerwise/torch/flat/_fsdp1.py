"""Flat shards of FullyShardedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from layerwise.errors import HyperparameterError, ParameterError, sentence
from layerwise.torch.flat._boxes import Stretch
from layerwise.torch.flat._segments import ALONE, MappedParameter, Segments, segments_of
from layerwise.torch.groups._members import without_wrappers

FLAT = "_flat_param"
LEAF = "leaf"


def from_fsdp1(model: nn.Module) -> Segments:
    """Return a description of the parameters of a model in FullyShardedDataParallel. All ranks call this together.

    Every sharding strategy is supported, with flat parameters and with `use_orig_params=True`. Create the optimizer
    with `named_parameters()` of the result, or with the model's parameters in groups. Parameters that FSDP leaves out
    (`ignored_states`) are included as whole tensors.

    Args:
        model: The wrapped model.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not isinstance(model, nn.Module):
        raise HyperparameterError(sentence("model", "a torch.nn.Module", model, "Pass the model that FSDP returned."))
    wrapped = [(name, m) for name, m in model.named_modules() if isinstance(m, FullyShardedDataParallel)]
    handles: list[tuple[str, Any, Any]] = [(name, m, m._handle) for name, m in wrapped if m._handle is not None]
    if not handles:
        raise ParameterError("no part of the model is in FullyShardedDataParallel. Pass the model that FSDP returned.")
    # With the names that the wrapped modules have without the wrappers.
    prefixes = [without_wrappers(f"{name}.{LEAF}").rpartition(LEAF)[0].lstrip(".") for name, *_ in handles]
    each = zip(prefixes, handles, strict=True)
    shards = [one for prefix, (_, module, handle) in each for one in _shards(prefix, module, handle)]
    own = {id(one.p) for one in shards}
    others = [
        MappedParameter(without_wrappers(name), p, None) for name, p in model.named_parameters() if id(p) not in own
    ]
    return segments_of([*shards, *others], True)


def _shards(prefix: str, module: Any, handle: Any) -> Iterator[MappedParameter]:
    flat = handle.flat_param
    cut = handle.uses_sharded_strategy
    group = handle.process_group if cut else ALONE
    replicas = getattr(module, "_inter_node_pg", None) if cut else None
    where: Any = group, replicas, 0, [flat, *(flat._params or ())]
    names = [prefix + without_wrappers(name) for name in flat._fqns]
    if not all(flat._contiguities) or any(one is not None for one in flat._param_extensions):
        raise ParameterError(
            f"{names[0]}, or a parameter flattened with it, was not contiguous or was a DTensor. Call contiguous() "
            "before wrapping, or use fully_shard (FSDP2)."
        )
    stretches = list(map(_stretch, names, flat._shapes, flat._shard_param_infos))
    if flat._params is None:
        yield MappedParameter(prefix + FLAT, flat, stretches, *where)
        return
    for name, p, one in zip(names, flat._params, stretches, strict=True):
        yield MappedParameter(name, p, [one._replace(offset=0)] if cut else None, *where)


def _stretch(name: str, shape: Any, info: Any) -> Stretch:
    if not info.in_shard:
        return Stretch(name, tuple(shape), 0, 0, 0)
    first: int = info.intra_param_start_idx
    return Stretch(name, tuple(shape), first, info.intra_param_end_idx + 1, info.offset_in_shard)
