"""What is due: the settings of groups as they were last checked, parameters, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from math import inf
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from layerwise.checks import as_float
from layerwise.engines.places import objects_of
from layerwise.errors import HyperparameterError
from layerwise.hyper import Hyper
from layerwise.names import ByName
from layerwise.storage.options import Wanted
from layerwise.torch.sharding._flat import missing_gradient

if TYPE_CHECKING:
    from layerwise.torch.step._ahead import Ahead

# What changes from step to step, and so is no part of what is planned ahead.
RATES = {
    "lr": "Pass a number such as lr=1e-3, or a tensor of one element; schedules are torch.optim.lr_scheduler's.",
    "weight_decay": "Pass a number such as weight_decay=0.01, or 0 for none. To climb, use maximize=True.",
}
NOT_PLANNED = frozenset(("params", "param_names", *RATES))  # keys that change without other settings
PLAIN = frozenset((bool, int, float, str, type(None)))
Group = dict[str, Any]
Elsewhere = Callable[[Tensor], Tensor | None]
Rates = tuple[list[Any], list[Any]]  # lr and weight decay of each group


class Current(NamedTuple):
    """The settings of one group as they were checked."""

    rule: Any
    h: Hyper
    want: Wanted
    blocks: ByName


class Settings:
    """The settings of some groups, which hold as long as their options are the same objects, and rates on or off.

    Parameters are not kept, so that they may go.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        before: Settings | None,
        check: Callable[[Group], Current],
        counted: Callable[[Hyper], Hyper],
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.of = range(len(groups)) if numbers is None else numbers
        """Which of the optimizer's groups these are."""
        self._keys = [tuple(group) for group in groups]
        readers = {keys: itemgetter(*(key for key in keys if key not in NOT_PLANNED)) for keys in {*self._keys}}
        self._readers = [readers[keys] for keys in self._keys]
        self._options = [read(group) for read, group in zip(self._readers, groups, strict=True)]
        self._fixed = [all(map(is_fixed, options)) for options in self._options]
        self._on = list(map(rates_on, groups))
        self._numbers, self._sizes = list(range(len(groups))), list(map(len, groups))
        self._objects: Any = None  # what groups consisted of, if nothing but parameters has changed lately
        self._given: Rates = [], []
        kept = [None if before is None else self._kept(before, i) for i in self._numbers]
        self.each = [self._checked(check, i, groups[i]) if now is None else now for i, now in enumerate(kept)]
        self.asks_of_model = any(now.h.asks_of_model for now in self.each)
        self.hs = [counted(now.h) if self.asks_of_model else now.h for now in self.each]
        """The settings of each group, whose gradients may count in a norm that clips others."""
        self.rates: Rates = [], []
        """The rates of each group, as numbers if they are at hand."""

    def _kept(self, before: Settings, i: int) -> Current | None:
        """Return the settings that a group had before, if its options are the same."""
        same = i < len(before.each) and before._fixed[i]
        same = same and (self._keys[i], self._on[i]) == (before._keys[i], before._on[i])
        return before.each[i] if same and all(map(is_, self._options[i], before._options[i])) else None

    def _checked(self, check: Callable[[Group], Any], i: int, group: Group) -> Any:
        """Return what a check of a group returns; its errors say which group that is, if there are several."""
        with of_group(self.of[i] if len(self._sizes) > 1 else None):
            return check(group)

    def same(self, groups: Sequence[Group]) -> bool:
        """Return True if it is known that groups have the same rates too, and that none can change unseen."""
        seen = self._objects
        if seen is None or len(groups) != len(self._numbers):
            return False
        return bool(seen.same(self._numbers, dict(zip(self._numbers, groups, strict=True))))

    def holds(self, groups: Sequence[Group]) -> bool:
        """Return True if no option has changed, or could have without being replaced, and rates are as off or on."""
        if not all(self._fixed) or self._sizes != list(map(len, groups)):
            return False
        try:
            options = [read(group) for read, group in zip(self._readers, groups, strict=True)]
        except KeyError:
            return False
        same = map(is_, chain.from_iterable(options), chain.from_iterable(self._options))
        return all(same) and self._on == list(map(rates_on, groups))

    def follow(self, groups: Sequence[Group], check: Callable[[Group], None]) -> None:
        """Take the groups' rates over, after a check of those that are no plain numbers of the allowed range."""
        given = [group["lr"] for group in groups], [group["weight_decay"] for group in groups]
        each = list(zip(*given, strict=True))
        odd = [i for i, (x, y) in enumerate(each) if not (type(x) is type(y) is float and 0 <= x < inf > y >= 0)]
        for i in odd:
            self._checked(check, i, groups[i])
        same = all(map(is_, given[0], self._given[0])) and all(map(is_, given[1], self._given[1]))
        plain = all(type(x) in PLAIN for i in odd for x in each[i])
        self._objects = None
        if not (same and plain and self._given[0]):
            rates = [list(one) for one in given]
            for i in odd:
                lr = cast("Any", self.each[i].h).lr if each[i][0] is None else each[i][0]
                followed = groups[i]["differentiable"]
                rates[0][i], rates[1][i] = scalar(lr, followed), scalar(each[i][1], followed)
            self.rates, self._given = (rates[0], rates[1]), given
        elif all(self._fixed):
            self._objects = objects_of(self._numbers, dict(zip(self._numbers, groups, strict=True)))


class Due(NamedTuple):
    """The parameters of one group that are to be stepped, and the group's settings."""

    number: int
    group: Group
    rule: Any
    h: Hyper
    want: Wanted
    blocks: ByName
    params: list[Tensor]


class Work(NamedTuple):
    """What is due, what is stepped in place of the parameters, and the local parts of that and of gradients."""

    settings: Settings
    which: Sequence[int]  # of the groups that the settings are of
    groups: Sequence[Group]
    sizes: list[int]  # how many parameters of each group are due
    rates: Rates
    params: list[Tensor]
    grads: list[Tensor]
    stepped: list[Tensor]
    params_here: list[Tensor]
    grads_here: list[Tensor]
    ahead: Ahead | None = None  # what was measured of it

    @classmethod
    def of(
        cls,
        settings: Settings,
        groups: Sequence[Group],
        asked: Sequence[Sequence[Tensor]],
        elsewhere: Elsewhere | None = None,
    ) -> Work:
        """Return what is due of these parameters of groups where all is here; gradients may be `elsewhere`."""
        params, sizes = list(chain.from_iterable(asked)), list(map(len, asked))
        grads: list[Any] = [p.grad for p in params]
        which: Sequence[int] = range(len(groups))
        if elsewhere is not None or len([g for g in grads if g is not None]) < len(grads):
            params, grads, sizes = _with_gradients(asked, grads, elsewhere)
        here = params, grads, params, params, grads
        if 0 not in sizes:
            return cls(settings, which, groups, sizes, settings.rates, *here)
        which = [i for i, n in enumerate(sizes) if n]
        return cls(settings, which, *_at(which, groups, sizes, settings.rates), *here)

    @property
    def dues(self) -> list[Due]:
        """What is due of each group."""
        each, found = iter(self.params), []
        for i, group, n in zip(self.which, self.groups, self.sizes, strict=True):
            now, params = self.settings.each[i], [next(each) for _ in range(n)]
            found.append(Due(self.settings.of[i], group, now.rule, self.settings.hs[i], now.want, now.blocks, params))
        return found

    @property
    def hs(self) -> list[Hyper]:
        """The settings of each group."""
        return [self.settings.hs[i] for i in self.which]

    def options(self) -> list[tuple[Any, ...]]:
        """Return the groups' settings that are part of the plan; the rates are not."""
        each = zip(self.which, self.groups, self.sizes, strict=True)
        hs, of_groups = self.settings.hs, self.settings.each
        return [(hs[i], n, group["capturable"], of_groups[i].want, of_groups[i].blocks) for i, group, n in each]

    def as_asked(self) -> Work:
        """Return the same before anything was put in the place of parameters and gradients."""
        return self._replace(stepped=self.params, params_here=self.params, grads_here=self.grads)

    def with_grads(self, found: list[Tensor]) -> Work:
        """Return the same with these in place of the local parts of the gradients."""
        return self._replace(grads=found if self.grads_here is self.grads else self.grads, grads_here=found)

    def leave(self) -> None:
        """Give up what was measured, unless it was used."""
        if self.ahead is not None:
            self.ahead.leave()

    def part(self, which: range, grads_here: list[Tensor]) -> Work:
        """Return the work of some parameters that follow one another, with their gradients in this form."""
        ends = accumulate(self.sizes)
        sizes = [max(0, min(e, which.stop) - max(e - n, which.start)) for e, n in zip(ends, self.sizes, strict=True)]
        some, own = slice(which.start, which.stop), [i for i, n in enumerate(sizes) if n]
        here = self.params[some], self.grads[some], self.stepped[some], self.params_here[some], grads_here
        of_groups = _at(own, self.groups, sizes, self.rates)
        return Work(self.settings, [self.which[i] for i in own], *of_groups, *here)


def _at(
    which: Sequence[int], groups: Sequence[Group], sizes: Sequence[int], rates: Rates
) -> tuple[list[Group], list[int], Rates]:
    """Return the columns of some groups."""
    lr, weight_decay = ([of[i] for i in which] for of in rates)
    return [groups[i] for i in which], [sizes[i] for i in which], (lr, weight_decay)


def _with_gradients(
    asked: Sequence[Sequence[Tensor]], grads: Sequence[Tensor | None], elsewhere: Elsewhere | None
) -> tuple[list[Tensor], list[Any], list[int]]:
    """Return the parameters with gradients, which may be `elsewhere`, these gradients, and how many each group has."""
    each, params, found, sizes = iter(grads), list[Tensor](), list[Any](), list[int]()
    for some in asked:
        before = len(params)
        for p in some:
            g = next(each)
            g = elsewhere(p) if g is None and elsewhere is not None else g
            g = missing_gradient(p) if g is None else g
            if g is not None:
                params.append(p)
                found.append(g)
        sizes.append(len(params) - before)
    return params, found, sizes


def capturing() -> bool:
    """Return True while a CUDA graph is captured."""
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # else the query would raise
    return initialized and torch.cuda.is_current_stream_capturing()


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


def rates_on(group: Mapping[str, Any]) -> tuple[bool | None, ...]:
    """Return whether each rate is on: False for 0, and None if there is none.

    That is all of a rate on which settings depend. One that only a device knows counts as on.
    """
    return tuple(x if x is None else _is_on(x) for x in (group["lr"], group["weight_decay"]))


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
