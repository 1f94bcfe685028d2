"""The work of a step: the last checked settings of groups, parameters, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from layerwise.options.by_name import ByName
from layerwise.options.settings import Hyper
from layerwise.options.values import Scalar
from layerwise.storage.options import RequestedStorage
from layerwise.torch.groups._members import Group
from layerwise.torch.sharding._cuts import division_of

if TYPE_CHECKING:
    from layerwise.torch.step._measured_step import MeasuredStep
from layerwise.torch.groups._settings import CheckedGroup, CheckedSettings, GroupRates

GRADIENT = attrgetter("grad")
Elsewhere = Callable[[Tensor], Tensor | None]
Columns = tuple[list[Scalar], list[Scalar]]  # lr and weight decay of each group


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
        here, columns = (params, grads, params, params, grads), (rates.lr, rates.weight_decay)
        if 0 not in sizes:
            return cls(rates.settings, which, groups, sizes, columns, *here)
        which = [i for i, n in enumerate(sizes) if n]
        return cls(rates.settings, which, *_at(which, groups, sizes, columns), *here)

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

    @property
    def planned_for(self) -> Any:
        """Everything about groups on which plans depend, and the number of parameters of each; without rates."""
        found = self.settings.planned_for
        return found if len(self.which) == len(found) else [found[i] for i in self.which], self.sizes

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
        of_groups = _at(own, self.groups, sizes, self.rates)
        return Work(self.settings, [self.which[i] for i in own], *of_groups, *here)


def _at(
    which: Sequence[int], groups: Sequence[Group], sizes: Sequence[int], rates: Columns
) -> tuple[list[Group], list[int], Columns]:
    """Return the columns of some groups."""
    lr, weight_decay = ([of[i] for i in which] for of in rates)
    return [groups[i] for i in which], [sizes[i] for i in which], (lr, weight_decay)


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
