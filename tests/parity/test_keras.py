"""keras.optimizers.Lamb, Adafactor, AdamW and Muon run beside ours, on Keras's NumPy backend."""

from functools import partial
from inspect import signature

import numpy as np
import pytest
from parity.live import SHAPES, Draw, assert_same, largest, ours, tensors

from layerwise import preset
from layerwise.numpy import Adafactor, AdamW, Lamb

pytestmark = pytest.mark.slow
with pytest.MonkeyPatch.context() as environment:
    environment.setenv("KERAS_BACKEND", "numpy")
    keras = pytest.importorskip("keras")
    dtypes = pytest.importorskip("keras.src.backend.common.dtypes")

NAMES = sorted(SHAPES)


@pytest.fixture(autouse=True)
def in_float64(monkeypatch):
    """Without Keras's own promotion of dtypes, which turns float64 into float32 in means, roots and powers."""
    assert keras.config.backend() == "numpy"
    monkeypatch.setitem(dtypes.BIT64_TO_BIT32_DTYPE, "float64", "float64")
    floatx = keras.config.floatx()
    yield
    keras.config.set_floatx(floatx)


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "AdamW", "Muon"])
def test_every_argument_of_keras_is_taken(name):
    import layerwise.keras

    given, here = (signature(getattr(of, name)).parameters for of in (keras.optimizers, layerwise.keras))
    another_rule = {"amsgrad", "muon_a", "muon_b", "muon_c", "rms_rate"}  # or options by other names
    assert given.keys() - {"kwargs"} - another_rule <= here.keys()


def theirs(build, params, grads):
    dtype = params["vector"].dtype.name
    keras.config.set_floatx(dtype)  # that of the variable which holds the learning rate
    weights = {name: keras.Variable(p, dtype=dtype, name=name) for name, p in params.items()}
    optimizer = build()
    for g in grads:
        # Keras divides by the zero norm too, in the branch that it does not take.
        with np.errstate(divide="ignore", invalid="ignore"):
            optimizer.apply([g[name] for name in weights], list(weights.values()))
        yield {name: np.array(w.value) for name, w in weights.items()}


class Rising(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule for both sides."""

    def __init__(self, lr):
        self.lr = lr

    def __call__(self, step):
        return self.lr * (1 + step) / 4


def adamw(draw):
    # Keras's eps is divided by √(1 − b2^t).
    lr, betas = draw.between(1e-3, 1e-1), (draw.of(0.0, 0.5, 0.9), draw.of(0.5, 0.95, 0.999))
    weight_decay = draw.of(0.1, 1.0)
    their_clip, our_clip = clipping(draw)
    return (
        lambda: keras.optimizers.AdamW(lr, weight_decay, *betas, 1e-30, **their_clip),
        {"lr": lr, "betas": betas, "eps": 1e-30, "weight_decay": weight_decay, **our_clip},
    )


def clipping(draw):
    """Keras takes one of its three ways of clipping at a time."""
    theirs, mine = draw.of(
        ("clipnorm", "max_grad_norm_per_tensor"), ("clipvalue", "max_grad_value"), ("global_clipnorm", "max_grad_norm")
    )
    bound = draw.of(None, 0.5, 4.0)
    return {theirs: bound}, {mine: bound}


def lamb(draw):
    """One draw: how to build keras.optimizers.Lamb, and our options."""
    # Not b2 = 0: Keras averages by v + (1 − b2)·(g² − v), where a g² far below v is lost in v's rounding.
    lr, betas = draw.between(1e-3, 1e-1), (draw.of(0.0, 0.5, 0.9), draw.of(0.5, 0.95, 0.999))
    lr = draw.of(lr, Rising(lr))
    eps, weight_decay = draw.of(1e-7, 1e-2), draw.of(None, 0.1, 1.0)
    excluded = draw.of([], [name for name in NAMES if draw.of(True, False)])
    their_clip, our_clip = clipping(draw)

    def build():
        b1, b2 = betas
        optimizer = keras.optimizers.Lamb(lr, b1, b2, eps, weight_decay, **their_clip)
        if weight_decay and excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer

    mine = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay or 0.0, **our_clip}
    return build, mine | ({"decay": {**dict.fromkeys(excluded, False), "*": "decoupled"}} if excluded else {})


def adafactor(draw):
    lr, eps, decay = draw.between(1e-3, 1.0), (draw.of(1e-30, 1e-8, 1e-3), draw.of(1e-3, 0.5)), draw.of(-0.8, -0.5)
    clip = draw.of(0.5, 1.0, 2.0)
    their_clip, our_clip = clipping(draw)
    # relative_step=False changes nothing in it: the step is bounded by 1/√t all the same.
    relative = draw.of(True, False)
    return (
        lambda: keras.optimizers.Adafactor(lr, decay, *eps, clip, relative_step=relative, **their_clip),
        {"lr_cap": lr, "beta2_decay": decay, "eps": eps, "clip_threshold": clip, **our_clip},
    )


CASES = {
    "lamb": (keras.optimizers.Lamb, Lamb, preset("keras.Lamb"), lamb),
    "adafactor": (keras.optimizers.Adafactor, Adafactor, preset("keras.Adafactor"), adafactor),
    "adamw": (keras.optimizers.AdamW, AdamW, preset("keras.AdamW"), adamw),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("case", CASES)
def test_drawn_options(case, seed):
    _, our_class, preset_options, options = CASES[case]
    build, our_options = options(Draw(seed))
    params, grads = tensors()
    mine = ours(our_class(**{**preset_options, **our_options}), params, grads)
    assert_same(mine, theirs(build, params, grads), params, 1e-12)


# In float32 Keras forms 1 − b2**t with an error of 2^-24 / (1 − b2), as optax does.
@pytest.mark.parametrize(("dtype", "of_size", "of_move"), [("float64", 1e-12, 0.0), ("float32", 3e-6, 6e-5)])
@pytest.mark.parametrize("case", ["lamb", "adafactor"])
def test_defaults(case, dtype, of_size, of_move):
    their_class, our_class, preset_options, _ = CASES[case]
    params, grads = tensors(dtype)
    assert_same(
        ours(our_class(**preset_options), params, grads),
        theirs(their_class, params, grads),
        params,
        of_size,
        of_move,
    )


def test_adamw_has_the_defaults_of_keras():
    given = signature(keras.optimizers.AdamW).parameters
    assert preset("keras.AdamW") == {"weight_decay": given["weight_decay"].default, "eps": given["epsilon"].default}


@pytest.mark.parametrize(
    ("mine", "theirs_only"),
    [
        ({}, {}),
        ({"exclude_layers": ["wi.e"], "weight_decay": 0.1}, {}),
        ({"momentum": 0.5, "nesterov": False, "ns_steps": 2, "adam_beta_1": 0.5, "adam_weight_decay": 0.1}, {}),
        (
            {"adam_lr_ratio": 0.1, "adam_weight_decay": 0.0, "scale": 0.3, "ns_coefficients": (2.0, -1.5, 0.5)},
            {"rms_rate": 0.3, "muon_a": 2.0, "muon_b": -1.5, "muon_c": 0.5},
        ),
    ],
)
def test_muon_leaves_the_same_variables_to_the_same_adamw(mine, theirs_only):
    import layerwise.keras

    params, grads = tensors(shapes={**SHAPES, "embedding": (6, 3)})
    renamed = {name: x for name, x in mine.items() if name not in ("scale", "ns_coefficients")}
    build = partial(keras.optimizers.Muon, 0.05, epsilon=1e-30, **{**renamed, **theirs_only})
    like = partial(layerwise.keras.Muon.like, "keras.Muon", 0.05, epsilon=1e-30, **mine)
    # Keras adds 1e-7 to the norm of the momentum; ours is at least that.
    assert_same(theirs(like, params, grads), theirs(build, params, grads), params, 1e-6)


def test_adafactor_measures_the_decayed_tensor():
    params, grads = tensors()
    lr, lam = 0.01, 0.5
    [peer] = theirs(lambda: keras.optimizers.Adafactor(lr, weight_decay=lam), params, grads[:1])
    options = {**preset("keras.Adafactor"), "lr_cap": lr, "weight_decay": lam}
    [mine] = ours(Adafactor(**options), params, grads[:1])
    for name in ("scalar", "vector", "matrix", "cube"):
        decayed = params[name] * (1 - lr * lam)
        # RMS(p) is above eps2 in these, so that their step is ours as much smaller as the tensor has shrunk.
        expected = (mine[name] - decayed) * (1 - lr * lam)
        assert largest(mine[name] - peer[name]) > 1e-5
        assert largest((peer[name] - decayed) - expected) <= 1e-14
