"""Segments: the description of flat buffers, which all ranks exchange and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, zip_longest
from math import prod
from typing import Any, NamedTuple
from weakref import ref

import torch.distributed as dist
from torch import Tensor

from layerwise.errors import ParameterError, SynchronizationError
from layerwise.torch.sharding._cuts import Axis, in_group, is_dtensor
from layerwise.torch.sharding._flat import Flat, Run, Stretch, flat_of, know
from layerwise.torch.sharding._stretches import Spread, gaps

Described = list[list[tuple[str, tuple[int, ...], int, int, int]]]  # the stretches of each buffer of a rank
Grouped = list[tuple[dict[str, Any], list[tuple[str, Tensor]]]]  # what groups have, and their buffers
WAY_OUT = "Pass Stretch(name, shape, start, end, offset), with the shape of the whole tensor."
ALONE = object()  # in place of a group: this rank has everything itself
SAME = "All ranks have to describe as many buffers, in the same order, and of each tensor every element once"


class Shard(NamedTuple):
    """A parameter as another package maps it: the stretches in it, and the ranks that hold others of its tensors."""

    name: str
    p: Tensor
    stretches: Sequence[Stretch] | None  # None: it is a whole tensor
    group: Any = None
    replicas: Any = None
    of_group: int = 0  # of the optimizer's
    has_gradient: Callable[[], bool] | None = None


class Segments:
    """A description of flat buffers: which parts of which tensors each buffer holds.

    From then on optimizers of `layerwise.torch` step these buffers as the tensors that they hold parts of. All ranks of
    `group` make their descriptions together, and exchange them. Buffers at the same place of the mapping hold parts of
    the same tensors; a rank that has no part of a tensor need not name it.

    Args:
        buffers: The stretches of each flat buffer, a parameter of one dimension: `Stretch`es, or tuples with the same
            entries. What lies between stretches, or after them, is padding that is neither read nor written.
        group: The process group of the ranks that hold parts of the same tensors; None is the default group.
        replicas: A process group of the ranks that hold the same as this one, or None.
    """

    def __init__(
        self,
        buffers: Mapping[Tensor, Iterable[Stretch | tuple[Any, ...]]],
        group: Any = None,
        replicas: Any = None,
    ) -> None:
        flats = exchanged(buffers, group, replicas)
        named = [
            (flat.spreads[0].name if len(flat.spreads) == 1 else f"buffer {i}", p)
            for i, (p, flat) in enumerate(flats.items())
        ]
        self._groups: Grouped = [({}, named)]

    @classmethod
    def of(cls, shards: Sequence[Shard], groups: Sequence[dict[str, Any]] = ({},)) -> Segments:
        """Return a description of another package's shards, in its groups. All ranks of theirs call this together."""
        for p in (one.p for one in shards if one.stretches is None):
            know(p, None)
        cut = [one for one in shards if one.stretches is not None]
        for group in dict.fromkeys(one.group for one in cut):
            ours = [one for one in cut if one.group is group]
            buffers = {one.p: one.stretches or () for one in ours}
            exchanged(buffers, group, ours[0].replicas, [one.has_gradient for one in ours])
        made = cls.__new__(cls)
        made._groups = [
            (kept, [(one.name, one.p) for one in shards if one.of_group == number])
            for number, kept in enumerate(groups)
        ]
        return made

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return the buffers with names: the tensor's for a buffer of one tensor, otherwise a number."""
        return [each for _, own in self._groups for each in own]

    def parameters(self) -> list[Tensor]:
        """Return the buffers."""
        return [p for _, p in self.named_parameters()]

    def param_groups(self) -> list[dict[str, Any]]:
        """Return the buffers with names in the groups that they came in, or in one."""
        return [{**kept, "params": list(own)} for kept, own in self._groups]


def exchanged(
    buffers: Mapping[Tensor, Iterable[Any]],
    group: Any = None,
    replicas: Any = None,
    gradients: Iterable[Callable[[], bool] | None] = (),
) -> dict[Tensor, Flat]:
    """Describe these buffers together with the other ranks of a group, from now on.

    `gradients` say of each buffer whether it has a gradient where it has elements; else any of them says it of all.
    """
    described, problem = _tried(buffers)
    made = _compared(described, problem, buffers, _group(group), None if replicas is None else _axis(replicas))
    each, of_all = zip_longest(buffers, made, gradients), siblings(buffers)
    flats = {p: replace(flat, has_gradient=one or of_all) for p, flat, one in each}
    for p, flat in flats.items():
        know(p, flat)
    return flats


def _group(group: Any) -> Any:
    if group is ALONE:
        return None
    return dist.group.WORLD if group is None and in_group() else group


def _axis(group: Any) -> Axis:
    device = dist.get_backend_config(group).partition(":")[0]
    return Axis(tuple(dist.get_process_group_ranks(group)), group, device)


# ---- what this rank says


def _tried(buffers: Any) -> tuple[Described, Exception | None]:
    """Return this rank's description, or the reason why it fails: the others wait for either."""
    try:
        if not isinstance(buffers, Mapping):
            raise ParameterError(f"`buffers` must be a mapping of tensors to their stretches, but is {buffers!r}.")
        found = [_described(i, p, stretches) for i, (p, stretches) in enumerate(buffers.items())]
        _check_named_once(found)
    except Exception as problem:
        return [], problem
    return found, None


def _described(number: int, p: Any, given: Iterable[Any]) -> list[tuple[str, tuple[int, ...], int, int, int]]:
    what = f"buffer {number}"
    if not isinstance(p, Tensor) or is_dtensor(p) or p.ndim != 1 or not p.is_contiguous():
        shown = f"of the shape {tuple(p.shape)}" if isinstance(p, Tensor) else repr(p)
        raise ParameterError(f"{what} must be a tensor of one dimension, its elements in a row, but is {shown}.")
    found, at = [], 0
    for one in given:
        try:
            name, shape, start, end, *rest = one
            place = at if not rest or rest[0] is None else int(rest[0])
            found.append((str(name), tuple(map(int, shape)), int(start), int(end), place))
        except (TypeError, ValueError):
            raise ParameterError(f"a stretch of {what} must be five things, but is {one!r}. {WAY_OUT}") from None
        at = place + found[-1][3] - found[-1][2]
    _check_stretches(what, p.numel(), found)
    return found


def _check_stretches(what: str, length: int, found: Sequence[tuple[str, tuple[int, ...], int, int, int]]) -> None:
    end = 0
    for name, shape, start, stop, place in sorted(found, key=lambda one: one[4:]):
        if min(shape, default=0) < 0 or not 0 <= start <= stop <= prod(shape):
            raise ParameterError(
                f"{what} has elements {start} to {stop} of {name!r}, whose shape {shape} has {prod(shape)}. {WAY_OUT}"
            )
        if start == stop:
            continue
        if place < end or place + stop - start > length:
            raise ParameterError(
                f"the {stop - start} elements of {name!r} at {place} of {what} lie on others, or beyond its {length}. "
                f"{WAY_OUT}"
            )
        end = place + stop - start


def _check_named_once(found: Described) -> None:
    seen: dict[str, int] = {}
    for number, stretches in enumerate(found):
        for name, *_ in stretches:
            if seen.setdefault(name, number) != number:
                raise ParameterError(f"{name!r} is in buffer {seen[name]} and in buffer {number}. Give it one of them.")


# ---- what all say


def _compared(
    mine: Described, problem: Exception | None, buffers: Iterable[Tensor], group: Any, replicas: Axis | None
) -> list[Flat]:
    """Return the contents of each buffer, once all ranks have described theirs and they fit; else raise on all."""
    said: list[Any] = [None if problem else mine]
    ranks: Sequence[int] = (0,)
    rank = 0
    if group is not None:
        rank, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
        said = [None] * len(ranks)
        dist.all_gather_object(said, f"{type(problem).__name__}: {problem}" if problem else mine, group=group)
    if problem is not None:
        raise problem
    for number, one in zip(ranks, said, strict=True):
        if isinstance(one, str):
            raise SynchronizationError(f"rank {number} cannot describe its flat buffers ({one}). None were taken.")
    if len({len(one) for one in said}) > 1:
        each = ", ".join(f"{len(one)} on rank {number}" for number, one in zip(ranks, said, strict=True))
        raise SynchronizationError(f"ranks describe different numbers of flat buffers: {each}. {SAME}.")
    for i, j in combinations(range(len(mine)), 2):
        if both := _names(said, i) & _names(said, j):
            raise SynchronizationError(
                f"{min(both)!r} is in buffer {i} of one rank and in buffer {j} of another. {SAME}."
            )
    return [_flat(p, [one[i] for one in said], ranks, rank, group, replicas) for i, p in enumerate(buffers)]


def _names(said: Sequence[Any], number: int) -> set[str]:
    return {name for one in said for name, *_ in one[number]}


def _flat(p: Tensor, said: list[Any], ranks: Sequence[int], rank: int, group: Any, replicas: Axis | None) -> Flat:
    shapes = _shapes(said, ranks)
    runs = {
        name: tuple(tuple((s, e) for n, _, s, e, _ in one if n == name and s < e) for one in said) for name in shapes
    }
    spreads = {name: Spread(name, shapes[name], runs[name]) for name in _ordered(said, ranks)}
    for name, spread in spreads.items():
        held = [(*run, ranks[r]) for r, each in enumerate(spread.runs) for run in each]
        if wrong := gaps(spread.numel, held):
            raise SynchronizationError(f"the stretches of {name!r} do not fit together: {wrong}. {SAME}.")
    each = tuple(tuple(_placed(one, spreads)) for one in said)
    cut = len(ranks) > 1 or any(len(run) > 1 for spread in spreads.values() for run in spread.runs)
    if cut and group is None:
        raise ParameterError(
            "a buffer holds a tensor in several stretches, whose sums go through a process group. Call "
            "torch.distributed.init_process_group first."
        )
    axes = ((_axis(group), None),) if cut else ()
    return Flat(p.numel(), each, rank, axes, () if replicas is None else (replicas,))


def _placed(stretches: Sequence[Any], spreads: Mapping[str, Spread]) -> Iterator[Run]:
    for name, spread in spreads.items():
        own = [(s, e, at) for n, _, s, e, at in stretches if n == name and s < e]
        for start, end, at in own or [(0, 0, 0)]:
            yield Run(spread, start, end, at)


def _shapes(said: Sequence[Any], ranks: Sequence[int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, tuple[int, ...]]] = {}
    for rank, one in zip(ranks, said, strict=True):
        for name, shape, *_ in one:
            first, other = shapes.setdefault(name, (rank, shape))
            if other != shape:
                raise SynchronizationError(
                    f"ranks {first} and {rank} give {name!r} different shapes, {other} and {shape}. {SAME}."
                )
    return {name: shape for name, (_, shape) in shapes.items()}


def _ordered(said: Sequence[Any], ranks: Sequence[int]) -> list[str]:
    """Return the tensors' names in an order that agrees with that of each rank."""
    orders = [list(dict.fromkeys(name for name, *_ in one)) for one in said]
    left, found = [order[:] for order in orders], []
    while any(left):
        later = {name for order in left for name in order[1:]}
        first = next((order[0] for order in left if order and order[0] not in later), None)
        if first is None:
            raise SynchronizationError(f"ranks {list(ranks)} list the tensors of a buffer in other orders. {SAME}.")
        found.append(first)
        left = [order[1:] if order and order[0] == first else order for order in left]
    return found


def siblings(parameters: Iterable[Tensor]) -> Callable[[], bool]:
    """Return a function that tells if one of these has a gradient, or none can; it keeps none of them alive."""
    own = [ref(p) for p in parameters]

    def has_gradient() -> bool:
        alive = [p for p in (one() for one in own) if p is not None]
        flats = list(map(flat_of, alive))
        nowhere = all(flat is not None and flat.holds_nothing() for flat in flats)  # only others can have one
        return nowhere or any(p.grad is not None for p in alive)

    return has_gradient
