"""Requests of terms as they are: every driver and engine answers the same, for whole tensors and for blocks."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from engines.parts import Cut, in_parts, step_parts
from engines.worlds import WORLDS, Job, World, mapped

from layerwise.drivers import TensorRun, drive_whole, partial_sums, whole
from layerwise.engines.rule import RuleEngine
from layerwise.numpy import _arrays
from layerwise.rules.lamb import Lamb
from layerwise.rules.muon import Muon
from layerwise.rules.requests import Gram, Mean, ModelSquares, Now, Stepped, Sum, WholeMatrices

SHAPE = (6, 5, 4)
NOW = Now(1, 1.0, 0.0)
each_layer = pytest.mark.parametrize("block_dims", [(), (0,), (0, 2)])


class State(NamedTuple):
    total: Any


def step(xp: Any, p: Any, g: Any, state: Any, h: Any, now: Now) -> Any:
    total, mean = yield Sum(p * g), Mean(p * g)
    return Stepped(((total, g), (mean, p)), State(state.total + 0 * p + total), {"total": total, "mean": mean})


RULE = ModuleType("asking")  # which has a hash, as engines need it
RULE.__dict__.update(step=step, State=State, shapes=lambda h, shape: State(shape))


def step_by_model(xp: Any, p: Any, g: Any, state: Any, h: Any, now: Now) -> Any:
    (total,) = yield (ModelSquares(g),)
    return Stepped(((total, g),), state, {})


OF_MODEL = ModuleType("asking_of_the_model")
OF_MODEL.__dict__.update(RULE.__dict__, step=step_by_model)


def step_of_matrices(xp: Any, p: Any, g: Any, state: Any, h: Any, now: Now) -> Any:
    """It moves by the trace of g·gᵀ, and by what depends on a number's place in the whole tensor.

    Tensors that are stacked along a last dimension have a product each.
    """
    (gram,) = yield (Gram(g, (0,), (1, 2)),)
    trace = xp.sum(xp.reshape(gram, (-1, SHAPE[0] ** 2))[:, :: SHAPE[0] + 1], axis=(1,))

    def work(x: Any) -> Any:
        return x * xp.reshape(xp.asarray(PLACES, dtype=x.dtype), PLACED[x.ndim])

    (made,) = yield (WholeMatrices(p * g, (0,), (1, 2), work),)
    return Stepped(((1.0, trace * g), (1.0, made)), state, {})


PLACES = list(map(float, range(120)))
PLACED = {3: SHAPE, 4: (*SHAPE, 1)}
OF_MATRICES = ModuleType("asking_of_matrices")
OF_MATRICES.__dict__.update(RULE.__dict__, step=step_of_matrices)


def job_of(block_dims: tuple[int, ...], shape: tuple[int, ...] = SHAPE) -> Job:
    draw = np.random.default_rng(3)
    p, g = draw.normal(size=shape), draw.normal(size=shape)
    return Job(RULE, Lamb(), NOW, p, g, State(np.zeros(shape)), block_dims)


def expected(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """The weights, and the total at each element."""
    dims = tuple(d for d in range(job.p.ndim) if d not in job.block_dims)
    terms = job.p * job.g
    total = np.broadcast_to(terms.sum(dims, keepdims=True), job.p.shape)
    return job.p + total * job.g + terms.mean(dims, keepdims=True) * job.p, total


def check(job: Job, weights: Any, total: Any) -> None:
    for mine, its in zip((weights, total), expected(job), strict=True):
        np.testing.assert_allclose(np.asarray(mine), its, rtol=1e-12)


@each_layer
@pytest.mark.parametrize("size", [None, 1, 7, 40])
def test_of_a_whole_tensor_and_of_slices(block_dims: tuple[int, ...], size: int | None) -> None:
    job, engine = job_of(block_dims), RuleEngine(_arrays.Arrays(), size)
    ours = mapped(job, np.copy)
    World("numpy", engine, np.asarray, np.copy, ()).rule.step([ours])
    check(job, ours.p, ours.state.total)


@each_layer
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_of_parts(block_dims: tuple[int, ...], world: World) -> None:
    """Two small tensors of one kind, which may be stacked."""
    jobs, cut = [job_of(block_dims)] * 2, Cut(1, (3,))
    parts = [in_parts(job, cut, 2) for job in jobs]
    step_parts(
        world.engine_of_rule, [list(seat) for seat in zip(*parts, strict=True)], [SHAPE] * 2, [cut] * 2, world.array
    )
    for job, own in zip(jobs, parts, strict=True):
        check(job, *(np.concatenate(both, 1) for both in zip(*((one.p, one.state.total) for one in own), strict=True)))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_of_the_model(world: World) -> None:
    """Small tensors that may be stacked have a share each."""
    jobs, cut = [replace(job_of(()), rule=OF_MODEL, h=Lamb(max_grad_norm=1.0))] * 2, Cut(1, (3,))
    parts = [in_parts(job, cut, 2) for job in jobs]
    step_parts(
        world.engine_of_rule, [list(seat) for seat in zip(*parts, strict=True)], [SHAPE] * 2, [cut] * 2, world.array
    )
    total = sum((job.g**2).sum() for job in jobs)
    for job, own in zip(jobs, parts, strict=True):
        np.testing.assert_allclose(np.concatenate([one.p for one in own], 1), job.p + total * job.g, rtol=1e-12)


@each_layer
@pytest.mark.parametrize("large", [1, 1 << 16], ids=["computed again", "kept"])
def test_under_jax(block_dims: tuple[int, ...], large: int, jax64: Any, monkeypatch: Any) -> None:
    from layerwise.jax import _drive
    from layerwise.rules.arrays import apply_moves

    monkeypatch.setattr(_drive, "LARGE", large)
    job = job_of(block_dims)

    def stepped(p: Any, g: Any, total: Any) -> Any:
        task = _drive.PieceStep(RULE, job.h, SHAPE, block_dims, (p, g, total), NOW, p.dtype)
        [done] = _drive.drive_rules([task])
        return apply_moves(jax64.numpy, p, done.moves), done.state.total

    check(job, *jax64.jit(stepped)(job.p, job.g, job.state.total))


def matrices(p: np.ndarray, g: np.ndarray) -> np.ndarray:
    return p + (g**2).sum() * g + p * g * np.reshape(PLACES, SHAPE)


@pytest.mark.parametrize("size", [None, 7])
def test_matrices_are_of_whole_tensors_whatever_slices_others_have(size: int | None) -> None:
    job = replace(job_of(()), rule=OF_MATRICES, h=Muon())
    stacked = [mapped(job, np.copy), mapped(replace(job, p=2 * job.p, g=3 * job.g), np.copy)]
    before = [matrices(one.p, one.g) for one in stacked]
    World("numpy", RuleEngine(_arrays.Arrays(), size, 1 << 12), np.asarray, np.copy, ()).rule.step(stacked)
    for one, wanted in zip(stacked, before, strict=True):
        np.testing.assert_allclose(one.p, wanted, rtol=1e-12)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_matrices_in_parts(world: World) -> None:
    jobs, cut = [replace(job_of(()), rule=OF_MATRICES, h=Muon().fit(SHAPE, (), 1e-7))] * 2, Cut(1, (3,))
    parts = [in_parts(job, cut, 2) for job in jobs]
    step_parts(
        world.engine_of_rule, [list(seat) for seat in zip(*parts, strict=True)], [SHAPE] * 2, [cut] * 2, world.array
    )
    for job, own in zip(jobs, parts, strict=True):
        np.testing.assert_allclose(np.concatenate([one.p for one in own], 1), matrices(job.p, job.g), rtol=1e-12)


def test_equal_work_on_whole_tensors_of_one_shape_is_done_at_once_up_to_a_size(monkeypatch):
    """By rules that step side by side, of which as many wait for one another."""
    monkeypatch.setattr(partial_sums, "AT_ONCE", 45)
    monkeypatch.setattr(whole, "AT_ONCE", 65)
    seen: list[Any] = []

    def works(x: Any) -> Any:
        seen.append(x.shape)
        return 2 * x

    def negates(x: Any) -> Any:
        seen.append("negated")
        return -x

    def stepping(x: Any, work: Any) -> Any:
        (made,) = yield (WholeMatrices(x, (0,), (1,), work),)
        seen.append("done")
        return made

    each = [(np.full((4, 5), 1.0 * i), works) for i in range(5)]
    each[1:1] = [(np.full((2, 3), 7.0), works), (np.full((4, 5), 9.0), negates)]
    alike = [None if i == 4 else "alike" for i in range(len(each))]
    runs = [TensorRun((stepping(*one),), one[0].shape, alike=key) for one, key in zip(each, alike, strict=True)]
    for (found,), (x, work) in zip(drive_whole(_arrays.Arrays.pure, runs), each, strict=True):
        np.testing.assert_array_equal(found, 2 * x if work is works else -x)
    done = ["done"] * 3
    assert seen == [(4, 5), (2, 3), "negated", *done, (4, 5, 2), (4, 5), *done, (4, 5), "done"]
