"""The work of a step: the last checked settings and rates of groups, parameters, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from math import inf
from operator import attrgetter, is_, itemgetter
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from layerwise.engines.addresses import state_objects_of
from layerwise.options.by_name import ByName
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Scalar, T
from layerwise.storage.options import RequestedStorage
from layerwise.torch.groups._members import Group, GroupDict
from layerwise.torch.groups._options import CheckedGroup, GroupOptions
from layerwise.torch.groups._rules import NOT_PLANNED, PLAIN, is_fixed, naming_group, rates_on, scalar
from layerwise.torch.sharding._cuts import division_of

if TYPE_CHECKING:
    from layerwise.torch.step._measured_step import MeasuredStep

GRADIENT = attrgetter("grad")
Elsewhere = Callable[[Tensor], Tensor | None]
Columns = tuple[list[Scalar], list[Scalar]]  # lr and weight decay of each group


class CheckedSettings:
    """The checked settings of some groups, valid as long as their options are the same objects, and rates stay 0 or not
    0.

    Parameters are not kept, so that they can be freed.
    """

    def __init__(self, groups: Sequence[GroupDict], options: GroupOptions, numbers: Sequence[int] | None) -> None:
        self.of = range(len(groups)) if numbers is None else numbers
        """The numbers of these groups in the optimizer."""
        self._several = len(groups) > 1
        self.each = [self.named(i, options.check_changed, group) for i, group in enumerate(groups)]
        keys = [tuple(group) for group in groups]
        self._sizes = list(map(len, groups))
        readers = {own: itemgetter(*[key for key in own if key not in NOT_PLANNED]) for own in {*keys}}
        self._readers = [readers[own] for own in keys]
        self._options = [read(group) for read, group in zip(self._readers, groups, strict=True)]
        self.fixed = False not in [is_fixed(x) for x in chain.from_iterable(self._options) if type(x) not in PLAIN]
        """Whether no option can change without being replaced."""
        self._on = list(map(rates_on, groups))
        asks = any(checked.h.needs_model_sum for checked in self.each)
        self.hs = [options.counted(checked.h) if asks else checked.h for checked in self.each]
        """The settings of each group, whose gradients may count in a norm that clips others."""
        each = zip(self.hs, groups, self.each, strict=True)
        self.planned_for = [(h, group["capturable"], checked.want, checked.blocks) for h, group, checked in each]
        """The settings of each group on which plans depend."""

    def named(self, i: int, check: Callable[[GroupDict], T], group: GroupDict) -> T:
        """Return the result of checking a group; an error names the group, if there are several."""
        with naming_group(self.of[i] if self._several else None):
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
    """The checked rates of groups with these settings, valid as long as groups consist of the same objects.

    An option is checked again only if it has changed. Options in another form become plain Python objects.
    """

    def __init__(
        self,
        groups: Sequence[GroupDict],
        options: GroupOptions,
        numbers: Sequence[int] | None = None,
        before: GroupRates | None = None,
    ) -> None:
        same = before is not None and before.settings.unchanged(groups)
        settings = before.settings if before is not None and same else CheckedSettings(groups, options, numbers)
        self.settings: CheckedSettings = settings
        self._numbers = list(range(len(groups)))
        self._given = [group["lr"] for group in groups], [group["weight_decay"] for group in groups]
        each = list(zip(*self._given, strict=True))
        odd = [i for i, (x, y) in enumerate(each) if not (type(x) is type(y) is float and 0 <= x < inf > y >= 0)]
        for i in odd:
            settings.named(i, options.check_rates, groups[i])
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


class DueGroup(NamedTuple):
    """The parameters of one group to step, and the group's settings."""

    number: int
    group: Group
    rule: ModuleType
    h: Hyper
    want: RequestedStorage
    blocks: ByName
    params: list[Tensor]


class Work(NamedTuple):
    """The work of a step: what is stepped in place of the parameters, and the local parts of that and of gradients."""

    settings: CheckedSettings
    which: Sequence[int]  # of the groups that the settings belong to
    groups: Sequence[Group]
    sizes: list[int]  # the number of parameters of each group
    rates: Columns
    planned_for: Any  # everything about groups on which plans depend, and their sizes; without rates
    params: list[Tensor]
    grads: list[Tensor]
    stepped: list[Tensor]
    params_here: list[Tensor]
    grads_here: list[Tensor]
    ahead: MeasuredStep | None = None  # its measurements

    @classmethod
    def of(
        cls,
        rates: GroupRates,
        groups: Sequence[Group],
        asked: Sequence[Sequence[Tensor]],
        elsewhere: Elsewhere | None = None,
    ) -> Work:
        """Return the work of these parameters of groups, if everything is local; gradients may be `elsewhere`."""
        params, sizes = list(chain.from_iterable(asked)), list(map(len, asked))
        grads: list[Any] = list(map(GRADIENT, params))
        which: Sequence[int] = range(len(groups))
        if elsewhere is not None or NoneType in map(type, grads):
            params, grads, sizes = _with_gradients(asked, grads, elsewhere)
        here, settings, columns = (params, grads, params, params, grads), rates.settings, (rates.lr, rates.weight_decay)
        if 0 not in sizes:
            return cls(settings, which, groups, sizes, columns, (settings.planned_for, sizes), *here)
        which = [i for i, n in enumerate(sizes) if n]
        return cls(settings, which, *_at(which, groups, sizes, columns, settings.planned_for), *here)

    @property
    def dues(self) -> list[DueGroup]:
        """The work of each group."""
        each, found = iter(self.params), []
        for i, group, n in zip(self.which, self.groups, self.sizes, strict=True):
            checked: CheckedGroup = self.settings.each[i]._replace(h=self.settings.hs[i])
            found.append(DueGroup(self.settings.of[i], group, *checked, [next(each) for _ in range(n)]))
        return found

    @property
    def hs(self) -> list[Hyper]:
        """The settings of each group."""
        return [self.settings.hs[i] for i in self.which]

    def as_asked(self) -> Work:
        """Return the work before parameters and gradients were replaced."""
        return self._replace(stepped=self.params, params_here=self.params, grads_here=self.grads)

    def with_grads(self, found: list[Tensor]) -> Work:
        """Return the work with other local parts of the gradients."""
        return self._replace(grads=found if self.grads_here is self.grads else self.grads, grads_here=found)

    def leave(self) -> None:
        """Discard the measurements, unless they were used."""
        if self.ahead is not None:
            self.ahead.leave()

    def part(self, which: range, grads_here: list[Tensor]) -> Work:
        """Return the work of some consecutive parameters, with their gradients in this form."""
        ends = accumulate(self.sizes)
        sizes = [max(0, min(e, which.stop) - max(e - n, which.start)) for e, n in zip(ends, self.sizes, strict=True)]
        some, own = slice(which.start, which.stop), [i for i, n in enumerate(sizes) if n]
        here = self.params[some], self.grads[some], self.stepped[some], self.params_here[some], grads_here
        of_groups = _at(own, self.groups, sizes, self.rates, self.planned_for[0])
        return Work(self.settings, [self.which[i] for i in own], *of_groups, *here)


def _at(
    which: Sequence[int], groups: Sequence[Group], sizes: Sequence[int], rates: Columns, planned_for: Sequence[Any]
) -> tuple[list[Group], list[int], Columns, Any]:
    """Return the columns of some groups."""
    lr, weight_decay = ([of[i] for i in which] for of in rates)
    left = [sizes[i] for i in which]
    return [groups[i] for i in which], left, (lr, weight_decay), ([planned_for[i] for i in which], left)


def _with_gradients(
    asked: Sequence[Sequence[Tensor]], grads: Sequence[Tensor | None], elsewhere: Elsewhere | None
) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Return the parameters with gradients, which may be `elsewhere`, these gradients, and their number per group."""
    each, params, found, sizes = iter(grads), list[Tensor](), list[Tensor](), list[int]()
    for some in asked:
        before = len(params)
        for p in some:
            g = next(each)
            g = elsewhere(p) if g is None and elsewhere is not None else g
            g = division_of(p).missing_gradient(p) if g is None else g
            if g is not None:
                params.append(p)
                found.append(g)
        sizes.append(len(params) - before)
    return params, found, sizes
