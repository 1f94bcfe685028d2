"""What the first step of a parameter shows of those to come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from layerwise.first import First
from layerwise.torch.step._due import Due
from layerwise.torch.step._storage import storing
from layerwise.torch.step._turn import Turn

FINER = 'Pass master_weights="split", or rounding="stochastic".'
PEAKS = ("lr", "initial_lr", "max_lr")  # the last two are of schedulers, which may begin with a smaller one


def exempt(found: Sequence[First], names: Collection[str]) -> str:
    """Return how to exempt tensors that began at zero: biases by default, others by the names that were given."""
    way_out = "Exempt biases and norms from it by param_groups(model)"
    others = [one.name for one in found if one.starts_at_zero and one.name in names and "bias" not in one.name]
    if not others:
        return f"{way_out}; its no_adapt names others."
    shown = "".join(f', "{name}"' for name in others[:5]) + ", …" * (len(others) > 5)
    return f'{way_out}, others by its no_adapt=["bias", "norm"{shown}].'


def firsts(turn: Turn, dues: Sequence[Due], which: Mapping[Tensor, Any], states: Mapping[Any, Any]) -> Iterator[First]:
    """Yield the first steps of these parameters, which this turn has taken."""
    owners = {p: due for due in dues for p in due.params}
    for plan, (p, each) in zip(turn.plans, turn.measured(), strict=True):
        if p in which and p.numel():
            due = owners[p]
            peak = max(_number(due.group[key]) for key in PEAKS if due.group.get(key) is not None)
            lam, dtype = _number(due.group["weight_decay"]), storing(plan, p, due.want).rounds_to(states[p])
            for name, measured in each:
                yield First(name, plan.h, measured, lam, peak, dtype)


def _number(x: Any) -> float:
    """Return a rate, which may be a tensor through which a gradient flows."""
    return float(x.detach() if isinstance(x, Tensor) else x)
