"""Numbers whose squares float32 cannot hold have norms all the same, whichever engine steps them."""

from __future__ import annotations

import numpy as np
import pytest

import layerwise.numpy

SIZES = [1e-38, 1e-25, 1e-20, 1e19, 1e25, 1e33]
SHAPES = {"scalar": (), "vector": (5,), "matrix": (40, 30), "large": (300, 200)}
CASES = {
    "Lamb": {"lr": 0.01},
    "Lamb decayed": {"lr": 0.01, "weight_decay": 0.1},
    "Lamb decoupled": {"lr": 0.01, "weight_decay": 0.1, "decay": "decoupled"},
    "Lars": {"lr": 1.0, "trust_coefficient": 0.01},
    "Lars decayed": {"lr": 1.0, "trust_coefficient": 0.01, "weight_decay": 0.1, "norm": "decayed"},
    "Adafactor": {"lr": 0.01, "scale_parameter": True, "eps": (1e-30, 0.0)},
}


def numbers(seed, shape, size):
    return np.asarray(np.random.default_rng(seed).normal(size=shape) * size, dtype=np.float32)


def of_numpy(engine):
    def step(name, options, weights, grads):
        w = {key: x.copy() for key, x in weights.items()}
        opt = getattr(layerwise.numpy, name)(engine=engine, **options)
        for each in grads:
            opt.step_all(w, each)
        return w

    return step


def of_torch(fused):
    def step(name, options, weights, grads):
        torch = pytest.importorskip("torch")
        front = pytest.importorskip("layerwise.torch")
        params = {key: torch.nn.Parameter(torch.tensor(x)) for key, x in weights.items()}
        opt = getattr(front, name)([*params.items()], fused=fused, **options)
        for each in grads:
            for key, p in params.items():
                p.grad = torch.tensor(each[key]).to(p.dtype)
            opt.step()
        return {key: p.detach().numpy() for key, p in params.items()}

    return step


FRONTS = {
    "numpy": of_numpy(None),
    "numpy rule": of_numpy("rule"),
    "torch": of_torch(None),
    "torch rule": of_torch(False),
}
fronts = pytest.mark.parametrize("front", FRONTS)
cases = pytest.mark.parametrize("case", CASES)


def in_float64(name, options, weights, grads):
    """The same step by the rule, where squares of such numbers fit."""
    wide = {key: x.astype(np.float64) for key, x in weights.items()}
    return FRONTS["numpy rule"](
        name, options, wide, [{k: g.astype(np.float64) for k, g in one.items()} for one in grads]
    )


def compare(front, case, options, weights, grads):
    name = case.split()[0]
    moved, wanted = FRONTS[front](name, options, weights, grads), in_float64(name, options, weights, grads)
    for key, w in weights.items():
        size = np.abs(wanted[key]).max()
        assert np.isfinite(moved[key]).all()
        np.testing.assert_allclose(moved[key] / size, wanted[key] / size, rtol=0, atol=2e-5, err_msg=key)
        assert np.abs(wanted[key] - w).max() > 1e-3 * size  # or there is nothing to compare


@fronts
@cases
@pytest.mark.parametrize("size", SIZES)
def test_weights_of_any_size_move_by_their_norm(front, case, size):
    weights = {key: numbers(1, shape, size) for key, shape in SHAPES.items()}
    grads = [{key: numbers(seed, shape, 1) for key, shape in SHAPES.items()} for seed in (2, 3)]
    compare(front, case, CASES[case], weights, grads)


@fronts
@pytest.mark.parametrize("size", [1e-36, 1e-25, 1e25, 1e33])
def test_gradients_of_any_size_have_a_norm_in_lars(front, size):
    weights = {key: numbers(1, shape, 1) for key, shape in SHAPES.items()}
    grads = [{key: numbers(2, shape, size) for key, shape in SHAPES.items()}]
    compare(front, "Lars", CASES["Lars"], weights, grads)


@fronts
@pytest.mark.parametrize("bound", ["max_grad_norm", "max_grad_norm_per_tensor"])
@pytest.mark.parametrize("size", [1e25, 1e33])
def test_gradients_of_any_size_are_clipped_by_norm(front, bound, size):
    weights = {key: numbers(1, shape, 1) for key, shape in SHAPES.items()}
    grads = [{key: numbers(2, shape, size) for key, shape in SHAPES.items()}]
    compare(front, "Lars", {"lr": 1.0, "momentum": 0.0, "adapt": False, bound: 10.0}, weights, grads)


@fronts
def test_zeros_among_small_numbers(front):
    """Part of a tensor that does not move at all leaves the rest its norm."""
    weights = {"w": numbers(1, (64, 32), 1e-25)}
    weights["w"][:32] = 0
    grads = [{"w": numbers(2, (64, 32), 1)}]
    grads[0]["w"][::3] = 0
    for case in ("Lamb", "Lamb decayed"):
        compare(front, case, CASES[case], weights, grads)


@pytest.mark.parametrize("low", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("fused", [None, False])
def test_the_norm_of_all_gradients_is_as_exact_as_the_widest_of_them(low, fused):
    torch = pytest.importorskip("torch")
    from layerwise.torch import Lars

    torch.manual_seed(0)
    wide, narrow = torch.randn(300, dtype=torch.float64), torch.randn(20_000).to(getattr(torch, low))
    params = [torch.nn.Parameter(torch.zeros_like(g)) for g in (wide, narrow)]
    for p, g in zip(params, (wide, narrow), strict=True):
        p.grad = g.clone()
    Lars(params, lr=1.0, momentum=0.0, adapt=False, max_grad_norm=1.0, fused=fused).step()
    norm = torch.sqrt(wide.square().sum() + narrow.double().square().sum())
    torch.testing.assert_close(params[0].detach(), -wide / norm, rtol=1e-13, atol=0)


@fronts
@pytest.mark.parametrize("bounds", [1e39, (-1e39, None), (None, 1e300), (-0.5, 1e39)], ids=str)
def test_bounds_beyond_the_dtype_clip_nothing(front, bounds):
    weights, grads = {"w": numbers(1, (4, 3), 1.0)}, [{"w": numbers(2, (4, 3), 1.0)}]
    moved = FRONTS[front]("Lamb", {"lr": 0.01, "max_grad_value": bounds}, weights, grads)["w"]
    low = -0.5 if isinstance(bounds, tuple) and bounds[0] == -0.5 else None
    wanted = FRONTS[front]("Lamb", {"lr": 0.01, "max_grad_value": (low, None)}, weights, grads)["w"]
    np.testing.assert_array_equal(moved, wanted)


PLAIN = {
    "SGD": {},
    "SGD momentum": {"momentum": 0.9},
    "AdamW": {"weight_decay": 0.0},
    "Lars unadapted": {"adapt": False},
}


@fronts
@pytest.mark.parametrize("case", PLAIN)
def test_infinite_weights_stay_infinite(front, case):
    """What is off multiplies no weight, since 0 times inf is nan; others step as beside finite ones."""
    start = numbers(1, (40, 30), 1.0)
    weights, grads = start.copy(), [{"w": numbers(seed, (40, 30), 1.0)} for seed in (2, 3)]
    weights[0, :2] = np.inf, -np.inf
    found, wanted = (
        FRONTS[front](case.split()[0], {"lr": 0.1, **PLAIN[case]}, {"w": w}, grads)["w"] for w in (weights, start)
    )
    np.testing.assert_array_equal(found[0, :2], weights[0, :2])
    np.testing.assert_array_equal(found.ravel()[2:], wanted.ravel()[2:])


@fronts
@pytest.mark.parametrize("name", ["AdamW", "Lamb", "Lans", "StableAdamW"])
def test_gradients_whose_squares_are_infinite_leave_weights_finite(front, name):
    """Their second moment is infinite, and stays so: inf less inf would be nan."""
    weights = {"w": numbers(1, (40, 30), 1.0)}
    with np.errstate(over="ignore"):
        found = FRONTS[front](name, {"lr": 0.0}, weights, [{"w": numbers(2, (40, 30), 1e25)}] * 3)
    np.testing.assert_array_equal(found["w"], weights["w"])


@fronts
def test_a_step_beyond_the_dtype_is_infinite(front):
    """Where PyTorch has an error for the number that multiplies."""
    weights, grads = {"w": numbers(1, (4, 3), 1.0)}, [{"w": numbers(seed, (4, 3), 1.0)} for seed in (2, 3)]
    with np.errstate(all="ignore"):
        assert not np.isfinite(FRONTS[front]("Lamb", {"lr": 1e30}, weights, grads)["w"]).any()
