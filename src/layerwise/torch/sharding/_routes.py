"""The choice of the rank that works on a whole tensor, and the messages that bring its parts there and back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isqrt, prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.core.plan import LocalPart, Places, Region
from layerwise.drivers import GatherRequest
from layerwise.options import checks
from layerwise.rules.newton_schulz import PER_NUMBER
from layerwise.torch.sharding._cuts import Axis, cuttable_shape

Shape = tuple[int, ...]
# The number of elements of whole tensors on a rank that travel together, unless it is one tensor: large enough that a
# message takes longer than its latency, and small enough that there are messages while a rank works.
TOGETHER = 1 << 21


@dataclass(frozen=True)
class Route:
    """The route of one tensor along its axes."""

    held: LocalPart  # of one of its local parts
    dims: Shape  # the dimensions that have to be whole
    here: Shape  # of the local part
    cut: tuple[Axis, ...]  # the axes that cut it
    replicas: tuple[Axis, ...]  # the axes over which it is replicated, and
    cutting: tuple[Axis, ...]  # those that cut it, hop by hop in travelling order
    sizes: np.ndarray  # of each rank's part, by its places along the latter
    owner: Places  # along all of them

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.replicas, *self.cutting)

    @cached_property
    def own(self) -> Places:
        """The places of this rank."""
        return tuple(axis.ranks.index(dist.get_rank()) for axis in self.axes)

    @property
    def is_owned(self) -> bool:
        return self.own == self.owner

    def has_some(self, k: int) -> bool:
        """Return True if this rank has a part of the tensor, or of its update, that travels along axis k."""
        return self.own[:k] == self.owner[:k]

    def counts(self, k: int) -> list[int]:
        """Return the size that each rank of axis k has then, or should have, if this rank has a part."""
        before = len(self.replicas)
        if k < before:
            return [int(self.sizes[self.own[before:]])] * len(self.axes[k].ranks)
        found = self.sizes.transpose()[self.own[:k:-1]]  # the last places are known
        return [int(n) for n in found.transpose().sum(axis=tuple(range(k - before)))]

    @cached_property
    def shape(self) -> Shape:
        """The shape of the tensor that is brought together."""
        return tuple(n if d in self.dims else self.here[d] for d, n in enumerate(cuttable_shape(self.held.piece)))

    @cached_property
    def regions(self) -> list[Region]:
        """The places of the parts in it, in the order of their arrival."""
        each = (_folded(self.cut, at) for at in _places(self.cutting))
        return [one for at in each for one in _regions(self.held, self.dims, self.cut, at)]

    def together(self, parts: Tensor) -> Tensor:
        """Return the tensor, given its parts in the order of their arrival."""
        whole = parts.new_empty(self.shape)
        each = torch.split(parts, [whole[one].numel() for one in self.regions])
        for region, part in zip(self.regions, each, strict=True):
            whole[region] = part.view(whole[region].shape)
        return whole.view(self.shape if self.held.piece.shape else ())

    def apart(self, whole: Tensor) -> Tensor:
        """Return the parts of a tensor, in the same order."""
        whole = whole.reshape(self.shape)
        return torch.cat([whole[region].reshape(-1) for region in self.regions])


class Owners:
    """The choice of the rank that works on each tensor: the one with the least work, including messages to it."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        self._axes = axes
        self._loads: dict[tuple[Axis, ...], np.ndarray] = {}
        self._sizes: dict[object, np.ndarray] = {}

    def routes(self, wholes: Sequence[GatherRequest], helds: Sequence[LocalPart]) -> list[Route]:
        """Return the routes of tensors, given a part of each. The largest work is assigned first."""
        works = [_work(one, held) for one, held in zip(wholes, helds, strict=True)]
        order = sorted(range(len(works)), key=lambda i: -works[i])
        found = {i: self._route(wholes[i], helds[i], works[i]) for i in order}
        return [found[i] for i in range(len(works))]

    def _route(self, one: GatherRequest, held: LocalPart, work: float) -> Route:
        dims = one.whole.kept + one.whole.summed
        if held.box is not None or not held.piece.shape:  # boxes are cut in all dimensions at once
            dims = tuple(range(len(cuttable_shape(held.piece))))
        needed = [axis for axis, d in held.axes if d is None or d in dims]
        cut = tuple(axis for axis in self._axes if axis in needed)
        cutting = _in_hops(cut)
        replicas = _in_hops([axis for axis in self._axes if axis in held.replicas])
        key = held.cut, cuttable_shape(held.piece), dims
        if key not in self._sizes:
            self._sizes[key] = _sizes(held, dims, cut)
        sizes = self._sizes[key].reshape([len(axis.ranks) for axis in cutting])
        axes = (*replicas, *cutting)
        loads = self._loads.setdefault(axes, np.zeros([len(axis.ranks) for axis in axes]))
        sent = PER_NUMBER * (sizes.sum() - sizes)
        # If there are several, the next along the first axis, which is one of replicas: each has its part of the
        # messages to others.
        owner = tuple(map(int, np.unravel_index(np.argmin((loads + sent).T), loads.T.shape)))[::-1]
        loads[owner] += work
        return Route(held, dims, tuple(one.whole.terms.shape), cut, replicas, cutting, sizes, owner)


def _work(one: GatherRequest, held: LocalPart) -> float:
    """Return the multiplications of an iteration: k²·n for each matrix, whose shorter side has k rows."""
    shape = cuttable_shape(held.piece)
    sides = [prod(shape[d] for d in some) for some in (one.whole.kept, one.whole.summed)]
    return float(prod(shape) * min(sides))


def _sizes(held: LocalPart, dims: Shape, axes: Sequence[Axis]) -> np.ndarray:
    element = torch.empty(1, device="meta").expand(cuttable_shape(held.piece))
    found = np.zeros([len(axis.ranks) for axis in axes])
    for at in _places(axes):
        found[at] = sum(element[one].numel() for one in _regions(held, dims, axes, at))
    return found


def _regions(held: LocalPart, dims: Shape, axes: Sequence[Axis], at: Places) -> list[Region]:
    """Return the part, on the rank at these places, of a tensor that this rank could bring together."""
    along = dict(zip(axes, at, strict=True))
    own = dist.get_rank()
    return held.regions(tuple(along.get(axis, axis.ranks.index(own)) for axis, _ in held.axes), dims)


def _places(axes: Sequence[Axis]) -> Iterator[Places]:
    """Yield all places along axes, the last axis slowest: so a tensor's parts arrive together."""
    for places in product(*(range(len(axis.ranks)) for axis in reversed(axes))):
        yield places[::-1]


def _in_hops(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    return tuple(dict.fromkeys(hop for axis in axes for hop in hops_of(axis)))


def _folded(axes: Sequence[Axis], at: Places) -> Places:
    """Return the places along axes, given those along their hops."""
    rest, found = iter(at), list[int]()
    for axis in axes:
        place = 0
        for hop in hops_of(axis):
            place = place * len(hop.ranks) + next(rest)
        found.append(place)
    return tuple(found)


class Message(NamedTuple):
    """One message: the parts that this rank sends along an axis, and those that arrive, in an order that all know."""

    axis: Axis
    sent: list[tuple[int, int]]  # tensor, elements
    coming: list[tuple[int, int]]
    given: list[int]  # elements for each rank
    taken: list[int]
    copies: bool = False  # whether all ranks get the same: everything that is here

    def reversed(self, copies: bool = False) -> Message:
        """Return the message in the other direction."""
        return Message(self.axis, self.coming, self.sent, self.taken, self.given, copies)


class Wave(NamedTuple):
    """Tensors that travel together: one for each owner, or several small ones."""

    tensors: dict[int, Route]
    there: list[Message]
    back: list[Message]


def waves_of(routes: Sequence[Route], axes: Sequence[Axis]) -> list[Wave]:
    """Return the waves in which tensors travel, so that every owner has work in each of them."""
    turns, found = Counter[object](), list[list[int]]()
    for i in sorted(range(len(routes)), key=lambda i: -prod(cuttable_shape(routes[i].held.piece))):
        whose = routes[i].axes, routes[i].owner
        if turns[whose] == len(found):
            found.append([])
        found[turns[whose]].append(i)
        turns[whose] += 1
    merged = list[list[int]]()
    for some in found:
        if merged and _most([routes[i] for i in (*merged[-1], *some)]) <= TOGETHER:
            merged[-1] += some
        else:
            merged.append(some)
    hops = _in_hops(axes)
    return [_wave({i: routes[i] for i in sorted(some)}, hops) for some in merged]


def _most(routes: Sequence[Route]) -> int:
    """Return the number of elements on the owner with most of them."""
    sizes = defaultdict[object, int](int)
    for one in routes:
        sizes[one.axes, one.owner] += prod(cuttable_shape(one.held.piece))
    return max(sizes.values())


def _wave(tensors: dict[int, Route], axes: Sequence[Axis]) -> Wave:
    cutting = [axis for axis in axes if any(axis in one.cutting for one in tensors.values())]
    replicas = [axis for axis in axes if any(axis in one.replicas for one in tensors.values())]
    there = [_leg(axis, {i: one for i, one in tensors.items() if axis in one.cutting}) for axis in cutting]
    copied = [_leg(axis, {i: one for i, one in tensors.items() if axis in one.replicas}) for axis in replicas]
    back = *(leg.reversed() for leg in there[::-1]), *(leg.reversed(copies=True) for leg in copied[::-1])
    return Wave(tensors, there, list(back))


def _leg(axis: Axis, tensors: dict[int, Route]) -> Message:
    """Return the message that takes tensors along an axis to their owners' places."""
    near, far = list[tuple[int, int, int]](), list[tuple[int, int, int]]()  # other rank, tensor, elements
    for i, route in tensors.items():
        if route.has_some(k := route.axes.index(axis)):
            counts = route.counts(k)
            near.append((route.owner[k], i, counts[route.own[k]]))
            if route.has_some(k + 1):
                far += [(place, i, n) for place, n in enumerate(counts)]
    sent, coming = sorted(near), sorted(far)
    totals = [0] * len(axis.ranks), [0] * len(axis.ranks)
    for total, each in zip(totals, (sent, coming), strict=True):
        for other, _, n in each:
            total[other] += n
    return Message(axis, [(i, n) for _, i, n in sent], [(i, n) for _, i, n in coming], *totals)


# All-to-all connects every rank with every other. Among thousands that takes longer than the transfer, and needs more
# connections than some networks have. With two hops a rank is connected with twice the root of them, and sends
# everything twice.
_most_peers = [512]
_known: WeakKeyDictionary[Any, tuple[Axis, ...]] = WeakKeyDictionary()  # by process group


def set_most_peers(processes: int) -> None:
    """Set the number of processes up to which matrices are exchanged directly, and not in two hops.

    All processes must set the same number before the first step of an optimizer. It only affects Muon.

    Args:
        processes: The number of processes along one mesh dimension.
    """
    _most_peers[0] = int(checks.integer(2)("processes", processes, "Pass a number of processes such as 512."))


def hops_of(axis: Axis) -> tuple[Axis, ...]:
    """Return the axes that replace an axis: itself, or two if it has too many ranks for one.

    All of its ranks call this together the first time, because process groups are created.
    """
    n = len(axis.ranks)
    inner = max((k for k in range(2, isqrt(n) + 1) if n % k == 0), default=1)
    if n <= _most_peers[0] or inner == 1:
        return (axis,)
    if axis.group not in _known:
        at = axis.ranks.index(dist.get_rank())
        places = range(at % inner, n, inner), range(at - at % inner, at - at % inner + inner)
        _known[axis.group] = tuple(_among(axis, some) for some in places)
    return _known[axis.group]


def _among(axis: Axis, places: range) -> Axis:
    """Return the axis of the ranks at some places of another."""
    ranks = tuple(axis.ranks[i] for i in places)
    group: Any = dist.new_group(ranks, backend=dist.get_backend(axis.group), use_local_synchronization=True)
    return Axis(ranks, group, axis.device_type)
