"""A finite gradient leaves weights finite, whatever its size, in every rule, engine and API."""

from __future__ import annotations

import numpy as np
import pytest
from contract.apis import NumPy, arrays, rounded

from layerwise.catalog.registry import ENTRIES

SHAPES = {"matrix": (12, 10), "vector": (5,)}
# Sizes of the gradients of three steps, and of a single entry of the first; sizes of weights.
SERIES = {
    "denormal": ((1e-42,) * 3, 1.0, 1.0),
    "tiny beside large weights": ((1e-30,) * 3, 1.0, 1e30),
    "huge": ((1e20, 1e30, 1e37), 1.0, 1.0),
    "a huge entry": ((1.0,) * 3, 1e37, 1.0),
    "huge after ordinary ones": ((1.0, 1e30, 1.0), 1.0, 1e-38),
}
# The step has the length that it has for ordinary gradients: how the sums of squares are kept does not show in it.
OF_ANY_SIZE = {
    "Lars": {"lr": 1.0, "trust_coefficient": 0.01},
    "Lars nesterov": {"nesterov": True, "weight_decay": 1e-4},
    "Lars step": {"adapt": "step"},
    "Lars radial": {"radial": 0.0},
    "Lars keep_norm": {"keep_norm": True},
    "Fromage": {},
    "Fromage bounded": {"p_bound": 1.5},
    "Muon": {},
    "Muon adapt": {"adapt": True, "nesterov": False},
    "Muon corrected": {"nesterov": "corrected"},
}

NO_EPS = {"eps": 1e-30}
SMALL = {
    "Lamb": {**NO_EPS, "weight_decay": 0.1},
    "Lamb first": {**NO_EPS, "keep_norm": "first"},
    "Lars": {"lr": 1.0, "trust_coefficient": 0.01},
    "Lars radial": {"trust_coefficient": 1.0, "radial": 0.5},
    "Lars step": {"trust_coefficient": 1.0, "adapt": "step"},
    "Lans": NO_EPS,
    "Fromage": {},
    "NovoGrad": NO_EPS,
    "NovoGrad nonzero": {**NO_EPS, "v_start": "nonzero"},
    "AdamMini": NO_EPS,
    "ScaleSGD": NO_EPS,
    "SinkGD": NO_EPS,
}


def series(key):
    """Return weights and gradients, as float32 has them."""
    sizes, entry, of_weights = SERIES[key]
    grads = [{name: x * size for name, x in arrays(seed, SHAPES).items()} for seed, size in enumerate(sizes, 2)]
    for x in grads[0].values():
        x.flat[0] *= entry
    weights = {name: x * of_weights for name, x in arrays(1, SHAPES).items()}
    return rounded(weights, "float32"), [rounded(one, "float32") for one in grads]


def moved(api, name, options, key, **given):
    weights, grads = series(key)
    run = api.make(name, weights, **given, **options)
    with np.errstate(all="ignore"):  # NumPy warns of squares that are infinite
        for one in grads:
            run.step(one)
    return run.weights()


@pytest.mark.thinned(2, 15)
@pytest.mark.parametrize("key", SERIES)
@pytest.mark.parametrize("name", ENTRIES)
def test_finite_gradients_leave_weights_finite(api, engine, name, key):
    # SGD's step is as long as its gradient.
    found = moved(api, name, {"lr": 1e-3}, key, dtype="float32", engine=engine)
    assert all(np.isfinite(x).all() for x in found.values())


@pytest.mark.offers("extremes")
@pytest.mark.parametrize("key", SERIES)
@pytest.mark.parametrize("case", OF_ANY_SIZE)
def test_steps_of_any_gradient_are_those_of_float64(api, engine, case, key):
    name, options = case.split()[0], OF_ANY_SIZE[case]
    found = moved(api, name, options, key, dtype="float32", engine=engine)
    for of, wanted in moved(NumPy(), name, options, key).items():
        size = np.abs(wanted).max()
        np.testing.assert_allclose(found[of] / size, wanted / size, rtol=0, atol=2e-3, err_msg=of)


@pytest.mark.parametrize(("of_grads", "of_weights"), [(1e-11, 1.0), (1.0, 1e-11), (1e-9, 1e-9)])
@pytest.mark.parametrize("case", SMALL)
def test_small_numbers_are_not_zeros(api, engine, case, of_grads, of_weights):
    """Nor are their squares, for which some libraries have a tolerance where they compare with 0."""
    weights, *grads = (
        rounded({key: x * size for key, x in arrays(seed, SHAPES).items()}, "float32")
        for seed, size in ((1, of_weights), (2, of_grads), (3, of_grads))
    )
    run, wide = (
        one.make(case.split()[0], weights, **{"lr": 0.1, **SMALL[case]}, **given)
        for one, given in ((api, {"dtype": "float32", "engine": engine}), (NumPy(), {}))
    )
    for one in grads:
        run.step(one)
        wide.step(one)
    found = run.weights()
    for of, wanted in wide.weights().items():
        size = np.abs(wanted - weights[of]).max()
        np.testing.assert_allclose((found[of] - weights[of]) / size, (wanted - weights[of]) / size, rtol=0, atol=1e-4)


@pytest.mark.parametrize("key", ["huge", "a huge entry", "huge after ordinary ones"])
@pytest.mark.parametrize("name", ["Adafactor", "Came"])
@pytest.mark.parametrize("factored", ["last", False])
def test_numbers_of_a_gradient_count_as_at_most_a_bound(api, engine, name, factored, key):
    """As they do in float64."""
    options = {"lr": 0.01, "factored": factored}
    found = moved(api, name, options, key, dtype="float32", engine=engine)
    for of, wanted in moved(NumPy(), name, options, key).items():
        np.testing.assert_allclose(found[of], wanted, rtol=2e-5, atol=2e-5, err_msg=of)


@pytest.mark.parametrize("name", ["Adafactor", "Came"])
@pytest.mark.parametrize("factored", ["last", False])
def test_infinite_gradients_show_in_factored_rules(api, engine, name, factored):
    weights, [grads, *_] = series("huge")
    grads["matrix"][3, 4] = np.inf
    run = api.make(name, weights, dtype="float32", engine=engine, lr=0.01, factored=factored)
    with np.errstate(all="ignore"):
        run.step(grads)
    assert not np.isfinite(run.weights()["matrix"]).all()
