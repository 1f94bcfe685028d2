"""Adafactor's tiles: matrices of any number, size and order of dimensions, and statistics from however many strips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import case_of
from engines.parts import Cut, check, in_parts, step_parts
from engines.worlds import EPS, Stepping, agree, bits, make_job, mapped, now_of, numbers, stored
from gpu.world import GPU, SMALL, given, near

from layerwise.engines.gpu import GpuEngine
from layerwise.engines.gpu.layout import ChunkSizes
from layerwise.engines.gpu.proof import NoOtherRanks
from layerwise.engines.gpu.specialization import kind_of

CASE = case_of("Adafactor")
FLOATS = ("float32",) * 3
TINY = replace(SMALL, wide=(1, 2, 8), narrow=(1, 4, 4), single=(16, 1, 1), tiles=2, entries=16)
BUSY = {"lr": 0.1, "beta1": 0.9, "weight_decay": 0.1, "scale_parameter": True, "clip_threshold": 0.5}
CLAMPED = {"eps_mode": "clamp", "eps": (1e-3, 1e-3)}
ADDED = {"eps_mode": "add", "eps": (1e-3, 1e-3)}


def job_of(shape, options=None, dtypes=FLOATS, blocks=(), seed=0, **more):
    """A job at its third step, when what was there before counts."""
    job = make_job(CASE, CASE.hyper(**(BUSY if options is None else options), **more), shape, blocks, seed, dtypes)
    draw = np.random.default_rng(seed)
    for array in stored(job)[1:]:
        array[...] = draw.uniform(0.5, 2, array.shape)
    return replace(job, now=now_of(job.h, 3))


def there(job):
    return mapped(job, GPU.array)


def stepped(job, sizes=SMALL):
    """A copy of the job after a step, and what was measured. The gradient is no copy, which might lie elsewhere."""
    mine = replace(mapped(job, GPU.copy), g=job.g)
    [stats] = Stepping(GpuEngine(sizes=sizes)).step([mine])
    return mine, stats


def held_to_the_rule(job, sizes=SMALL):
    mine, theirs = stepped(job, sizes)[0], mapped(job, GPU.copy)
    GPU.rule.step([theirs])
    agree(mine, theirs, [numbers(a) for a in stored(job)], FLOATS)


@pytest.mark.parametrize(
    ("shape", "factored", "mode", "blocks"),
    [
        ((20, 37), "last", ADDED, ()),  # across tiles both ways
        ((20, 37), "last", CLAMPED, ()),
        ((3, 70), "last", ADDED, ()),
        ((70, 3), "last", CLAMPED, ()),
        ((1, 40), "last", ADDED, ()),
        ((20, 3, 3), "last", CLAMPED, ()),  # small matrices in numbers
        ((7, 20, 1, 1), "last", ADDED, ()),
        ((2, 9, 17), "last", CLAMPED, ()),
        ((7, 1, 6, 1), (0, 2), ADDED, ()),
        ((3, 4, 5, 2), ((1,), (2, 3)), CLAMPED, ()),
        ((3, 4, 5, 2), ((0, 1), (2, 3)), ADDED, ()),
        ((3, 20, 3, 3), "last", ADDED, (0,)),
        ((3, 7, 20, 1, 1), "last", CLAMPED, (0,)),
        ((3, 3, 4, 5, 2), ((1,), (2, 3)), ADDED, (0,)),
        ((3, 5, 1), (0, 1), CLAMPED, (0,)),
    ],
)
def test_a_step_of_matrices_is_the_rules(shape, factored, mode, blocks):
    held_to_the_rule(there(job_of(shape, blocks=blocks, factored=factored, **mode)))


@pytest.mark.parametrize(
    ("of_gradient", "factored"), [((0, 2, 1), (1, 2)), ((2, 1, 0), (1, 2)), ((2, 1, 0), ((0, 1), (2,)))]
)
def test_gradients_may_lie_in_any_order_in_memory(of_gradient, factored):
    job = there(job_of((4, 6, 10), factored=factored))
    held_to_the_rule(replace(job, g=job.g.permute(of_gradient).contiguous().permute(tuple(np.argsort(of_gradient)))))


def test_a_gradient_may_be_one_number():
    job = there(job_of((10, 33)))
    held_to_the_rule(replace(job, g=torch.full((), 0.3, device=job.p.device).expand(10, 33)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_statistics_are_rounded_where_they_are_stored_and_nowhere_else(dtype):
    low = there(job_of((20, 17), {}, ("float32", "float32", dtype)))
    exact = mapped(low, lambda a: a.float())
    mine, wanted = stepped(low)[0], stepped(exact)[0]
    assert bits([replace(mine, state=())]) == bits([replace(wanted, state=())])
    for rounded, whole in zip(stored(mine)[1:], stored(wanted)[1:], strict=True):
        assert torch.equal(rounded, whole.to(rounded.dtype))


@pytest.mark.parametrize(
    ("shape", "dim", "at", "options", "sizes"),
    [
        ((6, 5, 4), 0, (2,), {"factored": (1, 2)}, SMALL),
        ((6, 5, 4), 1, (2,), {"factored": ((0,), (1, 2))}, SMALL),
        ((6, 5, 4), 2, (2,), {"factored": ((0, 1), (2,))}, SMALL),
        ((6, 5, 4), 0, (2,), {}, ChunkSizes()),  # whose sums have one strip
        ((8, 3, 1, 1), 0, (2,), {}, ChunkSizes()),
        ((30,), 0, (2,), {}, ChunkSizes()),
        ((2, 17, 17), 1, (0, 0), {"blocks": (0,)}, SMALL),  # some hold no rows,
        ((2, 17, 40), 2, (1, 2), {"blocks": (0,)}, SMALL),  # or one tile of them where others hold several
        ((6, 9), 0, (1, 1), {}, SMALL),
    ],
)
def test_parts_make_the_whole_and_statistics_that_ranks_hold_whole_are_the_same_on_all(shape, dim, at, options, sizes):
    job, cut, n = job_of(shape, **options), Cut(dim, at), len(at) + 1
    parts = in_parts(job, cut, n)
    step_parts(GpuEngine(sizes=sizes), [[part] for part in parts], [job.p.shape], [cut], GPU.array)
    check(stepped(there(job), sizes)[0], parts, 8 * EPS["float32"])


@pytest.mark.parametrize("sizes", [ChunkSizes(), TINY], ids=["one strip", "several"])
def test_other_ranks_that_hold_no_part_change_nothing(sizes):
    job = there(job_of((6, 9)))
    mine = mapped(job, GPU.copy)
    GpuEngine(sizes=sizes).prepare([given(mine)]).step([job.g], [job.now], None, NoOtherRanks())
    assert bits([mine]) == bits([replace(stepped(job, sizes)[0], g=mine.g)])


def test_steps_with_other_ranks_and_without_may_take_turns():
    ours, theirs = (mapped(there(job_of((6, 9))), GPU.copy) for _ in range(2))
    ready = GpuEngine(sizes=TINY).prepare([given(ours)])
    for others in (None, NoOtherRanks(), None):
        ready.step([ours.g], [ours.now], None, others)
        GPU.rule.step([theirs])
        near([ours], [theirs])


def kind(shape, dtypes=FLOATS):
    job = there(job_of(shape, {}, dtypes))
    return kind_of(given(job), job.g, ChunkSizes())


def test_sixteen_bytes_are_read_at_once_where_all_rows_begin_there():
    assert [kind((8, n)).vector for n in (16, 17, 18, 20)] == [4, 1, 1, 4]
    assert [kind((8, n), ("float32", "bfloat16", "float32")).vector for n in (20, 24)] == [1, 8]
