"""Train in one, continue in the other: optax, the PyTorch API, and back; also in few bytes and turned dimensions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_front.front import FRONTS, NAMES, close, goes_on, gradients, made, run, same, tree
from reference.former_codes import check, former_state

from layerwise import convert
from layerwise import jax as front
from layerwise.errors import StateError
from layerwise.jax import lamb
from layerwise.jax._bits import BITS
from layerwise.storage import sixteen_bits as formats

torch = pytest.importorskip("torch")
import layerwise.torch as torch_front  # noqa: E402

pytestmark = pytest.mark.thinned(1, 2)
each = pytest.mark.parametrize("name", NAMES)
SHAPES = {"tall": (9, 4), "wide": (4, 9), "square": (5, 5), "b": (4,), "deep": {"cube": (3, 5, 4)}}
OF_OPTAX = {
    "Lamb": (optax.lamb, {"weight_decay": 0.1}),
    "Lars": (optax.lars, {"weight_decay": 0.1, "trust_coefficient": 0.5}),
    "Adafactor": (optax.adafactor, {"momentum": 0.9, "min_dim_size_to_factor": 0}),
    "NovoGrad": (optax.novograd, {"weight_decay": 0.1}),
    "AdamW": (optax.adamw, {"weight_decay": 0.1}),
    "SGD": (optax.sgd, {"momentum": 0.9}),
    "Lion": (optax.lion, {"weight_decay": 0.1}),
}


def after(opt: Any, params: Any, state: Any, grads: Any) -> Any:
    return goes_on(opt, params, state, grads)[0]


# ---- optax


@pytest.mark.parametrize(
    "name", [n if n in ("Lars", "Adafactor", "NovoGrad") else pytest.param(n, marks=pytest.mark.slow) for n in OF_OPTAX]
)
@pytest.mark.thinned(6)
def test_a_run_of_optax_goes_on_here_and_back_there(name):
    """Under a schedule, whose count goes along."""
    make, options = OF_OPTAX[name]
    rate = lambda count: 0.1 / (1 + count)  # noqa: E731
    ours, theirs = FRONTS[name](rate, **options), make(rate, **options)
    params, grads = tree(0, SHAPES), gradients(5, SHAPES)
    expected, _ = run(theirs, params, grads)
    half, state = run(theirs, params, grads[:3])
    close(after(ours, half, convert.from_optax(state, ours, half), grads[3:]), expected, 3e-5)
    half, state = run(ours, params, grads[:3])
    there = convert.to_optax(state, theirs, half)
    close(after(theirs, half, there, grads[3:]), expected, 3e-5)
    # The tolerance tells it from a run that forgot.
    forgot = jax.tree.leaves(after(theirs, half, theirs.init(half), grads[3:]))
    assert max(float(jnp.abs(a - b).max()) for a, b in zip(forgot, jax.tree.leaves(expected), strict=True)) > 1e-3
    close(convert.from_optax(there, ours, half), state, 1e-7)


LABELS = {"tall": "matrices", "wide": "matrices", "square": "matrices", "b": "others", "deep": {"cube": "others"}}


def in_two(matrices: Any, others: Any) -> Any:
    return optax.partition({"matrices": matrices, "others": others}, LABELS)


def muon(**options: Any) -> Any:
    dims = {leaf: optax.contrib.MuonDimensionNumbers() if kind == "matrices" else None for leaf, kind in LABELS.items()}
    return optax.contrib.muon(0.02, muon_weight_dimension_numbers={**dims, "deep": {"cube": None}}, **options)


MATRICES = {"tall": True, "wide": True, "square": True, "b": False, "deep": {"cube": False}}
INSIDE = {
    "named_chain": (
        lambda: optax.named_chain(("clip", optax.clip_by_global_norm(1.0)), ("lamb", optax.lamb(0.02))),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), front.lamb(0.02)),
    ),
    "injected": (
        lambda: optax.inject_hyperparams(optax.adamw)(optax.linear_schedule(0.02, 0.0, 50)),
        lambda: optax.inject_hyperparams(front.adamw)(optax.linear_schedule(0.02, 0.0, 50)),
    ),
    "injected in a chain": (
        lambda: optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.lion)(0.002)),
        lambda: optax.chain(optax.clip(1.0), front.lion(0.002)),
    ),
    "masked": (
        lambda: optax.masked(optax.lars(0.5, momentum=0.9), MATRICES),
        lambda: optax.masked(front.lars(0.5, momentum=0.9), MATRICES),
    ),
    "two of one kind": (
        lambda: in_two(optax.lamb(0.02), optax.adamw(0.01)),
        lambda: in_two(front.lamb(0.02), front.adamw(0.01)),
    ),
    "multi_transform": (
        lambda: optax.multi_transform({"matrices": optax.adafactor(0.02), "others": optax.sgd(0.1, 0.9)}, LABELS),
        lambda: in_two(front.adafactor(0.02), front.sgd(0.1, 0.9)),
    ),
    "muon": (
        lambda: muon(),
        lambda: in_two(front.like("optax.muon", 0.02), front.adamw(0.02, weight_decay=0.0, nesterov=True)),
    ),
}


@pytest.mark.filterwarnings("ignore:not converted")
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.thinned(3, 7)
def test_states_inside_of_others_are_found(inside):
    theirs, ours = (make() for make in INSIDE[inside])
    params, grads = tree(0, SHAPES), gradients(25, SHAPES)
    half, state = run(theirs, params, grads[:5])
    expected = after(theirs, half, state, grads[5:])
    here = convert.from_optax(state, ours, half)
    close(after(ours, half, here, grads[5:]), expected, 1e-4 if inside == "muon" else 2e-5)
    there = convert.to_optax(here, theirs, half)
    close(after(theirs, half, there, grads[5:]), expected, 1e-6)
    forgot = jax.tree.leaves(after(theirs, half, theirs.init(half), grads[5:]))
    assert max(float(jnp.abs(a - b).max()) for a, b in zip(forgot, jax.tree.leaves(expected), strict=True)) > 1e-3


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (optax.chain(optax.ema(0.9), optax.lamb(0.1)), r"not converted.*EmaState at \[0\]"),
        (optax.inject_hyperparams(optax.lamb)(0.1), r"not converted.*\.hyperparams\['learning_rate'\]"),
        (optax.MultiSteps(optax.lamb(0.1), 2).gradient_transformation(), r"not converted.*\.acc_grads"),
    ],
    ids=["mean", "injected", "gradients"],
)
def test_losses_of_a_conversion_warn(theirs, told):
    params = {"w": jnp.ones((9, 4))}
    with pytest.warns(UserWarning, match=told) as caught:
        convert.from_optax(theirs.init(params), lamb(0.1), params)
    assert len(caught) == 1


def test_two_states_of_the_same_parameters_are_refused():
    params = {"w": jnp.ones((9, 4))}
    with pytest.raises(StateError, match="must have one ScaleByAdamState, but has 2 for these parameters"):
        convert.from_optax(optax.chain(optax.lamb(0.1), optax.adam(0.1)).init(params), lamb(0.1), params)


@pytest.mark.parametrize("name", ["Lars", "SGD"])
def test_optax_counts_steps_of_momentum_for_schedules_alone(name):
    """Without one, the steps that were taken are counted as one."""
    make, options = OF_OPTAX[name]
    ours, theirs = FRONTS[name](0.1, **options), make(0.1, **options)
    params = {"w": jnp.ones((3, 2))}
    state = theirs.init(params)
    for _ in range(2):
        _, state = theirs.update(params, state, params)
    found = convert.from_optax(state, ours, params)
    assert int(found.count) == 1
    there = convert.to_optax(found, theirs, params)
    [trace] = [one.trace for one in there if isinstance(one, optax.TraceState)]
    np.testing.assert_allclose(found.trace["w"], trace["w"] * (-1 if name == "Lars" else 1))


@each
@pytest.mark.thinned(2, 3)
def test_a_state_that_does_not_fit_is_refused(name):
    params = tree(0, SHAPES)
    known = name in (*OF_OPTAX, "Muon")
    with pytest.raises(StateError, match="must have one" if known else "no optax optimizer"):
        convert.from_optax(optax.sgd(0.1).init(params), made(name), params)
    with pytest.raises(StateError, match=r"layerwise\.jax"):
        convert.from_optax(optax.adam(0.1).init(params), optax.adam(0.1), params)
    if name in OF_OPTAX:
        make, options = OF_OPTAX[name]
        wrong = {**SHAPES, "tall": (9, 5)}
        with pytest.raises(StateError, match="of tall must have"):
            convert.from_optax(make(0.1, **options).init(tree(0, wrong)), FRONTS[name](0.1, **options), params)


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ("Lamb", optax.sgd(0.1, momentum=0.9), "has a TraceState, but LambState has no trace"),
        ("SGD", optax.adafactor(0.1), "FactoredState.*no v_row or v_col or v"),
        ("AdamW", optax.novograd(0.1), r"needs the shape \(\), but the layerwise state has \(9, 4\)"),
    ],
)
def test_a_state_goes_to_no_other_optimizer_of_optax(ours, theirs, told):
    params = {"w": jnp.ones((9, 4))}
    with pytest.raises(StateError, match=told):
        convert.to_optax(made(ours).init(params), theirs, params)


# ---- PyTorch

LINES = {"dims": False, "momentum": 0.9, "weight_decay": 0.1}  # rows here are columns there
OTHERS = {"weight_decay": 0.1}
ALIKE = {"weight_decay": 0.1, "scale": "match_rms_adamw"}  # for a matrix and its transpose
TORCH = {
    **{name: {"lr": 0.1, **LINES} for name in ("ScaleSGD", "SinkGD")},
    "Lars": {"lr": 0.1, "weight_decay": 0.1, "trust_coefficient": 0.5},
    "Adafactor": {"lr": 0.1, "beta1": 0.9, "weight_decay": 0.01},
    "Muon": {"lr": 0.1, **ALIKE},
}
JAX = {
    **{name: {"learning_rate": 0.1, **LINES} for name in ("ScaleSGD", "SinkGD")},
    "Lars": {"learning_rate": 0.1, "weight_decay": 0.1, "trust_coefficient": 0.5, "norm": "split"},
    "Adafactor": {
        "learning_rate": 0.1, "momentum": 0.9, "weight_decay_rate": 0.01, "decay_scale": "lr", "factored": "last",
        "multiply_by_parameter_scale": None, "min_dim_size_to_factor": 0,
    },
    "NovoGrad": {"learning_rate": 0.1, "b1": 0.95, "b2": 0.98, "eps": 1e-8, "weight_decay": 0.1},
    "Muon": {"learning_rate": 0.1, **ALIKE},
}  # fmt: skip
AXES = {"tall": (1, 0), "deep/cube": (0, 2, 1)}  # the same weights lie transposed in a flax layer and in a PyTorch one


def flat(params: Any) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in paths}


def there(leaf: str, array: Any) -> Any:
    return np.array(np.transpose(array, AXES[leaf]) if leaf in AXES else array)


class InTorch:
    """The same parameters and optimizer in PyTorch."""

    def __init__(self, name: str, params: Any) -> None:
        self.params = {
            leaf.replace("/", "."): torch.nn.Parameter(torch.tensor(there(leaf, array)))
            for leaf, array in flat(params).items()
        }
        self.opt = getattr(torch_front, name)(self.params.items(), **TORCH.get(name, {"lr": 0.1, **OTHERS}))

    def train(self, grads: Any) -> InTorch:
        for g in grads:
            for leaf, array in flat(g).items():
                self.params[leaf.replace("/", ".")].grad = torch.tensor(there(leaf, array))
            self.opt.step()
        return self

    def here(self, params: Any) -> Any:
        """The parameters as a tree."""
        leaves = []
        for leaf in flat(params):
            array = self.params[leaf.replace("/", ".")].detach().numpy()
            leaves.append(jnp.asarray(np.transpose(array, np.argsort(AXES[leaf])) if leaf in AXES else array))
        return jax.tree.unflatten(jax.tree.structure(params), leaves)


@each
@pytest.mark.thinned(3, 6)
@pytest.mark.kinds("factored")
def test_a_run_of_pytorch_goes_on_here_and_back_there(name):
    params, grads = tree(0, SHAPES), gradients(5, SHAPES)
    opt = FRONTS[name](**JAX.get(name, {"learning_rate": 0.1, **OTHERS}))
    expected, _ = run(opt, params, grads)
    close(InTorch(name, params).train(grads).here(params), expected, 3e-6)

    first = InTorch(name, params).train(grads[:3])
    half = first.here(params)
    state = convert.from_torch(first.opt.state_dict(), opt, half, axes=AXES)
    assert int(state.count) == 3
    close(after(opt, half, state, grads[3:]), expected, 3e-6)

    half, state = run(opt, params, grads[:3])
    second = InTorch(name, half)
    second.opt.load_state_dict(convert.to_torch(state, half, second.opt, axes=AXES.get))
    close(second.train(grads[3:]).here(params), expected, 3e-6)


def test_names_of_another_model_are_given_or_missed():
    params, opt = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}, made("Lamb")
    _, state = opt.update(params, opt.init(params), params)
    theirs = InTorch("Lamb", {"weight": params["kernel"], "bias": params["bias"]})
    with pytest.raises(StateError, match=r"kernel would be named kernel.*names"):
        convert.to_torch(state, params, theirs.opt)
    for names in ({"kernel": "weight"}, lambda leaf: leaf.replace("kernel", "weight")):
        theirs.opt.load_state_dict(convert.to_torch(state, params, theirs.opt, names=names))
        close(convert.from_torch(theirs.opt.state_dict(), opt, params, names=names), state, 1e-7)
    with pytest.raises(StateError, match=r"no kernel, the PyTorch name of leaf kernel.*names"):
        convert.from_torch(theirs.opt.state_dict(), opt, params)


def test_dimensions_in_another_order_are_put_back():
    params, axes, opt = tree(0, {"cube": (3, 5, 4)}), {"cube": (2, 0, 1)}, lamb(0.1)
    state = opt.init(params)._replace(mu=tree(1, {"cube": (3, 5, 4)}), count=jnp.int32(1))
    theirs = torch_front.Lamb([("cube", torch.nn.Parameter(torch.ones(4, 3, 5)))])
    found = convert.to_torch(state, params, theirs, axes=axes)
    np.testing.assert_array_equal(found["state"][0]["exp_avg"], np.transpose(state.mu["cube"], (2, 0, 1)))
    same(convert.from_torch(found, opt, params, axes=axes), state)


def test_parameters_of_several_step_counts_are_refused():
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones(3)}
    theirs = InTorch("Lamb", params).train([params])
    theirs.params["b"].grad = None
    theirs.opt.step()
    with pytest.raises(StateError, match=r"\[1, 2\]"):
        convert.from_torch(theirs.opt.state_dict(), made("Lamb"), params)


# ---- few bytes

STORED = {"w": (64, 80), "b": (7,)}
EVERYTHING = {"master_weights": "split24", "rounding": "stochastic", "state_dtype": "int8", "seed": 3}


def begun(opt: Any) -> Any:
    """Parameters in bfloat16, and a state as after a step, without compiling one."""
    params = tree(0, STORED, "bfloat16")
    state = convert.stored_as(_filled(lamb(0.01).init(params)), opt, params)
    return params, state


def _filled(state: Any) -> Any:
    return state._replace(mu=tree(1, STORED), nu=jax.tree.map(jnp.square, tree(1, STORED)), count=jnp.int32(1))


def joined(p: Any, rest: Any) -> Any:
    return np.asarray(formats.join_bf16(BITS, BITS.as_floats(p), BITS.integers(rest), 8 * rest.dtype.itemsize))


@pytest.mark.parametrize("axes", [None, {"w": (1, 0)}], ids=["as they are", "transposed"])
def test_formats_go_to_pytorch_and_back(axes):
    opt = lamb(0.01, **EVERYTHING)
    params, state = begun(opt)
    w = np.asarray(params["w"], np.float32)
    w = np.array(w if axes is None else w.T)
    named = [
        ("w", torch.nn.Parameter(torch.tensor(w).bfloat16())),
        ("b", torch.nn.Parameter(torch.zeros(7).bfloat16())),
    ]
    theirs = torch_front.Lamb(named, lr=0.01, **EVERYTHING)
    given = convert.to_torch(state, params, theirs, axes=axes)
    theirs.load_state_dict(given)
    kept, rest = theirs.state[named[0][1]], np.asarray(state.weights["w"])
    assert kept["exp_avg"].dtype == (torch.int8 if axes is None else torch.float32)  # until the next step
    np.testing.assert_array_equal(kept["remainder"].numpy(), rest if axes is None else rest.T)
    back = convert.from_torch(theirs.state_dict(), opt, params, axes=axes)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    same(back.weights, state.weights)
    if axes is None:  # codes and scales bit by bit; else some of it is numbers
        saved, made_of_it = (one["state"][0].items() for one in (theirs.state_dict(), given))
        assert {key: x.shape for key, x in saved} == {key: x.shape for key, x in made_of_it}
        same(back, state)
    else:
        numbers = convert.stored_as(back, lamb(0.01), params).mu["w"]
        wanted = convert.stored_as(state, lamb(0.01), params).mu["w"]
        assert float(jnp.abs(numbers - wanted).max()) <= 0.02 * float(jnp.abs(wanted).max())


@pytest.mark.parametrize("form", ["split", True])
def test_states_that_pytorch_stores_in_few_bytes_are_read_as_numbers(form):
    found = []
    for stored in ("float32", "int8"):
        params = {"p": torch.nn.Parameter(torch.ones(70, 65, dtype=torch.bfloat16))}
        opt = torch_front.Lamb(params.items(), state_dtype=stored, master_weights=form)
        for seed in range(2):
            draw = torch.Generator().manual_seed(seed)
            params["p"].grad = torch.randn(70, 65, generator=draw).to(torch.bfloat16)
            opt.step()
        here = {"p": jnp.asarray(params["p"].detach().float().numpy(), jnp.bfloat16)}
        ours = lamb(0.01, master_weights=form)
        found.append(convert.from_torch(opt.state_dict(), ours, here))
        full = found[-1].weights["p"] if form is True else joined(here["p"], found[-1].weights["p"])
        held = torch_front.full_precision_state_dict(torch.nn.ParameterDict(params), opt)["p"]
        np.testing.assert_array_equal(full, held.numpy())
    within = 1.9 / 8  # a code is up to an eighth of a number: that of the second step, and nine tenths of the first
    for wide, low in zip(*(jax.tree.leaves(one.inner) for one in found), strict=True):
        assert np.abs(np.asarray(wide) - np.asarray(low)).max() <= within * np.abs(np.asarray(wide)).max()


def test_former_codes_of_pytorch_are_read_as_numbers():
    stored, numbers = former_state()
    opt = torch_front.Lamb({"p": torch.nn.Parameter(torch.ones(70, 65))}.items())
    state = {"step": torch.tensor(3.0), **{key: torch.from_numpy(x) for key, x in stored.items()}}
    saved = {**opt.state_dict(), "state": {0: state}}
    for dtype in (None, "int8"):
        found = convert.from_torch(saved, lamb(0.01, state_dtype=dtype), {"p": jnp.ones((70, 65))})
        kept = {"exp_avg": found.mu, "exp_avg_sq": found.nu}
        assert isinstance(found.mu, front.Grouped) == (dtype == "int8")
        if dtype is None:
            check({key: tree["p"] for key, tree in kept.items()}, numbers)
