"""A step is that of the formulas, in every API: of any dtype and shape, with any options, and with or without None."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES
from contract.apis import DTYPES, LOW, NEAR, arrays, bits, close, rounded
from draws import seeds

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def as_offered(api, case, seed):
    """Options drawn at random, without those that an API has no place for."""
    options = case.drawn(seed)
    if not api.has("clipping"):
        options = {**options, "maximize": False}
        options = {key: x for key, x in options.items() if not key.startswith("max_grad") and not callable(x)}
    return options


@pytest.mark.every
@each
@pytest.mark.parametrize("seed", seeds(2, 8))
def test_steps_are_those_of_the_reference(api, case, seed):
    options = as_offered(api, case, 100 + seed)
    if api.name == "Keras":  # which holds a rate in float32, also one that it multiplies Adafactor's own with
        options["lr"] = float(np.float32(options["lr"] or 0.02))
    run, oracle = api.make(case.name, arrays(seed), **options), case.reference(**options)
    expected = arrays(seed)
    for t in range(4):
        grads = arrays(1000 * seed + t)
        run.step(grads)
        expected = oracle.step(expected, grads)
        close(run.weights(), expected, hint=(t, options))


@pytest.mark.parametrize("dtype", DTYPES)
@each
def test_every_dtype_follows_the_reference(api, case, dtype):
    run, oracle = api.make(case.name, arrays(2), dtype=dtype, lr=0.125), case.reference(lr=0.125)
    expected = rounded(arrays(2), dtype)
    for t in range(3):
        grads = rounded(arrays(20 + t), dtype)
        run.step(grads)
        expected = oracle.step(expected, grads)
    close(run.weights(), expected, NEAR[dtype])
    assert {name for name, *_ in run.bits().values()} == {dtype}


@pytest.mark.offers("in_place")
@pytest.mark.parametrize("dtype", LOW)
@each
def test_low_precision_is_computed_in_float32_and_rounded_once(api, case, dtype):
    run = api.busy(case.name, arrays(3), dtype=dtype)
    for t in range(3):
        before = run.weights()
        wide = api.busy(case.name, before, dtype="float32")
        if t:
            wide.load(run.save())
        grads = rounded(arrays(30 + t), dtype)
        run.step(grads)
        wide.step(grads)
        assert bits(run.weights()) == bits(rounded(wide.weights(), dtype))
    kept = {x.dtype.name for state in run.state().values() for x in state.values() if x.dtype.kind == "f"}
    assert kept <= {"float32"}
