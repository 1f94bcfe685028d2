"""The last checked settings of groups, and the rates that change from step to step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import inf
from operator import is_, itemgetter
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.engines.addresses import state_objects_of
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options.by_name import ByName
from layerwise.options.checks import as_float
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Scalar, T
from layerwise.storage.options import RequestedStorage
from layerwise.torch.groups._members import Group, GroupDict

# Keys that change from step to step, so that plans must not depend on them.
RATES = {
    "lr": "Pass a number such as lr=1e-3, or a tensor of one element. For a schedule, call "
    "layerwise.torch.scheduler(optimizer, schedule), or take one of torch.optim.lr_scheduler.",
    "weight_decay": "Pass a number such as weight_decay=0.01, or 0 for none. To maximize, use maximize=True.",
}
NOT_PLANNED = frozenset(("params", "param_names", *RATES))  # keys that change without other settings
PLAIN = frozenset((bool, int, float, str, type(None)))
on_gpu: Callable[[], bool] = torch.cuda.is_initialized


class CheckedGroup(NamedTuple):
    """The settings of one group as they were checked."""

    rule: ModuleType
    h: Hyper
    want: RequestedStorage
    blocks: ByName


class CheckedSettings:
    """The checked settings of some groups, valid as long as their options are the same objects, and rates stay 0 or not
    0.

    Parameters are not kept, so that they can be freed.
    """

    def __init__(
        self,
        groups: Sequence[GroupDict],
        check: Callable[[GroupDict], CheckedGroup],
        counted: Callable[[Hyper], Hyper],
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.of = range(len(groups)) if numbers is None else numbers
        """The numbers of these groups in the optimizer."""
        keys = [tuple(group) for group in groups]
        readers = {own: itemgetter(*[key for key in own if key not in NOT_PLANNED]) for own in {*keys}}
        self._readers, self._sizes = [readers[own] for own in keys], list(map(len, groups))
        self._options = [read(group) for read, group in zip(self._readers, groups, strict=True)]
        self.fixed = False not in [is_fixed(x) for x in chain.from_iterable(self._options) if type(x) not in PLAIN]
        """Whether no option can change without being replaced."""
        self._on = list(map(rates_on, groups))
        self.each = [self.named(i, check, group) for i, group in enumerate(groups)]
        asks = any(checked.h.needs_model_sum for checked in self.each)
        self.hs = [counted(checked.h) if asks else checked.h for checked in self.each]
        """The settings of each group, whose gradients may count in a norm that clips others."""
        each = zip(self.hs, groups, self.each, strict=True)
        self.planned_for = [(h, group["capturable"], checked.want, checked.blocks) for h, group, checked in each]
        """The settings of each group on which plans depend."""

    def named(self, i: int, check: Callable[[GroupDict], T], group: GroupDict) -> T:
        """Return the result of checking a group; an error names the group, if there are several."""
        with naming_group(self.of[i] if len(self._sizes) > 1 else None):
            return check(group)

    def unchanged(self, groups: Sequence[GroupDict]) -> bool:
        """Return True if no option has changed, or could have changed unnoticed, and rates are on or off as before."""
        if not self.fixed or self._sizes != list(map(len, groups)):
            return False
        try:
            options = [read(group) for read, group in zip(self._readers, groups, strict=True)]
        except KeyError:
            return False
        same = map(is_, chain.from_iterable(options), chain.from_iterable(self._options))
        return all(same) and self._on == list(map(rates_on, groups))


class GroupRates:
    """The checked rates of groups with these settings, valid as long as groups consist of the same objects."""

    def __init__(
        self,
        settings: CheckedSettings,
        groups: Sequence[GroupDict],
        check: Callable[[GroupDict], None],
        before: GroupRates | None,
    ) -> None:
        self.settings, self._numbers = settings, list(range(len(groups)))
        self._given = [group["lr"] for group in groups], [group["weight_decay"] for group in groups]
        each = list(zip(*self._given, strict=True))
        odd = [i for i, (x, y) in enumerate(each) if not (type(x) is type(y) is float and 0 <= x < inf > y >= 0)]
        for i in odd:
            settings.named(i, check, groups[i])
        self.lr, self.weight_decay = map(list, self._given)
        for i in odd:
            lr = settings.each[i].h.lr if each[i][0] is None else each[i][0]
            followed = groups[i]["differentiable"]
            self.lr[i], self.weight_decay[i] = scalar(lr, followed), scalar(each[i][1], followed)
        # Comparing all objects pays off if only parameters change, but not under a schedule.
        same = before is not None and self._is_given(before._given)
        fixed = same and settings.fixed and all(type(x) in PLAIN for i in odd for x in each[i])
        self._objects: Any = (
            state_objects_of(self._numbers, dict(zip(self._numbers, groups, strict=True))) if fixed else None
        )

    def _is_given(self, given: tuple[list[Scalar], list[Scalar]]) -> bool:
        return all(len(x) == len(y) and all(map(is_, x, y)) for x, y in zip(self._given, given, strict=True))

    def unchanged(self, groups: Sequence[GroupDict]) -> bool:
        """Return True if groups are known to have the same rates and options, and none can change unnoticed."""
        seen = self._objects
        if seen is None or len(groups) != len(self._numbers):
            return False
        return bool(seen.same(self._numbers, dict(zip(self._numbers, groups, strict=True))))


def capturing() -> bool:
    """Return True while a CUDA graph is captured. Only asked if a GPU is in use: the query would raise otherwise."""
    return bool(on_gpu() and torch.cuda.is_current_stream_capturing())


def scalar(value: float | Tensor, followed: bool) -> float | Tensor:
    """Return a number, if it is at hand and no gradient flows through it."""
    if not isinstance(value, Tensor):
        return float(value) if isinstance(value, (int, float)) else as_float(value)  # an int may need over 64 bits
    if not followed and value.device.type == "cpu":
        return value.item()
    return value if value.ndim == 0 else value.reshape(())


def host_value(value: T) -> T | float:
    """Return the number in a tensor of one element, for which the host then waits."""
    return value.item() if isinstance(value, Tensor) else value


def is_fixed(x: Scalar) -> bool:
    """Return True if a value cannot change by itself: a plain Python object, or a function."""
    return type(x) in PLAIN or callable(x) or (type(x) is tuple and all(map(is_fixed, x)))


def rates_on(group: Group) -> tuple[bool | None, ...]:
    """Return whether each rate is on: False for 0, and None if there is no such rate.

    Settings depend on nothing else about a rate. A rate that only a device knows counts as on.
    """
    lr, weight_decay = group["lr"], group["weight_decay"]
    return lr if lr is None else _is_on(lr), weight_decay if weight_decay is None else _is_on(weight_decay)


def _is_on(rate: object) -> bool:
    if type(rate) is float:
        return rate != 0.0
    if isinstance(rate, Tensor):
        return is_on_device(rate) or rate.is_nested or rate.numel() != 1 or bool(rate.detach() != 0)
    return not (isinstance(rate, (int, float)) and rate == 0)


def is_on_device(x: Scalar) -> bool:
    """Return True for a tensor that is not in host memory."""
    return isinstance(x, Tensor) and x.device.type != "cpu"


@contextmanager
def naming_group(number: int | None) -> Iterator[None]:
    """Name the parameter group in errors about options, unless there is only one group."""
    try:
        yield
    except HyperparameterError as problem:
        if number is None:
            raise
        raise type(problem)(f"group {number}: {problem}") from None


def check_capture(group: Group, scheduled: bool, shared: bool) -> None:
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


def check_rates_captured(group: Group) -> None:
    """Raise if a captured step would keep the present value of a rate."""
    for name in RATES:
        rate = group[name]
        if not (group["capturable"] and isinstance(rate, Tensor) and rate.device.type == "cpu"):
            continue
        device = next((p.device for p in group["params"] if p.device.type != "cpu"), None)
        if device is not None:
            way_out = f'Pass torch.tensor({rate.item():g}, device="{device}"): a captured step sees its changes.'
            raise ContradictionError(sentence(name, f"on {device} with capturable=True", str(rate.device), way_out))


def check_offloaded(group: Group) -> None:
    """Raise if a step on the host is to be captured."""
    if group["capturable"]:
        raise ContradictionError(
            sentence("capturable", "False when offload=True", True, "Steps of an offloaded optimizer run on the CPU.")
        )
