"""The numbers of one step, for tensors of several groups."""

from __future__ import annotations

import numpy as np
import pytest

from layerwise.core.step import StepNumbers
from layerwise.engines import Job
from layerwise.engines.compiled import PURE, _native, candidate
from layerwise.engines.programs import NowsByRates
from layerwise.engines.rule import RuleEngine
from layerwise.numpy._arrays import Arrays
from layerwise.rules import lamb
from layerwise.rules.requests import Now

LR, LAM = [0.1, 0.2, 0.1, 0.4, 0.0, 0.6], [0.0, 0.01, 0.02, 0.0, 0.03, 0.04]
H = lamb.Lamb()


def each(t, lr, lam, sizes, scale=1.0):
    rates = [one for one, n in zip(zip(lr, lam, strict=True), sizes, strict=True) for _ in range(n)]
    return [Now(own, *one, scale) for own, one in zip(t, rates, strict=True)]


@pytest.mark.parametrize("sizes", [[1] * 6, [2, 1, 3, 1, 1, 2]], ids=str)
@pytest.mark.parametrize("alike", [True, False], ids=["one step", "several steps"])
def test_each_tensor_has_its_own_step_and_the_rates_of_its_group(sizes, alike):
    t = [3 if alike else 3 + i % 2 for i in range(sum(sizes))]
    found = StepNumbers([H] * 6, sizes).nows_of_tensors(t, LR, LAM, 2.0)
    assert list(found) == each(t, LR, LAM, sizes, 2.0)
    assert isinstance(found, NowsByRates) == alike


@pytest.mark.skipif(_native is None, reason=PURE)
@pytest.mark.parametrize("several", [False, True], ids=["one setting", "two settings"])
def test_columns_of_rates_step_as_their_numbers_one_by_one(several):
    """Rates of 0 are off, so that tensors with and without them are computed apart."""
    hs = [H, lamb.Lamb(eps=1e-3) if several else H] * 6
    lr, lam = LR * 2, LAM * 2
    nows = StepNumbers(hs, [1] * 12).nows_of_tensors([1] * 12, lr, lam)
    moved = []
    for engine, given in ((candidate().engine, nows), (candidate().engine, list(nows)), (RuleEngine(Arrays()), nows)):
        ps = [np.linspace(0.5, 1.5, 5) + i for i in range(12)]
        state = lamb.State(np.zeros(5), np.zeros(5), None)
        jobs = [
            Job(lamb, h, p, state._replace(exp_avg=np.zeros(5), exp_avg_sq=np.zeros(5)))
            for h, p in zip(hs, ps, strict=True)
        ]
        engine.prepare(jobs).step([np.full(5, 0.3 + i) for i in range(12)], given)
        moved.append(np.stack(ps))
    np.testing.assert_array_equal(moved[0], moved[1])
    np.testing.assert_allclose(moved[0], moved[2], rtol=1e-12)
    assert isinstance(nows, NowsByRates)
