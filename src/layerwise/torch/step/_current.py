"""The settings of a group as they were last checked, and whether they still hold."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any, cast

from torch import Tensor

from layerwise.checks import as_float
from layerwise.hyper import Hyper
from layerwise.storage.options import Wanted

# What changes from step to step, and so is no part of what is planned ahead.
RATES = {
    "lr": "Pass a number such as lr=1e-3, or a tensor of one element; schedules are torch.optim.lr_scheduler's.",
    "weight_decay": "Pass a number such as weight_decay=0.01, or 0 for none. To climb, use maximize=True.",
}
NOT_OPTIONS = frozenset(("params", "param_names"))
NOT_PLANNED = NOT_OPTIONS | RATES.keys()  # keys that change without other settings
PLAIN = frozenset((bool, int, float, str, type(None)))


class Current:
    """The settings of a group as they were last checked, which hold as long as its options are the same objects."""

    def __init__(self, group: Mapping[str, Any], rule: Any, h: Hyper, want: Wanted) -> None:
        self.rule, self.h, self.want, self.asks_of_model = rule, h, want, h.asks_of_model
        self._fixed = all(_is_fixed(x) for key, x in group.items() if key not in NOT_PLANNED)
        self.see(group)

    def see(self, group: Mapping[str, Any]) -> None:
        """Take note of all that the group has now."""
        values, lr, settled = list(group.values()), group["lr"], cast("Any", self.h)
        rates = settled.lr if lr is None else lr, group["weight_decay"]
        self.rates = scalar(rates[0], group["differentiable"]), scalar(rates[1], group["differentiable"])
        self._numbers = all(type(group[name]) in PLAIN for name in RATES)  # else others at any time
        self._keys = tuple(group)
        self._params = self._keys.index("params")
        values[self._params] = None  # so that the parameters may go
        self._values = values  # last: another thread goes by it

    def same(self, group: Mapping[str, Any]) -> bool:
        """Return True if nothing but the parameters has changed, or could have without being replaced."""
        values = list(group.values())
        if not (self._fixed and self._numbers and tuple(group) == self._keys):
            return False
        values[self._params] = None
        return all(map(is_, values, self._values))

    def holds(self, group: Mapping[str, Any]) -> bool:
        """Return True if no option but the rates has changed, or could have without being replaced."""
        if not self._fixed or tuple(group) != self._keys:
            return False
        pairs = zip(self._keys, group.values(), self._values, strict=True)
        changed = {key: before for key, x, before in pairs if x is not before and key not in NOT_OPTIONS}
        return changed.keys() <= RATES.keys() and ("lr" not in changed or None not in (changed["lr"], group["lr"]))


def scalar(value: float | Tensor, followed: bool) -> float | Tensor:
    """Return a number, if it is at hand and no gradient flows through it."""
    if not isinstance(value, Tensor):
        return float(value) if isinstance(value, (int, float)) else as_float(value)  # an int may need over 64 bits
    if not followed and value.device.type == "cpu":
        return value.item()
    return value if value.ndim == 0 else value.reshape(())


def at_hand(value: Any) -> Any:
    """Return a number for a tensor of one, for which the host then waits."""
    return value.item() if isinstance(value, Tensor) else value


def _is_fixed(x: Any) -> bool:
    """Return True if a value cannot change by itself."""
    return type(x) in PLAIN or callable(x) or (type(x) is tuple and all(map(_is_fixed, x)))
