"""Numbers whose squares float32 cannot hold have norms all the same; infinite and tiny ones stay what they are."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES as RULES
from contract.apis import NumPy, arrays, bits, close, rounded

pytestmark = pytest.mark.offers("extremes")
SHAPES = {"scalar": (), "vector": (5,), "matrix": (40, 30), "large": (300, 200)}
each = pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
CASES = {
    "Lamb": {"lr": 0.01},
    "Lamb decayed": {"lr": 0.01, "weight_decay": 0.1},
    "Lamb decoupled": {"lr": 0.01, "weight_decay": 0.1, "decay": "decoupled"},
    "Lars": {"lr": 1.0, "trust_coefficient": 0.01},
    "Lars decayed": {"lr": 1.0, "trust_coefficient": 0.01, "weight_decay": 0.1, "norm": "decayed"},
    "Adafactor": {"lr": 0.01, "scale_parameter": True, "eps": (1e-30, 0.0)},
}


def numbers(seed, size=1.0, shapes=SHAPES):
    return rounded({name: x * size for name, x in arrays(seed, shapes).items()}, "float32")


def moved(api, engine, name, options, weights, *grads):
    run = api.make(name, weights, dtype="float32", engine=engine, **options)
    for one in grads:
        run.step(one)
    return run.weights()


def compare(api, engine, name, options, weights, *grads):
    """With the same steps by the rule in float64, where squares of such numbers fit."""
    found, wide = moved(api, engine, name, options, weights, *grads), NumPy().make(name, weights, **options)
    for one in grads:
        wide.step(one)
    for key, wanted in wide.weights().items():
        size = np.abs(wanted).max()
        assert np.isfinite(found[key]).all()
        np.testing.assert_allclose(found[key] / size, wanted / size, rtol=0, atol=2e-5, err_msg=key)
        assert np.abs(wanted - weights[key]).max() > 1e-3 * size  # or there is nothing to compare


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1e-38, 1e-20, 1e19, 1e33])
def test_weights_of_any_size_move_by_their_norm(api, engine, case, size):
    compare(api, engine, case.split()[0], CASES[case], numbers(1, size), numbers(2), numbers(3))


@pytest.mark.parametrize("size", [1e-36, 1e-25, 1e25, 1e33])
def test_gradients_of_any_size_have_a_norm_in_lars(api, engine, size):
    compare(api, engine, "Lars", CASES["Lars"], numbers(1), numbers(2, size))


@pytest.mark.parametrize("bound", ["max_grad_norm", "max_grad_norm_per_tensor"])
@pytest.mark.parametrize("size", [1e25, 1e33])
def test_gradients_of_any_size_are_clipped_by_norm(api, engine, bound, size):
    options = {"lr": 1.0, "momentum": 0.0, "adapt": False, bound: 10.0}
    compare(api, engine, "Lars", options, numbers(1), numbers(2, size))


@pytest.mark.needs("max_grad_norm")
@each
@pytest.mark.parametrize("bound", ["max_grad_norm", "max_grad_norm_per_tensor"])
@pytest.mark.parametrize("most", [1.0, 1e-3])
def test_no_gradient_is_too_large_to_be_clipped(api, engine, case, bound, most):
    """Its norm is beyond float32, or only if it is divided by the bound."""
    shapes = {name: SHAPES[name] for name in ("matrix", "large")}
    options = {"lr": 0.125, bound: most, **({"blocks": {"large": 2}} if api.has("blocks") else {})}
    ends = [
        moved(api, engine, case.name, options, numbers(1, shapes=shapes), *(numbers(t, size, shapes) for t in (2, 3)))
        for size in (0.125, 2.0**122)
    ]
    close(*ends[::-1], 2e-6)
    assert all(np.abs(x - numbers(1, shapes=shapes)[name]).max() > 1e-6 for name, x in ends[0].items())


@pytest.mark.parametrize("case", ["Lamb", "Lamb decayed"])
def test_small_numbers_beside_zeros_have_their_norm(api, engine, case):
    weights, grads = numbers(1, 1e-25, {"w": (64, 32)}), numbers(2, 1.0, {"w": (64, 32)})
    weights["w"][:32], grads["w"][::3] = 0, 0
    compare(api, engine, "Lamb", CASES[case], weights, grads)


W = {"w": (40, 30)}


@pytest.mark.parametrize("bounds", [1e39, (-1e39, None), (None, 1e300), (-0.5, 1e39)], ids=str)
def test_bounds_beyond_the_dtype_clip_nothing(api, engine, bounds):
    low = -0.5 if bounds == (-0.5, 1e39) else None
    ends = [
        moved(api, engine, "Lamb", {"lr": 0.01, "max_grad_value": one}, numbers(1, shapes=W), numbers(2, shapes=W))
        for one in (bounds, (low, None))
    ]
    assert bits(ends[0]) == bits(ends[1])


@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {}), ("SGD", {"momentum": 0.9}), ("AdamW", {"weight_decay": 0.0}), ("Lars", {"adapt": False})],
    ids=str,
)
def test_infinite_weights_stay_infinite(api, engine, name, options):
    """What is off multiplies no weight, since 0 times inf is nan; others step as beside finite ones."""
    start, grads = numbers(1, shapes=W), [numbers(seed, shapes=W) for seed in (2, 3)]
    weights = {"w": start["w"].copy()}
    weights["w"][0, :2] = np.inf, -np.inf
    found, wanted = (moved(api, engine, name, {"lr": 0.1, **options}, w, *grads)["w"] for w in (weights, start))
    np.testing.assert_array_equal(found[0, :2], weights["w"][0, :2])
    np.testing.assert_array_equal(found.ravel()[2:], wanted.ravel()[2:])


@pytest.mark.parametrize("name", ["AdamW", "Lamb", "Lans", "StableAdamW"])
def test_gradients_whose_squares_are_infinite_leave_weights_finite(api, engine, name):
    """Their second moment is infinite, and stays so: inf less inf would be nan."""
    found = moved(api, engine, name, {"lr": 0.0}, numbers(1, shapes=W), *[numbers(2, 1e25, W)] * 3)
    assert bits(found) == bits(numbers(1, shapes=W))


def test_a_step_beyond_the_dtype_is_infinite(api, engine):
    """Where PyTorch has an error for the number that multiplies."""
    with np.errstate(all="ignore"):
        found = moved(api, engine, "Lamb", {"lr": 1e30}, numbers(1, shapes=W), *(numbers(s, shapes=W) for s in (2, 3)))
    assert not np.isfinite(found["w"]).any()


@pytest.mark.parametrize("low", ["float32", "bfloat16", "float16"])
def test_the_norm_of_all_gradients_is_as_exact_as_the_widest_of_them(api, engine, low):
    shapes = {"wide": (300,), "narrow": (20_000,)}
    grads = arrays(0, shapes)
    grads["narrow"] = rounded(grads, low)["narrow"]
    options = {"lr": 1.0, "momentum": 0.0, "adapt": False, "max_grad_norm": 1.0, "engine": engine}
    weights = {name: np.zeros(shape) for name, shape in shapes.items()}
    run = api.make("Lars", weights, dtype={"wide": "float64", "narrow": low}, **options)
    run.step(grads)
    norm = np.sqrt(sum((g * g).sum() for g in grads.values()))
    np.testing.assert_allclose(run.weights()["wide"], -grads["wide"] / norm, rtol=1e-13, atol=0)
