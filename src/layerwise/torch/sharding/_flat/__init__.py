"""Flat buffers, in which FSDP1, DeepSpeed, Megatron or a caller has flattened and sharded tensors: the interface to
other modules.

Everything about such buffers is in this folder. A buffer is described once (`_segments.py`; `fsdp1.py`, `deepspeed.py`
and `megatron.py` read other packages' maps), and is recognized from then on: `flat_of` returns its description, or
None.
"""

from layerwise.torch.sharding._flat._boxes import parts_in_buffer, seen
from layerwise.torch.sharding._flat._buffers import (
    CHANGES,
    Flat,
    Stretch,
    any_known,
    check_saved_whole,
    checked_flat_of,
    flat_of,
    forget,
    is_known,
    missing_gradient,
    stretched,
    tensors_of,
    whole_shape,
)
from layerwise.torch.sharding._flat._wrappers import check_described, check_own, flattened_in, is_marked

__all__ = [
    "CHANGES",
    "Flat",
    "Stretch",
    "any_known",
    "check_described",
    "check_own",
    "check_saved_whole",
    "checked_flat_of",
    "flat_of",
    "flattened_in",
    "forget",
    "is_known",
    "is_marked",
    "missing_gradient",
    "parts_in_buffer",
    "seen",
    "stretched",
    "tensors_of",
    "whole_shape",
]
