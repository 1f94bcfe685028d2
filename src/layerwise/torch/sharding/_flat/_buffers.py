"""Flat buffers: the stretches of tensors in them, and which buffer holds what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import ReferenceType

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.errors import ParameterError, StateError

Shape = tuple[int, ...]


class Stretch(NamedTuple):
    """A stretch of a flat buffer, which holds a part of a tensor.

    Attributes:
        name: The name of the tensor.
        shape: The shape of the whole tensor.
        start: The first element of the tensor in the stretch, counted in row-major order.
        end: The element after the last one.
        offset: The place in the buffer where they begin; None is right after the stretch before.
    """

    name: str
    shape: Shape
    start: int
    end: int
    offset: int | None = None


@dataclass(frozen=True, eq=False)
class SpreadTensor:
    """A tensor whose stretches lie on several ranks."""

    name: str
    shape: Shape
    ranks: tuple[tuple[Stretch, ...], ...]  # the stretches on each rank of the group, if any


@dataclass(frozen=True, eq=False)
class FlatBuffer:
    """The contents of a flat buffer, on this rank and on the others of its group."""

    length: int
    spreads: tuple[
        SpreadTensor, ...
    ]  # of which some rank's buffer has a part, in the order that they have on all ranks
    rank: int
    parts: int = 1
    axes: tuple[tuple[Any, None], ...] = ()  # the axis over which tensors are cut anywhere
    replicas: tuple[Any, ...] = ()
    beside: tuple[ReferenceType[Tensor], ...] = ()  # parameters that have gradients when this has one
    saved_whole: bool = False  # because nothing else distinguishes the ranks' parts in `state_dict()`

    @property
    def stretches(self) -> list[Stretch]:
        """The local stretches."""
        return [stretch for one in self.spreads for stretch in one.ranks[self.rank]]

    def why_not_grouped(self, shape: Shape) -> str:
        """Return the reason why state cannot be stored in groups of 8 bits."""
        return "stretches of a flat buffer begin and end inside groups"

    def described(self) -> tuple[object, ...]:
        each = [(one.name, one.shape, [[stretch[2:4] for stretch in own] for own in one.ranks]) for one in self.spreads]
        return tuple(each)


FORGOTTEN = FlatBuffer(0, (), 0)  # in the copy of a buffer, which may be on another rank
CHANGES = [0]
"""The number of times that descriptions were added or replaced in this process."""
# None: FSDP1 has left the parameter whole
_known: MutableMapping[Tensor, FlatBuffer | None] = WeakTensorKeyDictionary()


def remember_buffer(p: Tensor, flat: FlatBuffer | None) -> None:
    """Remember the contents of a buffer for as long as the buffer exists."""
    _known[p] = flat
    CHANGES[0] += 1


def forget_buffer(p: Tensor) -> None:
    """Record that this is the copy of a buffer, unless it was described by itself."""
    if p not in _known:
        _known[p] = FORGOTTEN


def any_known() -> bool:
    """Return True if any tensor was described."""
    return bool(_known)


def is_known(p: Tensor) -> bool:
    """Return True if a tensor was described, as a flat buffer or as whole."""
    return bool(_known) and p in _known


def flat_of(p: Tensor) -> FlatBuffer | None:
    """Return the contents of a tensor if it is a flat buffer."""
    flat: FlatBuffer | None = _known.get(p) if _known else None
    return flat


def checked_flat_of(name: str, p: Tensor) -> FlatBuffer | None:
    """Return the contents of a flat buffer; raise if the buffer does not fit its description."""
    flat = flat_of(p)
    if flat is FORGOTTEN:
        raise ParameterError(
            f"{name} is a copy of a flat buffer, and does not say what it holds. Describe it with "
            "layerwise.torch.Segments, as the original buffer."
        )
    if flat is not None and (p.ndim != 1 or p.numel() != flat.length or not p.is_contiguous()):
        raise ParameterError(
            f"{name} was described as a flat buffer of {flat.length} elements in a row, but has the shape "
            f"{tuple(p.shape)}. Step while the model is sharded, or describe the buffer again with Segments."
        )
    return flat


def check_saved_whole(parameters: Iterable[Tensor]) -> None:
    """Raise for shards that nothing else gathers into whole tensors, or distinguishes by rank.

    torch.distributed.checkpoint takes what ranks hold for copies of the same tensor. FSDP1 itself fails at row and
    column statistics, which do not lie as the parameter does. On a CPU it gathers all states of a parameter into the
    same memory (use_orig_params=True), also those of torch.optim.Adam, so that exp_avg comes back as exp_avg_sq. Both
    ask like everybody, by `state_dict()`.
    """
    if any(flat.saved_whole for flat in map(flat_of, parameters) if flat is not None):
        raise StateError(
            "optimizer.state_dict() would contain this rank's part of flat shards, which PyTorch would take for "
            "whole tensors. Call layerwise.torch.flat.full_state_dict(optimizer) on all ranks, and "
            "load_full_state_dict() to load it."
        )


def missing_gradient(p: Tensor) -> Tensor | None:
    """Return an empty gradient for a buffer without elements, if ranks with elements have gradients."""
    flat = flat_of(p)
    if flat is None or not flat.beside or not p.requires_grad or flat.stretches:
        return None
    alive = [x for x in (one() for one in flat.beside) if x is not None]
    nowhere = all((own := flat_of(x)) is not None and not own.stretches for x in alive)  # only others can have one
    return torch.zeros_like(p) if nowhere or any(x.grad is not None for x in alive) else None


def elements(stretch: Stretch, buffer: Tensor) -> Tensor:
    """Return a stretch's part of a buffer, or of a tensor with the same layout."""
    at = stretch.offset or 0
    return buffer[at : at + stretch.end - stretch.start]


def without_gaps(params: Sequence[Tensor], grads: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield gradients without the gaps between the stretches of a buffer."""
    for p, g in zip(params, grads, strict=True):
        flat = flat_of(p)
        yield from [g] if flat is None else (elements(one, g) for one in flat.stretches)


def tensor_names(p: Tensor, name: str) -> list[str]:
    """Return the names of the tensors whose parts a parameter of this name holds."""
    flat = flat_of(p)
    return [name] if flat is None else [one.name for one in flat.spreads]


def whole_shape(p: Tensor) -> Shape:
    """Return the shape of a parameter, or of the tensor of which it is a stretch."""
    flat = flat_of(p)
    spreads = () if flat is None else flat.spreads
    # All that DeepSpeed's ZeRO-3 leaves in a parameter is this note of its shape.
    return spreads[0].shape if len(spreads) == 1 else tuple(getattr(p, "ds_shape", p.shape))
