"""Presets of what cannot be run here: Rust crates, and a CUDA kernel.

The numbers are those of the reference runs and of the sources' formulas done by hand; `digits` of them are given.
"""

import numpy as np
import pytest

from layerwise import preset
from layerwise.numpy import Adafactor, Lamb, Lars

P, G = [1.0, 2.0, 3.0], [0.1, 0.2, 0.3]
MATRIX = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
SLOPES = [[0.1, 0.2, 0.3], [0.4, 0.5, -0.6]], [[0.3, -0.1, 0.2], [0.1, 0.4, 0.2]]


def stepped(optimizer, p, *grads):
    p = np.array(p)
    for g in grads:
        optimizer.step("p", p, np.array(g))
    return p


def assert_printed(actual, printed, digits):
    np.testing.assert_allclose(actual, printed, rtol=0, atol=0.51 * 10.0**-digits)


def test_axonml_lamb():
    optimizer = Lamb(lr=0.1, **{**preset("axonml.LAMB"), "weight_decay": 0.01})
    p = stepped(optimizer, P, G)
    assert_printed(p, [0.786100893123, 1.783982000314, 2.781863813436], 12)
    assert_printed(stepped(optimizer, p, [-0.2, 0.1, 0.4]), [0.870443651345, 1.560314294902, 2.540508922513], 12)


def test_yscv_lars():
    options = {**preset("yscv.Lars"), "lr": 0.01}
    p, g = [1.0, 2.0], [0.5, -1.0]
    assert_printed(stepped(Lars(**options), p, g), [0.99999, 2.00002], 14)
    assert_printed(stepped(Lars(**options, weight_decay=0.1), p, g), [0.99999, 2.0000133333], 10)
    # Without momentum the second step is no longer than the first.
    assert_printed(stepped(Lars(**options), p, g, g), [0.99998, 2.00004], 9)
    # With momentum as its with_momentum(0.9) adds it.
    with_momentum = Lars(**{**options, "momentum": 0.9}, weight_decay=0.1)
    assert_printed(stepped(with_momentum, p, g, g, g), [0.9999439, 2.0000748], 7)


def test_deepspeed_lamb():
    options = {**preset("deepspeed.FusedLamb"), "lr": 0.1}
    assert_printed(stepped(Lamb(**options), P, G), [0.931687079, 1.931686971, 2.931686935], 9)


@pytest.mark.parametrize(("scale", "ratio"), [(1e3, 10.0), (1e-6, 0.01)])
def test_deepspeed_bounds_of_the_ratio(scale, ratio):
    # Outside the ratio, the bias correction makes the first step lr·ratio long in every element.
    p = scale * np.array(P)
    moved = p - stepped(Lamb(lr=0.1, **preset("deepspeed.FusedLamb")), p, G)
    np.testing.assert_allclose(moved, 0.1 * ratio, rtol=1e-5)


def test_rlx_adafactor_as_documented():
    printed = [
        [[0.975918846357, 1.963124939119, 2.955596546681], [3.958927046341, 4.960691053023, 6.037867392225]],
        [[0.909701947725, 1.980037315496, 2.922961510987], [3.946593271707, 4.922889203093, 6.019631268952]],
    ]
    for steps in (1, 2):
        optimizer = Adafactor(**preset("rlx.Adafactor"))
        assert_printed(stepped(optimizer, MATRIX, *SLOPES[:steps]), printed[steps - 1], 12)


def rlx(p, grads, lr=None, weight_decay=0.0):
    """What the crate's formula intends: matrices alone are factored, and the whole step multiplies u + λ·p."""
    p, R, C, V = np.array(p), 0.0, 0.0, 0.0
    for t, g in enumerate(grads, 1):
        b2, G = 1 - t**-0.8, g**2 + 1e-30
        if p.ndim == 2:
            R = b2 * R + (1 - b2) * G.mean(1, keepdims=True)
            C = b2 * C + (1 - b2) * G.mean(0, keepdims=True)
            V = R * C / R.mean()
        else:
            V = b2 * V + (1 - b2) * G
        u = g / np.sqrt(V)
        u = u / max(1.0, np.sqrt(np.mean(u**2)))
        step = min(1e-2, t**-0.5) * max(1e-3, np.sqrt(np.mean(p**2))) if lr is None else lr
        p = p - step * (u + weight_decay * p)
    return p


RLX_SHAPES = {"vector": (5,), "matrix": (4, 3), "cube": (2, 3, 4), "four": (2, 3, 2, 4)}


@pytest.mark.parametrize("lr", [None, 0.05])
@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("shape", RLX_SHAPES.values(), ids=RLX_SHAPES)
def test_rlx_new_is_the_preset_and_not_our_defaults(shape, decay, lr):
    p, *grads = np.random.default_rng(0).standard_normal((4, *shape))
    expected = rlx(p, grads, lr, decay)
    options = {"lr": lr, "weight_decay": decay}
    mine = stepped(Adafactor(**{**preset("rlx.Adafactor"), **options}), p, *grads)
    np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-13)
    # Our defaults factor every tensor of two dimensions or more, and decay by lr, or by lr_cap where there is none.
    alike = len(shape) < 3 and not (decay and lr is None)
    off = np.max(np.abs(stepped(Adafactor(**options), p, *grads) - expected))
    assert off < 1e-13 if alike else off > 1e-4


def test_rlx_adafactor_factors_matrices_only_and_decays_by_the_step():
    rng = np.random.default_rng(0)
    p, g = rng.standard_normal((2, 2, 3, 4))
    whole = stepped(Adafactor(**preset("rlx.Adafactor")), p, g)
    np.testing.assert_allclose(whole, stepped(Adafactor(factored=False), p, g), rtol=1e-14)
    decayed = stepped(Adafactor(**preset("rlx.Adafactor"), weight_decay=0.5), p, g)
    alpha = 0.01 * np.sqrt(np.mean(p**2))
    np.testing.assert_allclose(whole - decayed, 0.5 * alpha * p, rtol=1e-10)


def test_apex_fused_lamb_is_what_timm_has():
    # timm's Lamb, which is recorded, was written after FusedLAMB, which needs CUDA.
    assert preset("apex.FusedLAMB") == preset("timm.Lamb")
    assert {**preset("apex.FusedLAMB"), "adapt": True} == {"adapt": True, **preset("apex.FusedLAMB-nvlamb")}
