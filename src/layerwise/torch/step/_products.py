"""The dtypes that a device multiplies matrices in, and the one that it does so fastest."""

from __future__ import annotations

from functools import cache

import torch

from layerwise.engines.half_precision import processor_multiplies

# What kinds of devices have units for. CUDA's, which are also AMD's, from this version of their instructions on.
ON = {"cuda": "float16", "xpu": "float16", "mps": "float16", "xla": "bfloat16", "hpu": "bfloat16"}
SINCE = (7, 0)


def quick(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the dtype in which a device multiplies faster what is computed in float32; None if there is none."""
    return None if dtype == torch.float64 else _quick(device)


@cache
def _quick(device: torch.device) -> str | None:
    if device.type == "cpu":
        return processor_multiplies()
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < SINCE:
        return None
    return ON.get(device.type)


@cache
def multiplies(device: torch.device, dtype: str) -> torch.dtype | None:
    """Return a dtype of 16 bits if the device has products of it: a processor only those that are quick."""
    return getattr(torch, dtype) if device.type != "cpu" or dtype == _quick(device) else None
