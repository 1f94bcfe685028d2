"""The storage of parameters in PyTorch: what steps and answers need of it besides the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from layerwise.core.storing import Storing
from layerwise.storage.forms import scales_of
from layerwise.storage.options import MASTER, REMAINDER, REMAINDER_BITS, Wanted
from layerwise.torch.sharding._cuts import local
from layerwise.torch.step._namespace import LIBRARY, named
from layerwise.torch.step._plan import Plan

REMAINDERS: dict[Any, torch.dtype] = {kind: getattr(torch, f"int{bits}") for kind, bits in REMAINDER_BITS.items()}
CODES = (torch.int8, torch.uint8)


def is_group(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in CODES


def storing(plan: Plan, p: Tensor, want: Wanted) -> Storing:
    """Return the settings that decide the storage of a parameter."""
    return Storing(LIBRARY, plan, p, want)


def put_weights_in_form(state: dict[str, Any], plan: Plan, p: Tensor, want: Wanted) -> None:
    """Store a parameter's weights in the wanted form."""
    Storing(LIBRARY, plan, p, want).put_weights_in_form(state, local(p.detach()))


class Remainders:
    """The remainders of split weights, some of which belong to weights that have been written to since."""

    def __init__(self, heres: Sequence[Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        pairs = [(p, local(one[REMAINDER])) for p, one in zip(heres, states, strict=True) if REMAINDER in one]
        self._pairs, self._versions, self.any = pairs, [-1] * len(pairs), bool(pairs)

    def follow(self) -> None:
        """Let weights that were set to zero be zero.

        Beside any other number, an outdated remainder is less than the weight's last place. Beside zero it would be the
        whole weight, and its norm is the measure of a step.
        """
        for (p, rest), version in zip(self._pairs, self._versions, strict=True):
            if p._version != version:
                rest.masked_fill_(p == 0, 0)

    def written(self) -> None:
        """Remember that everything written so far was written by the step."""
        self._versions = [p._version for p, _ in self._pairs]


def dtypes(p: Tensor, state: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtypes of a parameter and of its state, by name."""
    stored = {"": p, **{key: x for key, x in state.items() if key != "step"}}
    return {key or "weights": named(x.dtype) for key, x in sorted(stored.items())}


def report(plan: Plan, p: Tensor, state: Mapping[str, Any], want: Wanted) -> dict[str, Any]:
    """Return the storage of a parameter and its state, present or from its first step on, and its bytes."""
    own = Storing(LIBRARY, plan, p, want)
    kind: Any = want.master if own.is_low else False
    beside = dtypes_beside(state) if state else [torch.float32] if kind is True else [REMAINDERS[kind]] if kind else []
    bytes_, why, formats = prod(plan.shape) * sum(x.itemsize for x in (p.dtype, *beside)), {}, {}
    for key, shape in plan.state_shapes.items():
        if shape is None:
            continue
        planned = own.chosen(key)
        found = named(state[key].dtype) if key in state else planned.dtype
        formats[key] = "int8" if found == "uint8" else found
        each = torch.int8.itemsize if formats[key] == "int8" else getattr(torch, found).itemsize
        scales = prod(scales_of(tuple(plan.shape))) * 4 if formats[key] == "int8" else 0
        bytes_ += prod(shape) * each + scales
        if planned.why and formats[key] == planned.dtype:
            why[key] = planned.why
    shown = "".join(f"+{x.itemsize * 8}" for x in beside)
    return {"weights": named(p.dtype) + shown, "state": formats, "bytes": bytes_, "why": why}


def dtypes_beside(state: Mapping[str, Any]) -> list[torch.dtype]:
    """Return the dtype of the companions of the weights."""
    return [state[key].dtype for key in (MASTER, REMAINDER) if key in state]
