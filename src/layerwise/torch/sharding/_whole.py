"""Whole tensors made of their parts: one rank brings a tensor together, does the work on it, and sends the parts back.

Each tensor has an owner among the ranks with parts of it, so that all have some to work on. It travels along one axis
after the other, to the rank that shares the owner's place there, and comes back in the other direction. So each axis
takes one collective on the way there and one on the way back, for all tensors of a dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.core.plan import Held, Places, Region
from layerwise.torch.sharding._cuts import Axis
from layerwise.torch.sharding._stretches import seen

Work = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Route:
    """The way of one tensor along its axes."""

    held: Held  # of one of its parts here
    axes: tuple[Axis, ...]  # in the order in which it travels
    own: Places  # of this rank along these axes
    owner: Places
    sizes: dict[Places, int]  # of what each rank has of it

    def has_some(self, k: int) -> bool:
        """Return True if this rank has something of the tensor before it travels along axis k."""
        return self.own[:k] == self.owner[:k]

    def counts(self, k: int) -> list[int]:
        """Return how much each rank of axis k then has, if this rank has something."""
        after, found = self.own[k + 1 :], [0] * len(self.axes[k].ranks)
        for at, size in self.sizes.items():
            if at[k + 1 :] == after:
                found[at[k]] += size
        return found

    def made(self, gathered: Tensor, work: Work) -> Tensor:
        """Return what the work makes of the whole tensor, in the order in which its parts have come."""
        regions = [one for at in _places(self.axes) for one in regions_of(self.held, self.axes, at)]
        whole = gathered.new_empty(seen(self.held.piece))
        shapes = [whole[one].shape for one in regions]
        for region, shape, part in zip(
            regions, shapes, torch.split(gathered, [x.numel() for x in shapes]), strict=True
        ):
            whole[region] = part.view(shape)
        done = work(whole.view(self.held.piece.shape)).reshape(whole.shape)
        return torch.cat([done[region].reshape(-1) for region in regions])


def routes_of(helds: Sequence[Held], axes: Sequence[Axis]) -> list[Route]:
    """Return the routes of tensors: to the rank with the least work, or with the most of the tensor."""
    loads: dict[tuple[Axis, ...], dict[Places, int]] = defaultdict(lambda: defaultdict(int))
    routes = []
    for held in helds:
        own = tuple(axis for axis in axes if any(axis == other for other, _ in held.axes))
        element = torch.empty(1, device="meta").expand(seen(held.piece))
        sizes = {at: sum(element[one].numel() for one in regions_of(held, own, at)) for at in _places(own)}
        load = loads[own]
        owner = min(sizes, key=lambda at: load[at] - sizes[at])
        load[owner] += sum(sizes.values())
        routes.append(Route(held, own, tuple(axis.ranks.index(dist.get_rank()) for axis in own), owner, sizes))
    return routes


def regions_of(held: Held, axes: Sequence[Axis], at: Places) -> list[Region]:
    """Return what the rank at these places has of a tensor."""
    along = dict(zip(axes, at, strict=True))
    return held.regions(tuple(along[axis] for axis, _ in held.axes))


def brought(
    axes: Sequence[Axis], routes: Sequence[Route], parts: Sequence[Tensor], works: Sequence[Work]
) -> list[Tensor]:
    """Return this rank's parts of what the works make of whole tensors, given its parts of those, of one dtype."""
    have = list(parts)
    for axis in axes:
        have = _gathered(axis, routes, have)
    for i, route in enumerate(routes):
        if route.own == route.owner:
            have[i] = route.made(have[i], works[i])
    for axis in reversed(axes):
        have = _returned(axis, routes, have)
    return have


def _gathered(axis: Axis, routes: Sequence[Route], have: list[Tensor]) -> list[Tensor]:
    """Return what has come to this rank along an axis."""
    exchange, takers = _Exchange(axis), []
    for i, route, k in _along(axis, routes):
        exchange.send(route.owner[k], have[i])
        if route.has_some(k + 1):
            takers.append((i, [exchange.expect(*one) for one in enumerate(route.counts(k))]))
    received, found = exchange.received(have), list(have)
    for i, each in takers:
        found[i] = torch.cat([received[one] for one in each])
    return found


def _returned(axis: Axis, routes: Sequence[Route], have: list[Tensor]) -> list[Tensor]:
    """Return what has come back to this rank along an axis."""
    exchange, takers = _Exchange(axis), []
    for i, route, k in _along(axis, routes):
        counts = route.counts(k)
        takers.append((i, exchange.expect(route.owner[k], counts[route.own[k]])))
        if route.has_some(k + 1):
            for place, chunk in enumerate(torch.split(have[i], counts)):
                exchange.send(place, chunk)
    received, found = exchange.received(have), list(have)
    for i, one in takers:
        found[i] = received[one]
    return found


def _along(axis: Axis, routes: Sequence[Route]) -> Iterator[tuple[int, Route, int]]:
    """Yield the tensors of which this rank has something when they travel along an axis, the k-th of theirs."""
    for i, route in enumerate(routes):
        if axis in route.axes and route.has_some(k := route.axes.index(axis)):
            yield i, route, k


class _Exchange:
    """What a rank sends to the others of an axis and expects of them, in an order that all know."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._sent: list[list[Tensor]] = [[] for _ in axis.ranks]
        self._expected: list[list[int]] = [[] for _ in axis.ranks]

    def send(self, place: int, x: Tensor) -> None:
        self._sent[place].append(x)

    def expect(self, place: int, count: int) -> tuple[int, int]:
        """Expect so many elements, and return the key under which they will be received."""
        self._expected[place].append(count)
        return place, len(self._expected[place]) - 1

    def received(self, like: Sequence[Tensor]) -> dict[tuple[int, int], Tensor]:
        """Send everything, and return what was expected."""
        sent = [torch.cat([like[0].new_empty(0), *some]) for some in self._sent]
        coming = [sum(some) for some in self._expected]
        there = torch.cat(sent).to(self._axis.device_type)
        here = there.new_empty(sum(coming))
        dist.all_to_all_single(here, there, coming, [x.numel() for x in sent], group=self._axis.group)
        parts = torch.split(here.to(like[0].device), [n for some in self._expected for n in some])
        keys = [(place, i) for place, some in enumerate(self._expected) for i in range(len(some))]
        return dict(zip(keys, parts, strict=True))


def _places(axes: Sequence[Axis]) -> Iterator[Places]:
    """Yield all places along axes, the last of which is the slowest: so a tensor's parts come together."""
    for places in product(*(range(len(axis.ranks)) for axis in reversed(axes))):
        yield places[::-1]
