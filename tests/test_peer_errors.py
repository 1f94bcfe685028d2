"""Errors that other implementations make or have made, each with a test that would catch it here.

A test's name says whose error it is: axonml, yscv, optax, rlx, paddle, apex, timm (big_vision: its AdafactorBigVision),
kozistr (pytorch_optimizer), torch, colossal, keras, bitsandbytes, deepspeed, hf (transformers).
"""

import math

import numpy as np
import pytest
import reference.adafactor
import reference.lamb
import reference.lars

from layerwise import Blocks, preset
from layerwise.errors import GradientError, HyperparameterError, ParameterError, StateError
from layerwise.numpy import Adafactor, Lamb, Lars

OURS = [pytest.param(Lamb, id="Lamb"), pytest.param(Lars, id="Lars"), pytest.param(Adafactor, id="Adafactor")]
RNG = np.random.default_rng(20190401)
MATRIX, SLOPE = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 3))


def stepped(optimizer, p, *grads, name="p"):
    """The array after a step for each gradient."""
    p = np.array(p)
    for g in grads:
        optimizer.step(name, p, np.asarray(g))
    return p


def expected(oracle, p, *grads):
    for g in grads:
        p = oracle.step({"p": np.asarray(p, np.float64)}, {"p": np.asarray(g, np.float64)})["p"]
    return p


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def norm(x):
    return float(np.sqrt(np.sum(np.square(x))))


def close(actual, wanted, rtol=1e-12):
    np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=0)


# Settings


@pytest.mark.parametrize(
    ("ours", "options"),
    [
        (Lamb, {"lr": math.nan}),
        (Lamb, {"lr": -1.0}),
        (Lamb, {"betas": (1.0, 0.999)}),
        (Lamb, {"betas": (0.9, 1.5)}),
        (Lamb, {"betas": (-1.0, 0.999)}),
        (Lamb, {"betas": (math.nan, 0.999)}),
        (Lamb, {"eps": -1.0}),
        (Lamb, {"eps": math.nan}),
        (Lamb, {"weight_decay": math.inf}),
        (Lars, {"momentum": 1.0}),
        (Lars, {"lr": math.inf}),
        (Adafactor, {"lr": math.nan}),
        (Adafactor, {"clip_threshold": math.nan}),
        (Adafactor, {"eps": (math.nan, 1e-3)}),
    ],
)
def test_axonml_optax_paddle_timm_accept_settings_that_cannot_work(ours, options):
    with pytest.raises(HyperparameterError, match=next(iter(options))):
        ours(**options)


@pytest.mark.parametrize("ours", OURS)
def test_axonml_ignores_a_negative_decay_and_paddle_drops_the_ratio(ours):
    with pytest.raises(HyperparameterError, match="weight_decay"):
        ours(weight_decay=-0.1)
    with pytest.raises(HyperparameterError, match="weight_decay"):
        stepped(ours(weight_decay=lambda step: -0.1), [1.0, 2.0], [0.1, 0.2])


def test_axonml_leaves_bias_correction_on_when_options_are_given():
    options = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.01, "bias_correction": False}
    close(stepped(Lamb(**options), MATRIX, SLOPE), expected(reference.lamb.Lamb(**options), MATRIX, SLOPE))
    assert not np.allclose(
        stepped(Lamb(**options), MATRIX, SLOPE), stepped(Lamb(**{**options, "bias_correction": True}), MATRIX, SLOPE)
    )


def test_yscv_calls_a_bad_trust_coefficient_an_epsilon():
    with pytest.raises(HyperparameterError, match="trust_coefficient") as raised:
        Lars(trust_coefficient=0.0)
    assert "epsilon" not in str(raised.value)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("lr", [1, np.float32(1), np.int64(1), np.array(1.0)], ids=["int", "float32", "int64", "0-d"])
def test_paddle_refuses_lr_as_an_integer_or_array(ours, lr):
    optimizer = ours(lr=lr)
    close(stepped(optimizer, MATRIX, SLOPE), stepped(ours(lr=1.0), MATRIX, SLOPE))
    optimizer.lr = lr
    assert optimizer.lr == 1.0


def test_paddle_does_not_heed_betas_given_as_arrays():
    betas = np.array(0.5), np.float64(0.75)
    close(stepped(Lamb(lr=0.1, betas=betas), MATRIX, SLOPE), stepped(Lamb(lr=0.1, betas=(0.5, 0.75)), MATRIX, SLOPE))


def test_timm_takes_lr_0_for_the_relative_step():
    close(stepped(Adafactor(lr=0.0), MATRIX, SLOPE, SLOPE), MATRIX, rtol=0)


def test_colossal_hard_codes_lr_none():
    close(stepped(Adafactor(lr=0.5), MATRIX, SLOPE), expected(reference.adafactor.Adafactor(lr=0.5), MATRIX, SLOPE))


def test_keras_relative_step_has_no_effect():
    options = {"lr": 0.5, "relative_step": False, "scale_parameter": True}
    # The relative step would be 0.01.
    close(
        stepped(Adafactor(**options), MATRIX, SLOPE), expected(reference.adafactor.Adafactor(**options), MATRIX, SLOPE)
    )


@pytest.mark.parametrize(
    ("ours", "options"),
    [
        (Lamb, {"bias_correction": False}),
        (Lamb, {"bias_correction": "lr"}),
        (Lamb, {"decay": "l2"}),
        (Lamb, {"decay": "decoupled"}),
        (Lars, {"nesterov": True}),
        (Lars, {"dampening": 0.5}),
    ],
)
def test_bitsandbytes_and_apex_ignore_options_silently(ours, options):
    oracle = {Lamb: reference.lamb.Lamb, Lars: reference.lars.Lars}[ours]
    options = {**options, "lr": 0.1, "weight_decay": 0.1}
    actual = stepped(ours(**options), MATRIX, SLOPE, -SLOPE)
    close(actual, expected(oracle(**options), MATRIX, SLOPE, -SLOPE))
    assert not np.allclose(actual, stepped(ours(lr=0.1, weight_decay=0.1), MATRIX, SLOPE, -SLOPE), rtol=1e-6)


def test_optax_decides_for_or_against_decay_before_it_knows_the_schedule():
    options = {"lr": 0.1, "adapt": "decayed"}
    zero = stepped(Lamb(**options, weight_decay=lambda step: 0.0), MATRIX, SLOPE)
    close(zero, stepped(Lamb(**options), MATRIX, SLOPE), rtol=0)


# Learning rates and steps


@pytest.mark.parametrize("ours", OURS)
def test_rlx_set_lr_does_nothing(ours):
    optimizer = ours(lr=0.1)
    p = stepped(optimizer, MATRIX, SLOPE)
    optimizer.lr = 0.0
    optimizer.weight_decay = 0.0
    held = stepped(optimizer, p, SLOPE)
    if ours is Lars:  # what the momentum still holds was scaled by the old lr
        close(held, p - 0.9 * (MATRIX - p))
    else:
        close(held, p, rtol=0)


@pytest.mark.parametrize("ours", OURS)
def test_rlx_obeys_no_schedule(ours):
    lrs = [0.1, 0.3, 0.2]
    by_hand, p = ours(lr=lrs[0]), MATRIX
    for lr in lrs:
        by_hand.lr = lr
        p = stepped(by_hand, p, SLOPE)
    close(stepped(ours(lr=lambda step: lrs[step]), MATRIX, SLOPE, SLOPE, SLOPE), p, rtol=0)


def test_rlx_never_consults_lr_scale():
    moved = stepped(Lamb(lr=0.1), MATRIX, SLOPE) - MATRIX
    close(stepped(Lamb(lr=0.1, lr_scale={"p": 0.5}), MATRIX, SLOPE) - MATRIX, 0.5 * moved)


@pytest.mark.parametrize("ours", OURS)
def test_rlx_state_dict_is_none(ours):
    options = {"beta1": 0.9} if ours is Adafactor else {}
    whole = ours(lr=0.1, **options)
    p = stepped(whole, MATRIX, SLOPE)
    resumed = ours(lr=0.7, **options)
    resumed.load_state_dict(whole.state_dict())
    close(stepped(resumed, p, -SLOPE), stepped(whole, p, -SLOPE), rtol=0)


def test_rlx_t_never_advances():
    # β₂ is 0 at the first step and 1 − 2^-0.8 at the second.
    optimizer = Adafactor(factored=False)
    stepped(optimizer, [1.0], [2.0])
    assert optimizer.state_dict()["p/exp_avg_sq"].tolist() == [4.0]
    stepped(optimizer, [1.0], [1.0])
    close(optimizer.state_dict()["p/exp_avg_sq"], [4.0 * (1 - 2**-0.8) + 2**-0.8])


@pytest.mark.parametrize("ours", OURS)
def test_rlx_keras_t_is_the_same_for_a_tensor_seen_late(ours):
    optimizer = ours(lr=0.1)
    for _ in range(3):
        stepped(optimizer, MATRIX, SLOPE, name="early")
    close(stepped(optimizer, MATRIX, SLOPE, name="late"), stepped(ours(lr=0.1), MATRIX, SLOPE), rtol=0)


@pytest.mark.parametrize("ours", OURS)
def test_apex_advances_the_step_of_a_tensor_without_a_gradient(ours):
    optimizer, weights = ours(lr=0.1), {"p": MATRIX.copy(), "q": MATRIX.copy()}
    optimizer.step_all(weights, {"p": SLOPE, "q": SLOPE})
    optimizer.step_all(weights, {"p": SLOPE, "q": None})
    optimizer.step_all(weights, {"p": SLOPE})
    assert int(optimizer.state_dict()["p/step"]) == 3
    assert int(optimizer.state_dict()["q/step"]) == 1
    close(weights["q"], stepped(ours(lr=0.1), MATRIX, SLOPE), rtol=0)


@pytest.mark.parametrize("ours", OURS)
def test_timm_fails_where_no_tensor_has_a_gradient(ours):
    optimizer, weights = ours(max_grad_norm=1.0), {"p": MATRIX.copy()}
    optimizer.step_all(weights, {"p": None})
    optimizer.step_all(weights, {})
    close(weights["p"], MATRIX, rtol=0)
    assert optimizer.steps == 0


def test_paddle_advances_beta_powers_on_skipped_steps():
    optimizer = Lamb(lr=0.1, skip_nonfinite=True)
    p = stepped(optimizer, MATRIX, np.full_like(MATRIX, np.inf))
    assert optimizer.skipped == 1
    close(stepped(optimizer, p, SLOPE), stepped(Lamb(lr=0.1), MATRIX, SLOPE), rtol=0)


def test_paddle_docs_divide_by_the_beta_power_itself():
    # m̂ = g and v̂ = g² at the first step, so that u is the sign; here ratio = ‖p‖ / √2.
    close(stepped(Lamb(lr=0.1, eps=0.0), [3.0, 4.0], [1.0, -1.0]), [3 - 0.5 / math.sqrt(2), 4 + 0.5 / math.sqrt(2)])


def continued(optimizer, p, g, step):
    """One more step of an optimizer that has done `step` of them, all with the gradient g."""
    stepped(optimizer, p, g)
    optimizer.load_state_dict({**optimizer.state_dict(), "p/step": np.array(step)})
    return stepped(optimizer, p, g)


def test_paddle_carries_beta_powers_along_in_float32():
    t, b1, b2 = 20_000, 0.9, 0.999999
    p, g = np.array([3.0, 4.0], np.float32), np.array([1.0, 2.0], np.float32)
    options = {"lr": 0.1, "betas": (b1, b2), "eps": 0.0, "adapt": False}
    m, v = (1 - b1) * (1 + b1) * g.astype(float), (1 - b2) * (1 + b2) * g.astype(float) ** 2
    u = m / (1 - b1 ** (t + 1)) / np.sqrt(v / (1 - b2 ** (t + 1)))
    # A product of 20000 rounded factors would have 1 − b2^t wrong by several per cent.
    close(p - continued(Lamb(**options), p, g, t), 0.1 * u, rtol=1e-4)


def test_keras_counts_steps_in_the_dtype_of_the_variable():
    t = 2049  # the first integer that float16 does not hold
    p, g = np.zeros(2, np.float16), np.array([1.0, 2.0], np.float16)
    optimizer = Adafactor(lr=0.25, factored=False, beta2_decay=-1.0)
    continued(optimizer, p, g, t - 1)
    stepped(optimizer, p, 256 * g)
    assert int(optimizer.state_dict()["p/step"]) == t + 1
    # V was g², of which 1/t has been replaced; a t that stays at 2048 makes that 0.1 % more.
    close(optimizer.state_dict()["p/exp_avg_sq"], g.astype(float) ** 2 * (1 + (256**2 - 1) / (t + 1)), rtol=1e-6)


# Gradients


@pytest.mark.parametrize("ours", OURS)
def test_apex_timm_max_grad_norm_0_divides_by_infinity(ours):
    options = {"lr": 0.1, "weight_decay": 0.01}
    off, p = ours(**options, max_grad_norm=0), {"p": MATRIX.copy()}
    off.step_all(p, {"p": SLOPE})
    close(p["p"], stepped(ours(**options), MATRIX, SLOPE), rtol=0)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize(
    "option",
    [{}, {"max_grad_norm": 0.1}, {"max_grad_value": 0.5}, {"max_grad_norm_per_tensor": 0.2}, {"maximize": True}],
    ids=lambda option: next(iter(option), "none"),
)
def test_apex_timm_write_to_the_gradient(ours, option):
    weights, grads = {"p": MATRIX.copy()}, {"p": SLOPE.copy()}
    ours(lr=0.1, weight_decay=0.1, **option).step_all(weights, grads)
    assert (grads["p"] == SLOPE).all()
    assert (weights["p"] != MATRIX).any()


@pytest.mark.parametrize("option", ["max_grad_norm", "max_grad_norm_per_tensor"])
def test_kozistr_clips_by_the_inverse(option):
    for bound in (0.5 * norm(SLOPE), 2.0 * norm(SLOPE)):
        options = {"lr": 0.1, "adapt": False, "momentum": 0.0}
        weights = {"p": MATRIX.copy()}
        Lars(**options, **{option: bound}).step_all(weights, {"p": SLOPE})
        close(norm(weights["p"] - MATRIX), 0.1 * min(norm(SLOPE), bound))


def test_deepspeed_wants_the_norms_given_for_max_grad_norm():
    weights = {"p": np.array([3.0]), "q": np.array([4.0])}
    Lars(lr=0.1, adapt=False, momentum=0.0, max_grad_norm=1.0).step_all(
        weights, {"p": np.array([30.0]), "q": np.array([40.0])}
    )
    close([weights["p"][0], weights["q"][0]], [3 - 0.06, 4 - 0.08])


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("g", [np.ones(3), np.ones((5, 1)), 1.0], ids=["other", "broadcast", "scalar"])
def test_axonml_rlx_panic_or_go_on_at_a_wrong_shape(ours, g):
    p = MATRIX.copy()
    optimizer = ours()
    with pytest.raises(GradientError, match="shape"):
        optimizer.step("p", p, g)
    assert (p == MATRIX).all()
    assert optimizer.num_parameters == 0


def test_axonml_keeps_state_by_position():
    optimizer, weights = Lamb(lr=0.1), {"p": MATRIX.copy(), "q": 2 * MATRIX}
    optimizer.step_all(weights, {"q": SLOPE})
    optimizer.step_all(weights, {"q": -SLOPE, "p": SLOPE})
    close(weights["p"], stepped(Lamb(lr=0.1), MATRIX, SLOPE), rtol=0)
    close(weights["q"], stepped(Lamb(lr=0.1), 2 * MATRIX, SLOPE, -SLOPE), rtol=0)


# State


def test_yscv_allocates_velocity_without_momentum():
    optimizer = Lars(momentum=0.0)
    stepped(optimizer, MATRIX, SLOPE)
    assert not [key for key, array in optimizer.state_dict().items() if array.shape == MATRIX.shape]


@pytest.mark.parametrize("ours", OURS)
def test_yscv_resets_its_state_silently_at_a_new_shape(ours):
    optimizer = ours(lr=0.1)
    stepped(optimizer, MATRIX, SLOPE)
    before, other = optimizer.state_dict(), np.ones((3, 5))
    with pytest.raises(ParameterError, match="shape"):
        optimizer.step("p", other, np.ones((3, 5)))
    assert (other == 1).all()
    after = optimizer.state_dict()
    assert before.keys() == after.keys()
    assert all((after[key] == before[key]).all() for key in before)


@pytest.mark.parametrize(("shape", "size"), [((6, 4), 6 + 4), ((2, 6, 4), 2 * (6 + 4))])
def test_keras_keeps_v_in_full_when_factored(shape, size):
    optimizer = Adafactor()
    stepped(optimizer, np.ones(shape), np.ones(shape))
    assert sum(a.size for key, a in optimizer.state_dict().items() if key.startswith("p/exp_avg")) == size


def test_rlx_never_factors_three_dimensions():
    p, g = RNG.standard_normal((2, 4, 3)), RNG.standard_normal((2, 4, 3))
    close(stepped(Adafactor(), p, g, -0.1 * g), expected(reference.adafactor.Adafactor(), p, g, -0.1 * g))
    assert not np.allclose(stepped(Adafactor(), p, g), stepped(Adafactor(factored=False), p, g), rtol=1e-6)


def test_paddle_fails_an_assertion_where_saved_state_is_missing():
    optimizer = Lamb()
    stepped(optimizer, MATRIX, SLOPE)
    state = optimizer.state_dict()
    del state["p/exp_avg_sq"]
    with pytest.raises(StateError, match="exp_avg_sq"):
        Lamb().load_state_dict(state)


def test_hf_and_torch_keep_state_in_the_dtype_of_the_gradient():
    p, g = MATRIX.copy(), SLOPE.astype(np.float32)
    optimizer = Adafactor()
    optimizer.step("p", p, g)
    assert optimizer.state_dict()["p/exp_avg_sq_row"].dtype == np.float64


@pytest.mark.parametrize("ours", [pytest.param(Lamb, id="Lamb"), pytest.param(Adafactor, id="Adafactor")])
def test_optax_timm_keep_state_and_norms_in_a_low_precision(ours):
    # ‖p‖² overflows float16, and 0.999·v + 0.001·g² leaves v as it was there.
    p, g = np.full((20, 20), 100.0, np.float16), np.full((20, 20), 0.5, np.float16)
    optimizer = ours(lr=0.25) if ours is Lamb else ours(lr=0.25, scale_parameter=True)
    close(stepped(optimizer, p, g), np.full((20, 20), 75.0), rtol=1e-3)
    assert {a.dtype.name for key, a in optimizer.state_dict().items() if key.startswith("p/exp")} == {"float32"}


def test_yscv_sums_in_float32_one_after_the_other():
    p, g = np.full(2_000_000, 0.1, np.float32), np.full(2_000_000, 1e-3, np.float32)
    optimizer = Lars(momentum=0.0)
    stepped(optimizer, p, g)
    close(optimizer.stats()["p"]["weight_norm"], 0.1 * math.sqrt(2_000_000), rtol=1e-6)


# LAMB


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_bitsandbytes_lamb_has_no_ratio(scale):
    # The step has the length lr·‖p‖, however large p is: the ratio grows as well as it shrinks.
    p = scale * MATRIX
    close(norm(stepped(Lamb(lr=0.1), p, SLOPE) - p), 0.1 * norm(p))


def test_kozistr_adds_eps_to_the_denominator_of_the_ratio():
    p = stepped(Lamb(lr=0.1, eps=1.0), MATRIX, SLOPE)
    close(norm(p - MATRIX), 0.1 * norm(MATRIX))


def test_apex_timm_docs_average_the_gradient_with_beta2():
    optimizer = Lamb(betas=(0.5, 0.75))
    stepped(optimizer, MATRIX, SLOPE)
    close(optimizer.state_dict()["p/exp_avg"], 0.5 * SLOPE)
    close(optimizer.state_dict()["p/exp_avg_sq"], 0.25 * SLOPE**2)


def test_paddle_apex_timm_drop_the_ratio_without_decay():
    close(stepped(Lamb(lr=0.1), [3.0, 4.0], [1.0, 1.0]), [2.646446609407, 3.646446609407])
    close(stepped(Lamb(lr=0.1, adapt="decayed", eps=0.0), [3.0, 4.0], [1.0, 1.0]), [2.9, 3.9])


@pytest.mark.parametrize("ours", [pytest.param(Lamb, id="Lamb"), pytest.param(Lars, id="Lars")])
def test_paddle_optax_adapt_by_name_or_not_at_all(ours):
    # Paddle's always_adapt holds for all groups; optax's mask of lamb says nothing of the ratio.
    optimizer = ours(lr=0.1, weight_decay=0.1, adapt={"*.bias": False}, decay={"*.bias": False})
    close(stepped(optimizer, MATRIX, SLOPE, name="a.bias"), stepped(ours(lr=0.1, adapt=False), MATRIX, SLOPE), rtol=0)
    close(stepped(optimizer, MATRIX, SLOPE, name="a.w"), stepped(ours(lr=0.1, weight_decay=0.1), MATRIX, SLOPE), rtol=0)


@pytest.mark.parametrize("ours", [pytest.param(Lamb, id="Lamb"), pytest.param(Lars, id="Lars")])
def test_bitsandbytes_freezes_zero_weights(ours):
    moved = stepped(ours(lr=0.1), np.zeros(2), [0.5, -1.0])
    close(moved, {Lamb: [-0.1, 0.1], Lars: [-0.05, 0.1]}[ours], rtol=1e-5)


def test_yscv_gives_zero_weights_a_thousand_times_the_rate():
    close(stepped(Lars(lr=0.1, zero_norm_ratio=1e-3), np.zeros(2), [0.5, -1.0]), [-5e-5, 1e-4])


def test_optax_gives_stacked_layers_one_ratio():
    p, g = np.stack([MATRIX, 100 * MATRIX]), np.stack([SLOPE, 2 * SLOPE])
    stacked = stepped(Lamb(lr=0.1, blocks=Blocks("each", axis=0)), p, g)
    for i in range(2):
        close(stacked[i], stepped(Lamb(lr=0.1), p[i], g[i]))


def test_paddle_group_decay_comes_on_top():
    options = {"lr": 0.1, "weight_decay": 0.5, "decay": "l2"}
    optimizer = Lamb(**options)
    close(stepped(optimizer, MATRIX, SLOPE), expected(reference.lamb.Lamb(**options), MATRIX, SLOPE))
    close(optimizer.state_dict()["p/exp_avg"], 0.1 * (SLOPE + 0.5 * MATRIX))


# LARS


def test_kozistr_seeds_the_buffer_with_the_raw_gradient():
    p, g = [1.0, 2.0], [0.5, -1.0]
    close(stepped(Lars(lr=0.01), p, g), [0.99999, 2.00002])


@pytest.mark.parametrize("norm_of", ["split", "decayed"])
def test_paddle_docs_add_epsilon_to_the_velocity(norm_of):
    p, g = np.array([3.0, 4.0]), np.array([0.6, 0.8])
    # ‖p‖ = 5 and ‖g‖ = 1 lie in one direction: both lengths are 1 + 0.1·5, and eps = 0.5 makes them 2.
    options = {"lr": 1.0, "weight_decay": 0.1, "eps": 0.5, "trust_coefficient": 0.01, "norm": norm_of}
    close(stepped(Lars(**options), p, g), p - 0.01 * 5 / 2 * (g + 0.1 * p))


def test_yscv_docs_leave_the_decay_out_of_the_denominator():
    close(stepped(Lars(lr=0.01, weight_decay=0.1), [1.0, 2.0], [0.5, -1.0]), [0.99999, 2.0 + 4e-5 / 3])


def test_apex_larc_drops_the_decay_at_a_zero_norm():
    options = {**preset("apex.LARC"), "lr": 0.1, "weight_decay": 0.5, "momentum": 0.0}
    close(stepped(Lars(**options), [1.0, 2.0], [0.0, 0.0]), [0.95, 1.9])


def test_timm_clips_the_ratio_of_a_zero_norm():
    close(stepped(Lars(lr=2.0, trust_clip=(None, 1.0)), np.zeros(2), [0.5, -1.0]), [-1.0, 2.0])


def test_bitsandbytes_lars_needs_momentum():
    close(stepped(Lars(lr=1.0, momentum=0.0), [3.0, 4.0], [0.6, 0.8]), [3 - 0.003, 4 - 0.004])


# Adafactor


@pytest.mark.parametrize("shape", [(2, 3), (64, 32), (32, 64)])
def test_rlx_v_is_too_small_by_the_number_of_rows(shape):
    g = np.random.default_rng(1).standard_normal(shape)
    optimizer = Adafactor(lr=1.0, clip_threshold=None)
    u = -stepped(optimizer, np.zeros(shape), g)
    # Of V = R·C/mean(R) the mean is that of g².
    close(np.mean((g / u) ** 2), np.mean(g**2))


@pytest.mark.parametrize("d", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("shrink", [1.0, 0.1])
def test_rlx_big_vision_kozistr_turn_the_clip_round(d, shrink):
    grads = SLOPE, shrink * SLOPE
    free, clipped = (Adafactor(lr=1.0, clip_threshold=c) for c in (None, d))
    stepped(free, MATRIX, grads[0])
    stepped(clipped, MATRIX, grads[0])
    raw = rms(stepped(free, MATRIX, grads[1]) - MATRIX)
    close(rms(stepped(clipped, MATRIX, grads[1]) - MATRIX), min(raw, d))
    assert (raw < 0.3) == (shrink < 1)


@pytest.mark.parametrize("factored", ["last", "largest", "matrix", (1, 0)])
def test_big_vision_loses_a_factor_of_tall_matrices(factored):
    p, g = RNG.standard_normal((2, 9, 3))
    tall = stepped(Adafactor(factored=factored), p, g, -0.1 * g)
    close(tall, expected(reference.adafactor.Adafactor(), p, g, -0.1 * g))
    close(tall, stepped(Adafactor(factored=factored), p.T, g.T, -0.1 * g.T).T)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("clip", [None, "max_grad_norm", "max_grad_norm_per_tensor"])
def test_rlx_yscv_hide_nan_from_the_norms(ours, clip):
    # In a vector, whose elements Adafactor's V does not mix.
    optimizer = ours(lr=0.1, **({clip: 1.0} if clip else {}))
    weights = {"p": np.ones(3)}
    optimizer.step_all(weights, {"p": np.array([1.0, np.nan, 1.0])})
    assert np.isnan(weights["p"]).all()
    assert np.isnan(optimizer.stats()["p"]["update_rms" if ours is Adafactor else "update_norm"])


def test_rlx_decays_by_the_whole_step_where_lr_was_meant():
    options = {"lr": 0.1, "weight_decay": 0.5, "scale_parameter": True}
    for scale, rate in (("lr", 0.1), ("step", 0.1 * rms(MATRIX)), ("none", 1.0)):
        moved = stepped(Adafactor(**options, decay_scale=scale), MATRIX, SLOPE) - MATRIX
        alone = stepped(Adafactor(**{**options, "weight_decay": 0.0}), MATRIX, SLOPE) - MATRIX
        close(moved - alone, -0.5 * rate * MATRIX, rtol=1e-10)


def test_keras_measures_the_tensor_after_the_decay():
    options = {"weight_decay": 50.0}
    close(
        stepped(Adafactor(**options), MATRIX, SLOPE), expected(reference.adafactor.Adafactor(**options), MATRIX, SLOPE)
    )


def test_colossal_never_updates_rms():
    for scale in (1e-6, 1.0, 100.0):
        p = scale * MATRIX
        # u has the RMS 1, bounded by d, and the step is 0.01·max(RMS(p), 0.001).
        moved = rms(stepped(Adafactor(factored=False), p, SLOPE) - p)
        close(moved, 0.01 * max(rms(p), 1e-3), rtol=1e-9)


@pytest.mark.parametrize("order", [("single", "double"), ("double", "single")])
def test_torch_leaks_eps1_to_tensors_of_another_dtype(order):
    # So small a gradient that eps1 itself is the divisor: u = g / eps1, under the clip.
    dtypes = {"single": np.float32, "double": np.float64}
    weights = {name: np.zeros(2, dtypes[name]) for name in order}
    grads = {name: np.full(2, 2.0**-60, dtypes[name]) for name in order}
    Adafactor(**preset("torch.Adafactor")).step_all(weights, grads)
    for name, dtype in dtypes.items():
        close(weights[name], -0.01 * 1e-3 * 2.0**-60 / np.finfo(dtype).eps, rtol=1e-6)


@pytest.mark.parametrize("offset", [1, 3])
def test_optax_decay_offset_starts_with_nan(offset):
    options = {"lr": 0.1, "decay_offset": offset}
    actual = stepped(Adafactor(**options), MATRIX, SLOPE, -SLOPE, 0.1 * SLOPE, SLOPE)
    close(actual, expected(reference.adafactor.Adafactor(**options), MATRIX, SLOPE, -SLOPE, 0.1 * SLOPE, SLOPE))


def test_optax_computes_beta2_in_float32():
    optimizer = Adafactor(factored=False)
    stepped(optimizer, [1.0], [1.0], [2.0])
    close(optimizer.state_dict()["p/exp_avg_sq"], [1 + 3 * 2**-0.8], rtol=1e-15)


def test_rlx_eps1_is_0_in_float16():
    p, g = np.ones(4, np.float16), np.array([0.0, 0.0, 1e-3, 1e-3], np.float16)
    assert np.isfinite(stepped(Adafactor(), p, g)).all()
