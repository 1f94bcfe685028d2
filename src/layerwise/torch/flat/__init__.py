"""Flat shards: optimizers for models that other packages have flattened and sharded, with a description of each.

>>> import torch
>>> from layerwise.torch import Lamb, Segments
>>> buffer = torch.nn.Parameter(torch.ones(6))
>>> segments = Segments({buffer: [("weight", (2, 2), 0, 4), ("bias", (2,), 0, 2)]})
>>> opt = Lamb(segments.named_parameters(), lr=0.01)
>>> buffer.grad = torch.ones(6)
>>> opt.step()
>>> sorted(opt.stats())
['bias', 'weight']
"""

from __future__ import annotations

from layerwise.torch.flat._boxes import Stretch
from layerwise.torch.flat._deepspeed import from_deepspeed
from layerwise.torch.flat._fsdp1 import from_fsdp1
from layerwise.torch.flat._megatron import from_megatron
from layerwise.torch.flat._segments import Segments
from layerwise.torch.flat._states import full_state_dict, load_full_state_dict

__all__ = [
    "Segments",
    "Stretch",
    "from_deepspeed",
    "from_fsdp1",
    "from_megatron",
    "full_state_dict",
    "load_full_state_dict",
]
