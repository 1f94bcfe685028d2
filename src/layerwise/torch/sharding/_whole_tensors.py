"""Whole tensors made from their parts: one rank collects a tensor, does the work on it, and sends the parts back.

A tensor travels along one axis after the other, to the rank that shares the owner's place there, and comes back in the
other direction; what comes back goes on to the replicas. Tensors travel in waves, each with work for every owner. While
the owners work on one wave the next is on its way to them, and the last on its way back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from layerwise.torch.sharding._routes import Message, Route, Wave

T = TypeVar("T")
Work = Callable[[Tensor], Tensor]
Some = dict[int, Tensor]  # tensors by number, or parts of them
Journey = Generator[None, None, T]  # pauses once for each message that is under way


def exchange_wholes(
    waves: Iterable[Wave], parts: Sequence[Tensor], works: Sequence[Work], own: torch.dtype, sent: torch.dtype
) -> list[Tensor]:
    """Return this rank's parts of the works' results on whole tensors, given its parts of the tensors.

    These have one dtype, and are sent in another one that can hold them.
    """
    made: Some = {}
    journeys = (_travelling(wave, {i: parts[i].to(sent) for i in wave.tensors}, works, own) for wave in waves)
    for some in _overlapped(journeys):
        made |= some
    return [made[i].to(own) for i in range(len(parts))]


def _overlapped(journeys: Iterable[Journey[T]]) -> list[T]:
    """Return the results of journeys. In each turn one more begins, before the others continue, the last begun
    first.
    """
    coming, under_way, found = iter(journeys), list[Journey[T]](), list[T]()
    while begun := [*islice(coming, 1), *under_way]:
        under_way = []
        for one in begun:
            try:
                next(one)
                under_way.append(one)
            except StopIteration as end:
                found.append(end.value)
    return found


def _travelling(wave: Wave, have: Some, works: Sequence[Work], own: torch.dtype) -> Journey[Some]:
    """Take the tensors of a wave to their owners and back."""
    for leg in wave.there:
        have |= yield from _moved(leg, have)
    have |= _worked_on({i: route for i, route in wave.tensors.items() if route.is_owned}, have, works, own)
    for leg in wave.back:
        have |= yield from _moved(leg, have)
    return have


def _worked_on(routes: Mapping[int, Route], have: Some, works: Sequence[Work], own: torch.dtype) -> Some:
    """Return the works' results on these tensors, which are whole here; equal work is done at once."""
    alike: dict[tuple[Work, tuple[int, ...]], list[int]] = defaultdict(list)
    for i, route in routes.items():
        alike[works[i], route.shape].append(i)
    made: Some = {}
    for (work, _), some in alike.items():
        each = [routes[i].together(have[i]).to(own) for i in some]
        done = work(torch.stack(each).movedim(0, -1)).unbind(-1) if len(some) > 1 else [work(each[0])]
        made |= {i: routes[i].apart(one.to(have[i].dtype)) for i, one in zip(some, done, strict=True)}
    return made


def _moved(leg: Message, have: Some) -> Journey[Some]:
    """Return this rank's data of tensors after a message, as parts in the order of their arrival."""
    some, sizes = next(iter(have.values())), defaultdict[int, list[int]](list)
    for i, n in leg.sent:
        sizes[i].append(n)
    parts = {i: repeat(have[i]) if leg.copies else iter(torch.split(have[i], each)) for i, each in sizes.items()}
    there = torch.cat([some[:0], *(next(parts[i]) for i, _ in leg.sent)]).to(leg.axis.device_type)
    here = there.new_empty(sum(leg.taken))
    message: Any = dist.all_to_all_single(here, there, leg.taken, leg.given, group=leg.axis.group, async_op=True)
    yield
    message.wait()
    found: dict[int, list[Tensor]] = defaultdict(list)
    for (i, _), part in zip(leg.coming, torch.split(here.to(some.device), [n for _, n in leg.coming]), strict=True):
        found[i].append(part)
    return {i: torch.cat(each) for i, each in found.items()}
