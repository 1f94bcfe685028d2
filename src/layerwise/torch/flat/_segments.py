"""Segments: the description of flat buffers, which all ranks exchange and compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch.distributed as dist
from torch import Tensor

from layerwise.errors import ParameterError, SynchronizationError
from layerwise.torch.flat._boxes import SpreadTensor, Stretch, gaps
from layerwise.torch.flat._buffers import FlatBuffer
from layerwise.torch.groups._members import GroupDict
from layerwise.torch.sharding._cuts import WHOLE, axis_of, describe, in_group, ranks_named
from layerwise.torch.sharding._dtensors import is_dtensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

WAY_OUT = "Pass Stretch(name, shape, start, end, offset), with the shape of the whole tensor."
ALONE = object()  # in place of a group: this rank has everything itself
SAME = (
    "All ranks must describe the same number of buffers in the same order, and each element of each tensor exactly once"
)


class MappedParameter(NamedTuple):
    """A parameter as another package maps it: the stretches in it, and the ranks that hold other parts of its
    tensors.
    """

    name: str
    p: Tensor
    stretches: Sequence[Stretch] | None  # None: it is a whole tensor
    group: ProcessGroup | None = None
    replicas: ProcessGroup | None = None
    of_group: int = 0  # the optimizer's group
    beside: Sequence[Tensor] | None = None  # the parameters that have gradients when this has one


class Segments:
    """A description of flat buffers: which parts of which tensors each buffer holds.

    From then on optimizers of `layerwise.torch` step these buffers as the tensors whose parts they hold. All ranks of
    `group` create their descriptions together, and exchange them. Buffers at the same position of the mapping hold
    parts of the same tensors; a rank that has no part of a tensor need not list it.

    Args:
        buffers: The stretches of each flat buffer, a parameter of one dimension: `Stretch`es, or tuples with the same
            entries. What lies between stretches, or after them, is padding that is neither read nor written.
        group: The process group of the ranks that hold parts of the same tensors; None is the default group.
        replicas: A process group of the ranks that hold the same as this one, or None.
    """

    def __init__(
        self,
        buffers: Mapping[Tensor, Iterable[Stretch | tuple[object, ...]]],
        group: ProcessGroup | None = None,
        replicas: ProcessGroup | None = None,
    ) -> None:
        flats = describe_together(buffers, group, replicas)
        named = [
            (flat.spreads[0].name if len(flat.spreads) == 1 else f"buffer {i}", p)
            for i, (p, flat) in enumerate(flats.items())
        ]
        self._groups: list[GroupDict] = [{"params": named}]

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return the buffers with names: the tensor's for a buffer of one tensor, otherwise a number."""
        return [each for group in self._groups for each in group["params"]]

    def parameters(self) -> list[Tensor]:
        """Return the buffers."""
        return [p for _, p in self.named_parameters()]

    def param_groups(self) -> list[GroupDict]:
        """Return the buffers with names in their original groups, or in one group."""
        return [{**group, "params": list(group["params"])} for group in self._groups]


def segments_of(shards: Sequence[MappedParameter], saved_whole: bool, groups: Sequence[GroupDict] = ({},)) -> Segments:
    """Describe another package's shards, in its groups. All ranks with parts of their tensors call this together."""
    for p in (one.p for one in shards if one.stretches is None):
        describe(p, WHOLE)
    cut = [one for one in shards if one.stretches is not None]
    for group in dict.fromkeys(one.group for one in cut):
        ours = [one for one in cut if one.group is group]
        buffers = {one.p: one.stretches or () for one in ours}
        describe_together(buffers, group, ours[0].replicas, [one.beside for one in ours], saved_whole)
    made = Segments.__new__(Segments)
    made._groups = [
        {**kept, "params": [(one.name, one.p) for one in shards if one.of_group == number]}
        for number, kept in enumerate(groups)
    ]
    return made


def describe_together(
    buffers: Mapping[Tensor, Iterable[Stretch | tuple[object, ...]]],
    group: ProcessGroup | None = None,
    replicas: ProcessGroup | None = None,
    beside: Iterable[Iterable[Tensor] | None] = (),
    saved_whole: bool | None = None,
) -> dict[Tensor, FlatBuffer]:
    """Describe these buffers together with the other ranks of a group, from now on.

    `beside` lists for each buffer the parameters that have gradients when it has one; by default all of the buffers.
    Entries that several ranks hold are `saved_whole`, unless a package is known to keep their parts apart.
    """
    if group is ALONE:
        group = None
    elif group is None and in_group():
        group = dist.group.WORLD
    rank, ranks = (0, [0]) if group is None else (dist.get_rank(group), dist.get_process_group_ranks(group))
    said = _said(buffers, ranks, group)
    _check_alike(said, ranks)
    others = () if replicas is None else (axis_of(replicas),)
    saved_whole = len(ranks) > 1 if saved_whole is None else saved_whole
    flats: dict[Tensor, FlatBuffer] = {}
    for i, (p, own) in enumerate(zip_longest(buffers, beside)):
        stretches = [one[i] for one in said]
        names = dict.fromkeys(stretch.name for each in stretches for stretch in each)
        spreads = tuple(_spread(name, stretches, ranks) for name in names)
        if not spreads:
            raise ParameterError(f"a flat buffer of {p.numel()} elements holds no tensor on any rank. Leave it out.")
        cut = len(ranks) > 1 or any(len(each) > 1 for spread in spreads for each in spread.ranks)
        if cut and group is None:
            raise ParameterError(
                "a buffer holds a tensor in several stretches, so their sums need a process group. Call "
                "torch.distributed.init_process_group first."
            )
        axes = ((axis_of(group), None),) if cut else ()
        where = p.numel(), spreads, rank, len(ranks), axes, others
        flats[p] = FlatBuffer(*where, tuple(map(ref, own or buffers)), saved_whole)
    for p, flat in flats.items():
        describe(p, flat)
    return flats


def _said(buffers: object, ranks: Sequence[int], group: object) -> list[Any]:
    """Return the descriptions of all ranks: the others wait for this one's, or for its error."""
    mine, problem = list[list[Stretch]](), None
    try:
        if not isinstance(buffers, Mapping):
            raise ParameterError(f"`buffers` must map tensors to their stretches, but is {buffers!r}.")
        mine = [_described(f"buffer {i}", p, stretches) for i, (p, stretches) in enumerate(buffers.items())]
    except Exception as error:
        problem = error
    said: list[Any] = [mine] * len(ranks)
    if group is not None:
        dist.all_gather_object(said, f"{type(problem).__name__}: {problem}" if problem else mine, group=group)
    if problem is not None:
        raise problem
    return said


def _described(what: str, p: Tensor, given: Iterable[Any]) -> list[Stretch]:
    if not isinstance(p, Tensor) or is_dtensor(p) or p.ndim != 1 or not p.is_contiguous():
        shown = f"of the shape {tuple(p.shape)}" if isinstance(p, Tensor) else repr(p)
        raise ParameterError(f"{what} must be a contiguous tensor of one dimension, but is {shown}.")
    found, at = list[Stretch](), 0
    for one in given:
        try:
            name, shape, start, end, *rest = one
            place = at if not rest or rest[0] is None else int(rest[0])
            found.append(Stretch(str(name), tuple(map(int, shape)), int(start), int(end), place))
        except (TypeError, ValueError):
            raise ParameterError(f"a stretch of {what} must have five entries, but is {one!r}. {WAY_OUT}") from None
        at = place + found[-1].end - found[-1].start
    end = 0
    for name, shape, start, stop, offset in sorted(found, key=lambda one: one.offset or 0):
        place = offset or 0
        if min(shape, default=0) < 0 or not 0 <= start <= stop <= prod(shape):
            raise ParameterError(
                f"{what} has elements {start} to {stop} of {name!r}, but its shape {shape} has only {prod(shape)} "
                f"elements. {WAY_OUT}"
            )
        if start == stop:
            continue
        if place < end or place + stop - start > p.numel():
            raise ParameterError(
                f"elements {start} to {stop} of {name!r}, at {place} of {what}, overlap others or exceed its "
                f"{p.numel()} elements. {WAY_OUT}"
            )
        end = place + stop - start
    return found


def _check_alike(said: Sequence[Any], ranks: Sequence[int]) -> None:
    """Raise unless all ranks describe the same number of buffers, and have each tensor in the same one with the same
    shape.
    """
    for number, one in zip(ranks, said, strict=True):
        if isinstance(one, str):
            raise SynchronizationError(
                f"rank {number} cannot describe its flat buffers ({one}). No buffers were registered."
            )
    lengths = [len(one) for one in said]
    if len(set(lengths)) > 1:
        alike = ([rank for rank, n in zip(ranks, lengths, strict=True) if n == each] for each in dict.fromkeys(lengths))
        each = ", ".join(f"{n} on {ranks_named(some)}" for n, some in zip(dict.fromkeys(lengths), alike, strict=True))
        raise SynchronizationError(f"ranks describe different numbers of flat buffers: {each}. {SAME}.")
    known: dict[str, tuple[int, int, tuple[int, ...]]] = {}
    all_of_them = [
        (rank, i, one) for rank, own in zip(ranks, said, strict=True) for i, some in enumerate(own) for one in some
    ]
    for rank, i, (name, shape, *_) in all_of_them:
        first, j, other = known.setdefault(name, (rank, i, shape))
        if (i, shape) != (j, other):
            both = f"buffer {j} of rank {first} with the shape {other} and in buffer {i} of rank {rank} with {shape}"
            raise SynchronizationError(f"{name!r} is in {both}. {SAME}.")


def _spread(name: str, said: Sequence[Sequence[Stretch]], ranks: Sequence[int]) -> SpreadTensor:
    shape = next(one.shape for own in said for one in own if one.name == name)
    each = tuple(tuple(one for one in own if one.name == name and one.start < one.end) for own in said)
    held = [(one.start, one.end, rank) for rank, own in zip(ranks, each, strict=True) for one in own]
    if wrong := gaps(prod(shape), held):
        raise SynchronizationError(f"the stretches of {name!r} do not fit together: {wrong}. {SAME}.")
    return SpreadTensor(name, shape, each)
