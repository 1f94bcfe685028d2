"""The host's side of parameters on an accelerator: what goes there for a step, and what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import maxsize
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.engines.places import objects_of
from layerwise.torch.offload._copies import Arrival, Copies, Pairs, copies_of
from layerwise.torch.offload._ring import HOST, SLOTS, Ring
from layerwise.torch.offload._sums import Sums
from layerwise.torch.offload._twins import Twins
from layerwise.torch.sharding._cuts import local
from layerwise.torch.step._tensors import written
from layerwise.torch.step._turn import States, Work

RING = 1 << 28  # bytes, by default
Kind = tuple[Any, ...]
RETURNING: Any = WeakTensorKeyDictionary()
"""The ends of the last copies of weights to the device, by parameters: an optimizer may go before they are there."""


class Host:
    """The weights and gradients of one optimizer's parameters in host memory, for as long as a step needs them."""

    def __init__(self) -> None:
        self.most = RING
        """The bytes of the ring, where the step of a part needs no other part."""
        self.every = 1
        """The number of backward passes whose gradients make one step."""
        self.by_module: set[int] = set()
        """The ids of the parameters for which modules wait, by `follow`."""
        self.sums: Sums | None = None
        """The gradients, if they are added up here and not on the device."""
        self._passes: Counter[int] = Counter()  # by the parameters' ids
        self._twins = Twins()
        self._copies: dict[torch.device, Copies] = {}
        self.forget()

    def forget(self) -> None:
        """Plan the ring again."""
        self._kinds: list[Kind] = []
        self._ring: Ring | None = None
        self._number: dict[int, int] = {}
        self._objects: Any = None

    # ---- before a step

    def in_place_of(self, p: Tensor) -> Tensor:
        """Return a parameter's weights on the host, as they are now."""
        self._make_twins([p])
        self._bring([p])
        return self._twins.of(p)

    def stepped(self, work: Work) -> Work:
        """Return the same with weights on the host in the place of parameters."""
        for p in work.params:
            self._passes.pop(id(p), None)
        self._make_twins(work.params)
        stepped = [self._twins.of(p) for p in work.params]
        return work._replace(stepped=stepped, params_here=list(map(local, stepped)))

    def knows(self, work: Work, whole: bool, states: States) -> bool:
        """Return True if the ring is for these parameters and gradients, and nothing of the state was replaced."""
        same = self._objects is not None and self._kinds == _kinds(work, whole)
        return same and bool(self._objects.same(work.params, states))

    def plan(self, work: Work, whole: bool) -> None:
        """Make the ring for these parameters and gradients; `whole` if one part's step needs all gradients."""
        if self._ring is not None and self._kinds == _kinds(work, whole):
            return
        self.forget()
        most = maxsize if whole else self.most // SLOTS
        self._ring = Ring(work.grads_here, most, self._pinned(work.grads_here))
        self._kinds, self._number = _kinds(work, whole), {id(p): i for i, p in enumerate(work.params)}

    def parts(self, work: Work) -> Iterator[Work]:
        """Yield the parts of a step, with their gradients and weights on the host."""
        self._bring(work.params)
        ring: Any = self._ring
        for part, grads in ring.each(work.grads_here, self._out):
            yield work.part(part, grads)

    def arrived(self, p: Tensor) -> None:
        """Begin to copy a gradient that is complete, if the next step is to be like the last one, and there is room."""
        if self.sums is not None and p.grad is not None and p.device != HOST:
            self.sums.add(p, self._out)
            return
        self._passes[id(p)] += 1
        i, g = self._number.get(id(p)), p.grad
        if self._passes[id(p)] % self.every == 0 and self._ring is not None and i is not None and g is not None:
            g = local(g)
            if g.device != HOST and self._kinds[i + 1] == _kind(p, g):
                self._ring.send({i: g}, [i], self._out)

    def forget_early(self) -> None:
        """Forget gradients that were copied early, or added up: they are gone."""
        if self.sums is not None:
            self.sums.forget()
        self._passes.clear()
        if self._ring is not None:
            self._ring.clear()

    def sum_here(self, most: int) -> None:
        """Add up gradients here from now on."""
        self.sums = Sums(most, lambda g: self._pinned([g]))

    def gradient_of(self, p: Tensor) -> Tensor | None:
        """Return the gradient of a parameter that has none on the device."""
        return None if self.sums is None else self.sums.of(p)

    # ---- after it

    def send_back(self, params: Sequence[Tensor]) -> None:
        """Begin to copy weights to the device."""
        pairs = self._twins.pairs(params)
        arrivals = self._by_device([(twin.here, local(p.detach())) for p, twin in pairs], back=True)
        written([x for p, _ in pairs for x in {id(x): x for x in (p, local(p))}.values()])
        for p, twin in pairs:
            twin.is_same(p)
            RETURNING[p] = arrivals

    def keep(self, work: Work, states: States) -> None:
        """Note the state of parameters that have stepped."""
        if self._objects is None or not self._objects.same(work.params, states):
            known = all(p in states for p in work.params)
            self._objects = objects_of(work.params, states) if known else None

    def returned(self, params: Iterable[Tensor]) -> None:
        """Let the devices wait for the weights of a step, but those for which modules wait."""
        follow(p for p in params if id(p) not in self.by_module)

    # ---- copies

    def _make_twins(self, params: Sequence[Tensor]) -> None:
        self._twins.make(params, self._pinned(params))

    def _bring(self, params: Sequence[Tensor]) -> None:
        """Copy weights to the host that were written to since they were last the same, once none is on its way back."""
        _wait(_returning(params))
        for p in params:
            RETURNING.pop(p, None)
        old = [(p, twin) for p, twin in self._twins.pairs(params) if not twin.is_current(p)]
        if old:
            _wait(self._out([(local(p.detach()), twin.here) for p, twin in old]))
            written([twin.here for _, twin in old])
            for p, twin in old:
                twin.is_same(p)

    def _pinned(self, beside: Sequence[Tensor]) -> Callable[[int], Tensor]:
        device = next((x.device for x in beside if x.device != HOST), HOST)
        return self._of(device).pinned

    def _out(self, pairs: Pairs) -> list[Arrival]:
        return self._by_device(pairs, back=False)

    def _by_device(self, pairs: Pairs, back: bool) -> list[Arrival]:
        """Begin to copy, in a direction, between the host and each device."""
        found: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        for source, target in pairs:
            found.setdefault(target.device if back else source.device, []).append((source, target))
        each = [(self._of(device), some) for device, some in found.items()]
        with torch.no_grad():
            return [copies.back(some) if back else copies.out(some) for copies, some in each]

    def _of(self, device: torch.device) -> Copies:
        if device not in self._copies:
            self._copies[device] = copies_of(device)
        return self._copies[device]


def follow(params: Iterable[Tensor]) -> None:
    """Let the devices wait for the weights of these parameters, if they are on their way."""
    for arrival in _returning(params):
        arrival.follow()


def _returning(params: Iterable[Tensor]) -> list[Arrival]:
    """Return the ends of copies that bring these parameters' weights back."""
    return list({id(one): one for p in params for one in RETURNING.get(p, ())}.values())


def _wait(arrivals: Sequence[Arrival]) -> None:
    for arrival in arrivals:
        arrival.wait()


def _kinds(work: Work, whole: bool) -> list[Kind]:
    return [(whole,), *map(_kind, work.params, work.grads_here)]


def _kind(p: Tensor, g: Tensor) -> Kind:
    return id(p), p.shape, p.dtype, type(g), g.layout, g.device, g.shape, g.dtype
