"""A ring of host memory of bounded size, through which gradients come in parts: the next arrives while one is
stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from layerwise.core.slot import own_entries
from layerwise.core.step import Snapshot
from layerwise.engines.addresses import States
from layerwise.torch.offload import _copies
from layerwise.torch.offload._copies import HOST, CopyEnd, wait_for
from layerwise.torch.sharding._dtensors import local
from layerwise.torch.step._measured_step import MeasuredStep
from layerwise.torch.step._work import Work

Grads = Sequence[Tensor] | Mapping[int, Tensor]  # by their places in the work
RingKey = tuple[tuple[object, ...], ...]
SLOTS = 4
ALIGNED = 64  # bytes, as vectors are read


class RingSlot:
    """Memory for the gradients of one part, and a record of what was copied there."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.part: int | None = None
        self.arrivals: list[CopyEnd] = []
        self.ahead: MeasuredStep | None = None
        self._sent: dict[int, tuple[ReferenceType[Tensor], int, int]] = {}

    def has(self, i: int, g: Tensor) -> bool:
        """Return True if this very gradient was sent here."""
        one = self._sent.get(i)
        return one is not None and one[0]() is g and one[1:] == (g._version, g.data_ptr())

    def note(self, i: int, g: Tensor) -> None:
        """Record that this gradient was sent here."""
        self._sent[i] = ref(g), g._version, g.data_ptr()

    def sent(self, i: int) -> Tensor | None:
        """Return the gradient that was sent here, if it still exists."""
        return self._sent[i][0]() if i in self._sent else None

    def waiting(self) -> Callable[[], None]:
        """Return the wait for everything that was sent here."""
        return partial(wait_for, list(self.arrivals))

    def leave(self) -> None:
        """Discard the measurements here."""
        if self.ahead is not None:
            self.ahead.leave()
            self.ahead = None

    def free(self) -> None:
        """Forget what was copied here."""
        self.leave()
        self.part, self.arrivals, self._sent = None, [], {}


class Ring:
    """The gradients of some parameters that step together, in parts of at most `most` bytes, but at least one tensor;
    and the state of these parameters. `together` if there should be room for all parts.
    """

    def __init__(self, work: Work, kinds: RingKey, most: int, together: bool) -> None:
        self.kinds, self.params = kinds, list(map(id, work.params))
        self.place = {p: i for i, p in enumerate(self.params)}
        self._seen: Snapshot | None = None  # of the state, after the last step
        self._places: list[int] = []
        self.parts: list[range] = []
        self.slots: list[RingSlot] = []
        grads, sizes = work.grads_here, list[int]()
        start, at = 0, 0
        for i, g in enumerate(grads):
            n = 0 if g.device == HOST else aligned(g.nbytes)
            if at + n > most and i > start:
                self.parts.append(range(start, i))
                sizes.append(at)
                start, at = i, 0
            self._places.append(at)
            at += n
        self.parts.append(range(start, len(grads)))
        sizes.append(at)
        few = len(sizes) > SLOTS and not together
        self.sizes = [max(sizes)] * SLOTS if few else sizes
        """The bytes of each slot. If each part has one, the first slot is for the first part."""
        self._part_of = [number for number, part in enumerate(self.parts) for _ in part]

    def holds(self, work: Work, states: States) -> bool:
        """Return True if the state consists of the same arrays as after the last step."""
        if self._seen is None or not self._seen.consists_of(work.params, states):
            return False
        return self._seen.same_memory(_arrays(work, states))

    def see(self, work: Work, states: States) -> None:
        """Record the state."""
        if all(p in states for p in work.params) and not self.holds(work, states):
            self._seen = Snapshot(None, work.params, states, _arrays(work, states))

    def _slot(self, number: int) -> RingSlot | None:
        """Return the slot of a part, or a free one for it."""
        if len(self.slots) == len(self.parts):
            return self.slots[number]
        return next((slot for wanted in (number, None) for slot in self.slots if slot.part == wanted), None)

    def send(self, grads: Grads, which: Sequence[int]) -> RingSlot | None:
        """Begin to copy those of a part's gradients that have not been copied, if the part has a slot, or can get
        one.
        """
        number = self._part_of[which[0]] if len(which) else 0
        slot = self._slot(number)
        if slot is None:
            return None
        slot.part = number
        new = [i for i in which if grads[i].device != HOST and not slot.has(i, grads[i])]
        if new:
            slot.leave()
            slot.arrivals += _copies.begin_copies([(grads[i], self._view(slot, i, grads[i])) for i in new])
            for i in new:
                slot.note(i, grads[i])
        return slot

    def complete(self, i: int, slot: RingSlot) -> tuple[range, list[Tensor]] | None:
        """Return the part that has this gradient, with all of its gradients, if its slot has them."""
        part = self.parts[self._part_of[i]]
        sent: dict[int, Any] = {j: slot.sent(j) for j in part}
        return None if any(g is None for g in sent.values()) else (part, self.here(slot, part, sent))

    def each(self, grads: Sequence[Tensor]) -> Iterator[tuple[range, list[Tensor], RingSlot]]:
        """Yield the parts with their gradients in host memory. A slot's contents are valid until the next part, unless
        each part has a slot.
        """
        few = len(self.slots) < len(self.parts)
        there = {slot.part for slot in self.slots if few}
        # First those that have arrived, because others need their slots; then those whose weights are needed first.
        order = sorted(range(len(self.parts)), key=lambda number: (number not in there, number))
        try:
            for at, number in enumerate(order):
                for ahead in order[at:]:
                    if not self.send(grads, self.parts[ahead]):
                        break
                slot: Any = self._slot(number)
                wait_for(slot.arrivals)
                yield self.parts[number], self.here(slot, self.parts[number], grads), slot
                if few:
                    slot.free()
        finally:
            self.clear()

    def clear(self) -> None:
        """Forget all that was copied; a later copy to the same place ends later."""
        for slot in self.slots:
            slot.free()

    def here(self, slot: RingSlot, part: range, grads: Grads) -> list[Tensor]:
        """Return the gradients of a part in host memory."""
        each = ((i, grads[i]) for i in part)
        return [g if g.device == HOST else self._view(slot, i, g) for i, g in each]

    def _view(self, slot: RingSlot, i: int, g: Tensor) -> Tensor:
        """Return the place of a gradient; a dense one keeps its memory layout."""
        at = self._places[i]
        return laid_out_as(g, slot.memory[at : at + g.nbytes])


def _arrays(work: Work, states: States) -> list[Tensor]:
    return [local(x) for p in work.params for key, x in own_entries(states[p]).items() if key != "step"]


def aligned(size: int) -> int:
    """Return the bytes rounded up to the next aligned place."""
    return -(-size // ALIGNED) * ALIGNED


def laid_out_as(x: Tensor, memory: Tensor) -> Tensor:
    """Return a tensor like this one in memory of its size."""
    numbers = memory.view(x.dtype)
    strides = torch.empty_like(x, device="meta").stride()  # dense, and in the same order of dimensions
    return numbers.as_strided(x.shape, strides)
