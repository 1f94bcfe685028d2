"""What only MLX has: compiled steps, its schedules, its tree of states, several optimizers in one, its own numbers."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from cases import CASES
from contract.apis import arrays, bits, close, numpy_of

mx = pytest.importorskip("mlx.core")

import mlx.nn as nn  # noqa: E402
import mlx.optimizers as theirs  # noqa: E402
from mlx.utils import tree_flatten, tree_map, tree_unflatten  # noqa: E402

import layerwise.mlx as front  # noqa: E402
from layerwise import preset, schedules  # noqa: E402
from layerwise.drivers import drive_whole  # noqa: E402
from layerwise.errors import (  # noqa: E402
    ContradictionError,
    GradientError,
    HyperparameterError,
    ParameterError,
    StateError,
)
from layerwise.mlx import _optimizer  # noqa: E402

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
OWN_RATE = {"relative_step": False, "scale_parameter": True}
SHAPES = {"matrix": (4, 3), "vector": (5,)}


@pytest.fixture(autouse=True)
def cpu():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def tree(seed, dtype=mx.float32, shapes=SHAPES, size=1.0):
    return {name: mx.array(size * x, dtype=dtype) for name, x in arrays(seed, shapes).items()}


def model(small=False):
    mx.random.seed(0)
    return nn.Linear(4, 1) if small else nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


X = mx.array(np.random.default_rng(0).normal(size=(32, 4)), dtype=mx.float32)
Y = X @ mx.array([[1.0], [2.0], [-1.0], [0.5]])


def loss(made):
    return mx.mean(mx.square(made(X) - Y))


def trained(optimizer, steps, made=None, compiled=False):
    """A model, or the given one, after some steps."""
    made = made or model()
    kept = [made.state, optimizer.state]

    def step():
        optimizer.update(made, nn.value_and_grad(made, loss)(made)[1])

    stepping = mx.compile(step, inputs=kept, outputs=kept) if compiled else step
    for _ in range(steps):
        stepping()
        mx.eval(kept)
    return made


def weights(made):
    return {name: numpy_of(w) for name, w in tree_flatten(made.parameters())}


def saved(optimizer, path):
    """A state as it comes back from a file."""
    mx.save_safetensors(str(path), dict(tree_flatten(optimizer.state)))
    found = mx.load(str(path))
    mx.eval(found)
    return tree_unflatten([*found.items()])


# ---- compiled
# MLX has a compiler of C++ make each kernel of a CPU, which takes a second or two.


@pytest.mark.slow
def test_a_compiled_step_is_the_step_and_follows_a_schedule_and_a_rate_set_by_hand():
    def rate(step):
        return 0.05 * 0.5 ** (step / 2)

    options = {"weight_decay": 0.1, "max_grad_norm": 0.5}
    ends = [weights(trained(front.Lamb(rate, **options), 4, compiled=one)) for one in (True, False)]
    close(*ends, 1e-6)
    by_hand, made = front.Lamb(0.05, **options), model()
    for step in range(4):
        by_hand.learning_rate = rate(step)
        trained(by_hand, 1, made, compiled=True)
    close(weights(made), ends[0], 1e-5)
    assert (
        np.abs(weights(trained(front.Lamb(0.05, **options), 4))["layers.0.weight"] - ends[0]["layers.0.weight"]).max()
        > 1e-3
    )


@pytest.mark.parametrize("name", [pytest.param("Adafactor", marks=pytest.mark.slow), "SGD"])
def test_a_run_that_was_saved_compiled_goes_on_bit_for_bit(name, tmp_path):
    """SGD without momentum keeps no state of a parameter."""
    run = getattr(front, name)(theirs.cosine_decay(0.05, 10), weight_decay=theirs.linear_schedule(0.0, 0.1, 10))
    made, again = trained(run, 3, model(small=True), compiled=True), model(small=True)
    other = getattr(front, name)(theirs.cosine_decay(0.05, 10), weight_decay=theirs.linear_schedule(0.0, 0.1, 10))
    again.update(tree_map(mx.array, made.parameters()))
    other.state = saved(run, tmp_path / "state.safetensors")
    assert int(other.step) == 3
    for optimizer, one in ((run, made), (other, again)):
        trained(optimizer, 3, one, compiled=True)
    assert bits(weights(made)) == bits(weights(again))
    assert bits(dict(tree_flatten(run.state))) == bits(dict(tree_flatten(other.state)))


@pytest.mark.slow
def test_beta2_may_be_a_function_of_the_step_in_a_compiled_step():
    def falling(step):
        return 1 - (step + 1) ** -0.8

    for pair in ((falling, None), (lambda step: 0.5, 0.5)):
        ends = [trained(front.Adafactor(0.05, beta2=one), 3, model(small=True), compiled=True) for one in pair]
        close(*map(weights, ends), 1e-5)


# ---- its schedules


@pytest.mark.parametrize(
    "rate",
    [theirs.join_schedules([theirs.linear_schedule(0.0, 0.1, 2), theirs.step_decay(0.1, 0.5, 2)], [2]),
     schedules.Polynomial(0.1, total=5, warmup=2)],
    ids=["theirs", "ours"],
)  # fmt: skip
def test_a_schedule_gives_the_rate_of_the_step_and_stays_readable(rate):
    opt, p, g = front.SGD(rate, weight_decay=lambda step: 0.1 * step), tree(0), tree(1)
    assert opt.learning_rate.item() == 0.0
    for step in range(4):
        wanted = {x: numpy_of(p[x]) - float(rate(step)) * numpy_of(g[x] + 0.1 * step * p[x]) for x in p}
        p = opt.apply_gradients(g, p)
        assert opt.learning_rate.item() == pytest.approx(float(rate(step)), rel=1e-6)
        close({name: numpy_of(x) for name, x in p.items()}, wanted, 1e-6)
    with pytest.raises(ContradictionError, match=r"`learning_rate` must be set by its schedule only, but is 0\.5"):
        opt.learning_rate = 0.5


def test_a_schedule_that_answers_with_no_number_changes_nothing():
    opt, p = front.Lamb(lambda step: 0.1 if step < 1 else float("nan")), tree(0)
    opt.apply_gradients(tree(1), p)
    before = bits(dict(tree_flatten(opt.state)))
    with pytest.raises(HyperparameterError, match=r"`learning_rate\(step\)` must be a finite number ≥ 0, but is nan"):
        opt.apply_gradients(tree(1), p)
    assert bits(dict(tree_flatten(opt.state))) == before
    with pytest.raises(HyperparameterError, match=r"`weight_decay\(step\)` must be .* but is None"):
        front.Lamb(weight_decay=lambda step: None)


# ---- its ways


def test_frozen_parameters_stay_and_are_stepped_once_they_are_not():
    made, opt = model(), front.Lamb(0.05)
    made.layers[0].freeze()
    before = weights(made)
    trained(opt, 2, made)
    assert {name: bool((w != before[name]).any()) for name, w in weights(made).items()} == {
        "layers.0.weight": False, "layers.0.bias": False, "layers.2.weight": True, "layers.2.bias": True,
    }  # fmt: skip
    made.unfreeze()
    trained(opt, 1, made, compiled=False)
    assert all((w != before[name]).any() for name, w in weights(made).items())


@pytest.mark.parametrize("name", ["Lamb", "Lars", "Adafactor"])
def test_one_array_may_be_stepped_by_itself(name):
    opt, p, g = getattr(front, name)(0.05), tree(0), tree(1)
    whole = opt.apply_gradients(g, p)
    state = {}
    opt.init_single(p["matrix"], state)
    assert bits(opt.apply_single(g["matrix"], p["matrix"], state)) == bits(whole["matrix"])
    assert bits(state) == bits(opt.state["matrix"])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)], ids=str)
@pytest.mark.parametrize("rule", [front.NovoGrad, front.AdamMini, front.Lamb])
def test_empty_arrays_of_float64_have_norms_and_state_of_their_shape(rule, shape):
    empty = {"none": mx.zeros(shape, dtype=mx.float64)}
    run = rule(0.1, max_grad_norm=1.0)
    for _ in range(2):
        assert run.apply_gradients(empty, empty)["none"].shape == shape
    assert run.state["none"]["exp_avg"].shape == shape
    if rule is not front.Lamb:
        assert run.state["none"]["exp_avg_sq"].shape == (1,) * len(shape)


def test_empty_arrays_stay_empty_and_disturb_nothing():
    empty = {"none": mx.zeros((0, 3)), "nothing": mx.zeros((0,))}
    for case in CASES:
        alone, beside = (getattr(front, case.name)(0.05) for _ in range(2))
        found = beside.apply_gradients({**tree(1), **empty}, {**tree(0), **empty})
        assert found["none"].shape == (0, 3)
        assert bits(found["matrix"]) == bits(alone.apply_gradients(tree(1), tree(0))["matrix"])


@pytest.mark.parametrize("name", ["AdamW", "Muon", "Adafactor"])
def test_tensors_of_other_dtypes_and_shapes_step_as_they_do_alone(name):
    shapes = {"matrix": (4, 3), "wide": (3, 8)}
    p = {**tree(0, shapes=shapes), "double": tree(0, mx.float64)["matrix"], "half": tree(0, mx.bfloat16)["matrix"]}
    g = {key: mx.ones_like(x) + x for key, x in p.items()}
    together = getattr(front, name)(0.05, weight_decay=0.1).apply_gradients(g, p)
    for key, x in p.items():
        alone = getattr(front, name)(0.05, weight_decay=0.1).apply_gradients({key: g[key]}, {key: x})
        assert bits(alone[key]) == bits(together[key]), key


@pytest.mark.every
@each
def test_small_tensors_that_are_alike_step_as_alone(case):
    alike = {f"{name}{i}": shape for name, shape in SHAPES.items() for i in range(3)}
    p, grads = tree(0, shapes=alike), [tree(n, shapes=alike) for n in (1, 2)]

    options = {key: value for key, value in case.busy.items() if key not in ("lr", "max_grad_norm")}

    def stepped(names):
        opt, params = getattr(front, case.name)(0.05, **options), {name: p[name] for name in names}
        for g in grads:
            params = opt.apply_gradients({name: g[name] for name in names}, params)
        return {name: {"p": params[name], **opt.state[name]} for name in names}

    together = stepped(alike)
    for name in alike:
        close(stepped([name])[name], together[name], 2e-6, options)


@pytest.mark.parametrize(("name", "compiled"), [("AdamW", 4), ("Lamb", 2)])
def test_small_tensors_that_are_alike_are_one_where_that_is_faster(name, compiled, monkeypatch):
    runs = []
    monkeypatch.setattr(_optimizer, "drive_whole", lambda xp, of: runs.append(len(of)) or drive_whole(xp, of))
    p = {str(i): mx.ones(5) for i in range(3)} | {"large": mx.ones(5000)}
    plain, opt = (getattr(front, name)(0.05) for _ in range(2))
    opt.init(p)
    step = mx.compile(opt.apply_gradients, inputs=opt.state, outputs=opt.state)
    found, wanted = step(p, p), plain.apply_gradients(p, p)
    assert runs == [compiled, 2]
    close({key: numpy_of(x) for key, x in found.items()}, {key: numpy_of(x) for key, x in wanted.items()}, 1e-6)


def test_momentum_may_be_stored_in_bfloat16():
    opt = front.AdamW(0.1, momentum_dtype="bfloat16")
    opt.init(tree(0, mx.float16))
    assert [x.dtype for x in opt.state["matrix"].values()] == [mx.bfloat16, mx.float32]
    opt.apply_gradients(tree(1, mx.float16), tree(0, mx.float16))
    assert [x.dtype for x in opt.state["matrix"].values()] == [mx.bfloat16, mx.float32]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))], ids=["deep", "pickled"]
)
@pytest.mark.parametrize("name", ["AdamW", "Lamb", "Adafactor", "Muon"])
def test_an_optimizer_with_state_can_be_copied_and_goes_on_alike(name, copied):
    opt, p = getattr(front, name)(0.05), tree(0)
    p = opt.apply_gradients(tree(1), p)
    other = copied(opt)
    ends = [one.apply_gradients(tree(2), p) for one in (opt, other)]
    assert bits(ends[0]) == bits(ends[1])
    assert bits(dict(tree_flatten(opt.state))) == bits(dict(tree_flatten(other.state)))


# ---- what surely goes wrong


def said(step):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", ["Lamb", "Lars", "Lans"])
def test_adapted_parameters_that_begin_at_zero_are_named_once(name):
    opt, p = getattr(front, name)(0.05), {**tree(0), "bias": mx.zeros(3), "nothing": mx.zeros(0)}
    [first] = said(lambda: opt.init(p))
    assert first.startswith("bias began at zero, and will hardly move")
    assert said(lambda: opt.apply_gradients(p, p)) == []
    assert said(lambda: opt.init({**p, "more": mx.zeros(2)}))[0].startswith("more began at zero")


@pytest.mark.parametrize(("name", "options"), [("AdamW", {}), ("Lamb", {"adapt": False}), ("Lamb", {"min_norm": 0.1})])
def test_parameters_that_the_ratio_does_not_hold_are_not_named(name, options):
    assert said(lambda: getattr(front, name)(0.05, **options).init({"bias": mx.zeros(3)})) == []


@pytest.mark.slow
def test_a_compiled_step_has_no_values_to_look_at():
    made, opt = model(small=True), front.Lamb(0.05)
    made.bias = mx.zeros(1)
    assert said(lambda: trained(opt, 1, made, compiled=True)) == []


# ---- rules for matrices


def language_model():
    mx.random.seed(0)
    return nn.Sequential(nn.Embedding(10, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("exclude", "hidden"),
    [
        (None, {"layers.1.weight", "layers.2.weight"}),
        ([], {"layers.1.weight", "layers.2.weight", "layers.4.weight"}),
        ([r"layers\.[12]\."], {"layers.4.weight"}),
    ],
)
def test_muon_steps_hidden_matrices_and_another_the_rest(exclude, hidden):
    made = language_model()
    rest = front.AdamW(0.001, weight_decay=0.0)
    opt = theirs.MultiOptimizer([front.Muon(0.02), rest], [front.hidden_matrices(made, exclude)])
    start, params = weights(made), made.trainable_parameters()
    assert said(lambda: opt.update(made, tree_map(mx.ones_like, params))) == []
    of_muon = {path.removesuffix(".momentum_buffer") for path, _ in tree_flatten(opt.optimizers[0].state)}
    assert of_muon - {"step", "learning_rate"} == hidden
    moved = {name: np.abs(w - start[name]).max() for name, w in weights(made).items()}
    assert all(x == pytest.approx(0.001, rel=1e-2) for name, x in moved.items() if name not in hidden)


def test_muon_says_that_it_is_not_for_vectors():
    [first] = said(lambda: front.Muon(0.02).init({"bias": mx.ones(3), "matrix": mx.ones((3, 2))}))
    assert first.startswith("Muon is for hidden matrices, but also steps other parameters: 'bias'. ")


def test_a_choice_of_matrices_that_cannot_be_is_refused():
    with pytest.raises(HyperparameterError, match=r"`exclude_layers` must be patterns that each match a path"):
        front.hidden_matrices(language_model(), ["head"])
    with pytest.raises(ParameterError, match=r"`model` must be an mlx\.nn\.Module, but is a dict"):
        front.hidden_matrices({})


# ---- numbers


@pytest.mark.parametrize(
    ("ours", "peer"),
    [
        (lambda: front.Adafactor.like("mlx.Adafactor", weight_decay=0.1), lambda: theirs.Adafactor(weight_decay=0.1)),
        (
            lambda: front.Adafactor.like("mlx.Adafactor", 0.05, **OWN_RATE, beta1=0.9, weight_decay=0.1),
            lambda: theirs.Adafactor(0.05, relative_step=False, beta_1=0.9, weight_decay=0.1),
        ),
        (
            lambda: front.Adafactor(**preset("mlx.Adafactor", warmup_init=True, clip_threshold=0.5)),
            lambda: theirs.Adafactor(warmup_init=True, clip_threshold=0.5),
        ),
        (
            lambda: front.AdamW(0.05, weight_decay=0.1),
            lambda: theirs.AdamW(0.05, weight_decay=0.1, bias_correction=True),
        ),
        (lambda: front.SGD(0.05, momentum=0.9, nesterov=True), lambda: theirs.SGD(0.05, momentum=0.9, nesterov=True)),
    ],
    ids=["Adafactor", "with a rate", "warm", "AdamW", "SGD"],
)
def test_numbers_are_those_of_mlx(ours, peer):
    same_numbers(ours, peer, {**SHAPES, "stack": (2, 3, 4)})


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.5, "momentum": 0.5}, {"nesterov": False, "ns_steps": 2}])
def test_with_its_preset_muon_steps_matrices_as_mlx_s_does(options):
    matrices = {"matrix": (4, 3), "wide": (3, 8)}
    same_numbers(lambda: front.Muon.like("mlx.Muon", 0.05, **options), lambda: theirs.Muon(0.05, **options), matrices)


def same_numbers(ours, peer, shapes):
    ends = []
    for opt in (ours(), peer()):
        p = tree(0, shapes=shapes)
        for t in range(4):
            p = opt.apply_gradients(tree(10 + t, shapes=shapes), p)
        ends.append({name: numpy_of(w) - numpy_of(tree(0, shapes=shapes)[name]) for name, w in p.items()})
    close(*ends, 1e-5)


def test_presets_are_spelled_as_mlx_does():
    assert front.Adafactor.like("transformers.Adafactor-T5").learning_rate.item() == pytest.approx(1e-3)
    assert front.Lamb.like("apex.FusedLAMB", 0.25, eps=0.5)._h.eps == 0.5


@pytest.mark.parametrize("n", [2_000_000, 1_999_993])
def test_sums_over_two_million_numbers_keep_the_digits_of_float32(n):
    """MLX's own lose two of three digits on a CPU, and squares of such sizes do not fit float32."""
    drawn = np.exp(4 * np.random.default_rng(0).normal(size=n)).astype(np.float32)
    for given in (np.full(n, 0.1, np.float32), drawn, drawn * np.float32(1e25), drawn * np.float32(1e-30)):
        x, exact, xp = mx.array(given), given.astype(np.float64), _optimizer.MlxFunctions()
        total = xp.sum(x, axis=(0,), keepdims=True)
        np.testing.assert_allclose(total.item(), exact.sum(), rtol=2e-7)
        norm = xp.length(xp.squares(x, (0,)))
        np.testing.assert_allclose(norm.item(), np.linalg.norm(exact), rtol=1e-7)


@pytest.mark.parametrize(
    ("shape", "axis"), [((24, 30), (0,)), ((24, 30), (1,)), ((24, 30), (0, 1)), ((5, 16, 7), (1, 2))]
)
def test_sums_along_some_dimensions_are_over_all_of_them(shape, axis):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = _optimizer.MlxFunctions().sum(mx.array(x), axis=axis, keepdims=True)
    np.testing.assert_allclose(numpy_of(found), x.sum(axis=axis, keepdims=True), rtol=0, atol=1e-5)


def test_the_sign_of_the_smallest_numbers_is_a_sign_and_nan_stays():
    for dtype, own in ((np.float32, mx.float32), (np.float64, mx.float64)):
        small = np.finfo(dtype).smallest_subnormal
        x = mx.array(np.array([small, -small, 0, 3, -np.inf, np.inf, np.nan], dtype), dtype=own)
        signs = numpy_of(_optimizer.MlxFunctions().signs(x))
        np.testing.assert_array_equal(signs, [1, -1, 0, 1, -1, 1, np.nan])


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_norms_fit_float32_where_there_is_no_float64(monkeypatch, size):
    """As on Apple's GPUs."""
    monkeypatch.setattr(_optimizer, "_on_processor", lambda: False)
    for opt in (front.Lars(1.0, trust_coefficient=0.125, momentum=0.0), front.Lamb(0.125)):
        p = tree(0, size=size)
        found = opt.apply_gradients(tree(1), p)
        for name, x in p.items():
            moved = np.linalg.norm((numpy_of(found[name]) - numpy_of(x)).astype(np.float64))
            np.testing.assert_allclose(moved, 0.125 * np.linalg.norm(numpy_of(x).astype(np.float64)), rtol=1e-4)
    both = front.SGD(1.0, max_grad_norm=1.0)
    zeros = tree_map(mx.zeros_like, tree(0))
    for name in SHAPES:  # the norm of all, of which the others have nothing
        found = both.apply_gradients({**zeros, name: tree(1, size=max(size, 1.0))[name]}, zeros)
        np.testing.assert_allclose(np.linalg.norm(numpy_of(found[name])), 1.0, rtol=1e-5)
    found = front.SGD(1.0, max_grad_norm=1.0).apply_gradients(tree(1, size=1e25), zeros)
    together = np.sqrt(sum(np.sum(numpy_of(x).astype(np.float64) ** 2) for x in found.values()))
    np.testing.assert_allclose(together, 1.0, rtol=1e-5)


# ---- refused


def test_a_rate_that_is_none_is_refused_when_it_is_set():
    opt = front.Lamb(0.125)
    with pytest.raises(HyperparameterError, match=r"`learning_rate` must be a finite number ≥ 0, but is -1\.0"):
        opt.learning_rate = -1.0
    assert opt.learning_rate.item() == 0.125


def refused(error, says, gradients, parameters, opt=None):
    opt = opt or front.Lamb()
    before = bits(dict(tree_flatten(opt.state)))
    with pytest.raises(error, match=says):
        opt.apply_gradients(gradients, parameters)
    assert bits(dict(tree_flatten(opt.state))) == before


@pytest.mark.parametrize("other", [front.Lars, lambda: front.Lamb(keep_norm="first")], ids=["rule", "options"])
def test_a_state_that_does_not_fit_is_named_and_changes_nothing(other):
    saved_by, opt, p = other(), front.Lamb(), tree(0)
    saved_by.init(p)
    opt.state = saved_by.state
    refused(StateError, "the state of matrix does not fit Lamb: it has", tree(1), p, opt)
    opt.state = {**opt.state, "matrix": {"exp_avg": mx.zeros((3, 4)), "exp_avg_sq": mx.zeros((4, 3))}}
    refused(StateError, r"the state of matrix .*\(3, 4\).*\(4, 3\)", tree(1), p, opt)


def test_a_model_in_another_place_is_named():
    model, opt = nn.Linear(2, 2), front.Lamb(0.1)
    grads = {"weight": mx.ones((2, 2)), "bias": mx.ones(2)}
    with pytest.raises(HyperparameterError, match=r"but is Linear.*The model goes to opt\.update"):
        front.Lamb(model, 0.1)
    with pytest.raises(ParameterError, match=r"`model` must be an mlx\.nn\.Module, .* Call update\(model, gradients\)"):
        opt.update(grads, model)
    with pytest.raises(GradientError, match=r"`gradients` must be a tree of arrays, but is None\."):
        opt.update(model, None)
    assert mx.all(grads["bias"] == 1).item()


def test_options_of_a_made_optimizer_are_fixed():
    opt = front.Lamb(0.1)
    with pytest.raises(ContradictionError, match=r"`betas` of Lamb is fixed when it is made\. Make another"):
        opt.betas = (0.9, 0.99)
    with pytest.warns(UserWarning, match=r"no attribute 'learning_rat', so nothing reads it"):
        opt.learning_rat = 0.2
    opt.learning_rate = 0.2
