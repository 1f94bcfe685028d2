"""The plan of a parameter's step, for every kind of parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from layerwise.blocks import Blocks
from layerwise.hyper import Hyper
from layerwise.torch.sharding._cuts import cut_of
from layerwise.torch.sharding._flat import Flat
from layerwise.torch.step._flat_plan import flat_plan_of
from layerwise.torch.step._plan import Plan, laid_out


def plan_of(rule: Any, p: Tensor, h: Hyper, name: str, blocks: Callable[[str], Blocks | None]) -> Plan:
    """Return the plan of a parameter's step with these settings; `blocks` are by the name of a tensor."""
    lies = cut_of(name, p)
    if isinstance(lies, Flat):
        return flat_plan_of(rule, p, h, name, blocks, lies)
    return laid_out(rule, p.shape, p.dtype, h, name, blocks(name), lies)
