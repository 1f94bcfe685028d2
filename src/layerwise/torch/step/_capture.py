"""What a CUDA graph that captures a step needs of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from layerwise.errors import ContradictionError, sentence
from layerwise.torch.step._due import RATES


def check_capture(group: Mapping[str, Any], scheduled: bool, shared: bool) -> None:
    """Raise if a CUDA graph cannot capture a step, or would repeat a number that is meant to change."""
    if shared:
        raise ContradictionError(
            "a CUDA graph cannot capture a step with sharded parameters, a model_group or a replica_group, because "
            "the processes agree on each step on the host. Capture only the forward and backward passes, and call "
            "optimizer.step() after the replay."
        )
    if not group["capturable"]:
        way_out = "Pass capturable=True; otherwise the graph would not count steps."
        raise ContradictionError(sentence("capturable", "True when a CUDA graph is captured", False, way_out))
    if scheduled and not isinstance(group["lr"], Tensor):
        way_out = (
            "Pass lr=torch.tensor(...) on the parameters' device; otherwise the graph would not follow the scheduler."
        )
        raise ContradictionError(
            sentence("lr", "a tensor when a CUDA graph is captured and a scheduler changes it", group["lr"], way_out)
        )


def check_rates_captured(group: Mapping[str, Any]) -> None:
    """Raise if a captured step would keep the present number of a rate."""
    for name in RATES:
        rate = group[name]
        if not (group["capturable"] and isinstance(rate, Tensor) and rate.device.type == "cpu"):
            continue
        device = next((p.device for p in group["params"] if p.device.type != "cpu"), None)
        if device is not None:
            way_out = f'Pass torch.tensor({rate.item():g}, device="{device}"): a captured step sees its changes.'
            raise ContradictionError(sentence(name, f"on {device} with capturable=True", str(rate.device), way_out))


def check_offloaded(group: Mapping[str, Any]) -> None:
    """Raise if a step that the host takes is to be captured."""
    if group["capturable"]:
        raise ContradictionError(
            sentence("capturable", "False when offload=True", True, ("Steps of an offloaded optimizer run on the CPU."))
        )
