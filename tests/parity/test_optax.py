"""optax.lamb, optax.lars, optax.adafactor and optax.novograd, run beside ours."""

from dataclasses import MISSING, fields
from functools import partial
from inspect import signature

import numpy as np
import pytest
from cases import case_of
from draws import seeds
from parity.live import SHAPES, Draw, assert_same, ours, tensors

import layerwise.numpy
from layerwise import preset
from layerwise.catalog.registry import ENTRIES
from layerwise.numpy import Adafactor, Lamb, Lars, Muon
from layerwise.options.names import OPTAX

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
factorized = pytest.importorskip("optax._src.factorized")

DRAWS = seeds(2, 4)
NAMES = sorted(SHAPES)
OURS = {name.lower(): entry for name, entry in ENTRIES.items() if hasattr(optax, name.lower())}
FEW = {name: SHAPES[name] for name in ("matrix", "wide", "zeros")}  # JAX compiles for every shape
# In float32 optax forms 1 − b2**t with an error of 2^-24 / (1 − b2), which the step of a tensor that starts at zero
# has in full.
FLOAT32 = {"of_size": 3e-6, "of_move": 6e-5}


@pytest.mark.parametrize("name", OURS)
def test_arguments_are_optax_s(name):
    """Their names, order and defaults; ours come after them."""
    from layerwise import jax as front

    given, here = ([*signature(getattr(of, name)).parameters.values()] for of in (optax, front))
    for theirs, own in zip(given, here, strict=False):
        assert (theirs.name, theirs.kind) == (own.name, own.kind)
        assert own.default in (theirs.default, getattr(theirs.default, "__name__", ...))  # of a dtype the name


@pytest.fixture
def x64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def exact_b2(monkeypatch):
    """optax.adafactor with β₂ in float64: its own is computed in float32 whatever the parameters are."""

    def decay_rate(i, exponent):
        return 1.0 - jax.numpy.array(i + 1, jax.numpy.float64) ** (-exponent)

    exact = partial(factorized.scale_by_factored_rms, decay_rate_fn=decay_rate)
    monkeypatch.setattr(factorized, "scale_by_factored_rms", exact)


def theirs(transformation, params, grads):
    weights = jax.tree.map(jax.numpy.asarray, params)
    assert {w.dtype for w in weights.values()} == {p.dtype for p in params.values()}
    state = transformation.init(weights)
    for g in grads:
        updates, state = transformation.update(jax.tree.map(jax.numpy.asarray, g), state, weights)
        weights = optax.apply_updates(weights, updates)
        yield {name: np.asarray(w) for name, w in weights.items()}


def scheduled(draw, low, high):
    """A number, or a schedule."""
    x = draw.between(low, high)
    return draw.of(x, lambda step: x * (1 + step) / 4)


def masked(draw):
    """A mask as optax takes it, and by name as ours does."""
    kept = {name: draw.of(True, False) for name in NAMES}
    return draw.of((None, None), (kept, kept), (lambda _: kept, kept.get))


def lamb(draw):
    """One draw: the arguments of optax.lamb, and ours."""
    mask, decay = masked(draw)
    lr, b1, b2 = scheduled(draw, 1e-3, 1e-1), draw.of(0.0, 0.5, 0.9), draw.of(0.0, 0.95, 0.999)
    shared = {
        "eps": draw.of(1e-6, 1e-2),
        "eps_root": draw.of(0.0, 1e-8, 1e-2),
        "weight_decay": draw.of(0.0, scheduled(draw, 1e-3, 1.0)),
    }
    return (
        {"learning_rate": lr, "b1": b1, "b2": b2, "mask": mask, **shared},
        {"lr": lr, "betas": (b1, b2), **shared} | ({"decay": decay} if decay else {}),
    )


def lars(draw):
    decay_mask, decay = masked(draw)
    ratio_mask, adapt = masked(draw)
    lr, momentum = scheduled(draw, 1e-2, 1.0), draw.of(0.0, 0.5, 0.9)
    shared = {
        "weight_decay": draw.of(0.0, draw.between(1e-3, 1.0)),
        "trust_coefficient": draw.between(1e-3, 1e-1),
        "eps": draw.of(0.0, 1e-2),
        "momentum": momentum,
        "nesterov": momentum > 0 and draw.of(True, False),
    }
    masks = {"weight_decay_mask": decay_mask or True, "trust_ratio_mask": ratio_mask or True}
    by_name = {"decay": decay, "adapt": adapt}
    return {"learning_rate": lr, **masks, **shared}, {"lr": lr, **shared} | {k: v for k, v in by_name.items() if v}


def adafactor(draw):
    mask, decay = masked(draw)
    lr, eps, rate = draw.of(None, scheduled(draw, 1e-3, 1e-1)), draw.of(1e-30, 1e-8), draw.of(0.5, 0.8, 1.0)
    momentum, factored = draw.of(None, 0.0, 0.9), draw.of(True, True, False)
    weight_decay = draw.of(None, scheduled(draw, 1e-3, 1e-1))
    scale, clip = draw.of(True, False), draw.of(None, 0.5, 1.0, 2.0)
    smallest = {"min_dim_size_to_factor": draw.of(0, 3, 4, 128)}
    return (
        {
            "learning_rate": lr,
            "eps": eps,
            "decay_rate": rate,
            "momentum": momentum,
            "dtype_momentum": "float64",
            "factored": factored,
            "weight_decay_rate": weight_decay,
            "weight_decay_mask": mask,
            "multiply_by_parameter_scale": scale,
            "clipping_threshold": clip,
            **smallest,
        },
        {
            "lr": 1.0 if lr is None else lr,
            "eps": (eps, 1e-3),
            "beta2_decay": -rate,
            "beta1": momentum,
            "factored": "largest" if factored else False,
            "weight_decay": weight_decay or 0.0,
            "decay": decay,
            "scale_parameter": scale,
            "clip_threshold": clip,
            **smallest,
        },
    )


def novograd(draw):
    lr, b1, b2 = scheduled(draw, 1e-3, 1e-1), draw.of(0.0, 0.5, 0.95), draw.of(0.0, 0.25, 0.98)
    shared = {
        "eps": draw.of(1e-8, 1e-2),
        "eps_root": draw.of(0.0, 1e-8, 1e-2),
        "weight_decay": draw.of(0.0, draw.between(1e-3, 1.0)),
    }
    return {"learning_rate": lr, "b1": b1, "b2": b2, **shared}, {"lr": lr, "betas": (b1, b2), **shared}


def adamw(draw):
    mask, decay = masked(draw)
    lr, b1, b2 = scheduled(draw, 1e-3, 1e-1), draw.of(0.0, 0.5, 0.9), draw.of(0.0, 0.95, 0.999)
    shared = {
        "eps": draw.of(1e-8, 1e-2),
        "eps_root": draw.of(0.0, 1e-8, 1e-2),
        "weight_decay": draw.of(0.0, scheduled(draw, 1e-3, 1.0)),
        "nesterov": draw.of(True, False),
    }
    return (
        {"learning_rate": lr, "b1": b1, "b2": b2, "mask": mask, **shared},
        {"lr": lr, "betas": (b1, b2), **shared} | ({"decay": decay} if decay else {}),
    )


def lion(draw):
    mask, decay = masked(draw)
    lr, b1, b2 = scheduled(draw, 1e-4, 1e-1), draw.of(0.0, 0.5, 0.9), draw.of(0.0, 0.95, 0.99)
    weight_decay = draw.of(0.0, scheduled(draw, 1e-3, 1.0))
    return (
        {"learning_rate": lr, "b1": b1, "b2": b2, "mask": mask, "weight_decay": weight_decay},
        {"lr": lr, "betas": (b1, b2), "weight_decay": weight_decay} | ({"decay": decay} if decay else {}),
    )


def sgd(draw):
    lr, momentum, nesterov = scheduled(draw, 1e-2, 1.0), draw.of(None, 0.0, 0.5, 0.9), draw.of(True, False)
    return (
        {"learning_rate": lr, "momentum": momentum, "nesterov": nesterov},
        {"lr": lr, "momentum": momentum or 0.0, "nesterov": nesterov and bool(momentum)},
    )


# Which take more than numbers.
DRAWN = {one.__name__: one for one in (adamw, sgd, lamb, lars, adafactor, novograd, lion)}


def drawn(name, draw):
    """One draw: the arguments of optax's function, and ours; of the values of its case where a rule has none here."""
    if name in DRAWN:
        return DRAWN[name](draw)
    case, theirs = case_of(OURS[name].name), signature(getattr(optax, name)).parameters
    given = {
        option: draw.of(*values)
        for option, values in case.options.items()
        if theirs.keys() >= {*OPTAX.renamed_options(case.hyper).get(option, (option,))}
    }
    return OPTAX.as_arguments(case.hyper, given), given


def both(name):
    """Their function, our class, and the options with which ours has their defaults."""
    specs = fields(OURS[name].hyper)
    defaults = {
        one.name: one.metadata["optax_default"] for one in specs if one.metadata["optax_default"] is not MISSING
    }
    usual = preset(f"optax.{name}") if name in DRAWN else defaults
    return getattr(optax, name), getattr(layerwise.numpy, OURS[name].name), usual


@pytest.mark.parametrize("seed", DRAWS)
@pytest.mark.parametrize("name", OURS)
def test_drawn_options(name, seed, x64, exact_b2):
    their_class, our_class, preset_options = both(name)
    their_options, our_options = drawn(name, Draw(seed))
    params, grads = tensors()
    assert_same(
        ours(our_class(**{**preset_options, **our_options}), params, grads),
        theirs(their_class(**their_options), params, grads),
        params,
        of_size=1e-12,
    )


@pytest.mark.parametrize("name", OURS)
def test_defaults(name, x64):
    their_class, our_class, preset_options = both(name)
    # Large enough that optax.adafactor factors it.
    params, grads = tensors(shapes={**SHAPES, "large": (129, 2, 128)})
    # β₂ in float32 is off by 2^-24 at most, and as much is u.
    of_move = 1e-6 if name == "adafactor" else 0.0
    mine = ours(our_class(lr=0.01, **preset_options), params, grads)
    assert_same(mine, theirs(their_class(0.01), params, grads), params, 1e-12, of_move)


def test_momentum_in_float32(x64, exact_b2):
    params, grads = tensors()
    options = {**preset("optax.adafactor"), "lr": 0.01, "beta1": 0.9}
    peer = list(theirs(optax.adafactor(0.01, momentum=0.9), params, grads))
    # optax multiplies with b1 in float32 too, we only store what is left for the next step in it.
    assert_same(ours(Adafactor(**options, momentum_dtype="float32"), params, grads), peer, params, 1e-12, 1e-6)


def test_adafactor_of_equal_dimensions(x64, exact_b2):
    params, grads = tensors(shapes={**FEW, "matrix": (3, 2, 2), "cube": (3, 3, 3)})
    options = {**preset("optax.adafactor"), "lr": 0.01, "min_dim_size_to_factor": 0}
    peer = theirs(optax.adafactor(0.01, min_dim_size_to_factor=0), params, grads)
    assert_same(ours(Adafactor(**options), params, grads), peer, params, 1e-12)


@pytest.mark.parametrize("name", OURS)
def test_float32(name):
    their_class, our_class, preset_options = both(name)
    params, grads = tensors("float32", FEW)
    mine = ours(our_class(lr=0.01, **preset_options), params, grads)
    assert_same(mine, theirs(their_class(0.01), params, grads), params, **FLOAT32)


def ratio_of(draw):
    """The numbers of optax.scale_by_trust_ratio; floors that some of the tensors' norms are below."""
    return {
        "min_norm": draw.of(0.0, 0.5, 3.0),
        "trust_coefficient": draw.of(1.0, 0.5),
        "eps": draw.of(0.0, 0.25),
    }


@pytest.mark.parametrize("seed", DRAWS)
def test_lamb_of_the_primitives(seed, x64):
    draw = Draw(seed)
    ratio, lr, l2 = ratio_of(draw), draw.between(1e-3, 1e-1), draw.of(0.0, draw.between(1e-3, 1.0))
    adam = {"b1": draw.of(0.0, 0.9), "b2": draw.of(0.5, 0.999), "eps": 1e-6}
    decay = draw.of(0.0, draw.between(1e-3, 1.0))
    peer = optax.chain(
        optax.add_decayed_weights(l2),
        optax.scale_by_adam(**adam),
        optax.add_decayed_weights(decay),
        optax.scale_by_trust_ratio(**ratio),
        optax.scale_by_learning_rate(lr),
    )
    coefficient = ratio["trust_coefficient"]
    options = {"min_norm": ratio["min_norm"], "trust_eps": ratio["eps"], "l2": l2, "weight_decay": decay}
    # The coefficient multiplies the ratio, but not the 1 that stands where a norm is 0.
    mine = Lamb(lr * coefficient, (adam["b1"], adam["b2"]), adam["eps"], zero_norm_ratio=1 / coefficient, **options)
    params, grads = tensors()
    assert_same(ours(mine, params, grads), theirs(peer, params, grads), params, 1e-12)


@pytest.mark.parametrize("seed", DRAWS)
def test_lars_of_the_primitives(seed, x64):
    draw = Draw(seed)
    ratio, lr, l2 = ratio_of(draw), draw.between(1e-2, 1.0), draw.of(0.0, draw.between(1e-3, 1.0))
    decay, momentum = draw.of(0.0, draw.between(1e-3, 1.0)), draw.of(0.0, 0.9)
    peer = optax.chain(
        optax.add_decayed_weights(l2),
        optax.add_decayed_weights(decay),
        optax.scale_by_trust_ratio(**ratio),
        optax.scale_by_learning_rate(lr),
        optax.trace(momentum),
    )
    mine = Lars(lr, momentum, decay, **ratio, norm="decayed", l2=l2)
    params, grads = tensors()
    assert_same(ours(mine, params, grads), theirs(peer, params, grads), params, 1e-12)


RATES = {
    "adam": lambda i: 0.999 * (1 - 0.999**i) / (1 - 0.999 ** (i + 1)),
    "slower": lambda i: 1 - (i + 1) ** -0.5,
    "constant": lambda i: 0.9 + 0 * i,
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_adafactor_with_a_decay_of_one_s_own(rate, momentum, x64):
    peer = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=3, decay_rate_fn=lambda i, _: RATES[rate](i)),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_learning_rate(0.05, flip_sign=False),
        optax.scale_by_param_block_rms(),
        *([] if momentum is None else [optax.ema(momentum, debias=False, accumulator_dtype="float64")]),
        optax.scale(-1),
    )
    options = {**preset("optax.adafactor"), "min_dim_size_to_factor": 3, "beta1": momentum}
    params, grads = tensors()
    mine = ours(Adafactor(0.05, beta2=RATES[rate], **options), params, grads)
    assert_same(mine, theirs(peer, params, grads), params, 1e-12)


def test_the_jax_front_has_them_too(x64):
    from layerwise import jax as front

    params, grads = tensors(shapes=FEW)
    given = {"min_norm": 0.5, "l2": 0.1}
    for mine, theirs_ in (
        (Lamb(0.1, trust_eps=0.25, **given), front.lamb(0.1, trust_eps=0.25, **given)),
        (
            Lars(0.1, max_grad_value=(-0.1, None), **given),
            front.lars(0.1, norm="split", max_grad_value=(-0.1, None), **given),
        ),
        (
            Adafactor(0.1, beta2=RATES["adam"], decay_offset=1),
            front.adafactor(
                0.1, 0, beta2=RATES["adam"], decay_offset=1, multiply_by_parameter_scale=False, factored="last"
            ),
        ),
    ):
        assert_same(ours(mine, params, grads), theirs(theirs_, params, grads), params, 1e-12)


def muon(draw):
    """One draw: the arguments of optax.contrib.muon, and ours."""
    rms, beta, lr = draw.of(None, 0.2, 0.5), draw.of(0.5, 0.95), draw.between(1e-3, 1e-1)
    coefficients = draw.of((3.4445, -4.7750, 2.0315), ((3.0, -3.0, 1.0), (2.0, -1.5, 0.5), (1.5, -0.5, 0.0)))
    steps = 3 if isinstance(coefficients[0], tuple) else draw.of(5, 2)
    shared = {"weight_decay": draw.of(0.0, 0.1), "eps": 1e-200, "ns_steps": steps}
    nesterov = draw.of(True, False)
    return (
        {"learning_rate": lr, "beta": beta, "nesterov": nesterov, "ns_coeffs": coefficients, "consistent_rms": rms}
        | shared,
        {"lr": lr, "momentum": beta, "ns_coefficients": coefficients, "scale": rms or "original"}
        | ({} if nesterov else {"nesterov": False})
        | shared,
    )


@pytest.mark.parametrize("seed", DRAWS)
def test_muon(seed, x64):
    """With an eps that is nothing beside norms, to which optax adds it and which are at least ours."""
    their_options, our_options = muon(Draw(seed))
    params, grads = tensors(shapes={"matrix": SHAPES["matrix"], "wide": SHAPES["wide"], "zeros": (4, 3)})
    mine = ours(Muon(**{**preset("optax.muon"), **our_options}), params, grads)
    assert_same(mine, theirs(optax.contrib.muon(**their_options), params, grads), params, 1e-11)
