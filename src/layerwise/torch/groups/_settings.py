"""The settings of groups as they were last checked, and the rates that change from step to step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import inf
from operator import is_, itemgetter
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from layerwise.engines.addresses import state_objects_of
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options.by_name import ByName
from layerwise.options.checks import as_float
from layerwise.options.settings import Hyper
from layerwise.storage.options import Wanted
from layerwise.torch.groups._members import Group, GroupDict

# What changes from step to step, and so is no part of what is planned ahead.
RATES = {
    "lr": "Pass a number such as lr=1e-3, or a tensor of one element; schedules are torch.optim.lr_scheduler's.",
    "weight_decay": "Pass a number such as weight_decay=0.01, or 0 for none. To climb, use maximize=True.",
}
NOT_PLANNED = frozenset(("params", "param_names", *RATES))  # keys that change without other settings
PLAIN = frozenset((bool, int, float, str, type(None)))
on_gpu: Callable[[], bool] = torch.cuda.is_initialized


class CheckedGroup(NamedTuple):
    """The settings of one group as they were checked."""

    rule: ModuleType
    h: Hyper
    want: Wanted
    blocks: ByName


class CheckedSettings:
    """The checked settings of some groups, for as long as their options are the same objects, and rates on or off.

    Parameters are not kept, so that they may go.
    """

    def __init__(
        self,
        groups: Sequence[GroupDict],
        check: Callable[[GroupDict], CheckedGroup],
        counted: Callable[[Hyper], Hyper],
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.of = range(len(groups)) if numbers is None else numbers
        """Which of the optimizer's groups these are."""
        keys = [tuple(group) for group in groups]
        readers = {own: itemgetter(*[key for key in own if key not in NOT_PLANNED]) for own in {*keys}}
        self._readers, self._sizes = [readers[own] for own in keys], list(map(len, groups))
        self._options = [read(group) for read, group in zip(self._readers, groups, strict=True)]
        self.fixed = False not in [is_fixed(x) for x in chain.from_iterable(self._options) if type(x) not in PLAIN]
        """Whether no option can change without being replaced."""
        self._on = list(map(rates_on, groups))
        self.each = [self.named(i, check, group) for i, group in enumerate(groups)]
        asks = any(checked.h.asks_of_model for checked in self.each)
        self.hs = [counted(checked.h) if asks else checked.h for checked in self.each]
        """The settings of each group, whose gradients may count in a norm that clips others."""
        each = zip(self.hs, groups, self.each, strict=True)
        self.planned_for = [(h, group["capturable"], checked.want, checked.blocks) for h, group, checked in each]
        """All of each group on which plans depend."""

    def named(self, i: int, check: Callable[[GroupDict], Any], group: GroupDict) -> Any:
        """Return what a check of a group returns; its errors say which group that is, if there are several."""
        with of_group(self.of[i] if len(self._sizes) > 1 else None):
            return check(group)

    def unchanged(self, groups: Sequence[GroupDict]) -> bool:
        """Return True if no option has changed, or could have without being replaced, and rates are as off or on."""
        if not self.fixed or self._sizes != list(map(len, groups)):
            return False
        try:
            options = [read(group) for read, group in zip(self._readers, groups, strict=True)]
        except KeyError:
            return False
        same = map(is_, chain.from_iterable(options), chain.from_iterable(self._options))
        return all(same) and self._on == list(map(rates_on, groups))


class GroupRates:
    """The rates of groups with these settings, checked; for as long as groups consist of the same objects."""

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
            lr = cast("Any", settings.each[i].h).lr if each[i][0] is None else each[i][0]
            followed = groups[i]["differentiable"]
            self.lr[i], self.weight_decay[i] = scalar(lr, followed), scalar(each[i][1], followed)
        # A look at all objects pays where nothing but parameters changes, as it does not under a schedule.
        same = before is not None and self._is_given(before._given)
        fixed = same and settings.fixed and all(type(x) in PLAIN for i in odd for x in each[i])
        self._objects: Any = (
            state_objects_of(self._numbers, dict(zip(self._numbers, groups, strict=True))) if fixed else None
        )

    def _is_given(self, given: tuple[list[Any], list[Any]]) -> bool:
        return all(len(x) == len(y) and all(map(is_, x, y)) for x, y in zip(self._given, given, strict=True))

    def unchanged(self, groups: Sequence[GroupDict]) -> bool:
        """Return True if it is known that groups have the same rates and options, and that none can change unseen."""
        seen = self._objects
        if seen is None or len(groups) != len(self._numbers):
            return False
        return bool(seen.same(self._numbers, dict(zip(self._numbers, groups, strict=True))))


def capturing() -> bool:
    """Return True while a CUDA graph is captured, where there is a GPU in use: else the query would raise."""
    return bool(on_gpu() and torch.cuda.is_current_stream_capturing())


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


def is_fixed(x: Any) -> bool:
    """Return True if a value cannot change by itself: a plain Python object, or a function."""
    return type(x) in PLAIN or callable(x) or (type(x) is tuple and all(map(is_fixed, x)))


def rates_on(group: Group) -> tuple[bool | None, ...]:
    """Return whether each rate is on: False for 0, and None if there is none.

    That is all of a rate on which settings depend. One that only a device knows counts as on.
    """
    lr, weight_decay = group["lr"], group["weight_decay"]
    return lr if lr is None else _is_on(lr), weight_decay if weight_decay is None else _is_on(weight_decay)


def _is_on(rate: Any) -> bool:
    if type(rate) is float:
        return rate != 0.0
    if isinstance(rate, Tensor):
        return is_on_device(rate) or rate.is_nested or rate.numel() != 1 or bool(rate.detach() != 0)
    return not (isinstance(rate, (int, float)) and rate == 0)


def is_on_device(x: Any) -> bool:
    """Return True for a tensor that is not in the host's memory."""
    return isinstance(x, Tensor) and x.device.type != "cpu"


@contextmanager
def of_group(number: int | None) -> Iterator[None]:
    """Say in errors of options which parameter group they are of, unless there is one group."""
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
            "a CUDA graph cannot capture a step of sharded parameters, a model_group or a replica_group: the processes "
            "agree on each step on the host. Capture the passes of the model alone, and call optimizer.step() after "
            "the replay."
        )
    if not group["capturable"]:
        way_out = "Pass capturable=True; else the graph would count no steps."
        raise ContradictionError(sentence("capturable", "True where a CUDA graph is captured", False, way_out))
    if scheduled and not isinstance(group["lr"], Tensor):
        way_out = "Pass lr=torch.tensor(...) on the parameters' device; else the graph would not follow the scheduler."
        raise ContradictionError(
            sentence("lr", "a tensor where a CUDA graph is captured and a scheduler moves it", group["lr"], way_out)
        )


def check_rates_captured(group: Group) -> None:
    """Raise if a captured step would keep the present number of a rate."""
    for name in RATES:
        rate = group[name]
        if not (group["capturable"] and isinstance(rate, Tensor) and rate.device.type == "cpu"):
            continue
        device = next((p.device for p in group["params"] if p.device.type != "cpu"), None)
        if device is not None:
            way_out = f'Pass torch.tensor({rate.item():g}, device="{device}"), whose changes a captured step sees.'
            raise ContradictionError(sentence(name, f"on {device} with capturable=True", str(rate.device), way_out))


def check_offloaded(group: Group) -> None:
    """Raise if a step that the host takes is to be captured."""
    if group["capturable"]:
        raise ContradictionError(sentence("capturable", "False when offload=True", True, "The host steps."))
