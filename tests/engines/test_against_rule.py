"""The compiled engine against the rule: random options, shapes, dtypes, blocks and layouts in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import KERNELED
from draws import draws
from engines.worlds import EPS, NAMES, make_job, mapped, needed, new_gradient, now_of, numbers, stored, worlds
from hypothesis import given
from hypothesis import strategies as st

pytestmark = needed
cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
DIMS = st.one_of(st.integers(1, 9), st.sampled_from((0, 1, 2, 16, 33, 70)))
SHAPES = st.lists(DIMS, max_size=4).map(tuple).filter(lambda shape: np.prod(shape) < 40_000)
STEPS = 3


@st.composite
def given_jobs(draw: Any) -> Any:
    """The seed of the options, and for each tensor its shape, blocks, dtypes, layout, and the seed of its numbers."""
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(SHAPES)
        blocks = draw(st.sampled_from([(), *((d,) for d in range(len(shape)))]))
        p = draw(st.sampled_from(NAMES))
        g = draw(st.sampled_from((p, p, *NAMES)))
        state = draw(st.sampled_from(("float64",) if p == "float64" else ("float32", "float32", "bfloat16")))
        layout = draw(st.integers(0, 20))
        tensors.append((shape, blocks, (p, g, state), layout, draw(st.integers(0, 1000))))
    return draw(st.integers(0, 10**6)), draw(st.sampled_from((1.0, 1.0, 8.0, 1000.0))), tensors


@pytest.mark.every
@worlds
@cases
@draws(150)
@given(given_jobs())
def test_any_job(case, world, drawn):
    seed, g_scale, tensors = drawn
    h = case.hyper(**well_posed(case.drawn(seed)))
    layouts = [world.layouts[number % len(world.layouts)] if number < 10 else "plain" for *_, number, _ in tensors]
    ours = [
        make_job(case, h, shape, blocks, own, dtypes, layout)
        for (shape, blocks, dtypes, _, own), layout in zip(tensors, layouts, strict=True)
    ]
    kinds = [(dtypes, layout) for (_, _, dtypes, _, _), layout in zip(tensors, layouts, strict=True)]
    compare(world, h, ours, g_scale, kinds)


def well_posed(options: Any) -> Any:
    """Options with which engines agree.

    Without memory of g², u is m/(|g| + eps): where g is next to 0, no two roundings agree unless eps is larger. And
    caution is a round more than the kernels by rows and columns have, and other settings are too rare for kernels.
    """
    if options.get("caution") and "factored" in options:
        options = {**options, "factored": False}
    if options.get("keep_norm"):  # a step that all but cancels the weights leaves a direction of roundings
        steady = {"lr": 0.01, "trust_clip": None, "min_norm": 0.0, "max_weight_norm": None, "adapt": True}
        options = {**options, **{name: value for name, value in steady.items() if name in options}}
    if options.get("keep_norm") and (options.get("caution") or not options.get("momentum", True)):
        options = {**options, "keep_norm": False}
    if options.get("caution") and not options.get("momentum", True):
        options = {**options, "caution": False}
    if options.get("nesterov") and (options.get("caution") or options.get("keep_norm")):
        options = {**options, "nesterov": False}
    return {**options, "eps": 1e-2} if options.get("betas", (0, 1))[1] == 0 else options


def compare(world: Any, h: Any, ours: Any, g_scale: float, kinds: Any) -> None:
    """Every step is taken by both from where the engine stands, so that one rounding does not grow into more."""
    engine = world.engine()
    ours = [mapped(job, world.array) for job in ours]
    for t in range(1, STEPS + 1):
        now = now_of(h, t, g_scale)
        fresh = [new_gradient(job.p, t, dtypes[1], layout) for job, (dtypes, layout) in zip(ours, kinds, strict=True)]
        ours = [replace(job, now=now, g=world.array(g)) for job, g in zip(ours, fresh, strict=True)]
        theirs = [mapped(job, world.copy) for job in ours]
        before = [[numbers(a) for a in (job.g, *stored(job))] for job in ours]
        with np.errstate(all="ignore"):
            measured, expected = engine.step(ours), world.rule.step(theirs)
        for i, (stats, theirs_stats, (dtypes, _)) in enumerate(zip(measured, expected, kinds, strict=True)):
            # The rule adds up what several dtypes contribute to the norm of all in the narrowest of them.
            rounded = ("float32",) * 3 if h.asks_of_model and dtypes[0] == "float64" else dtypes
            agree(ours[i], theirs[i], before[i][1:], rounded)
            stats_agree(stats, theirs_stats, rounded)
            np.testing.assert_array_equal(numbers(ours[i].g), before[i][0])  # gradients are never written to


def agree(job: Any, other: Any, before: Any, dtypes: Any) -> None:
    for array, wanted, old in zip(stored(job), stored(other), before, strict=True):
        mine, its = numbers(array), numbers(wanted)
        size = max(float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x))) for x in (its, old))
        np.testing.assert_allclose(mine, its, rtol=0, atol=tolerance(dtypes, array) * size, err_msg=f"{job.h}")


def tolerance(dtypes: Any, array: Any) -> float:
    """A few roundings of the arithmetic, and one of the dtype in which the numbers are kept."""
    name = str(array.dtype).removeprefix("torch.")
    own = 1e-12 if dtypes[0] == "float64" else 2e-5 if "float16" in "".join(dtypes) else 4e-6
    return max(own, 0 if name in ("float32", "float64") else 1.01 * EPS[name])


def stats_agree(stats: Any, wanted: Any, dtypes: Any) -> None:
    assert stats.keys() == wanted.keys()
    rounding = (1e-11 if dtypes[0] == "float64" else 1e-4) + cancelled(wanted, dtypes[0])
    for key, value in wanted.items():
        mine, its = np.ravel(numbers(stats[key])), np.ravel(numbers(value))
        its = np.broadcast_to(its, mine.shape) if its.size == 1 else its
        allowed = rounding * np.abs(its) + 1e-30
        wrong = ~np.isclose(mine, its, rtol=0, atol=allowed, equal_nan=True)
        assert not wrong.any(), f"{key}: {mine[wrong]} and not {its[wrong]}"


def cancelled(stats: Any, dtype: str) -> Any:
    """Return the relative error of an update whose decay and gradient nearly cancel, as rounding leaves it."""
    if not {"weight_norm", "update_norm"} <= stats.keys():
        return 0.0
    w, u = (np.ravel(numbers(stats[key])).astype(float) for key in ("weight_norm", "update_norm"))
    return EPS[dtype] * np.divide(w, u, out=np.zeros_like(w), where=u > 0)
