"""Measure, settle and apply in one launch, so that a layer is applied while the cache still holds it.

Programs take items from a list (work.py) by tickets until none are left. An item is a chunk to measure or, once the
last of its layer has been and that program has answered for all, to apply. Tickets are handed out in order, and what an
item waits for comes before it: it is done, or in the hands of somebody who runs. So nobody waits for ever, however few
programs run at a time.

`progress` has one number for each layer: how many of its chunks are measured, from 0 up; and once it is answered, how
many are still to be applied, from below up to 0. It ends as it began, and so does the ticket, whose last holder sets it
back: nothing has to be made ready before the launch, nor before it is replayed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from layerwise.engines.gpu.kernels.parts import added, goes, located
from layerwise.engines.gpu.kernels.tables import ANSWERS, CHUNKS, NUMBERS, VARYING


@triton.jit(do_not_specialize=VARYING)
def step(
    letter, numbers, pointers, layers, items, clips, partials, answers, progress, ticket, n, apart, skip, jobs,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE0: tl.constexpr, STATE1: tl.constexpr, COMPUTE: tl.constexpr,
    MEASURE: tl.constexpr, ANSWER: tl.constexpr, APPLY: tl.constexpr, OWN: tl.constexpr, READY: tl.constexpr,
    SKIPS: tl.constexpr, FLAT: tl.constexpr, ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All items, with a rule's own functions, and its OWN flag for them."""
    i = tl.atomic_add(ticket, 1, sem="relaxed")
    while i < n:
        layer, number = tl.load(items + 2 * i), tl.load(items + 2 * i + 1)
        if number < 0:
            chunk = located(layers, layer, ~number, CHUNK)
            wait(progress + layer)
            APPLY(
                chunk, letter, numbers, pointers, clips, answers, skip, jobs,
                PARAM, GRAD, STATE0, STATE1, COMPUTE, OWN, READY, SKIPS, FLAT, ALIGNED, BLOCK,
            )  # fmt: skip
        else:
            chunk = located(layers, layer, number, CHUNK)
            MEASURE(
                chunk, letter, numbers, pointers, clips, partials, apart, skip, jobs,
                PARAM, GRAD, STATE0, STATE1, COMPUTE, OWN, READY, SKIPS, FLAT, ALIGNED, CHUNK, BLOCK,
            )  # fmt: skip
            settle(progress, numbers, chunk, partials, answers, apart, skip, ANSWER, SKIPS, LANES)
        i = tl.atomic_add(ticket, 1, sem="relaxed")
    if i == n + tl.num_programs(0) - 1:
        tl.atomic_xchg(ticket, 0, sem="relaxed")


@triton.jit
def settle(
    progress, numbers, chunk, partials, answers, apart, skip,
    ANSWER: tl.constexpr, SKIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Say that this chunk is measured, and answer for the layer if it was the last."""
    layer, row, job, _, _ = chunk
    chunks = tl.load(row + CHUNKS).to(tl.int32)
    # Barriers on both sides: one thread alone tells and is told, for what all threads have stored and will read.
    tl.debug_barrier()
    before = tl.atomic_add(progress + layer, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    if before == chunks - 1:
        pp, rr = added(row, partials, LANES), added(row, partials + apart, LANES)
        if goes(skip, SKIPS):
            ANSWER(numbers + job * NUMBERS, answers + layer * ANSWERS, pp, rr)
        tl.debug_barrier()
        tl.atomic_xchg(progress + layer, -chunks, sem="release", scope="gpu")


@triton.jit
def wait(progress):
    """Until the layer is answered; then count this chunk as applied, which it will be before the launch ends."""
    waiting = tl.atomic_add(progress, 0, sem="acquire", scope="gpu") >= 0
    while waiting:
        waiting = tl.atomic_add(progress, 0, sem="acquire", scope="gpu") >= 0
    tl.debug_barrier()
    tl.atomic_add(progress, 1, sem="relaxed", scope="gpu")
