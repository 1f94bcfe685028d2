"""A step is that of the formulas, in every API: of any dtype and shape, under any options, also without gradients."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from cases import CASES, case_of
from contract.apis import DTYPES, LOW, NEAR, SHAPES, arrays, as_dtype, bits, close, rounded

from layerwise.rules import newton_schulz
from layerwise.rules.newton_schulz import gram

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
clipped = pytest.mark.needs("max_grad_norm")


def as_offered(api, case, seed):
    """Options drawn at random, without those that an API has no place for."""
    options = case.drawn(seed)
    if not api.has("clipping"):
        options = {**options, "maximize": False}
        options = {key: x for key, x in options.items() if not key.startswith("max_grad") and not callable(x)}
    if api.name in ("Keras", "MLX"):  # which hold a rate in float32, also one that they multiply Adafactor's own with
        options["lr"] = float(np.float32(options["lr"] or 0.02))
    return options


def follow(run, oracle, grads, tolerance=1e-12):
    """Steps of both; the oracle's weights begin as the run's."""
    expected = run.weights()
    for t, given in enumerate(grads):
        run.step(given)
        expected = oracle.step(expected, given)
        close(run.weights(), expected, tolerance, hint=(t, run.options))


@pytest.mark.every
@each
@pytest.mark.parametrize("seed", range(2))
def test_steps_are_those_of_the_reference(api, engine, case, seed):
    options = as_offered(api, case, 100 + seed)
    grads = [arrays(1000 * seed + t) for t in range(4)]
    if api.has("own_counts"):  # a tensor without a gradient stays, and counts no step
        grads[1]["vector"] = None
    follow(api.make(case.name, arrays(seed), engine=engine, **options), case.reference(**options), grads)


@pytest.mark.offers("clipping")
@each
@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 0.5, "max_grad_norm_per_tensor": 0.4, "max_grad_value": 0.3, "maximize": True},
        {"max_grad_norm": 0, "max_grad_norm_per_tensor": 0, "max_grad_value": 0},
        {"max_grad_norm": 1e9},
    ],
    ids=["all", "zeros are none", "a bound beyond the gradient"],
)
def test_gradients_are_clipped_as_the_reference_says(api, case, options):
    follow(api.make(case.name, arrays(1), lr=0.125, **options), case.reference(lr=0.125, **options), [arrays(10)] * 2)


@pytest.mark.parametrize("dtype", DTYPES)
@each
def test_every_dtype_follows_the_reference(api, case, dtype):
    run, oracle = api.make(case.name, arrays(2), dtype=dtype, lr=0.125), case.reference(lr=0.125)
    follow(run, oracle, [rounded(arrays(20 + t), dtype) for t in range(3)], 3 * NEAR[dtype])
    assert {name for name, *_ in run.bits().values()} == {dtype}


@pytest.mark.offers("in_place")
@pytest.mark.parametrize("dtype", LOW)
@each
def test_low_precision_is_computed_in_float32_and_rounded_once(api, engine, case, dtype):
    run = api.busy(case.name, arrays(3), dtype=dtype, engine=engine)
    for t in range(3):
        wide = api.busy(case.name, run.weights(), dtype="float32", engine=engine)
        if t:
            wide.load(run.save())
        grads = rounded(arrays(30 + t), dtype)
        run.step(grads)
        wide.step(grads)
        assert bits(run.weights()) == bits(rounded(wide.weights(), dtype))
        for name, state in wide.state().items():  # whose sums may be added up in another order
            for field, x in state.items():
                ulp = 2**-24 * float(np.max(np.abs(x), initial=0))  # of the largest: in others, terms may cancel
                np.testing.assert_allclose(run.state()[name][field], x, rtol=1e-6, atol=ulp, err_msg=field)
    kept = {x.dtype.name for state in run.state().values() for x in state.values() if x.dtype.kind == "f"}
    assert kept <= {"float32"}


@clipped
@pytest.mark.offers("clipping", "in_place")
@each
def test_tensors_of_several_dtypes_share_the_norm_of_all_gradients(api, engine, case):
    dtypes, shapes = {name: name for name in DTYPES}, dict.fromkeys(DTYPES, (3, 2))
    run = api.busy(case.name, arrays(5, shapes), dtype=dtypes, engine=engine, max_grad_norm=0.5)
    wide = api.busy(case.name, run.weights(), max_grad_norm=0.5)
    grads = {name: as_dtype(g, name).astype(np.float64) for name, g in arrays(6, shapes).items()}
    run.step(grads)
    wide.step(grads)
    for name, w in wide.weights().items():
        close({name: run.weights()[name]}, {name: w}, max(NEAR[name], 1e-6))
        assert run.bits()[name][0] == name


@pytest.mark.offers("own_counts")
@each
@pytest.mark.parametrize("bound", [None, 0.5], ids=["apart", "by the norm of all"])
def test_the_order_of_tensors_does_not_matter(api, case, bound):
    """But for the last digit of a norm of all, whose terms are added up as they come."""
    own = {"max_grad_norm": bound} if "max_grad_norm" in case.options else {}
    runs = [api.busy(case.name, dict(order(list(arrays(7).items()))), **own) for order in (iter, reversed)]
    for t in range(3):
        for run in runs:
            run.step(arrays(70 + t))
    one, other = (run.weights() for run in runs)
    if own.get("max_grad_norm"):
        close(one, {name: other[name] for name in one}, 1e-14)
    else:
        assert bits(one) == bits({name: other[name] for name in one})


@pytest.mark.offers("empty")
@each
@pytest.mark.parametrize(
    "options",
    [{}, {"max_grad_norm": 1.0}, {"max_grad_norm_per_tensor": 1.0, "blocks": {"empty 3": "each"}}],
    ids=["plain", "norm of all", "norms and blocks"],
)
def test_tensors_without_elements_are_stepped_and_disturb_nothing(api, engine, case, options):
    empty = {f"empty {i}": np.ones(shape) for i, shape in enumerate([(0,), (0, 3), (3, 0), (2, 0, 3)])}
    run = api.busy(case.name, {**empty, "w": np.ones((2, 3))}, engine=engine, **options)
    alone = api.busy(case.name, {"w": np.ones((2, 3))}, engine=engine, **{**options, "blocks": None})
    for t in range(2):
        g = {"w": arrays(8 + t, {"w": (2, 3)})["w"]}
        run.step({**empty, **g})
        alone.step(g)
    assert bits(run.weights()["w"]) == bits(alone.weights()["w"])
    assert run.opt.num_parameters == 5
    assert all(np.isfinite(x).all() for one in run.stats().values() for x in one.values())
    again = api.again(run)
    assert bits(again.save()) == bits(run.save())


@pytest.mark.parametrize("dtype", DTYPES)
@each
def test_a_number_is_stepped_as_a_vector_of_one(api, case, dtype):
    number, vector = (api.make(case.name, {"w": np.full(shape, 2.0)}, dtype=dtype) for shape in ((), (1,)))
    for g in (0.5, -1.5):
        number.step({"w": np.array(g)})
        vector.step({"w": np.array([g])})
    assert number.weights()["w"].shape == ()
    np.testing.assert_array_equal(number.weights()["w"], vector.weights()["w"][0])


@pytest.mark.offers("groups")
@each
def test_groups_step_with_their_own_options_and_one_norm(api, case):
    """Also a group whose bound of the norm is another, or none: the norm is that of all gradients."""
    names, bounds = list(SHAPES), [0.5, 0.25, None, 0.5]
    if "max_grad_norm" not in case.options:
        pytest.skip("nothing is shared")
    busy = {**case.busy, "lr": 0.125}
    groups = [((name,), {"max_grad_norm": bound}) for name, bound in zip(names, bounds, strict=True)]
    run, free = api.make(case.name, arrays(11), groups=groups, **busy), api.make(case.name, arrays(11), **busy)
    for t in range(2):
        grads = arrays(110 + t)
        norm = np.sqrt(sum((g * g).sum() for g in grads.values()))
        run.step(grads)
        free.step({n: grads[n] / max(1, norm / b if b else 1) for n, b in zip(names, bounds, strict=True)})
    close(run.weights(), free.weights())


def test_matrices_of_one_shape_are_multiplied_at_once(api, engine, monkeypatch):
    """Whatever lies between them, and to the numbers of each by itself."""
    multiplied = []

    def counted(xp, x, *dims):
        multiplied.append(prod(x.shape))
        return gram(xp, x, *dims)

    monkeypatch.setattr(newton_schulz, "gram", counted)
    shapes = {"one": (3, 5), "other": (2, 5), "two": (3, 5), "vector": (4,), "three": (3, 5)}
    options = {"lr": 0.0625, "ns_steps": 4, "weight_decay": 0.03125}
    run = api.make("Muon", arrays(8, shapes), engine=engine, **options)
    follow(run, case_of("Muon").reference(**options), [arrays(80 + t, shapes) for t in range(2)])
    alone = {15} if api.name == "Jax" else set()  # to see what it measures, before the first step
    assert {*multiplied} == {3 * 15, 10, 4} | alone
