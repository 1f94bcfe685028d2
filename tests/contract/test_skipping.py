"""With `skip_nonfinite`, a step with nan or inf in a gradient is counted and leaves no trace; without, nan spreads."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from contract.apis import DTYPES, arrays, bits

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
pytestmark = pytest.mark.offers("skip")


def spoilt(seed, bad, name="vector"):
    grads = arrays(seed)
    grads[name] = np.where(np.arange(grads[name].size).reshape(grads[name].shape) == grads[name].size // 2, bad, 0.5)
    return grads


@each
def test_nan_and_inf_are_skipped_counted_and_leave_all_as_it_was(api, engine, case):
    run = api.busy(case.name, arrays(1), engine=engine, skip_nonfinite=True)
    for _ in range(2):  # the first step, and a later one
        before = run.bits(), bits(run.state())
        for name, bad in (("vector", np.nan), ("stack", np.inf), ("scalar", -np.inf)):
            count = run.skipped
            run.step(spoilt(2, bad, name))
            assert (run.bits(), bits(run.state()), run.skipped) == (*before, count + 1)
        run.step(arrays(3))
        assert run.bits() != before[0]
    assert run.skipped == 6


@pytest.mark.parametrize("dtype", DTYPES)
@each
def test_a_run_with_skipped_steps_goes_on_as_one_without(api, case, dtype):
    run, calm = (api.busy(case.name, arrays(4), dtype=dtype, skip_nonfinite=True) for _ in range(2))
    for t in range(3):
        run.step(spoilt(5, np.inf, "matrix"))
        for one in (run, calm):
            one.step(arrays(50 + t))
    assert run.bits() == calm.bits()
    assert bits(run.state()) == bits(calm.state())
    assert (run.skipped, calm.skipped) == (3, 0)


@each
def test_nan_that_is_not_skipped_spreads_in_its_own_tensor_alone(api, case):
    run = api.busy(case.name, arrays(6), skip_nonfinite=False)
    run.step(spoilt(7, np.nan))
    found = run.weights()
    assert np.isnan(found["vector"]).any()
    assert all(np.isfinite(found[name]).all() for name in ("matrix", "scalar", "stack"))
    assert run.skipped == 0
