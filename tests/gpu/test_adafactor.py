"""Adafactor's tiles: matrices of any number, size and order of dimensions, and statistics from however many strips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import KERNELED, case_of
from engines.test_against_rule import agree
from engines.test_rounds import Cut, check, in_parts, step_parts
from engines.worlds import EPS, Stepping, bits, make_job, mapped, new_gradient, now_of, numbers, stored
from gpu.world import GPU, SMALL

from layerwise import engines
from layerwise.engines.gpu.call import Sizes
from layerwise.engines.gpu.engine import GpuEngine, declined
from layerwise.engines.gpu.factored import Room, lay
from layerwise.engines.gpu.kernels import parts as parts_of_kernels
from layerwise.engines.gpu.planes import tiling_of
from layerwise.errors import EngineError

CASE = case_of("Adafactor")
FLOATS = ("float32",) * 3
TINY = replace(SMALL, wide=(1, 2, 8), narrow=(1, 4, 4), single=(16, 1, 1), tiles=2, entries=16)
BUSY = {"lr": 0.1, "beta1": 0.9, "weight_decay": 0.1, "scale_parameter": True, "clip_threshold": 0.5}
PLANES = [
    ((40, 23), "last"),  # across tiles both ways
    ((3, 70), "last"),
    ((70, 3), "last"),
    ((1, 40), "last"),
    ((20, 3, 3), "last"),  # small matrices in numbers
    ((7, 20, 1, 1), "last"),
    ((2, 9, 17), "last"),
    ((7, 1, 6, 1), (0, 2)),
    ((3, 4, 5, 2), ((1,), (2, 3))),
    ((3, 4, 5, 2), ((0, 1), (2, 3))),
]
NO_PLANES = [
    ((6, 5, 3, 3), (0, 1)),  # matrices that lie inside one another
    ((6, 5), (1, 0)),
    ((6, 5, 7), ((0, 2), (1,))),
    ((6, 5, 7), ((2, 1), (0,))),
    ((3, 4, 5, 2), ((3, 0), (1, 2))),
]


def job_of(shape, options=BUSY, dtypes=FLOATS, blocks=(), seed=0, layout="plain"):
    """A job at its third step, when what was there before counts."""
    job = make_job(CASE, CASE.hyper(**options), shape, blocks, seed, dtypes, layout)
    draw = np.random.default_rng(seed)
    for array in stored(job)[1:]:
        array[...] = draw.uniform(0.5, 2, array.shape)
    return replace(job, now=now_of(job.h, 3))


def there(job):
    return mapped(job, GPU.array)


def stepped(job, sizes=SMALL):
    """A copy of the job after a step, and what was measured. The gradient is no copy, which might lie elsewhere."""
    mine = replace(mapped(job, GPU.copy), g=job.g)
    [stats] = Stepping(GpuEngine(None, sizes)).step([mine])
    return mine, stats


def held_to_the_rule(job, dtypes=FLOATS, sizes=SMALL):
    mine, _ = stepped(job, sizes)
    theirs = mapped(job, GPU.copy)
    GPU.rule.step([theirs])
    agree(mine, theirs, [numbers(a) for a in stored(job)], dtypes)
    return mine


@pytest.mark.parametrize(("shape", "factored"), PLANES)
@pytest.mark.parametrize("mode", ["add", "clamp"])
def test_planes(shape, factored, mode):
    options = {**BUSY, "factored": factored, "eps_mode": mode, "eps": (1e-3, 1e-3)}
    held_to_the_rule(there(job_of(shape, options)))


@pytest.mark.parametrize(("shape", "factored"), [PLANES[4], PLANES[5], PLANES[8], ((5, 1), (0, 1))])
def test_planes_of_blocks(shape, factored):
    held_to_the_rule(there(job_of((3, *shape), {**BUSY, "factored": factored}, blocks=(0,))))


def transposed(a):
    return a.mT.contiguous().mT


@pytest.mark.parametrize(
    ("shape", "factored", "changed"),
    [*((shape, factored, GPU.copy) for shape, factored in NO_PLANES), ((6, 5), "last", transposed)],
)
def test_other_planes_are_stepped_by_the_rule(shape, factored, changed):
    job = mapped(there(job_of(shape, {**BUSY, "factored": factored})), changed)
    ours, theirs = mapped(job, GPU.copy), mapped(job, GPU.copy)
    with pytest.raises(EngineError, match=r"does not lie in memory as matrices, rows .* and columns .*, in this order"):
        Stepping(GpuEngine(None, SMALL)).step([ours])
    GPU.engine(insisting=False).step([ours])
    GPU.rule.step([theirs])
    assert bits([ours]) == bits([theirs])


def test_statistics_that_are_not_contiguous_are_stepped_by_the_rule():
    job = there(job_of((6, 5, 4)))
    state = job.state._replace(exp_avg_sq_row=torch.zeros(6, 10, 1, device=job.p.device)[:, ::2].copy_(job.state[0]))
    ours, theirs = replace(job, state=state), replace(mapped(job, GPU.copy), g=job.g)
    with pytest.raises(EngineError, match="the state exp_avg_sq_row is not contiguous"):
        Stepping(GpuEngine(None, SMALL)).step([ours])
    GPU.engine(insisting=False).step([ours])
    GPU.rule.step([theirs])
    assert bits([ours]) == bits([theirs])


def test_what_a_rank_holds_is_judged_by_the_shape_of_the_whole():
    """All ranks have to choose the same engine, also one whose part is a single row."""
    job = there(job_of((1, 5), {**BUSY, "factored": (1, 0)}))
    alone = engines.Job(job.rule, job.h, job.p, job.state)
    assert declined(alone) == ""
    assert "does not lie in memory as matrices" in declined(alone._replace(shape=(6, 5)))


@pytest.mark.parametrize("of_gradient", [(0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("factored", [(1, 2), ((0, 1), (2,))])
def test_gradients_in_any_order_in_memory(of_gradient, factored):
    job = there(job_of((4, 6, 10), {**BUSY, "factored": factored}))
    held_to_the_rule(replace(job, g=job.g.permute(of_gradient).contiguous().permute(tuple(np.argsort(of_gradient)))))


def test_a_gradient_that_is_one_number():
    job = there(job_of((20, 33)))
    held_to_the_rule(replace(job, g=torch.full((), 0.3, device=job.p.device).expand(20, 33)))


@pytest.mark.parametrize("shape", [(60, 2), (2, 90), (10, 12)])
def test_dozens_of_strips(shape):
    held_to_the_rule(there(job_of(shape)), sizes=replace(TINY, tiles=1))


def test_sizes_change_roundings_alone():
    job = there(job_of((20, 11)))
    for sizes in (TINY, Sizes()):
        held_to_the_rule(job, sizes=sizes)


@pytest.mark.parametrize("blocks", [(), (0,)])
def test_twice_the_same_bits(blocks):
    job = there(job_of((3, 20, 17), blocks=blocks))
    assert bits([stepped(job)[0]]) == bits([stepped(job)[0]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_statistics_are_rounded_where_they_are_stored_and_nowhere_else(dtype):
    low = there(job_of((30, 17), {}, ("float32", "float32", dtype)))
    exact = mapped(low, lambda a: a.float())
    mine, wanted = stepped(low)[0], stepped(exact)[0]
    assert bits([replace(mine, state=())]) == bits([replace(wanted, state=())])
    for rounded, whole in zip(stored(mine)[1:], stored(wanted)[1:], strict=True):
        assert torch.equal(rounded, whole.to(rounded.dtype))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
def test_a_gradient_at_another_address_changes_roundings_alone(case, seed):
    """Sixteen bytes at once, or one number after the other: not even those, but where tiles have another shape."""
    job = there(make_job(case, case.hyper(lr=0.1), (20, 24), (), seed))
    elsewhere = torch.zeros(job.g.numel() + 1, device=job.g.device)[1:].view(20, 24).copy_(job.g)
    assert elsewhere.data_ptr() % 16 != job.g.data_ptr() % 16
    before, (one, other) = [numbers(a) for a in stored(job)], (stepped(job)[0], stepped(replace(job, g=elsewhere))[0])
    agree(one, other, before, FLOATS)
    assert case is CASE or bits([one]) == bits([other])


def test_a_skipped_step_leaves_everything():
    job = there(job_of((30, 17)))
    before = bits([job])
    skip = torch.ones((), dtype=torch.bool, device=job.p.device)
    Stepping(GpuEngine(None, SMALL)).step([replace(job, skip=skip)])
    assert bits([job]) == before
    Stepping(GpuEngine(None, SMALL)).step([replace(job, skip=~skip)])
    assert bits([job]) != before


@pytest.mark.parametrize("factored", [(1, 2), ((0,), (1, 2)), ((0, 1), (2,))])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_planes_in_parts(factored, dim):
    job = job_of((6, 5, 4), {**BUSY, "factored": factored})
    cut = Cut(dim, (2,))
    parts = in_parts(job, cut, 2)
    step_parts(GpuEngine(None, SMALL), [[part] for part in parts], [job.p.shape], [cut], GPU.array)
    check(stepped(there(job))[0], parts, 8 * EPS["float32"])


@pytest.mark.parametrize("shape", [(6, 5, 4), (8, 3, 1, 1), (30,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_whose_sums_have_one_strip(shape, dtype):
    job = job_of(shape, BUSY, (dtype,) * 3)
    cut = Cut(0, (2,))
    parts = in_parts(job, cut, 2)
    step_parts(GpuEngine(None, Sizes()), [[part] for part in parts], [job.p.shape], [cut], GPU.array)
    check(stepped(there(job), Sizes())[0], parts, 8 * EPS[dtype])


@pytest.mark.parametrize(
    ("shape", "dim", "at"), [((2, 17, 17), 1, (0, 0)), ((2, 17, 40), 2, (1, 2)), ((6, 9), 0, (1, 1))]
)
def test_statistics_that_ranks_hold_whole_are_the_same_on_all(shape, dim, at):
    """Also on those that hold no rows, or one tile of them where others hold several."""
    blocks = (0,) if len(shape) == 3 else ()
    for seed in range(3):
        job = job_of(shape, blocks=blocks, seed=seed)
        parts = in_parts(job, cut := Cut(dim, at), 3)
        step_parts(GpuEngine(None, SMALL), [[part] for part in parts], [job.p.shape], [cut], GPU.array)
        check(stepped(there(job))[0], parts, 8 * EPS["float32"])


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8)])
def test_matrices_of_one_number_take_four_numbers_each(dtype, size):
    job = there(job_of((7, 6, 1, 1), {}, (dtype,) * 3))
    arrays = [job.p, job.g, job.p, job.p]
    room = Room()
    lay(engines.Job(job.rule, job.h, job.p, job.state), arrays, 1, Sizes(), room)
    assert room.taken == 7 * 6 * 4 * size


def test_what_was_measured_is_of_each_block():
    job = there(job_of((3, 8, 5), blocks=(0,)))
    _, stats = stepped(job)
    for i in range(3):
        state = type(job.state)(*(None if s is None else s[i] for s in job.state))
        one = replace(job, h=CASE.hyper(**BUSY).fit((8, 5), (), EPS["float32"]), block_dims=())
        _, alone = stepped(replace(one, p=job.p[i].clone(), g=job.g[i].clone(), state=state))
        for name, value in alone.items():
            np.testing.assert_allclose(stats[name][i], value[0], rtol=1e-6)


def tiling(job):
    arrays = [job.p, job.g, job.p, job.p]
    return tiling_of(engines.Job(job.rule, job.h, job.p, job.state), arrays, Sizes())


def test_one_program_takes_many_small_matrices():
    sizes, found = Sizes(), {}
    for shape in [(64, 64, 3, 3), (64, 3, 7, 7), (64, 64, 1, 1), (768, 3072), (70, 3), (4096, 16), (1, 1)]:
        found[shape] = tiling(there(job_of(shape, {}))).tile
    assert set(found.values()) == {sizes.wide, sizes.narrow, sizes.single}
    assert found[64, 64, 3, 3] == found[64, 3, 7, 7] == sizes.narrow
    assert found[64, 64, 1, 1] == found[1, 1] == sizes.single
    assert found[768, 3072] == found[4096, 16] == sizes.wide


def test_programs_of_small_matrices_are_few(monkeypatch):
    """A convolution has as many matrices as pairs of channels, and each program takes dozens at least."""
    launched, kind = [], type(parts_of_kernels.add_up)
    monkeypatch.setattr(kind, "run", lambda self, *a, grid, **k: launched.append(grid[0]))
    for shape in [(128, 64, 3, 3), (128, 64, 1, 1)]:
        launched.clear()
        stepped(there(job_of(shape, {})), Sizes())
        assert 0 < max(launched) <= 128 * 64 // 32, launched


def test_sixteen_bytes_at_once_where_all_rows_begin_there():
    def vector(shape, dtypes=FLOATS):
        return tiling(there(job_of(shape, {}, dtypes))).vector

    assert [vector((8, n)) for n in (16, 17, 18, 20)] == [4, 1, 1, 4]
    assert vector((8, 20), ("float32", "bfloat16", "float32")) == 1
    assert vector((8, 24), ("float32", "bfloat16", "float32")) == 8
    assert [vector((n, 3, 1, 1)) for n in (4, 5)] == [4, 1]


def test_a_later_gradient_may_be_laid_out_otherwise():
    job = there(job_of((12, 20)))
    ready = GpuEngine(None, SMALL).prepare([engines.Job(job.rule, job.h, job.p, job.state)])
    for t in (1, 2):
        theirs = mapped(job, GPU.copy)
        g = GPU.array(new_gradient(numbers(job.p), t, "float32"))
        g = g.T.contiguous().T if t == 2 else g
        before = [numbers(a) for a in stored(job)]
        ready.step([g], [job.now])
        GPU.rule.step([replace(theirs, g=g)])
        agree(job, theirs, before, FLOATS)
