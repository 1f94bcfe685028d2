"""The rules of an optimizer's groups, one for all or one named by each, and the values of their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from layerwise.catalog.registry import BY_LOWER, ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.layout.blocks import in_plain_form
from layerwise.options import arguments
from layerwise.options.by_name import is_by_name
from layerwise.options.checks import alternatives, as_float, flag, number
from layerwise.options.misspellings import did_you_mean, nearest
from layerwise.options.settings import ClippedByNorm, Hyper, options_in_order
from layerwise.rules.requests import Scalar, T
from layerwise.storage.options import OPTIONS, checked_option
from layerwise.torch.groups._members import Group, GroupDict

SWITCHES = arguments.OF_GROUP
RULE = "rule"  # the key of a group that names its rule
OF_ALL_RULES = tuple(options_in_order(ClippedByNorm))  # options with the same meaning in every rule
WAY_OUT = 'Pass one, such as {"params": ..., "rule": "lamb", "lr": 1e-3}; the other keys of the group are its options.'
# Keys that change from step to step, so that plans must not depend on them.
RATES = {
    "lr": "Pass a number such as lr=1e-3, or a tensor of one element. For a schedule, call "
    "layerwise.torch.scheduler(optimizer, schedule), or take one of torch.optim.lr_scheduler.",
    "weight_decay": "Pass a number such as weight_decay=0.01, or 0 for none. To maximize, use maximize=True.",
}
NOT_PLANNED = frozenset(("params", "param_names", *RATES))  # keys that change without other settings
PLAIN = frozenset((bool, int, float, str, type(None)))
on_gpu: Callable[[], bool] = torch.cuda.is_initialized


class RuleOptions:
    """A rule with its options, and their default values in a group."""

    def __init__(self, rule: ModuleType, hyper: type[Hyper], given: Mapping[str, object]) -> None:
        self.rule, self.hyper = rule, hyper
        self.options = options_in_order(hyper)
        self.known = (*self.options, *SWITCHES)
        self.defaults = {name: given[name] for name in self.known}
        self.without_lr = hyper.__dataclass_fields__["lr"].default is None

    def settings(self, options: Mapping[str, object]) -> Hyper:
        """Return checked settings, which are the same for all rates other than 0."""
        # A rate on a device counts as on, because reading it would mean waiting.
        given = {**options, **{name: 1.0 for name in RATES if is_on_device(options[name])}}
        made: Any = self.hyper
        fixed = {"weight_decay": self.hyper.__dataclass_fields__["weight_decay"].default}
        found: Hyper = made(**given).settled(**fixed, **({} if given["lr"] is None else {"lr": 0.0}))
        return found

    def in_plain_form(self, group: Group) -> GroupDict:
        """Return those of a group's options that are not plain Python objects, such as NumPy numbers, as such objects.

        Rates that are tensors stay: a captured step reads them.
        """
        odd = {name: group[name] for name in self.known if name in group and type(group[name]) not in PLAIN}
        odd = {name: x for name, x in odd.items() if isinstance(x, type) or not is_fixed(x)}  # a dtype may be a class
        return {name: self._plain(name, x) for name, x in odd.items() if not (name in RATES and isinstance(x, Tensor))}

    def _plain(self, name: str, value: object) -> object:
        if name in RATES:
            return number(0)(name, value, RATES[name])
        if name in self.options:
            return self.hyper.check(name, value)
        if name == "blocks":
            return value if is_by_name(value) else in_plain_form(name, value)
        return checked_option(name, value) if name in OPTIONS else flag(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return _kind, (self.rule.__name__, self.hyper, self.defaults)  # modules cannot be pickled


def _kind(rule: str, hyper: type[Hyper], defaults: Mapping[str, object]) -> RuleOptions:
    return RuleOptions(import_module(rule), hyper, defaults)


class RulePerOptimizer:
    """The one rule of all groups."""

    keys: tuple[str, ...] = ()
    """Keys of groups besides options."""

    shared: Mapping[str, object] = {}
    """Options given for all rules that have them."""

    def __init__(self, probe: RuleOptions) -> None:
        self.probe = probe
        """A rule with all options that were given to the optimizer itself."""
        self.defaults = probe.defaults
        """The default values of keys in groups."""

    def of(self, group: Group) -> RuleOptions:
        """Return the rule of a group."""
        return self.probe

    def named(self, group: Group) -> GroupDict:
        """Return a group with its rule in the stored form, if groups name their rules."""
        return dict(group)

    def in_plain_form(self, group: Group) -> GroupDict:
        """Return the options of a group that are not plain Python objects, such as NumPy numbers, as such objects."""
        return self.probe.in_plain_form(group)


class RulePerGroup(RulePerOptimizer):
    """The rules of an optimizer whose groups name them. Each rule has its own defaults, except for options that all
    share.
    """

    keys = (RULE,)

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = {name: given[name] for name in (*OF_ALL_RULES, *SWITCHES)}
        self.shared = {name: given[name] for name in OF_ALL_RULES}
        if isinstance(given["state_dtype"], Mapping):
            way_out = "Pass a mapping from names of state only in a group whose rule has such state."
            raise HyperparameterError(sentence("state_dtype", "one dtype for all rules", given["state_dtype"], way_out))
        self._kinds: dict[str, RuleOptions] = {}
        super().__init__(self._kind("AdamW"))
        self.defaults = {name: given[name] for name in SWITCHES}

    def __reduce__(self) -> tuple[object, ...]:
        return RulePerGroup, (self._given,)

    def of(self, group: Group) -> RuleOptions:
        name = group.get(RULE)
        return self._kinds[name] if isinstance(name, str) and name in self._kinds else self._kind(rule_name(name))

    def named(self, group: Group) -> GroupDict:
        return {**group, RULE: rule_name(group.get(RULE))}

    def in_plain_form(self, group: Group) -> GroupDict:
        return {RULE: rule_name(group.get(RULE)), **self.of(group).in_plain_form(group)}

    def _kind(self, name: str) -> RuleOptions:
        if name not in self._kinds:
            entry = ENTRIES[name]
            own = {spec.name: spec.default for spec in fields(entry.hyper)}
            shared = {key: value for key, value in self._given.items() if key in own or key in SWITCHES}
            self._kinds[name] = RuleOptions(entry.rule, entry.hyper, {**own, **shared})
        return self._kinds[name]


def rule_name(given: object) -> str:
    """Return the name of an optimizer that a group names in any case, or passes as a class."""
    if given is None:
        raise HyperparameterError(f"a group of Mixed needs a `{RULE}`. {WAY_OUT}")
    if isinstance(given, type):
        entry, own = ENTRIES.get(given.__name__), (getattr(given, "_rule", None), getattr(given, "_hyper", None))
        if entry is not None and own == (entry.rule, entry.hyper):
            return entry.name
    elif isinstance(given, str) and given.lower() in BY_LOWER:
        return BY_LOWER[given.lower()]
    close = nearest(given, BY_LOWER, 1) if isinstance(given, str) else []
    way_out = did_you_mean(close) or f"Pass a class of layerwise.torch, or {alternatives([*BY_LOWER])}."
    raise HyperparameterError(sentence(RULE, "the name of an optimizer", given, way_out))


# ---- values of options


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
