"""One launch for measure, settle and apply: its list of items, and its results against those of the phases."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import CASES
from engines.test_against_rule import given_jobs, well_posed
from engines.worlds import copied, make_job, mapped, new_gradient, now_of, numbers, stored
from gpu.test_against_rule import smaller
from gpu.world import GPU, SMALL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerwise import engines
from layerwise.engines.gpu.engine import GpuEngine
from layerwise.engines.gpu.work import in_order

LAYERS = st.lists(st.integers(1, 9), min_size=1, max_size=12)
cases = pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)


def listed(layers, ahead):
    pairs = [(layer, number) for layer, n in enumerate(layers) for number in range(n)]
    items = in_order(np.array(pairs, np.int32), ahead).tolist()
    return pairs, [(layer, number) if number >= 0 else (layer, ~number) for layer, number in items], items


@given(LAYERS, st.integers(0, 20))
def test_everything_is_listed_twice_and_measured_before_it_is_applied(layers, ahead):
    pairs, chunks, items = listed(layers, ahead)
    measured = [i for i, (_, number) in enumerate(items) if number >= 0]
    applied = [i for i, (_, number) in enumerate(items) if number < 0]
    assert [chunks[i] for i in measured] == pairs
    assert sorted(chunks[i] for i in applied) == pairs
    last = {layer: i for i, (layer, number) in enumerate(items) if number >= 0}
    assert all(last[items[i][0]] < i for i in applied)


@given(LAYERS, st.integers(0, 20))
def test_layers_are_applied_backwards_so_many_chunks_later(layers, ahead):
    pairs, chunks, items = listed(layers, ahead)
    handed_out, ends = np.cumsum([number >= 0 for _, number in items]), np.cumsum(layers)
    for i, (layer, number) in enumerate(items):
        assert number >= 0 or handed_out[i] == min(ends[layer] + ahead, len(pairs))
    for (one, first), (other, second) in pairwise(
        pair for pair, item in zip(chunks, items, strict=True) if item[1] < 0
    ):
        assert (other, second) == ((one, first - 1) if first else (one + 1, layers[one + 1] - 1))


@given(LAYERS, st.integers(0, 20), st.integers(1, 7), st.integers(0, 10**6))
def test_nobody_waits_for_ever(layers, ahead, programs, seed):
    """However few run at a time, and whoever of them goes on, as long as those that run stay."""
    *_, items = listed(layers, ahead)
    draw, tickets, held, progress = random.Random(seed), iter(items), {}, [0] * len(layers)
    waiting = set(range(programs))
    resident = {waiting.pop() for _ in range(draw.randint(1, programs))}
    while resident:
        able = [one for one in resident if one not in held or may_go_on(held[one], progress)]
        assert able, (held, progress)
        one = draw.choice(able)
        if one in held:
            done(held.pop(one), progress, layers)
        elif (item := next(tickets, None)) is not None:
            held[one] = item
        else:
            resident.remove(one)
            resident |= {waiting.pop()} if waiting else set()
    assert progress == [0] * len(layers)


def may_go_on(item, progress):
    return item[1] >= 0 or progress[item[0]] < 0


def done(item, progress, layers):
    layer, number = item
    progress[layer] += 1
    if number >= 0 and progress[layer] == layers[layer]:
        progress[layer] = -layers[layer]


def stepped(sizes, h, jobs, g_scale, skip):
    """Three steps of copies, the second of which may be skipped: what they are then, and what was measured."""
    jobs = [mapped(copied(job), GPU.array) for job in jobs]
    prepared = GpuEngine(None, sizes).prepare([engines.Job(j.rule, j.h, j.p, j.state, j.block_dims) for j in jobs])
    measured = []
    for t in (1, 2, 3):
        fresh = [GPU.array(new_gradient(j.p, t, str(j.g.dtype).removeprefix("torch."))) for j in jobs]
        said = torch.tensor(t == 2, device=fresh[0].device) if skip else None
        prepared.step(fresh, [now_of(h, t, g_scale)] * len(jobs), said)
        measured.append([{name: np.array(x).tobytes() for name, x in one.items()} for one in prepared.stats()])
    return [numbers(a).tobytes() for job in jobs for a in stored(job)], measured, prepared._laid[1]


@cases
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_jobs(), st.booleans(), st.integers(1, 4), st.integers(0, 3))
def test_one_launch_does_what_phases_do(case, drawn, skip, each, ahead):
    seed, g_scale, tensors = drawn
    h = case.hyper(**well_posed(case.drawn(seed)))
    jobs = [make_job(case, h, smaller(shape), blocks, own, dtypes) for shape, blocks, dtypes, _, own in tensors]
    phased, measured, _ = stepped(SMALL, h, jobs, g_scale, skip)
    at_once, the_same, method = stepped(replace(SMALL, persistent=True, each=each, ahead=ahead), h, jobs, g_scale, skip)
    assert at_once == phased
    assert the_same == measured
    assert not method.progress.any()
    assert not any(work.ticket.any() for _, work in method.at_once)


@pytest.mark.skipif(torch.version.hip is not None, reason="there is no such launch for AMD's GPUs")
@cases
def test_one_launch_has_no_phases(case, monkeypatch):
    """Layers whose ratio is wanted go through it, and others do not."""
    from layerwise.engines.gpu.call import Call
    from layerwise.engines.gpu.ratio import Ratio

    seen = []
    monkeypatch.setattr(Call, "each", lambda self, kernel, groups, *_, **__: seen.append(("each", len(groups))))
    monkeypatch.setattr(Ratio, "_at_once", lambda *_, **__: seen.append(("at once", 1)))
    for adapt, calls in ((True, [("at once", 1)]), (False, [("each", 1)])):
        seen.clear()
        h = case.hyper(adapt=adapt)
        stepped(replace(SMALL, persistent=True), h, [make_job(case, h, (30, 17), (), 0)], 1.0, False)
        assert [call for call in seen if call[1]][: len(calls)] == calls
        assert {call for call in seen if call[1]} == set(calls)
