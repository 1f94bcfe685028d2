"""Flat shards of DeepSpeed's ZeRO, recognized by the attributes of its optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.torch.flat._boxes import Stretch
from layerwise.torch.flat._segments import MappedParameter, Segments, segments_of

# The flat partitions of a group's weights in full precision, and the parameters in them.
STAGES_1_AND_2 = ("single_partition_of_fp32_groups", "bit16_groups")
STAGE_1_IN_BF16 = ("fp32_groups_flat_partition", "bf16_groups")
STAGE_3 = ("fp32_partitioned_groups_flat", "fp16_groups")
WAY_OUT = (
    "Pass the engine, the first value that deepspeed.initialize returned, with ZeRO stage 1, 2 or 3; stage 0 shards "
    "nothing."
)


def from_deepspeed(engine: object) -> Segments:
    """Describe the flat partitions of a DeepSpeed engine to its optimizer, for ZeRO stages 1 to 3.

    All ranks call this together. Afterwards the engine's optimizer steps its partitions as the tensors whose parts they
    hold. The returned description is not needed any further.

    Args:
        engine: The engine, created with an optimizer of `layerwise.torch` and `zero_allow_untested_optimizer`.
    """
    zero = getattr(engine, "optimizer", None) if hasattr(engine, "module") else engine
    kinds = STAGES_1_AND_2, STAGE_1_IN_BF16, STAGE_3
    kind = next((each for each in kinds if all(hasattr(zero, attribute) for attribute in each)), None)
    inner = getattr(zero, "optimizer", None)
    if kind is None or inner is None:
        raise HyperparameterError(
            sentence("engine", "an engine of DeepSpeed with ZeRO", type(engine).__name__, WAY_OUT)
        )
    flats, lists = (getattr(zero, attribute) for attribute in kind)
    module = getattr(engine, "module", None)
    known = {} if module is None else {p: name for name, p in module.named_parameters()}
    names = {**(getattr(zero, "param_names", None) or {}), **known}
    found = list((_by_parts if kind is STAGE_3 else _by_fragments)(zero, flats, lists, names))
    _check_stepped_together(inner, len(found))
    segments = segments_of(found, False, [{} for _ in inner.param_groups])
    for group in inner.param_groups:
        group.pop("param_names", None)  # those of the earlier parameters
    inner._stepper.of(inner).members.buffers = [[p for _, p in group["params"]] for group in segments.param_groups()]
    return segments


def _by_fragments(
    zero: Any, flats: Sequence[Tensor], lists: Any, names: Mapping[Tensor, str]
) -> Iterator[MappedParameter]:
    """Yield partitions of one flat buffer for each group; its fragment maps give the part of each parameter in it."""
    for i, (buffer, params) in enumerate(zip(flats, lists, strict=True)):
        stretches = []
        for p in params:
            name, shape = names[p], tuple(p.shape)
            if p._hp_mapping is None:
                stretches.append(Stretch(name, shape, 0, 0, 0))
            else:
                own, there = p._hp_mapping.lp_fragment_address, p._hp_mapping.hp_fragment_address
                stretches.append(Stretch(name, shape, own.start, own.start + own.numel, there.start))
        yield MappedParameter(f"partition {i}", buffer, stretches, zero.real_dp_process_group[i], of_group=i)


def _by_parts(zero: Any, flats: Sequence[Tensor], lists: Any, names: Mapping[Tensor, str]) -> Iterator[MappedParameter]:
    """Yield partitions of stage 3: each parameter is cut into equal parts, the last with padding."""
    groups = getattr(zero, "sub_group_process_groups", None) or [zero.dp_process_group] * len(flats)
    for i, (buffer, params) in enumerate(zip(flats, lists, strict=True)):
        rank, at = dist.get_rank(groups[i]), 0
        stretches = []
        for p in params:
            part, numel = p.partition_numel(), p.ds_numel
            start, end = min(rank * part, numel), min((rank + 1) * part, numel)
            stretches.append(Stretch(names[p], tuple(p.ds_shape), start, end, at))
            at += part
        yield MappedParameter(f"partition {i}", buffer, stretches, groups[i], of_group=zero.sub_group_to_group_id[i])


def _check_stepped_together(inner: Any, steps: int) -> None:
    """Raise for options that need all gradients: DeepSpeed steps each partition by itself."""
    bounds = [group["max_grad_norm"] for group in inner.param_groups if group.get("max_grad_norm") is not None]
    if steps > 1 and bounds:
        way_out = 'Set "gradient_clipping" in DeepSpeed\'s config, which clips all gradients together.'
        raise ContradictionError(
            sentence("max_grad_norm", "None when DeepSpeed steps groups separately", bounds[0], way_out)
        )
    if steps > 1 and inner._stepper.of(inner).setup.skip_nonfinite:
        way_out = "DeepSpeed checks for infinities itself where it scales the loss."
        raise ContradictionError(
            sentence("skip_nonfinite", ("False when DeepSpeed steps groups separately"), True, way_out)
        )
