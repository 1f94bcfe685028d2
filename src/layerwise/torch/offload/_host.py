"""The host's side of parameters on an accelerator: copies to the host for a step, and back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.core.step import keep_latest
from layerwise.engines.addresses import States
from layerwise.torch.offload import _copies
from layerwise.torch.offload._copies import HOST, CopyEnd, wait_for
from layerwise.torch.offload._ring import SLOTS, Ring, RingKey, RingSlot, aligned, laid_out_as
from layerwise.torch.sharding._dtensors import is_dtensor, like, local
from layerwise.torch.step._work import Work

RING = 1 << 28  # bytes, by default
RETURNING: MutableMapping[Tensor, list[CopyEnd]] = WeakTensorKeyDictionary()
"""The ends of the last copies of weights to the device, by parameter: they may outlive the optimizer."""


class SentPart(NamedTuple):
    """A part whose gradients are on their way, or have arrived."""

    params: list[int]  # their ids
    grads: list[Tensor]
    slot: RingSlot


class Host:
    """The weights and gradients of one optimizer's parameters in host memory, for as long as a step needs them."""

    def __init__(self) -> None:
        self.most = RING
        """The bytes of the ring, if parts step independently."""
        self.every = 1
        """The number of backward passes per step."""
        self.by_module: set[int] = set()
        """The ids of the parameters for which modules wait, through `follow`."""
        self.sums: GradientSums | None = None
        """The gradients, if they are added up on the host and not on the device."""
        self._passes: Counter[int] = Counter()  # by the parameters' ids
        self._twins: MutableMapping[Tensor, HostWeights] = (
            WeakTensorKeyDictionary()
        )  # of parameters that are on a device
        self._now: Ring | None = None  # the ring that has the memory
        self.forget()

    def forget(self) -> None:
        """Plan rings again."""
        self._close()
        self._rings: dict[RingKey, Ring] = {}
        self._memory: list[Tensor] = []

    # ---- before a step

    def in_place_of(self, p: Tensor) -> Tensor:
        """Return a parameter's weights on the host, with their present values."""
        self._make_twins([p])
        self._bring([p])
        return self._weights(p)

    def stepped(self, work: Work) -> Work:
        """Return the work with weights on the host in place of the parameters."""
        self._make_twins(work.params)
        stepped = list(map(self._weights, work.params))
        return work._replace(stepped=stepped, params_here=list(map(local, stepped)))

    def knows(self, work: Work, together: bool, states: States) -> bool:
        """Return True if there is a ring for these parameters and gradients, and their state is unchanged."""
        one = self._rings.get(_kinds(work, together))
        if one is None or not one.holds(work, states):
            return False
        self._use(one, work)
        return True

    def plan(self, work: Work, together: bool) -> None:
        """Create the ring for these parameters and gradients; `together` if a part's step needs all gradients."""
        kinds = _kinds(work, together)
        ring = self._rings.get(kinds) or Ring(work, kinds, self.most // SLOTS, together)
        self._use(ring, work)
        keep_latest(self._rings, kinds, ring, [self._twins])

    def _use(self, ring: Ring, work: Work) -> None:
        """Give the memory to the ring of some parameters, unless it has it."""
        if ring is self._now:
            return
        self._close()
        for i, size in enumerate(ring.sizes):
            if i == len(self._memory) or self._memory[i].numel() < size:
                self._memory[i : i + 1] = [_copies.pinned(size, work.grads_here)]
        ring.slots = [RingSlot(memory[:size]) for memory, size in zip(self._memory, ring.sizes, strict=False)]
        self._now = ring

    def _close(self) -> None:
        if self._now is not None:
            self._now.clear()
            self._now = None

    def parts(self, work: Work) -> Iterator[Work]:
        """Yield the parts of a step, with their gradients and weights on the host."""
        self._bring(work.params)
        ring: Any = self._now
        for part, grads, slot in ring.each(work.grads_here):
            ahead, slot.ahead = slot.ahead, None
            yield work.part(part, grads)._replace(ahead=ahead)

    def arrived(self, p: Tensor) -> SentPart | None:
        """Begin to copy a complete gradient, if the next step is expected to be like the last one, and there is room.

        Return the part of the step whose gradients are all on their way, unless it is already known.
        """
        if self.sums is not None and p.grad is not None and p.device != HOST:
            self.sums.add(p)
            return None
        self._passes[id(p)] += 1
        now, g = self._now, p.grad
        if self._passes[id(p)] % self.every or now is None or g is None or id(p) not in now.place:
            return None
        i, g = now.place[id(p)], local(g)
        if g.device == HOST or now.kinds[i + 1] != _kind(p, g):
            return None
        slot = now.send({i: g}, [i])
        found = None if slot is None or slot.ahead is not None else now.complete(i, slot)
        return None if slot is None or found is None else SentPart([now.params[j] for j in found[0]], found[1], slot)

    def count_anew(self, params: Iterable[Tensor]) -> None:
        """Begin to count the passes of parameters that step."""
        for p in params:
            self._passes.pop(id(p), None)

    def forget_early(self) -> None:
        """Forget gradients that were copied early, or added up: they are gone."""
        if self.sums is not None:
            self.sums.forget()
        self._passes.clear()
        if self._now is not None:
            self._now.clear()

    def gradient_of(self, p: Tensor) -> Tensor | None:
        """Return the gradient of a parameter that has none on the device."""
        return None if self.sums is None else self.sums.of(p)

    # ---- after it

    def send_back(self, params: Sequence[Tensor]) -> None:
        """Begin to copy weights to the device."""
        pairs = self._pairs(params)
        arrivals = _copies.begin_copies([(twin.here, local(p.detach())) for p, twin in pairs], back=True)
        increment_version([x for p, _ in pairs for x in {id(x): x for x in (p, local(p))}.values()])
        for p, twin in pairs:
            twin.is_same(p)
            RETURNING[p] = arrivals

    def keep(self, work: Work, states: States) -> None:
        """Record the state of parameters that have stepped."""
        now: Any = self._now
        now.see(work, states)

    def returned(self, params: Iterable[Tensor]) -> None:
        """Make devices wait for new weights, except those that a module hook waits for."""
        make_devices_wait(p for p in params if id(p) not in self.by_module)

    # ---- weights

    def _make_twins(self, params: Sequence[Tensor]) -> None:
        """Create all missing twins, or none."""
        new = [p for p in params if p.device != HOST and not (p in self._twins and self._twins[p].fits(p))]
        sizes = [(local(p).nbytes, aligned(local(p).nbytes)) for p in new]
        memory = _copies.pinned(sum(room for _, room in sizes), new)
        for p, end, (size, room) in zip(new, accumulate(room for _, room in sizes), sizes, strict=True):
            self._twins[p] = HostWeights(p, memory[end - room : end - room + size])

    def _weights(self, p: Tensor) -> Tensor:
        found: Tensor = p if p.device == HOST else self._twins[p].whole
        return found

    def _pairs(self, params: Iterable[Tensor]) -> list[tuple[Tensor, HostWeights]]:
        return [(p, self._twins[p]) for p in params if p.device != HOST]

    def _bring(self, params: Sequence[Tensor]) -> None:
        """Copy weights to the host that have changed since they were last equal, once none is on its way back."""
        wait_for(_returning(params))
        for p in params:
            RETURNING.pop(p, None)
        if old := [(p, twin) for p, twin in self._pairs(params) if not twin.is_current(p)]:
            wait_for(_copies.begin_copies([(local(p.detach()), twin.here) for p, twin in old]))
            increment_version([twin.here for _, twin in old])
            for p, twin in old:
                twin.is_same(p)


def make_devices_wait(params: Iterable[Tensor]) -> None:
    """Make the devices wait for the weights of these parameters, if they are on their way."""
    for arrival in _returning(params):
        arrival.follow()


def _returning(params: Iterable[Tensor]) -> list[CopyEnd]:
    """Return the ends of copies that bring these parameters' weights back."""
    return list({id(one): one for p in params for one in RETURNING.get(p, ())}.values())


def _kinds(work: Work, together: bool) -> RingKey:
    return (together,), *map(_kind, work.params, work.grads_here)


def _kind(p: Tensor, g: Tensor) -> tuple[object, ...]:
    return id(p), p.shape, p.dtype, type(g), g.layout, g.device, g.shape, g.dtype


class HostMemory:
    """Host memory for a tensor: a tensor, or a DTensor with its local part there."""

    def __init__(self, x: Tensor, memory: Tensor) -> None:
        x = x.detach()
        self.here = laid_out_as(local(x), memory).data  # so that its writes are counted separately
        self.whole = like(x, self.here)

    def fits(self, x: Tensor) -> bool:
        """Return True if this can hold a tensor."""
        here, cut = local(x), is_dtensor(x)
        return (here.shape, here.dtype, cut) == (self.here.shape, self.here.dtype, is_dtensor(self.whole))


class HostWeights(HostMemory):
    """The weights of one parameter on the host."""

    _seen: tuple[int, int, int] | None = None

    def is_current(self, p: Tensor) -> bool:
        """Return True if the parameter has not been written to since the two were equal."""
        return self._seen == _written(p)

    def is_same(self, p: Tensor) -> None:
        """Record that the two are equal from now on."""
        self._seen = _written(p)


def _written(p: Tensor) -> tuple[int, int, int]:
    here = local(p)
    return p._version, here._version, here.data_ptr()


class GradientSum(HostMemory):
    """The gradients of one parameter, added up as on a device."""

    arrivals: list[CopyEnd]
    counts = False  # whether a gradient has arrived since the last ones were forgotten


class GradientSums:
    """The sums of all parameters. Of later passes' gradients, at most `most` bytes are on their way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sums: MutableMapping[Tensor, GradientSum] = WeakTensorKeyDictionary()
        self._coming: deque[tuple[GradientSum, Tensor, list[CopyEnd]]] = deque()
        self._free: dict[int, list[Tensor]] = {}

    @property
    def has_any(self) -> bool:
        """Whether there are any."""
        return any(one.counts for one in self._sums.values())

    def add(self, p: Tensor) -> None:
        """Begin to add the parameter's gradient, and free it on the device."""
        g: Any = p.grad
        here, size = local(g), local(g).nbytes
        one = self._sums.get(p)
        if one is None or not (one.counts or one.fits(g)):
            one = self._sums[p] = GradientSum(g, _copies.pinned(size, [here]))
        if not one.counts:
            one.arrivals, one.counts = _copies.begin_copies([(here, one.here)]), True
        else:
            memory = self._free[size].pop() if self._free.get(size) else _copies.pinned(size, [here])
            self._coming.append((one, memory, _copies.begin_copies([(here, laid_out_as(one.here, memory))])))
            while sum(memory.numel() for _, memory, _ in self._coming) > self._most:
                self._take()
        p.grad = None

    def of(self, p: Tensor) -> Tensor | None:
        """Return the sum of a parameter's gradients, or None without any."""
        while self._coming:
            self._take()
        one = self._sums.get(p)
        if one is None or not one.counts:
            return None
        wait_for(one.arrivals)
        found: Tensor = one.whole
        return found

    def forget(self) -> None:
        """Start again."""
        for _, memory, _ in self._coming:
            self._free.setdefault(memory.numel(), []).append(memory)
        self._coming.clear()
        for one in self._sums.values():
            one.counts = False

    def _take(self) -> None:
        """Add the gradient that left first."""
        one, memory, arrivals = self._coming.popleft()
        wait_for((*one.arrivals, *arrivals))
        one.here.add_(laid_out_as(one.here, memory))
        self._free.setdefault(memory.numel(), []).append(memory)
