"""The keys of a parameter group, and its hyperparameters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from layerwise.catalog.registry import ENTRIES
from layerwise.engines import KEPT
from layerwise.errors import ContradictionError, HyperparameterError, sentence, warn
from layerwise.layout.blocks import as_blocks, in_plain_form
from layerwise.options import arguments, checks
from layerwise.options.by_name import ByName, is_by_name
from layerwise.options.misspellings import NOT_HERE, guess
from layerwise.options.settings import Hyper, in_words
from layerwise.storage.options import Wanted, check_fits, wanted
from layerwise.torch.step._capture import check_rates_captured
from layerwise.torch.step._due import PLAIN, RATES, Current, Group, Rates, Settings, rates_on
from layerwise.torch.step._kinds import RULE, SWITCHES, Kind, Kinds, name_of

RATE = checks.number(0)
# The options given once for all groups, and those that any optimizer takes.
USUAL = {one.name: one.default for one in arguments.TORCH}
NOT_OF_A_GROUP = tuple(name for name in USUAL if name not in SWITCHES)
ALL_OPTIONS = {spec.name for entry in ENTRIES.values() for spec in fields(entry.hyper)}
# What PyTorch's optimizers take in groups and ours once for all of them, with what says nothing of it.
OF_ALL_GROUPS = {"fused": None, "foreach": None, "differentiable": False}
MAY_BE_NONE = ("capturable", *OF_ALL_GROUPS)
CUTOFF = 0.75  # of how like an option a key is, since programs put keys of their own into groups
OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}  # what they put into groups


class Groups:
    """The checks of one optimizer's groups, and the hyperparameters made from them."""

    def __init__(self, kinds: Kinds, differentiable: bool, blocks: ByName) -> None:
        self.kinds, self.differentiable, self.blocks = kinds, differentiable, blocks
        self.begun_elsewhere = False
        """Whether initial_lr is of a schedule that only the checkpoint had."""
        self._made: dict[Hashable, Hyper] = {}
        self._blocks: dict[Hashable, ByName] = {}
        self._warned: set[str] = set()  # of keys that are nearly options
        self._seen: set[str] = set()  # keys that groups were made with, or that there was a warning of
        self._sizes: dict[int, int] = {}  # the numbers of keys that groups had when they were looked at, by id

    def __reduce__(self) -> Any:
        # What it remembers may have keys that cannot be pickled.
        return Groups, (self.kinds, self.differentiable, self.blocks), {"begun_elsewhere": self.begun_elsewhere}

    def rule_of(self, group: Mapping[str, Any]) -> Any:
        """Return the rule of a group."""
        return self.kinds.of(group).rule

    def wanted(self, group: Mapping[str, Any]) -> Wanted:
        """Return a group's wanted storage of weights and state."""
        return wanted(group, self.kinds.of(group).rule)

    def blocks_of(self, group: Mapping[str, Any]) -> ByName:
        """Return the blocks of a group's parameters: those said by name, and else the group's own."""
        own = group["blocks"]
        if own is None or (is_by_name(own) and replace(self.blocks, given=own) == self.blocks):
            return self.blocks  # as wrappers put it into every group
        key = _hashable(own)
        if key not in self._blocks:
            split = in_plain_form("blocks", own)
            self._blocks[key] = replace(self.blocks, default=as_blocks("blocks", split))
        return self._blocks[key]

    def known(self, group: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of all options that a group has."""
        return self.kinds.of(group).known

    def filled(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return a group with every option of its rule."""
        return {**self.kinds.of(group).defaults, **self.kinds.named(group)}

    def check_given(self) -> None:
        """Raise if options given for all groups are wrong, even if no group takes them."""
        self.check({**self.kinds.probe.defaults, **dict.fromkeys(self.kinds.keys, self.kinds.probe.hyper.optimizer)})

    def defaults(self) -> dict[str, Any]:
        """Return the values of keys that groups leave out."""
        return {**self.kinds.defaults, **self.kinds.probe.in_plain_form(self.kinds.defaults)}

    def given(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a group was given, without what says nothing here: adapt=False where the rule has no trust ratio
        to turn off, or the name of the one rule that there is.
        """
        nothing = {"adapt"} if group.get("adapt") is False and "adapt" not in self.known(group) else set()
        if group.get(RULE) is not None and not self.kinds.keys:
            nothing |= {RULE} if name_of(group[RULE]) == self.kinds.probe.hyper.optimizer else set()
        return {key: value for key, value in group.items() if key not in nothing}

    def check_keys(self, group: Mapping[str, Any]) -> None:
        """Raise if a group has a key that nothing would read."""
        kind = self.kinds.of(group)
        known = (*kind.known, *self.kinds.keys)
        own, other = kind.hyper.optimizer, None if group.get(RULE) is None else name_of(group[RULE])
        if other not in (None, own) and RULE not in known:
            raise HyperparameterError(
                f"`{RULE}` of a parameter group is {other}, and every group of {own} has the rule {own}. Pass the "
                "groups to layerwise.torch.Mixed."
            )
        for key in group.keys() - {*known, "params", "param_names", RULE}:
            if key in NOT_OF_A_GROUP:
                raise HyperparameterError(
                    f"`{key}` is of the whole optimizer. Pass it there, not in a parameter group."
                )
            if key == "lr_scale":  # as a number it is for schedulers of others
                if not is_by_name(group[key]):
                    continue
                raise HyperparameterError("`lr_scale` by name is for layerwise.numpy. Give groups an lr of their own.")
            if key in ALL_OPTIONS:
                way_out = guess(key, kind.options, CUTOFF) or "Leave it out of the group."
                raise HyperparameterError(f"`{key}` is no option of {kind.hyper.optimizer}. {way_out}")
            hint = "" if key in NOT_HERE else guess(str(key), known, CUTOFF)
            if hint and key not in self._warned:
                self._warned.add(key)  # programs put keys of their own in groups, and in all of them
                warn(f"a parameter group has the key {key!r}, which is no option. {hint}")

    def see(self, group: Mapping[str, Any]) -> None:
        """Take note of a group's keys, which are as its maker wants them."""
        self._seen.update(group)
        self._sizes[id(group)] = len(group)

    def look_at(self, group: Mapping[str, Any]) -> None:
        """Warn of keys that were put into a group since it was made, and that nothing reads."""
        if self._sizes.get(id(group)) == len(group):
            return
        new = group.keys() - self._seen - OF_SCHEDULERS
        self.see(group)
        for key in new:
            try:
                self.check_keys({name: x for name, x in group.items() if name == key or name in self.kinds.keys})
            except HyperparameterError as problem:
                warn(str(problem))

    def rates(self, groups: Sequence[Group], before: Rates | None, numbers: Sequence[int] | None) -> Rates:
        """Return the rates of groups with their settings, or raise if an option that has changed is wrong.

        Options that were set in another form get that of plain Python objects.
        """
        if before is not None and before.settings.unchanged(groups):
            return Rates(before.settings, groups, self._check_now, before)
        for group in groups:
            with suppress(HyperparameterError):  # of which the check says more
                group.update(self.in_plain_form(group))
        return Rates(Settings(groups, self._checked, self.counted, numbers), groups, self._check_now, before)

    def _checked(self, group: Group) -> Current:
        if len(self._made) > KEPT + 2 * len(self._sizes):  # schedulers of betas make some at each step
            self._made.clear()
        self.look_at(group)
        return Current(self.rule_of(group), self.check(group), self.wanted(group), self.blocks_of(group))

    def _check_now(self, group: Group) -> None:
        kind = self.kinds.of(group)
        self._check_rates(kind, group)
        check_rates_captured(group)
        group.update(kind.in_plain_form({name: group[name] for name in RATES}))

    def check(self, group: Mapping[str, Any]) -> Hyper:
        """Return the group's hyperparameters, or raise if one of its options is wrong."""
        h = self.settings(group)
        for name in ("differentiable", "capturable"):
            checks.FLAG(name, group[name], "Pass True or False.")
        self.blocks_of(group)
        want = self.wanted(group)
        check_fits(want, h)
        check_followed(want, self.differentiable)
        for name in ("capturable", "master_weights"):
            if group["differentiable"] and group[name]:
                raise ContradictionError(
                    sentence(name, "False when differentiable=True", group[name], "Drop one of them.")
                )
        if group["differentiable"] != self.differentiable:
            raise ContradictionError(
                sentence(
                    "differentiable", f"{self.differentiable} in every group", group["differentiable"], "All or none."
                )
            )
        return h

    def check_fits(self, group: Mapping[str, Any], dtype: torch.dtype) -> None:
        """Raise if a number that scales whole tensors is infinite in the dtype of their arithmetic."""
        most = torch.finfo(dtype).max
        for name in ("lr", "weight_decay", "eps"):
            value = group.get(name)
            if isinstance(value, (int, float)) and value > most:
                way_out = "Pass a smaller one; parameters of float64 are computed with in float64."
                raise HyperparameterError(
                    sentence(name, f"at most {most:.3g} for parameters of {dtype}", value, way_out)
                )

    def settings(self, group: Mapping[str, Any]) -> Hyper:
        """Return the group's hyperparameters, checked; made once for as long as they stay the same."""
        kind = self.kinds.of(group)
        self._check_rates(kind, group)
        static, on = _static(kind, group), rates_on(group)
        key = (kind.hyper.optimizer, on, *map(_hashable, static.values()))
        found = self._made.get(key)  # once, since another thread may forget it
        if found is None:
            found = self._made[key] = kind.settings({**static, **{name: group[name] for name in RATES}})
        return found

    def _check_rates(self, kind: Kind, group: Mapping[str, Any]) -> None:
        for name, way_out in RATES.items():
            _check_rate(name, group[name], way_out, optional=name == "lr" and kind.without_lr)

    def forget(self) -> None:
        """Forget all checked settings: other groups have come in their place."""
        self._made.clear()
        self._sizes.clear()

    def new(self, group: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new group with every option, or raise if one of them, or of the keys that it was given, is wrong."""
        self.check_keys(given)
        made = self.filled(group)
        self.check(made)
        self.complete(made)
        return made

    def complete(self, group: dict[str, Any]) -> None:
        """Give options that a group leaves open their definite value, as schedulers and checkpoints need it."""
        h = self.settings(group)
        group |= {name: getattr(h, name) for name in h.settled_here if name != "lr" or group["lr"] is None}
        group |= self.in_plain_form(group)

    def in_plain_form(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a group that are no plain Python objects, such as numbers of NumPy, in such a form."""
        named = self.kinds.named(group)
        return {**{key: named[key] for key in self.kinds.keys}, **self.kinds.of(group).in_plain_form(group)}

    def counted(self, h: Hyper) -> Hyper:
        """Return the settings of a group that counts towards the norm of all gradients, even if it is not clipped."""
        return h if h.asks_of_model else self._made.setdefault(("counted", h), h.counting())


def check_followed(want: Wanted, differentiable: bool) -> None:
    """Raise if autograd is to follow a step that rounds at random, or in groups."""
    if differentiable and (want.state or want.rounding == "stochastic"):
        name = "state_dtype" if want.state else "rounding"
        given = dict(want.state) or want.rounding
        raise ContradictionError(sentence(name, "None when differentiable=True", given, "Drop one of them."))


def said_by_groups(params: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of the whole optimizer that it was not given, and that groups agree on."""
    groups = [one for one in params if isinstance(one, Mapping)]
    said = {name: [group[name] for group in groups if group.get(name) is not None] for name in OF_ALL_GROUPS}
    return {
        name: values[0]
        for name, values in said.items()
        if given[name] is OF_ALL_GROUPS[name] and values and all(value is values[0] for value in values)
    }


def without_unsaid(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group without options that are None where PyTorch's optimizers have None for their default."""
    return {key: x for key, x in group.items() if x is not None or key not in MAY_BE_NONE}


def in_lines(name: str, groups: Sequence[Mapping[str, Any]], of: Groups) -> str:
    """Return the groups in words: lr, the rule if groups name theirs, and what is not the default."""
    lines = [f"{name} ("]
    for number, group in enumerate(groups):
        usual = {**USUAL, **{spec.name: spec.default for spec in fields(of.kinds.of(group).hyper)}}
        shown = {
            key: in_words(value)
            for key, value in group.items()
            if key not in ("params", "param_names")
            and (key == "lr" or key not in usual or not _same(value, usual[key]))
        }
        lines += [f"Parameter Group {number}", *(f"    {key}: {shown[key]}" for key in sorted(shown))]
    return "\n".join([*lines, ")"])


def _same(value: Any, default: Any) -> bool:
    return _hashable(value) == _hashable(default)


def _static(kind: Kind, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group except its rates."""
    try:
        return {name: group[name] for name in kind.options if name not in RATES}
    except KeyError as missing:
        if RULE not in group:
            raise
        raise HyperparameterError(
            f"a group with the rule {kind.hyper.optimizer} lacks its option {missing}. A group that changes its rule "
            "needs all options of the new one: take them from a group that was made with it."
        ) from None


def proportional_rates(groups: Sequence[Mapping[str, Any]], lr: float | Tensor) -> list[Any]:
    """Return an lr for each group, the first group's being this one, in the proportions they have now."""
    now = [group["lr"] for group in groups]
    if not isinstance(now[0], Tensor) and now[0] == 0:
        way_out = "Set the groups' lr one by one."
        raise ContradictionError(sentence("proportional", "False while the first group's lr is 0", True, way_out))
    return [lr if i == 0 else lr * (rate / now[0]) for i, rate in enumerate(now)]


def _check_rate(name: str, value: Any, way_out: str, optional: bool) -> None:
    if isinstance(value, Tensor):
        odd = value.is_nested or value.layout is not torch.strided or value.is_complex()
        if odd or value.numel() != 1:
            raise HyperparameterError(sentence(name, "a number or a tensor of one real element", value, way_out))
        if value.device.type == "cpu":  # where it costs nothing to look
            RATE(name, float(value.detach()), way_out)
    elif not (optional and value is None):
        RATE(name, value, way_out)


def _hashable(value: Any) -> Hashable:
    # With its type, because True, 1 and 1.0 are one key and not one value; what cannot be a key is compared as text.
    kind = type(value)
    if kind in PLAIN:  # nearly all of them, at every step
        return kind, value
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return kind, value if isinstance(value, Hashable) else repr(value)
