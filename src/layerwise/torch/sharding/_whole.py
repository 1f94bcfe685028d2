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
from layerwise.torch.sharding._flat import seen

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
        parts = torch.split(gathered, [whole[one].numel() for one in regions])
        for region, part in zip(regions, parts, strict=True):
            whole[region] = part.view(whole[region].shape)
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
        have = _moved(axis, routes, have)
    for i, route in enumerate(routes):
        if route.own == route.owner:
            have[i] = route.made(have[i], works[i])
    for axis in reversed(axes):
        have = _moved(axis, routes, have, back=True)
    return have


def _moved(axis: Axis, routes: Sequence[Route], have: Sequence[Tensor], back: bool = False) -> list[Tensor]:
    """Return what this rank has of tensors after they have travelled along an axis to their owners' places, or back."""
    near, far = list[tuple[int, int, int]](), list[tuple[int, int, int]]()  # other rank, tensor, elements
    for i, route in enumerate(routes):
        if axis in route.axes and route.has_some(k := route.axes.index(axis)):
            counts = route.counts(k)
            near.append((route.owner[k], i, counts[route.own[k]]))
            if route.has_some(k + 1):
                far += [(place, i, n) for place, n in enumerate(counts)]
    sent, coming = map(sorted, (far, near) if back else (near, far))  # in an order that all know
    chunks = {i: iter(torch.split(have[i], [n for _, j, n in sent if j == i])) for _, i, _ in sent}
    there = torch.cat([have[0][:0], *(next(chunks[i]) for _, i, _ in sent)]).to(axis.device_type)
    here = there.new_empty(sum(n for *_, n in coming))
    taken, given = ([sum(n for at, _, n in each if at == i) for i in range(len(axis.ranks))] for each in (coming, sent))
    dist.all_to_all_single(here, there, taken, given, group=axis.group)
    found: dict[int, list[Tensor]] = defaultdict(list)
    for (_, i, _), part in zip(coming, torch.split(here.to(have[0].device), [n for *_, n in coming]), strict=True):
        found[i].append(part)
    return [torch.cat(found[i]) if i in found else x for i, x in enumerate(have)]


def _places(axes: Sequence[Axis]) -> Iterator[Places]:
    """Yield all places along axes, the last of which is the slowest: so a tensor's parts come together."""
    for places in product(*(range(len(axis.ranks)) for axis in reversed(axes))):
        yield places[::-1]
