"""The references against numbers that other implementations print, and against themselves.

The expected values are outputs of published implementations in float64 (optax 0.2.8, torch 2.13.0, keras 3.15.1, timm)
or of their formulas. `digits` is the number of decimals printed: an exact result differs from its print by half a
unit of the last decimal at most.
"""

import math

import numpy as np
import pytest

from .adafactor import Adafactor, factored_dims, stored
from .lamb import Lamb
from .lars import Lars

SLACK = 1e-14


def off_by(actual, expected):
    """The largest absolute difference of two equally long sequences."""
    actual = np.asarray(actual).reshape(-1).tolist()
    expected = np.asarray(expected).reshape(-1).tolist()
    return max(abs(a - e) for a, e in zip(actual, expected, strict=True))


def assert_printed(actual, expected, digits):
    """The values round to the expected ones at the given number of decimals."""
    assert off_by(actual, expected) <= 0.5 * 10.0**-digits + SLACK


def step(ref, p, g, **kwargs):
    """One step of a single tensor."""
    return ref.step({"p": np.array(p, dtype=np.float64)}, {"p": np.array(g, dtype=np.float64)}, **kwargs)["p"]


def sum_of_squares_run(ref):
    """Five steps on Σx² from [1, 2, 3]: the objective after each, and the last x."""
    x, objectives = np.array([1.0, 2.0, 3.0]), []
    for _ in range(5):
        x = step(ref, x, 2 * x)
        objectives.append(math.fsum([a * a for a in x.tolist()]))
    return objectives, x


class TestLamb:
    p, g = (1.0, 2.0, 3.0), (0.1, 0.2, 0.3)

    def test_five_steps_on_a_parabola(self):
        objectives, x = sum_of_squares_run(Lamb(lr=0.003))
        assert_printed(objectives, [13.9223571073, 13.8451792432, 13.7684626129, 13.6922034460, 13.6163979987], 10)
        assert_printed(x, [0.967783093995, 1.967773522359, 2.967770416729], 12)

    def test_without_decay(self):
        assert_printed(step(Lamb(lr=0.1), self.p, self.g), [0.783976150143, 1.783975070029, 2.783974709989], 12)

    def test_with_decay_in_the_ratio_two_steps(self):
        ref = Lamb(lr=0.1, weight_decay=0.01)
        p = step(ref, self.p, self.g)
        assert_printed(p, [0.786100893123, 1.783982000314, 2.781863813436], 12)
        p = step(ref, p, [-0.2, 0.1, 0.4])
        assert_printed(p, [0.870443651345, 1.560314294902, 2.540508922513], 12)

    def test_ratio_off_where_nothing_decays(self):
        p = step(Lamb(lr=0.1, adapt="decayed"), self.p, self.g)
        assert off_by(p[:1], [0.900001]) <= 0.5e-6
        assert off_by(p[1:2], [1.9000005]) <= 0.5e-7
        assert off_by(p[2:], [2.90000033]) <= 0.5e-8

    def test_ratio_is_on_where_something_decays(self):
        decayed = step(Lamb(lr=0.1, weight_decay=0.01, adapt="decayed"), self.p, self.g)
        assert off_by(decayed, step(Lamb(lr=0.1, weight_decay=0.01), self.p, self.g)) == 0

    def test_trust_clip(self):
        p = step(Lamb(lr=0.1, weight_decay=0.01, trust_clip=(None, 1)), self.p, self.g)
        assert off_by(p[:1], [0.899001]) <= 0.5e-6
        assert off_by(p[1:2], [1.8980005]) <= 0.5e-7
        assert off_by(p[2:], [2.89700033]) <= 0.5e-8

    @pytest.mark.parametrize(
        ("eps", "expected"),
        [
            (1e-6, [0.783192173993, 1.782191094959, 2.781190735279]),
            (1e-7, [0.783191418669, 1.782191310764, 2.781191274796]),
        ],
    )
    def test_decoupled_decay(self, eps, expected):
        p = step(Lamb(lr=0.1, weight_decay=0.01, decay="decoupled", eps=eps), self.p, self.g)
        assert_printed(p, expected, 12)

    def test_decoupled_decay_against_float32(self):
        # Keras at eps=1e-6 in float32, whose neighbouring numbers are 2⁻²² apart at 2.78.
        p = step(Lamb(lr=0.1, weight_decay=0.01, decay="decoupled"), self.p, self.g)
        assert off_by(p, [0.78319216, 1.7821912, 2.7811906]) <= 2**-22

    def test_eps_root(self):
        p = step(Lamb(lr=0.1, eps_root=1e-2), self.p, self.g)
        assert_printed(p, [0.821623936805, 1.774369557706, 2.760682462847], 12)

    def test_bias_correction_of_the_step(self):
        p = step(Lamb(lr=0.1, bias_correction="lr", eps=1e-8), self.p, self.g)
        assert_printed(p, [0.931687079, 1.931686971, 2.931686935], 9)

    def test_bias_correction_of_the_step_is_weaker_at_first(self):
        inside = step(Lamb(lr=0.1, eps=1e-8), self.p, self.g)
        outside = step(Lamb(lr=0.1, eps=1e-8, bias_correction="lr"), self.p, self.g)
        assert_printed([(1 - outside[0]) / (1 - inside[0])], [0.316], 3)

    def test_equal_gradients(self):
        assert_printed(step(Lamb(lr=0.1), [3, 4], [1, 1]), [2.646446609407, 3.646446609407], 12)

    def test_weights_that_start_at_zero(self):
        p = step(Lamb(lr=0.1), [0, 0], [0.5, -1])
        assert off_by(p, [-0.0999998, 0.0999999]) <= 0.5e-7 + SLACK

    def test_ratio_options(self):
        # ‖p‖ = 5, and r = (1, 1) up to eps.
        p, g = [3, 4], [1, 1]
        for options, ratio in (
            ({"adapt": False}, 1),
            ({"trust_clip": (4, None)}, 4),
            ({"trust_clip": (0, 2)}, 2),
            ({"max_weight_norm": 1}, 1 / math.sqrt(2)),
            ({"max_weight_norm": 6}, 5 / math.sqrt(2)),
        ):
            ref = Lamb(lr=0.1, eps=1e-15, **options)
            assert_printed(step(ref, p, g), [3 - 0.1 * ratio, 4 - 0.1 * ratio], 13)
            assert_printed([ref.seen["p"]["trust_ratio"]], [ratio], 13)

    def test_zero_norm_ratio_is_not_clipped(self):
        ref = Lamb(lr=0.1, eps=1e-15, zero_norm_ratio=0.5, trust_clip=(2, 3))
        assert_printed(step(ref, [0, 0], [1, -1]), [-0.05, 0.05], 13)

    def test_momentum_without_averaging(self):
        # m = (b1 + 1)·g after two steps of the same gradient, divided by 1 − b1² and by √v̂ = |g|.
        ref = Lamb(lr=0.1, eps=1e-15, adapt=False, grad_averaging=False)
        p = step(ref, [0], [2])
        assert_printed(p, [-0.1 * 10], 13)
        assert_printed(step(ref, p, [2]), [-0.1 * 20], 13)

    def test_zero_gradient_shrinks_by_lr(self):
        p = step(Lamb(lr=0.1, weight_decay=0.01), [1, 2, 3], [0, 0, 0])
        assert_printed(p, [0.9, 1.8, 2.7], 13)

    def test_seen(self):
        ref = Lamb(lr=0.1)
        step(ref, [3, 4], [1, 1])
        assert_printed([ref.seen["p"]["weight_norm"]], [5], 14)
        assert_printed([ref.seen["p"]["update_norm"]], [math.sqrt(2) / (1 + 1e-6)], 14)
        assert_printed([ref.seen["p"]["trust_ratio"]], [5 / math.sqrt(2) * (1 + 1e-6)], 14)


class TestLars:
    p, g = (1.0, 2.0), (0.5, -1.0)

    def test_five_steps_on_a_parabola(self):
        objectives, x = sum_of_squares_run(Lars(lr=0.003, norm="decayed"))
        assert_printed(objectives, [14.0] * 5, 1)
        assert_printed(x, [0.999960567979, 1.999921135958, 2.999881703937], 12)

    @pytest.mark.parametrize("norm", ["split", "decayed"])
    def test_without_decay(self, norm):
        assert_printed(step(Lars(lr=0.01, momentum=0, norm=norm), self.p, self.g), [0.99999, 2.00002], 14)

    def test_split_norm(self):
        p = step(Lars(lr=0.01, momentum=0, weight_decay=0.1), self.p, self.g)
        assert_printed(p, [0.99999, 2.0000133333], 10)

    def test_decayed_norm(self):
        p = step(Lars(lr=0.01, momentum=0, weight_decay=0.1, norm="decayed"), self.p, self.g)
        assert_printed(p, [0.999986583592, 2.000017888544], 12)

    def test_ratio_off_where_nothing_decays(self):
        p = step(Lars(lr=0.01, momentum=0, adapt="decayed", lr_in_momentum=False), self.p, self.g)
        assert_printed(p, [0.995, 2.01], 14)

    def test_trust_clip(self):
        options = {"lr": 0.01, "momentum": 0, "weight_decay": 0.1, "trust_clip": (None, 1)}
        for inside in (True, False):
            p = step(Lars(lr_in_momentum=inside, **options), self.p, self.g)
            assert_printed(p, [0.999, 2.00133333], 8)

    def test_three_steps_with_momentum(self):
        split, decayed = Lars(lr=0.01, weight_decay=0.1), Lars(lr=0.01, weight_decay=0.1, norm="decayed")
        p = q = self.p
        for _ in range(3):
            p, q = step(split, p, self.g), step(decayed, q, self.g)
        assert_printed(p, [0.9999439, 2.0000748], 7)
        assert_printed(q, [0.999924733664, 2.000100355115], 12)

    @pytest.mark.parametrize(
        ("inside", "expected"),
        [(True, [0.999880999, 2.000238001]), (False, [0.999799999, 2.000400001])],
    )
    def test_place_of_lr(self, inside, expected):
        ref = Lars(lr_in_momentum=inside)
        p = step(ref, self.p, self.g, lr=0.01)
        p = step(ref, p, self.g, lr=0.1)
        assert_printed(p, expected, 9)

    def test_trust_clip_is_in_units_of_lr(self):
        # Unclipped the ratio is 1e-3·5 / 5.
        for bounds, rate in (((0, 1), 1e-3), ((0, 0.01), 0.1 * 0.01), ((2, None), 0.2), ((None, None), 1e-3)):
            p = step(Lars(lr=0.1, momentum=0, trust_clip=bounds), [3, 4], [4, 3])
            assert_printed(p, [3 - rate * 4, 4 - rate * 3], 14)

    def test_lr_zero_under_a_clip(self):
        assert step(Lars(lr=0, trust_clip=(0, 1)), [3, 4], [4, 3]).tolist() == [3, 4]

    def test_zero_norm_ratio_is_not_clipped(self):
        assert_printed(step(Lars(lr=0.1, zero_norm_ratio=0.5, trust_clip=(2, 3)), [0, 0], [1, 2]), [-0.05, -0.1], 14)

    def test_nesterov_and_dampening(self):
        # b = 1, then 0.5·1 + 1 = 1.5; the directions are 1 + 0.5·b.
        ref = Lars(lr=1, adapt=False, momentum=0.5, nesterov=True)
        assert step(ref, step(ref, [0], [1]), [1]).tolist() == [-1.5 - 1.75]
        # b = 1, then 0.5·1 + 0.25·1.
        ref = Lars(lr=1, adapt=False, momentum=0.5, dampening=0.75)
        assert step(ref, step(ref, [0], [1]), [1]).tolist() == [-1.75]


class TestAdafactor:
    p = ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    g1 = ((0.1, 0.2, 0.3), (0.4, 0.5, -0.6))
    g2 = ((0.3, -0.1, 0.2), (0.1, 0.4, 0.2))
    first = ((0.975918846357, 1.963124939119, 2.955596546681), (3.958927046341, 4.960691053023, 6.037867392225))
    second = ((0.909701947725, 1.980037315496, 2.922961510987), (3.946593271707, 4.922889203093, 6.019631268952))

    @pytest.mark.parametrize("options", [{}, {"lr": 0.01, "scale_parameter": True}])
    def test_paper_two_steps(self, options):
        ref = Adafactor(**options)
        p = step(ref, self.p, self.g1)
        assert_printed(p, self.first, 12)
        p = step(ref, p, self.g2)
        assert_printed(p, self.second, 12)

    def test_second_step_of_optax(self):
        # optax takes the power t^-0.8 in float32; this exponent gives the b2 that it has at t = 2.
        b2 = 1 - np.float32(2) ** np.float32(-0.8)
        ref = Adafactor(beta2_decay=math.log2(1 - float(b2)))
        p = step(ref, step(ref, self.p, self.g1), self.g2)
        second = [[0.909701947554, 1.980037315539, 2.922961511111], [3.946593271772, 4.922889203292, 6.019631269164]]
        assert_printed(p, second, 12)

    def test_clamped_statistics_two_steps(self):
        # No statistic is as small as the machine epsilon here, so the place of eps1 does not show.
        ref = Adafactor(eps=(None, 1e-3), eps_mode="clamp")
        p = step(ref, self.p, self.g1)
        assert_printed(p, self.first, 12)
        assert_printed(step(ref, p, self.g2), self.second, 12)

    def test_dividing_by_the_sum_of_r_is_wrong(self):
        as_coded = [[0.975196175, 1.962018325, 2.954264006], [3.957694454, 4.959511398, 6.039003786]]
        assert off_by(step(Adafactor(), self.p, self.g1), as_coded) > 1e-4

    def test_lr_unscaled(self):
        p = step(Adafactor(lr=0.01), self.p, self.g1)
        assert_printed(p, [[0.99381653, 1.99053136, 2.98859825], [3.98945344, 4.98990639, 6.00972345]], 8)

    def test_seen(self):
        ref = Adafactor()
        step(ref, self.p, self.g1)
        assert_printed([ref.seen["p"]["update_rms"]], [0.971], 3)
        assert_printed([ref.seen["p"]["alpha"]], [0.01 * math.sqrt(91 / 6)], 14)

    def run(self, p, grads, **options):
        """Three steps without anything that looks at the whole tensor."""
        ref = Adafactor(lr=0.1, clip_threshold=None, **options)
        for g in grads:
            p = step(ref, p, g)
        return p, ref.state["p"]

    def data(self, shape):
        """Random parameters and the gradients of three steps."""
        random = np.random.default_rng(1)
        return random.normal(size=shape), [random.normal(size=shape) for _ in range(3)]

    def test_several_dimensions_are_one(self):
        p, grads = self.data((2, 3, 4, 2))
        apart, state = self.run(p, grads, factored=((0, 1), (2, 3)))
        assert state["R"].shape == (2, 3, 1, 1)
        assert state["C"].shape == (1, 1, 4, 2)
        together, _ = self.run(p.reshape(6, 8), [g.reshape(6, 8) for g in grads])
        assert off_by(apart, together) == 0

    def test_other_dimensions_enumerate_matrices(self):
        p, grads = self.data((3, 2, 4))
        whole, state = self.run(p, grads, factored=(0, -1))
        assert state["R"].shape == (3, 2, 1)
        assert state["C"].shape == (1, 2, 4)
        for k in range(2):
            matrix, _ = self.run(p[:, k], [g[:, k] for g in grads])
            assert off_by(whole[:, k], matrix) == 0

    def test_largest_dimensions(self):
        p, grads = self.data((4, 2, 3))
        whole, state = self.run(p, grads, factored="largest")
        assert state["R"].shape == (1, 2, 3)
        assert state["C"].shape == (4, 2, 1)
        assert off_by(whole, self.run(p, grads, factored=(2, 0))[0]) == 0

    def test_blocks_decide_by_their_own_shape(self):
        p, grads = self.data((5, 3))
        state = self.run(p, grads, min_dim_size_to_factor=2, blocks={"p": (0, [1, 4])})[1]
        assert "V" in state[0]
        assert "R" in state[1]
        state = self.run(p, grads, blocks={"p": (0, [1] * 5, True)})[1]
        assert all("V" in s for s in state)

    def test_beta2(self):
        assert Adafactor().beta2(1) == 0
        assert_printed([Adafactor().beta2(2)], [1 - 1 / 2**0.8], 14)
        assert Adafactor(decay_offset=3).beta2(2) == 0
        assert Adafactor(decay_offset=3).beta2(5) == Adafactor().beta2(2)
        assert Adafactor(beta2_cap=0.4).beta2(2) == 0.4

    def test_clip_threshold(self):
        # At t = 1 every |u| is 1 where nothing is factored.
        for d, length in ((0.5, 0.5), (1.0, 1.0), (2.0, 1.0)):
            assert_printed(
                step(Adafactor(lr=0.1, clip_threshold=d), [0, 0], [3, -4]), [-0.1 * length, 0.1 * length], 14
            )

    def test_clamp_keeps_small_updates_small(self):
        # √V = |g| is below eps1, hence u = g / eps1.
        assert_printed(step(Adafactor(lr=1, eps=(0.1, 0), eps_mode="clamp"), [0, 0], [0.01, -0.05]), [-0.1, 0.5], 14)

    def test_place_of_lr_in_momentum(self):
        for inside, moved in ((True, 0.5 * 0.1 + (0.25 * 0.1 + 0.5 * 1)), (False, 0.5 * 0.1 + 0.75 * 1)):
            ref = Adafactor(beta1=0.5, lr=1, lr_in_momentum=inside, momentum_dtype="float64")
            p = step(ref, [0], [1], lr=0.1)
            assert_printed(step(ref, p, [1], lr=1), [-moved], 14)

    def test_decay_scales(self):
        # û = 0, and RMS(p) = 2 of the p before it decays.
        for scale, w in (("lr", 0.5), ("step", 1.0), ("none", 1.0)):
            ref = Adafactor(lr=0.5, scale_parameter=True, weight_decay=0.1, decay_scale=scale)
            assert_printed(step(ref, [2, -2], [0, 0]), [2 - 0.1 * w * 2, -2 + 0.1 * w * 2], 14)
        ref = Adafactor(weight_decay=0.1, decay_scale="step")
        assert_printed(step(ref, [2, -2], [0, 0], lr_scale=0.5), [2 - 0.1 * 0.01 * 2, -2 + 0.1 * 0.01 * 2], 14)
        ref = Adafactor(weight_decay=0.1, decay_scale="none")
        assert_printed(step(ref, [2, -2], [0, 0], lr_scale=0.5), [1.8, -1.8], 14)

    def test_warmup(self):
        ref = Adafactor(warmup_init=True)
        for t in (1, 2):
            step(ref, [2, 2], [1, 1])
            assert_printed([ref.seen["p"]["alpha"]], [2e-6 * t], 18)


@pytest.mark.parametrize(
    ("shape", "factored", "expected"),
    [
        ((2, 3), "last", ((0,), (1,))),
        ((4, 2, 3), "last", ((1,), (2,))),
        ((3,), "last", None),
        ((), "last", None),
        ((4, 2, 3), "largest", ((2,), (0,))),
        ((3, 3), "largest", ((0,), (1,))),
        ((3, 2, 3), "largest", ((0,), (2,))),
        ((3,), "largest", None),
        ((2, 3), "matrix", ((0,), (1,))),
        ((4, 2, 3), "matrix", None),
        ((4, 2, 3), (0, -1), ((0,), (2,))),
        ((4, 2), (0, 2), None),
        ((4,), (0, -1), None),
        ((4, 2, 3), ((0, 1), (2,)), ((0, 1), (2,))),
        ((4, 2, 3), False, None),
    ],
)
def test_factored_dims(shape, factored, expected):
    assert factored_dims(shape, factored, 0) == expected


def test_min_dim_size_counts_entries():
    assert factored_dims((2, 3), "last", 2) == ((0,), (1,))
    assert factored_dims((2, 3), "last", 3) is None
    assert factored_dims((2, 2, 3), ((0, 1), (2,)), 3) == ((0, 1), (2,))


def test_stored():
    assert stored(1 / 3, "float64") == 1 / 3
    assert stored(1 / 3, "float32") == 11184811 / 2**25
    assert stored(1 / 3, "float16") == 1365 / 2**12
    assert stored(1 / 3, "bfloat16") == 171 / 2**9
    assert stored(1 + 2**-8, "bfloat16") == 1
    assert stored(1 + 3 * 2**-8, "bfloat16") == 1 + 2**-6
    assert stored(-(1 + 3 * 2**-8), "bfloat16") == -(1 + 2**-6)


class TestGradient:
    def moved(self, **options):
        """How far plain SGD at lr 1 moves parameters from 0 down the gradients (3, -4) and 12: the gradient in use."""
        params = {"a": np.zeros(2), "b": np.array(0.0)}
        grads = {"a": np.array([3.0, -4.0]), "b": np.array(12.0)}
        new = Lars(lr=1.0, momentum=0, adapt=False, **options).step(params, grads)
        return [*(-new["a"]).tolist(), -float(new["b"])]

    def test_off(self):
        assert self.moved(max_grad_norm=0, max_grad_norm_per_tensor=0, max_grad_value=0) == [3, -4, 12]

    def test_maximize(self):
        assert self.moved(maximize=True) == [-3, 4, -12]

    def test_value(self):
        assert_printed(self.moved(max_grad_value=3.5), [3, -3.5, 3.5], 13)

    def test_norm_per_tensor(self):
        assert_printed(self.moved(max_grad_norm_per_tensor=6), [3, -4, 6], 13)
        assert_printed(self.moved(max_grad_norm_per_tensor=1), [0.6, -0.8, 1], 13)

    def test_norm_of_all(self):
        assert_printed(self.moved(max_grad_norm=13), [3, -4, 12], 13)
        assert_printed(self.moved(max_grad_norm=1), [3 / 13, -4 / 13, 12 / 13], 13)

    def test_order(self):
        moved = self.moved(maximize=True, max_grad_value=4, max_grad_norm_per_tensor=2.5, max_grad_norm=1)
        assert_printed(moved, [-1.5 / math.sqrt(12.5), 2 / math.sqrt(12.5), -2.5 / math.sqrt(12.5)], 13)


REFERENCES = {
    "lamb": lambda **more: Lamb(lr=0.1, weight_decay=0.01, **more),
    "lars": lambda **more: Lars(lr=0.1, weight_decay=0.01, **more),
    "adafactor": lambda **more: Adafactor(weight_decay=0.01, beta1=0.9, momentum_dtype="float64", **more),
}


@pytest.mark.parametrize("kind", REFERENCES)
class TestEach:
    def data(self, shape, seed=0):
        """Random parameters and the gradients of three steps."""
        random = np.random.default_rng(seed)
        return random.normal(size=shape), [random.normal(size=shape) for _ in range(3)]

    def test_unknown_option(self, kind):
        with pytest.raises(TypeError):
            REFERENCES[kind](no_such_option=1)

    def test_inputs_are_left_alone(self, kind):
        p, (g, *_) = self.data((2, 3))
        p_before, g_before = p.copy(), g.copy()
        new = REFERENCES[kind](max_grad_norm=0.1, maximize=True).step({"p": p}, {"p": g})["p"]
        assert (p == p_before).all()
        assert (g == g_before).all()
        assert new is not p
        assert (new != p).all()

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,), (2, 1, 3)])
    def test_any_shape(self, kind, shape):
        p, grads = self.data(shape)
        ref = REFERENCES[kind]()
        for g in grads:
            p = step(ref, p, g)
        assert p.shape == shape
        assert p.dtype == np.float64
        assert all(math.isfinite(x) for x in p.reshape(-1).tolist())

    @pytest.mark.parametrize(("axis", "sizes"), [(0, [1, 3]), (1, [2, 2, 1]), (-1, [4, 1]), (0, [4])])
    def test_blocks_are_tensors_of_their_own(self, kind, axis, sizes):
        p, grads = self.data((4, 5))
        whole = REFERENCES[kind](blocks={"p": (axis, sizes)}, max_grad_norm=2, max_grad_norm_per_tensor=1.5)
        parts = REFERENCES[kind](max_grad_norm=2, max_grad_norm_per_tensor=1.5)
        cuts = [sum(sizes[:k]) for k in range(1, len(sizes))]
        pieces = {str(k): x for k, x in enumerate(np.split(p, cuts, axis))}
        for g in grads:
            p = step(whole, p, g)
            pieces = parts.step(pieces, {str(k): x for k, x in enumerate(np.split(g, cuts, axis))})
            assert off_by(p, np.concatenate(list(pieces.values()), axis)) == 0
            assert whole.seen["p"] == list(parts.seen.values())

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_dropped_axis(self, kind, axis):
        p, grads = self.data((2, 3, 4))
        n = p.shape[axis]
        whole, parts = REFERENCES[kind](blocks={"p": (axis, [1] * n, True)}), REFERENCES[kind]()
        pieces = {str(k): p.take(k, axis) for k in range(n)}
        for g in grads:
            p = step(whole, p, g)
            pieces = parts.step(pieces, {str(k): g.take(k, axis) for k in range(n)})
            assert off_by(p, np.stack(list(pieces.values()), axis)) == 0

    def test_a_name_without_gradient_waits(self, kind):
        p, (g, *_) = self.data((2, 3))
        late, fresh = REFERENCES[kind](), REFERENCES[kind]()
        new = late.step({"a": p, "b": p}, {"a": g})
        assert (new["b"] == p).all()
        assert new["b"] is not p
        assert late.count == {"a": 1}
        assert (late.step({"a": new["a"], "b": p}, {"a": g, "b": g})["b"] == fresh.step({"b": p}, {"b": g})["b"]).all()

    def test_step_overrides(self, kind):
        p, (g, *_) = self.data((2, 3))
        make = {"lamb": Lamb, "lars": Lars, "adafactor": Adafactor}[kind]
        given = step(make(lr=0.02, weight_decay=0.3), p, g)
        assert off_by(step(make(lr=0.5), p, g, lr=0.02, weight_decay=0.3), given) == 0
        assert off_by(step(make(lr=0.01, weight_decay=0.3), p, g, lr_scale=2.0), given) < 1e-15


@pytest.mark.parametrize("kind", REFERENCES)
def test_nan_is_not_lost(kind):
    p, g = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, math.nan], [1.5, 0.5]])
    assert np.isnan(step(REFERENCES[kind](max_grad_norm=1), p, g)).all()
    assert np.isnan(step(REFERENCES[kind](), p, g)).all()


def test_lr_scale_reaches_relative_step_and_decay():
    p, g = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, -2.0], [1.5, 0.5]])
    scaled = step(Adafactor(weight_decay=0.1), p, g, lr_scale=0.5)
    assert off_by(scaled, step(Adafactor(weight_decay=0.1, lr_cap=5e-3), p, g)) < 1e-15
