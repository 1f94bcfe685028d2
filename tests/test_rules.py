"""The rules, on every array namespace, against the references, the papers' consequences and other people's numbers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from cases import CASES, Case, case_of
from namespaces import NAMESPACES, Namespace, trajectory
from oracles import ORACLES, WORLD, matches_reference
from reference.paths import NUMPY, close, data, path

from layerwise import preset
from layerwise.drivers import TensorRun, drive_whole
from layerwise.rules.arrays import apply_moves
from layerwise.rules.requests import Now

IN_JAX, DRAWS = (8, 32) if os.environ.get("CI") else (1, 2)  # of options, for each of which JAX compiles
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
# Outside of jit, JAX compiles each operation by itself.
SLOWLY = {space.name: [pytest.mark.thinned(2)] for space in NAMESPACES if space.name == "jax"}
each_namespace = pytest.mark.parametrize(
    "space", [pytest.param(space, id=space.name, marks=SLOWLY.get(space.name, [])) for space in NAMESPACES]
)


@pytest.mark.parametrize("oracle", ORACLES)
def test_the_rules_satisfy(oracle: str) -> None:
    ORACLES[oracle](WORLD)


@each_namespace
@each_case
def test_every_namespace_gives_the_reference_s_numbers(case: Case, space: Namespace, jax64: Any) -> None:
    for seed in range(IN_JAX if space.module == "jax.numpy" else DRAWS):
        matches_reference(WORLD, case, case.drawn(seed), seed, space)


@pytest.mark.parametrize("space", [one for one in NAMESPACES if one.name != "jax"], ids=lambda space: space.name)
@each_case
@pytest.mark.thinned(2)
def test_float32_differs_from_float64_by_rounding_only(case: Case, space: Namespace, jax64: Any) -> None:
    params, grads = ([np.float32(x) for x in xs] for xs in (data(5)[0], data(5)[1][0]))
    settings = case.hyper(lr=0.1)
    exact = trajectory(NUMPY, case.rule, settings, params, [grads] * 3)
    rounded = trajectory(space, case.rule, settings, params, [grads] * 3, dtype="float32")
    for ours, theirs in zip(rounded, exact, strict=True):
        close(ours, theirs, 1e-6 * case.magnifies)


@pytest.mark.parametrize(
    ("case", "option", "value"),
    [
        pytest.param(case, option, value, id=f"{case.name}-{option}-{getattr(value, '__name__', value)}")
        for case in CASES
        for option, value in case.unusual()
    ],
)
def test_every_option_changes_the_path(case: Case, option: str, value: Any) -> None:
    without, with_it = case.alone(option, value)
    params, grads = data(11)
    lrs = None if case.options["lr"][0] is None or option == "lr" else [0.1, 0.02, 0.3, 0.1]
    paths = [path(WORLD, case.hyper(**options), params, grads, lrs) for options in (without, with_it)]
    difference = max(float(np.max(np.abs(a - b))) for a, b in zip(paths[0][-1], paths[1][-1], strict=True))
    assert difference > 1e-7, f"{option}={value!r} is accepted and ignored"


@each_case
def test_a_rule_only_returns_what_keep_answers(case: Case) -> None:
    for options in (case.usual(), case.busy, *(case.alone(*one)[1] for one in case.unusual())):
        for shape in ((7,), (3, 2)):
            case.hands_on(shape, options)


@each_case
def test_a_rule_says_if_it_reads_weights_that_do_not_decay(case: Case) -> None:
    params, grads = data(3)
    options = {**case.busy, "weight_decay": 0.0}
    there, elsewhere = (path(WORLD, case.hyper(**options), [p + x for p in params], grads) for x in (0, 1))
    same = all(np.allclose(a + 1, b) for a, b in zip(there[-1], elsewhere[-1], strict=True))
    assert case.hyper(**options).reads_weights or same


ALONE = {"weight_decay": 0.0, "decay": "decoupled", "adapt": False, "scale_parameter": False, "normalize": "gradient"}
WITHOUT_NORMS = [case for case in CASES if case.name != "Fromage"]  # which are infinite


@pytest.mark.every
@pytest.mark.parametrize("case", WITHOUT_NORMS, ids=lambda case: case.name)
def test_decay_that_is_off_leaves_infinite_weights_though_the_rate_is_an_array(case: Case, jax64: Any) -> None:
    """0 times inf is nan."""
    options = {name: value for name, value in ALONE.items() if name in case.options}
    space, p, g = NAMESPACES[6], np.full((2, 3), np.inf), np.arange(1.0, 7).reshape(2, 3)
    settings = case.hyper(lr=0.1, **options).fit(g.shape, (), 1e-16)
    shapes = case.rule.shapes(settings, g.shape)
    state = type(shapes)(*(None if s is None else space.xp.zeros(s) for s in shapes))
    now = Now(space.xp.asarray(1.0), space.xp.asarray(0.1), 0.0)
    [[done]] = drive_whole(space.xp, [TensorRun((case.rule.step(space.xp, p, g, state, settings, now),), g.shape)])
    np.testing.assert_array_equal(apply_moves(space.xp, p, done.moves), p)


@each_case
def test_stats_are_what_the_step_used(case: Case) -> None:
    p, g = np.array([[3.0, 4.0]]), np.array([[1.0, 2.0]])
    opt = case.numpy(lr=0.5, **(case.measured or {}))
    before = p.copy()
    opt.step("w", p, g)
    stats = opt.stats()["w"]
    if case.measured is None:
        assert stats.keys() >= {"trust_ratio", "update_norm"}
    elif "update_norm" in stats:
        moved = np.linalg.norm(p - before)
        np.testing.assert_allclose(moved, 0.5 * stats["trust_ratio"] * stats["update_norm"], rtol=1e-12)
    else:  # no norm of the update is measured, and so there is no ratio
        assert stats["trust_ratio"] == 1.0
    if "weight_norm" in stats:
        np.testing.assert_allclose(stats["weight_norm"], 5.0)


def test_decay_powers_keep_float32_s_digits_where_the_step_is_an_array() -> None:
    xp = NAMESPACES[1]
    settings = case_of("Lamb").hyper(lr=0.1, adapt=False, betas=(0.9, 0.999), eps=1e-12)
    p, g = [np.float32(np.ones(3))], [[np.float32([1e-3, 1.0, 1e3])]]
    [[moved]] = trajectory(xp, case_of("Lamb").rule, settings, p, g, dtype="float32")
    # The first step of Adam is lr·sign(g), whatever the betas; 1 − 0.999 in float32 would be off by 5e-5 of that.
    np.testing.assert_allclose(moved, 0.9, rtol=2e-7)


@each_case
def test_meta_gradients_are_finite_and_right_also_at_zero(case: Case, jax64: Any) -> None:
    """Of a loss after two steps, by the rate and by the weights."""
    jax, space = jax64, NAMESPACES[6]
    g = np.array([[0.0, 0.25], [-0.5, 0.0]])
    settings, rule = case.hyper(lr=0.1, **case.smooth).fit(g.shape, (), 1e-16), case.rule
    shapes = rule.shapes(settings, g.shape)

    def loss(lr: Any, start: Any) -> Any:
        p, state = start, type(shapes)(*(None if s is None else space.xp.zeros(s) for s in shapes))
        for t in (1, 2):
            stepping = rule.step(space.xp, p, g + 0.125 * p, state, settings, Now(t, lr, 0.01))
            [[done]] = drive_whole(space.xp, [TensorRun((stepping,), g.shape)])
            p, state = apply_moves(space.xp, p, done.moves), done.state
        return space.xp.sum(p**2)

    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    # The last of these starts where the gradient is zero, exactly: its numbers are powers of two.
    for start in (np.array([[0.5, -1.0], [2.0, 0.1]]), np.zeros((2, 2)), -8.0 * g):
        _, (d_lr, d_p) = both(0.1, start)
        assert np.all(np.isfinite(d_p))
        up, down = (float(both(0.1 + e, start)[0]) for e in (1e-6, -1e-6))
        np.testing.assert_allclose(float(d_lr), (up - down) / 2e-6, rtol=1e-5, atol=1e-7)


@each_case
@pytest.mark.parametrize("of", ["weights", "gradient"])
def test_nan_is_not_hidden_by_a_bound(case: Case, of: str) -> None:
    bounds = {
        "max_weight_norm": 1.0,
        "trust_clip": (0.1, 1.0),
        "max_grad_norm": 1.0,
        "max_grad_norm_per_tensor": 1.0,
        "max_grad_value": 1.0,
        "clip_threshold": 0.5,
        "scale_parameter": True,
    }
    settings = case.hyper(lr=0.1, **{k: v for k, v in bounds.items() if k in case.options})
    bad, good = np.array([1.0, np.nan, 2.0]), np.array([1.0, 3.0, 2.0])
    p, g = (bad, good) if of == "weights" else (good, bad)
    [[moved]] = path(WORLD, settings, [p], [[g]])
    everywhere = of == "gradient" or case.measures_weights
    assert (np.isnan(moved) == (everywhere | np.isnan(p))).all()


@pytest.mark.parametrize("size", [1e-15, 1e-13, 1e-3])
def test_adafactor_s_statistics_do_not_underflow_in_float32(size: float) -> None:
    draw = np.random.default_rng(0)
    p, g = draw.normal(size=(4, 3)), size * draw.normal(size=(4, 3))
    adafactor = case_of("Adafactor")
    for mode in ("add", "clamp"):
        settings = adafactor.hyper(lr=0.1, eps=(1e-30, 1e-3), eps_mode=mode)
        [exact], [rounded] = (
            trajectory(NUMPY, adafactor.rule, settings, [p], [[g]], dtype=dtype) for dtype in ("float64", "float32")
        )
        close(rounded, exact, 1e-6, mode)


def test_adafactor_clamps_where_the_first_gradient_is_zero() -> None:
    adafactor = case_of("Adafactor")
    settings = adafactor.hyper(lr=0.1, eps=(1e-7, 1e-3), eps_mode="clamp")
    [[first], [second]] = path(WORLD, settings, [np.ones((2, 3))], [[np.zeros((2, 3))], [np.ones((2, 3))]])
    np.testing.assert_array_equal(first, 1.0)
    assert np.isfinite(second).all()
    assert (second < 1).all()


@pytest.mark.needs("max_grad_norm")
@pytest.mark.parametrize("space", [space for space in NAMESPACES if not space.jit], ids=lambda space: space.name)
@each_case
@pytest.mark.thinned(1)
def test_a_global_norm_over_two_dtypes_changes_neither(case: Case, space: Namespace, jax64: Any) -> None:
    settings, runs = case.hyper(lr=0.1, max_grad_norm=0.1), []
    for dtype in ("float32", "float64"):
        p, g = space.array(np.ones((2, 3)), dtype), space.array(np.ones((2, 3)), dtype)
        h = settings.fit((2, 3), (), 1e-7)
        zeros = (None if s is None else space.array(np.zeros(s), dtype) for s in case.rule.shapes(h, (2, 3)))
        stepping = case.rule.step(space.xp, p, g, case.rule.State(*zeros), h, Now(1, 0.1, 0.0))
        runs.append((p, TensorRun((stepping,), (2, 3), (), h.needs_model_sum)))
    for (p, _), [done] in zip(runs, drive_whole(space.xp, [run for _, run in runs]), strict=True):
        kept = [x for x in (apply_moves(space.xp, p, done.moves), *done.state) if x is not None]
        assert [x.dtype for x in kept] == [p.dtype] * len(kept)


# ---- what other implementations get wrong and random numbers do not show


def after(step: int, opt: Any, p: Any, g: Any) -> Any:
    """Return the weights after a step that follows so many with the same gradient."""
    opt.step("p", p, g)
    opt.load_state_dict({**opt.state_dict(), "p/step": np.array(step)})
    before = p.copy()
    opt.step("p", p, g)
    return p - before


def test_bias_is_corrected_by_the_step_s_own_number_however_late() -> None:
    """A product of 20,000 rounded factors would have 1 − b2^t wrong by several per cent."""
    t, b1, b2 = 20_000, 0.9, 0.999999
    g = np.array([1.0, 2.0])
    opt = case_of("Lamb").numpy(lr=0.1, betas=(b1, b2), eps=0.0, adapt=False)
    m, v = (1 - b1) * (1 + b1) * g, (1 - b2) * (1 + b2) * g**2
    u = m / (1 - b1 ** (t + 1)) / np.sqrt(v / (1 - b2 ** (t + 1)))
    moved_by = after(t, opt, np.float32([3.0, 4.0]), np.float32(g))
    np.testing.assert_allclose(moved_by, -0.1 * u, rtol=1e-4)


def test_steps_are_counted_beyond_the_integers_of_float16() -> None:
    t = 2048  # the last integer up to which float16 holds all
    g = np.float16([1.0, 2.0])
    opt = case_of("Adafactor").numpy(lr=0.25, factored=False, beta2_decay=-1.0)
    p = np.zeros(2, np.float16)
    after(t, opt, p, g)
    opt.step("p", p, 256 * g)
    assert int(opt.state_dict()["p/step"]) == t + 2
    # V was g², of which 1/t has been replaced; a t that stays at 2048 makes that 0.1 % more.
    wanted = g.astype(float) ** 2 * (1 + (256**2 - 1) / (t + 2))
    np.testing.assert_allclose(opt.state_dict()["p/exp_avg_sq"], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "shape", "size"),
    [
        ("Lars", {"momentum": 0.0}, (6, 4), 0),
        ("SGD", {}, (6, 4), 0),
        ("Adafactor", {}, (6, 4), 6 + 4),
        ("Adafactor", {}, (2, 6, 4), 2 * (6 + 4)),
        ("Adafactor", {"beta1": 0.9}, (6, 4), 6 + 4 + 6 * 4),
        ("NovoGrad", {}, (6, 4), 6 * 4 + 1),
    ],
)
def test_state_is_as_small_as_the_options_allow(name: str, options: Any, shape: Any, size: int) -> None:
    opt = case_of(name).numpy(**options)
    opt.step("p", np.ones(shape), np.ones(shape))
    kept = {key: x for key, x in opt.state_dict().items() if key.startswith("p/") and key not in ("p/step", "p/shape")}
    assert sum(x.size for x in kept.values()) == size, kept.keys()


@pytest.mark.parametrize("order", [("single", "double"), ("double", "single")])
def test_an_epsilon_of_none_is_that_of_each_tensor_s_own_dtype(order: Any) -> None:
    """So small a gradient that eps1 itself is the divisor: u = g / eps1, under the clip."""
    dtypes: Any = {"single": np.float32, "double": np.float64}
    weights = {name: np.zeros(2, dtypes[name]) for name in order}
    case_of("Adafactor").numpy(**preset("torch.Adafactor")).step_all(
        weights, {name: np.full(2, 2.0**-60, dtypes[name]) for name in order}
    )
    for name, dtype in dtypes.items():
        np.testing.assert_allclose(weights[name], -0.01 * 1e-3 * 2.0**-60 / np.finfo(dtype).eps, rtol=1e-6)


@each_case
@pytest.mark.needs("max_grad_norm")
def test_a_bound_of_0_turns_clipping_off(case: Case) -> None:
    bounds = ("max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value")
    found = []
    for off in (None, 0):
        opt, p = case.numpy(lr=0.1, weight_decay=0.1, **dict.fromkeys(bounds, off)), data(1)[0][0].copy()
        opt.step_all({"p": p}, {"p": p + 1})
        found.append(p.tobytes())
    assert found[0] == found[1]
