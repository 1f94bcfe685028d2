"""transformers.Adafactor run beside ours."""

import pytest
from parity.live import Draw, assert_same, ours, tensors, torch_steps

from layerwise import preset
from layerwise.numpy import Adafactor

pytestmark = pytest.mark.slow
pytest.importorskip("torch")
peer = pytest.importorskip("transformers.optimization").Adafactor

LRS = [0.002, 0.004, 0.016, 0.008, 0.001]
DEFAULTS = {
    "transformers.Adafactor": {},
    "transformers.Adafactor-T5": {"lr": 1e-3, "scale_parameter": False, "relative_step": False},
}


def options(draw):
    """One draw: the arguments of transformers.Adafactor, ours, and the lr of each step."""
    relative = draw.of(True, False)
    clip, rate = draw.of(0.5, 1.0, 2.0), draw.of(-0.8, -0.5, -1.0)
    shared = {
        "lr": None if relative else LRS[0],
        "relative_step": relative,
        "warmup_init": relative and draw.of(True, False),
        "scale_parameter": draw.of(True, False),
        "eps": (draw.of(1e-30, 1e-8, 1e-3), draw.of(1e-3, 0.5)),
        "beta1": draw.of(None, 0.0, 0.9),
        "weight_decay": draw.of(0.0, 0.1, 1.0),
    }
    return (
        {"clip_threshold": clip, "decay_rate": rate, **shared},
        {"clip_threshold": clip, "beta2_decay": rate, **shared},
        None if relative else LRS,
    )


@pytest.mark.parametrize("seed", range(10))
def test_drawn_options(seed):
    their_options, our_options, lrs = options(Draw(seed))
    params, grads = tensors()
    mine = ours(Adafactor(**{**preset("transformers.Adafactor"), **our_options}), params, grads, lrs)
    theirs = torch_steps(lambda ps: peer(ps, **their_options), params, grads, lrs)
    assert_same(mine, theirs, params, 1e-12)


@pytest.mark.parametrize(("dtype", "of_size", "of_move"), [("float64", 1e-12, 0.0), ("float32", 3e-6, 1e-5)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", DEFAULTS)
def test_presets(name, weight_decay, dtype, of_size, of_move):
    params, grads = tensors(dtype)
    theirs = torch_steps(lambda ps: peer(ps, **DEFAULTS[name], weight_decay=weight_decay), params, grads)
    mine = ours(Adafactor(**preset(name), weight_decay=weight_decay), params, grads)
    assert_same(mine, theirs, params, of_size, of_move)
