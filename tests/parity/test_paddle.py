"""paddle.optimizer.Lamb run beside ours."""

import pytest
from parity.live import SHAPES, Draw, assert_same, ours, tensors

from layerwise import preset
from layerwise.numpy import Lamb

pytestmark = pytest.mark.slow
paddle = pytest.importorskip("paddle")

NAMES = sorted(SHAPES)
LRS = [0.002, 0.004, 0.016, 0.008, 0.001]


def theirs(options, params, grads, lrs, lr_scale=None, l2=None):
    weights = {name: paddle.create_parameter(p.shape, str(p.dtype)) for name, p in params.items()}
    for name, w in weights.items():
        w.name = name
        w.set_value(params[name])
    groups = [{"params": [w], "learning_rate": (lr_scale or {}).get(name, 1.0)} for name, w in weights.items()]
    for name, group in zip(weights, groups, strict=True):
        group |= {"weight_decay": l2[name]} if l2 else {}
    in_groups = groups if lr_scale or l2 else list(weights.values())
    optimizer = paddle.optimizer.Lamb(parameters=in_groups, **options)
    for lr, g in zip(lrs, grads, strict=True):
        optimizer.set_lr(lr)
        for name, w in weights.items():
            w.grad = paddle.to_tensor(g[name])
        optimizer.step()
        yield {name: w.numpy().copy() for name, w in weights.items()}


CLIPS = {
    "max_grad_norm": paddle.nn.ClipGradByGlobalNorm,
    "max_grad_norm_per_tensor": paddle.nn.ClipGradByNorm,
    "max_grad_value": paddle.nn.ClipGradByValue,
}


def lamb(draw):
    """One draw: the arguments of paddle.optimizer.Lamb, our options, and the factors on lr by name."""
    # Paddle keeps these four in float32, so only numbers exact in it are the same on both sides.
    betas = draw.of(0.0, 0.5, 0.875), draw.of(0.5, 0.9375, 1 - 2.0**-10)
    eps, lam = draw.of(2.0**-20, 2.0**-7), draw.of(0.0, 2.0**-7, 1.0)
    always = draw.of(True, False)
    excluded = [name for name in NAMES if draw.of(True, False)]
    # ClipGradByNorm knows float32 only.
    clip, bound = draw.of("max_grad_norm", "max_grad_value"), draw.of(None, 0.5, 4.0)
    options = {
        "beta1": betas[0],
        "beta2": betas[1],
        "epsilon": eps,
        "lamb_weight_decay": lam,
        "always_adapt": always,
        "exclude_from_weight_decay_fn": lambda p: p.name in excluded,
        "grad_clip": bound and CLIPS[clip](bound),
    }
    lr_scale = draw.of(None, {name: draw.of(0.5, 1.0, 2.0) for name in NAMES})
    # Paddle takes the global norm of every group by itself, and our lr_scale is its groups of one tensor.
    our_clip = "max_grad_norm_per_tensor" if lr_scale and clip == "max_grad_norm" else clip
    mine = {"betas": betas, "eps": eps, "weight_decay": lam, "lr_scale": lr_scale, our_clip: bound}
    decay = {"decay": dict.fromkeys(excluded, False)}
    return options, {**mine, **decay} | ({"adapt": True} if always else {}), lr_scale


@pytest.mark.parametrize("seed", range(10))
def test_drawn_options(seed):
    their_options, our_options, lr_scale = lamb(Draw(seed))
    params, grads = tensors()
    mine = ours(Lamb(**{**preset("paddle.Lamb"), **our_options}), params, grads, LRS)
    assert_same(mine, theirs(their_options, params, grads, LRS, lr_scale), params, 1e-12)


@pytest.mark.parametrize(("dtype", "of_size"), [("float64", 1e-12), ("float32", 3e-6)])
@pytest.mark.parametrize("decay", [0.01, 0.0])
@pytest.mark.parametrize("always", [True, False])
def test_defaults(dtype, of_size, decay, always):
    params, grads = tensors(dtype)
    adapt = {"adapt": True} if always else {}
    mine = ours(Lamb(**{**preset("paddle.Lamb"), "weight_decay": decay, **adapt}), params, grads, LRS)
    peer = theirs({"lamb_weight_decay": decay, "always_adapt": always}, params, grads, LRS)
    # In float32, 1 − β₂ = 0.001 is off by half of 2^-24 / 0.001, of which √v̂ and with it the step have half. In
    # float64 that stands against β-powers of the exact β; in float32 these powers are off by as much.
    assert_same(mine, peer, params, of_size, {"float64": 1e-5, "float32": 6e-5}[dtype])


@pytest.mark.parametrize("clip", CLIPS)
def test_clips_in_float32(clip):
    params, grads = tensors("float32")
    mine = ours(Lamb(**{**preset("paddle.Lamb"), clip: 0.5}), params, grads, LRS)
    assert_same(mine, theirs({"grad_clip": CLIPS[clip](0.5)}, params, grads, LRS), params, 3e-6, 6e-5)


@pytest.mark.parametrize("decay", [2.0**-7, 0.0])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_l2_of_a_group_besides_the_decay(decay, clip):
    params, grads = tensors()
    l2 = {name: 0.25 * i for i, name in enumerate(NAMES)}
    exact = {"beta1": 0.875, "beta2": 1 - 2.0**-10, "epsilon": 2.0**-20}
    options = {"betas": (0.875, 1 - 2.0**-10), "eps": 2.0**-20, "weight_decay": decay, "l2": l2}
    mine = ours(Lamb(**{**preset("paddle.Lamb"), **options, "max_grad_value": clip}), params, grads, LRS)
    their_clip = clip and paddle.nn.ClipGradByValue(clip)
    peer = theirs({**exact, "lamb_weight_decay": decay, "grad_clip": their_clip}, params, grads, LRS, l2=l2)
    assert_same(mine, peer, params, 1e-12)


@pytest.mark.parametrize("bounds", [(-0.125, 0.5), (0.0, 1.0), (0.25, 0.5)])
def test_value_clipping_between_two_bounds(bounds):
    low, high = bounds
    params, grads = tensors("float32")
    mine = ours(Lamb(**preset("paddle.Lamb"), max_grad_value=bounds), params, grads, LRS)
    peer = theirs({"grad_clip": paddle.nn.ClipGradByValue(max=high, min=low)}, params, grads, LRS)
    assert_same(mine, peer, params, 3e-6, 6e-5)
