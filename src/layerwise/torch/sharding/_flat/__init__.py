"""Flat buffers, in which FSDP1, DeepSpeed, Megatron or a caller has flattened and sharded tensors: the interface to
other modules.

Everything about such buffers is in this folder. A buffer is described once (`_segments.py`; `fsdp1.py`, `deepspeed.py`
and `megatron.py` read other packages' maps), and is recognized from then on: `flat_of` returns its description, or
None.
"""

from layerwise.torch.sharding._flat._boxes import cuttable_shape, parts_in_buffer
from layerwise.torch.sharding._flat._buffers import (
    CHANGES,
    FlatBuffer,
    Stretch,
    any_known,
    check_saved_whole,
    checked_flat_of,
    flat_of,
    forget_buffer,
    is_known,
    missing_gradient,
    tensor_names,
    whole_shape,
    without_gaps,
)
from layerwise.torch.sharding._flat._wrappers import check_described, check_own, is_marked, tensors_in

__all__ = [
    "CHANGES",
    "FlatBuffer",
    "Stretch",
    "any_known",
    "check_described",
    "check_own",
    "check_saved_whole",
    "checked_flat_of",
    "cuttable_shape",
    "flat_of",
    "forget_buffer",
    "is_known",
    "is_marked",
    "missing_gradient",
    "parts_in_buffer",
    "tensor_names",
    "tensors_in",
    "whole_shape",
    "without_gaps",
]
