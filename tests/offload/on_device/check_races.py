"""Faults that make a race are noticed: each is planted, and then numbers are others than those of the ordinary step."""

from __future__ import annotations

import pytest
from offload.device import Ended, StandIn
from offload.training import both, named, replaced, same

import layerwise.torch as lw
from layerwise.torch.offload import _host, _ring
from layerwise.torch.tools import _overlap

LAMB = named(lw.Lamb, weight_decay=0.1)


def train(run) -> None:
    run.overlap()
    for _ in range(4):
        run.backward()
        for p in run.model.parameters():
            p.grad.mul_(0.5)  # after it has left
        run.opt.step()
        run.opt.zero_grad()


def nothing(*_) -> None:
    pass


def not_waiting(ring, grads, out):
    """Parts whose gradients are not waited for."""
    with replaced(Ended, "wait", nothing):
        yield from EACH(ring, grads, out)


def freed_too_early(ring, grads, out):
    """Parts whose slots are another's before their gradients are read."""
    for part, found in EACH(ring, grads, out):
        for slot in ring.slots:
            slot.free()
        for other in range(len(ring.parts)):
            ring.send(grads, ring.parts[other], out)
        yield part, found


EACH = _ring.Ring.each
RACES = {
    "a gradient is read before it has arrived": (_ring.Ring, "each", not_waiting),
    "a buffer is used again before it was read": (_ring.Ring, "each", freed_too_early),
    "a gradient that has changed is not sent again": (_ring.Slot, "has", lambda slot, i, g: i in slot._sent),
    "weights are stepped while they are on their way back": (_host, "_returning", lambda params: []),
    "weights are read before they are back": (_host, "follow", nothing),
    "modules do not wait": (_overlap, "follow", nothing),
    "weights of the device are not looked for": (_host.Host, "_bring", nothing),
}


@pytest.mark.parametrize("race", RACES)
def test_a_race_is_noticed(race, late):
    a, b = both(LAMB)
    train(a)
    with replaced(*RACES[race]):
        train(b)
    assert not same(a, b)


def test_without_one_nothing_is_noticed(schedule):
    a, b = both(LAMB)
    train(a), train(b)
    assert same(a, b)
    assert StandIn.copied_bytes[0] > 0
