"""The keys of a parameter group, and its hyperparameters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.catalog.registry import ALL_OPTIONS
from layerwise.engines import KEPT
from layerwise.errors import ContradictionError, HyperparameterError, sentence, warn
from layerwise.layout.blocks import as_blocks, in_plain_form
from layerwise.options import arguments, checks
from layerwise.options.by_name import ByName, is_by_name
from layerwise.options.misspellings import NOT_HERE, guess
from layerwise.options.settings import Hyper, as_plain_value
from layerwise.options.values import Scalar
from layerwise.storage.options import RequestedStorage, check_fits, requested_storage
from layerwise.torch.groups._members import Group, GroupDict
from layerwise.torch.groups._rules import (
    PLAIN,
    RATES,
    RULE,
    SWITCHES,
    RuleOptions,
    RulePerOptimizer,
    check_rates_captured,
    rates_on,
    rule_name,
)

RATE = checks.number(0)
# Options that are given once for all groups, and those that every optimizer takes.
USUAL = {one.name: one.default for one in arguments.TORCH}
NOT_OF_A_GROUP = tuple(name for name in USUAL if name not in SWITCHES)
# Arguments that PyTorch's optimizers take in groups and ours once for all, with the value that has no effect.
OF_ALL_GROUPS = {"fused": None, "foreach": None, "differentiable": False}
MAY_BE_NONE = ("capturable", *OF_ALL_GROUPS)
CUTOFF = 0.75  # the similarity that counts, because programs put keys of their own into groups
OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}  # what they put into groups


class CheckedGroup(NamedTuple):
    """The settings of one group as they were checked."""

    rule: ModuleType
    h: Hyper
    want: RequestedStorage
    blocks: ByName


class GroupOptions:
    """The checks of one optimizer's groups, and the hyperparameters made from them."""

    def __init__(self, rules: RulePerOptimizer, differentiable: bool, blocks: ByName) -> None:
        self.rules, self.differentiable, self.blocks = rules, differentiable, blocks
        self.begun_elsewhere = False
        """Whether initial_lr belongs to a schedule that only the checkpoint had."""
        self._made: dict[Hashable, Hyper] = {}
        self._blocks: dict[Hashable, ByName] = {}
        self._warned: set[str] = set()  # about keys that are nearly options
        self._seen: set[str] = set()  # keys that groups were created with, or that have had a warning
        self._sizes: dict[int, int] = {}  # the number of keys that each group had at its last check, by id

    def __reduce__(self) -> tuple[object, ...]:
        # The remembered keys may be objects that cannot be pickled.
        return GroupOptions, (self.rules, self.differentiable, self.blocks), {"begun_elsewhere": self.begun_elsewhere}

    def blocks_of(self, group: Group) -> ByName:
        """Return the blocks of a group's parameters: first those by name, then the group's own."""
        own = group["blocks"]
        if own is None or (is_by_name(own) and replace(self.blocks, given=own) == self.blocks):
            return self.blocks  # because wrappers put it into every group
        key = _hashable(own)
        if key not in self._blocks:
            split = in_plain_form("blocks", own)
            self._blocks[key] = replace(self.blocks, default=as_blocks("blocks", split))
        return self._blocks[key]

    def known(self, group: Group) -> Sequence[str]:
        """Return the names of all options that a group has."""
        return self.rules.of(group).known

    def filled(self, group: Group) -> GroupDict:
        """Return a group with every option of its rule."""
        return {**self.rules.of(group).defaults, **self.rules.named(group)}

    def check_given(self) -> None:
        """Raise if options given for all groups are wrong, even if no group uses them."""
        self.check({**self.rules.probe.defaults, **dict.fromkeys(self.rules.keys, self.rules.probe.hyper.optimizer)})

    def defaults(self) -> GroupDict:
        """Return the values of keys that groups leave out."""
        return {**self.rules.defaults, **self.rules.probe.in_plain_form(self.rules.defaults)}

    def given(self, group: Group) -> GroupDict:
        """Return a group's given keys, without those that have no effect: adapt=False if the rule has no trust ratio,
        or the name of the only rule.
        """
        nothing = {"adapt"} if group.get("adapt") is False and "adapt" not in self.known(group) else set()
        if group.get(RULE) is not None and not self.rules.keys:
            nothing |= {RULE} if rule_name(group[RULE]) == self.rules.probe.hyper.optimizer else set()
        return {key: value for key, value in group.items() if key not in nothing}

    def check_keys(self, group: Group) -> None:
        """Raise if a group has a key that nothing reads."""
        kind = self.rules.of(group)
        known = (*kind.known, *self.rules.keys)
        own, other = kind.hyper.optimizer, None if group.get(RULE) is None else rule_name(group[RULE])
        if other not in (None, own) and RULE not in known:
            raise HyperparameterError(
                f"a group has the rule {other}, but {own} steps every group by {own}. Pass the groups to "
                "layerwise.torch.Mixed."
            )
        for key in group.keys() - {*known, "params", "param_names", RULE}:
            if key in NOT_OF_A_GROUP:
                raise HyperparameterError(
                    f"`{key}` applies to the whole optimizer. Pass it to the constructor, not in a parameter group."
                )
            if key == "lr_scale":  # as a number it is for schedulers of other packages
                if not is_by_name(group[key]):
                    continue
                raise HyperparameterError(
                    "only layerwise.numpy takes `lr_scale` by name. Give each group an lr instead."
                )
            if key in ALL_OPTIONS:
                way_out = guess(key, kind.options, CUTOFF) or "Remove it from the group."
                raise HyperparameterError(f"{kind.hyper.optimizer} has no option `{key}`. {way_out}")
            hint = "" if key in NOT_HERE else guess(str(key), known, CUTOFF)
            if hint and key not in self._warned:
                self._warned.add(key)  # programs put keys of their own into groups, and into all of them
                warn(f"a parameter group has the unknown option {key!r}. {hint}")

    def note_keys(self, group: Group) -> None:
        """Remember a group's keys, which its creator wants."""
        self._seen.update(group)
        self._sizes[id(group)] = len(group)

    def warn_of_new_keys(self, group: Group) -> None:
        """Warn about keys that were put into a group after its creation, and that nothing reads."""
        if self._sizes.get(id(group)) == len(group):
            return
        new = group.keys() - self._seen - OF_SCHEDULERS
        self.note_keys(group)
        for key in new:
            try:
                self.check_keys({name: x for name, x in group.items() if name == key or name in self.rules.keys})
            except HyperparameterError as problem:
                warn(str(problem))

    def check_changed(self, group: GroupDict) -> CheckedGroup:
        """Return the same for a group that may have changed, whose options get the form of plain Python objects."""
        kind = self.rules.of(group)
        if lacking := [name for name in kind.known if name not in group]:
            raise HyperparameterError(
                f"the group has no {lacking[0]!r}, which {kind.hyper.optimizer} needs. Set it, or copy all options "
                "from a group that was created with this rule."
            )
        with suppress(HyperparameterError):  # the check explains more
            group.update(self.rules.in_plain_form(group))
        if len(self._made) > KEPT + 2 * len(self._sizes):  # schedulers of betas create a pair at each step
            self._made.clear()
        self.warn_of_new_keys(group)
        return self.check(group)

    def check_rates(self, group: GroupDict) -> None:
        """Raise if a rate of a group is wrong, and give the others the form of plain Python objects."""
        kind = self.rules.of(group)
        self._check_rates(kind, group)
        check_rates_captured(group)
        group.update(kind.in_plain_form({name: group[name] for name in RATES}))

    def check(self, group: Group) -> CheckedGroup:
        """Return what follows from a group's options, or raise if one of them is wrong."""
        kind = self.rules.of(group)
        h = self._settings(kind, group)
        for name in ("differentiable", "capturable"):
            checks.flag(name, group[name])
        blocks, want = self.blocks_of(group), requested_storage(group, kind.rule)
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
        return CheckedGroup(kind.rule, h, want, blocks)

    def check_fits(self, group: Group, dtype: torch.dtype) -> None:
        """Raise if a number that scales whole tensors is infinite in the dtype of their arithmetic."""
        most = torch.finfo(dtype).max
        for name in ("lr", "weight_decay", "eps"):
            value = group.get(name)
            if isinstance(value, (int, float)) and value > most:
                way_out = "Pass a smaller number, or use float64 parameters: they are computed in float64."
                raise HyperparameterError(
                    sentence(name, f"at most {most:.3g} for parameters of {dtype}", value, way_out)
                )

    def _settings(self, kind: RuleOptions, group: Group) -> Hyper:
        """Return the group's checked hyperparameters, cached for as long as they stay the same."""
        self._check_rates(kind, group)
        static, on = {name: group[name] for name in kind.options if name not in RATES}, rates_on(group)
        key = (kind.hyper.optimizer, on, *[(type(x), x if type(x) in PLAIN else _hashable(x)) for x in static.values()])
        found = self._made.get(key)  # once, because another thread may forget it
        if found is None:
            found = self._made[key] = kind.settings({**static, **{name: group[name] for name in RATES}})
        return found

    def _check_rates(self, kind: RuleOptions, group: Group) -> None:
        for name, way_out in RATES.items():
            _check_rate(name, group[name], way_out, optional=name == "lr" and kind.without_lr)

    def scheduled(self, optimizer: Any, group: Group) -> bool:
        """Return True if a scheduler moves the group's lr.

        Every scheduler leaves `initial_lr` in the group, as does the checkpoint of a run with a scheduler. PyTorch's
        schedulers also wrap the optimizer's step.
        """
        here = not self.begun_elsewhere or hasattr(optimizer.step, "_wrapped_by_lr_sched")
        return here and "initial_lr" in group

    def forget(self) -> None:
        """Forget the checked groups, because others have replaced them; what was made of options stays true."""
        self._sizes.clear()

    def new(self, group: Group, given: Mapping[str, object]) -> GroupDict:
        """Return a new group with every option; raise if one of them, or of the given keys, is wrong."""
        self.check_keys(given)
        made = self.filled(group)
        self.check(made)
        self.complete(made)
        return made

    def complete(self, group: GroupDict) -> None:
        """Give open options of a group their definite value, as schedulers and checkpoints need it."""
        h = self._settings(self.rules.of(group), group)
        group |= {name: getattr(h, name) for name in h.settled_here if name != "lr" or group["lr"] is None}
        group |= self.rules.in_plain_form(group)

    def counted(self, h: Hyper) -> Hyper:
        """Return the settings of a group that counts towards the global gradient norm, even if it is not clipped."""
        return h if h.needs_model_sum else self._made.setdefault(("counted", h), h.counted_in_norm())


def check_followed(want: RequestedStorage, differentiable: bool) -> None:
    """Raise if autograd is to track a step that rounds at random, or stores state in groups."""
    if differentiable and (want.state or want.rounding == "stochastic"):
        name = "state_dtype" if want.state else "rounding"
        given = dict(want.state) or want.rounding
        raise ContradictionError(sentence(name, "None when differentiable=True", given, "Drop one of them."))


def agreed_by_groups(params: Sequence[object], given: Mapping[str, object]) -> GroupDict:
    """Return options of the whole optimizer that it was not given, but on which all groups agree."""
    groups = [one for one in params if isinstance(one, Mapping)]
    said = {name: [group[name] for group in groups if group.get(name) is not None] for name in OF_ALL_GROUPS}
    return {
        name: values[0]
        for name, values in said.items()
        if given[name] is OF_ALL_GROUPS[name] and values and all(value is values[0] for value in values)
    }


def without_nones(group: Group) -> GroupDict:
    """Return a group without options that are None, if None is the default in PyTorch's optimizers."""
    return {key: x for key, x in group.items() if x is not None or key not in MAY_BE_NONE}


def described_groups(name: str, groups: Sequence[Group], of: GroupOptions) -> str:
    """Return the groups in words: lr, the rule if groups name it, and values other than the defaults."""
    lines = [f"{name} ("]
    for number, group in enumerate(groups):
        usual = {**USUAL, **{spec.name: spec.default for spec in fields(of.rules.of(group).hyper)}}
        shown = {
            key: as_plain_value(value)
            for key, value in group.items()
            if key not in ("params", "param_names")
            and (key == "lr" or key not in usual or not _same(value, usual[key]))
        }
        lines += [f"Parameter Group {number}", *(f"    {key}: {shown[key]}" for key in sorted(shown))]
    return "\n".join([*lines, ")"])


def _same(value: object, default: object) -> bool:
    return _hashable(value) == _hashable(default)


def proportional_rates(groups: Sequence[Group], lr: float | Tensor) -> list[Scalar]:
    """Return an lr for each group in the present proportions, given the first group's lr."""
    now = [group["lr"] for group in groups]
    if not isinstance(now[0], Tensor) and now[0] == 0:
        way_out = "Set the lr of each group."
        raise ContradictionError(
            sentence("proportional", ("False while the lr of the first group is 0"), True, way_out)
        )
    return [lr if i == 0 else lr * (rate / now[0]) for i, rate in enumerate(now)]


def _check_rate(name: str, value: object, way_out: str, optional: bool) -> None:
    if isinstance(value, Tensor):
        odd = value.is_nested or value.layout is not torch.strided or value.is_complex()
        if odd or value.numel() != 1:
            raise HyperparameterError(sentence(name, "a number or a tensor of one real element", value, way_out))
        if value.device.type == "cpu":  # if that costs nothing
            RATE(name, float(value.detach()), way_out)
    elif not (optional and value is None):
        RATE(name, value, way_out)


def _hashable(value: object) -> Hashable:
    # With its type, because True, 1 and 1.0 are equal as keys, but not as values. Values that are not hashable are
    # compared as text.
    kind = type(value)
    if kind in PLAIN:  # nearly all of them, at every step
        return kind, value
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return kind, value if isinstance(value, Hashable) else repr(value)
