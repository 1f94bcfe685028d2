"""Faults that make a race are noticed: each is planted, and then numbers are others than those of the ordinary step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from offload.device import Ended, StandIn
from offload.training import both, named, replaced, same

import layerwise.torch as lw
from layerwise.torch.offload import _host, _ring
from layerwise.torch.step import _measured_step, _stepper
from layerwise.torch.tools import _overlap

LAMB = named(lw.Lamb, weight_decay=0.1)


def nothing(*_) -> None:
    pass


def changed(run) -> None:
    for p in run.model.parameters():
        p.grad.mul_(0.5)  # after it has left


def weighed(run) -> None:
    with torch.no_grad():
        run.model.head.weight.mul_(0.5)  # after it was measured


def slowed(run) -> None:
    run.opt.param_groups[0]["lr"] *= 0.5  # after numbers were taken


def train(run, between) -> None:
    run.overlap()
    for _ in range(4):
        run.backward()
        between(run)
        run.opt.step()
        run.opt.zero_grad()


def not_waiting(ring, grads):
    """Parts whose gradients are not waited for."""
    with replaced(Ended, "wait", nothing):
        yield from EACH(ring, grads)


def freed_too_early(ring, grads):
    """Parts whose slots are another's before their gradients are read."""
    for part, found, own in EACH(ring, grads):
        for slot in ring.slots:
            slot.free()
        for other in range(len(ring.parts)):
            ring.send(grads, ring.parts[other])
        yield part, found, own


def measured_at_once(steps, wait):
    """What does not wait for its gradients."""
    return next(steps)


def measured_at_all(ahead, *_):
    """What takes anything that was measured."""
    return ahead._measured.exception() is None


def returned_first(stepper, work, *given):
    """A step whose weights leave before it has ended."""
    _host.Host.send_back(stepper.host, work.params)
    stepper.host.send_back = nothing
    return STEP_WORK(stepper, work, *given)


def all_but_the_last(arrivals):
    for arrival in arrivals[:-1]:
        arrival.wait()


EACH, STEP_WORK = _ring.Ring.each, _stepper.Stepper.step_work
RACES = {
    "a gradient is read before it has arrived": (_ring.Ring, "each", not_waiting, changed),
    "a gradient is measured before it has arrived": (_measured_step, "_measure", measured_at_once, nothing),
    "the end of another copy is waited for": (_ring, "wait_for", all_but_the_last, nothing),
    "a buffer is used again before it was read": (_ring.Ring, "each", freed_too_early, changed),
    "a buffer is used again while it is measured": (
        _ring.Ring,
        "_slot",
        lambda ring, number: ring.slots[number % len(ring.slots)],
        nothing,
    ),
    "a gradient that has changed is not sent again": (
        _ring.RingSlot,
        "has",
        lambda slot, i, g: i in slot._sent,
        changed,
    ),
    "a gradient that has changed is not measured again": (_ring.RingSlot, "leave", nothing, changed),
    "weights that have changed are not measured again": (_measured_step, "_versions", nothing, weighed),
    "numbers that have changed are not taken": (_measured_step.MeasuredStep, "is_of", measured_at_all, slowed),
    "weights are stepped while they are on their way back": (_host, "_returning", lambda params: [], nothing),
    "weights are on their way back before they are stepped": (
        _stepper.Stepper,
        "step_work",
        returned_first,
        nothing,
    ),
    "weights are read before they are back": (_host, "make_devices_wait", nothing, nothing),
    "modules do not wait": (_overlap, "make_devices_wait", nothing, nothing),
    "weights of the device are not looked for": (_host.Host, "_bring", nothing, nothing),
}


@pytest.mark.parametrize("race", RACES)
def test_a_race_is_noticed(race, late):
    *fault, between = RACES[race]
    a, b = both(LAMB)
    train(a, between)
    with replaced(*fault):
        train(b, between)
    assert not same(a, b)


def test_the_page_says_how_many_there_are():
    page = (Path(__file__).parents[3] / "docs" / "offload.md").read_text("utf-8")
    assert "Fourteen planted races are all noticed." in page
    assert len(RACES) == 14


@pytest.mark.parametrize("between", [nothing, changed, weighed, slowed])
def test_without_one_nothing_is_noticed(schedule, between):
    a, b = both(LAMB)
    train(a, between), train(b, between)
    assert same(a, b)
    assert StandIn.copied_bytes[0] > 0
