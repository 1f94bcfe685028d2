"""Parameters on several devices: one device's numbers, and nothing moved that need not be.

test_sharding.py runs them, in a process of their own.
"""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_front.front import BY_NAME, FRONTS, NAMES, close, goes_on, made, mainly, run, taken, tree

from layerwise.errors import ParameterError

pytestmark = pytest.mark.thinned(1, 2)

OF_MATRICES = {name for name in NAMES if BY_NAME[name].hyper().of_matrices}  # whose products XLA divides as it likes
each = pytest.mark.parametrize("name", NAMES)
of_parts = pytest.mark.kinds("rows and columns", "factored", "numbers of a layer")  # depends on what a rule sums
SHAPES = {"w": (16, 24), "b": (24,), "stack": (8, 16, 8), "odd": (16, 3)}
SPECS = {"w": P("x", "y"), "b": P(), "stack": P("x", None, "y"), "odd": P(("x", "y"))}
MESHES = {2: (2, 1), 4: (2, 2), 8: (4, 2)}
WHOLE = {"w": None, "b": None, "stack": "each", "odd": None}  # no blocks of what is cut through the middle


def slow(*row):
    return pytest.param(*row, marks=pytest.mark.slow)


def mesh_of(devices, axis_type=AxisType.Auto):
    return Mesh(np.array(jax.devices()[:devices]).reshape(MESHES[devices]), ("x", "y"), axis_types=(axis_type,) * 2)


def placed(mesh, params, specs=SPECS):
    return {key: jax.device_put(value, NamedSharding(mesh, specs[key])) for key, value in params.items()}


def started(mesh, opt, params):
    """The first state, its scalars on all devices as steps leave them: the first step compiles for all."""
    replicated = NamedSharding(mesh, P())
    return jax.tree.map(lambda x: x if x.committed else jax.device_put(x, replicated), opt.init(params))


def optimizer(name, blocks=WHOLE, **more):
    return made(name, **taken(name, {"max_grad_norm": 1.0, "factored": "last"}), stats=True, blocks=blocks, **more)


@cache
def alone(name):
    """Parameters and state after one step on one device, after two, and after three."""
    opt, params = optimizer(name), tree(0, SHAPES)
    states = [(params, opt.init(params))]
    for g in gradients():
        states.append(goes_on(opt, *states[-1], [g]))
    return states


def gradients(steps=3):
    return [tree(i, SHAPES) for i in range(1, 1 + steps)]


def in_parts(opt, mesh, params, grads, specs, ratios, **checks):
    """Steps in shard_map, all but the first in a scan: parameters, and trust ratios."""
    stacked, over_steps = jax.tree.map(lambda *g: jnp.stack(g), *grads), {k: P(None, *s) for k, s in specs.items()}

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(specs, over_steps), out_specs=(specs, ratios), **checks)
    def train(params, grads):
        def one(carry, g):
            updates, state = opt.update(g, carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        after, _ = one((params, opt.init(params)), jax.tree.map(lambda g: g[0], grads))
        (params, state), _ = jax.lax.scan(one, after, jax.tree.map(lambda g: g[1:], grads))
        return params, state.stats["trust_ratio"]

    return train(placed(mesh, params, specs), placed(mesh, stacked, over_steps))


@pytest.mark.parametrize("devices", [4, slow(2), slow(8)])
@mainly("Adafactor")
def test_a_step_under_jit_has_one_device_s_numbers_and_moves_nothing(name, devices):
    mesh, opt = mesh_of(devices), optimizer(name)
    params = placed(mesh, tree(0, SHAPES))
    before = started(mesh, opt, params)
    ours, state = goes_on(opt, params, before, [placed(mesh, g) for g in gradients()])
    wanted, wanted_state = alone(name)[3]
    close((ours, state.stats), (wanted, wanted_state.stats), 3e-6)
    for part in ("mu", "trace"):
        for key, x in (getattr(state, part, None) or {}).items():
            assert x.sharding.is_equivalent_to(params[key].sharding, x.ndim)
    if name == "Adafactor":
        for part, key, spec in (
            ("row", "w", P("x", None)), ("col", "w", P(None, "y")), ("row", "stack", P("x", None, None)),
            ("col", "stack", P("x", None, "y")), ("col", "odd", P(None, None)),
        ):  # fmt: skip
            found = getattr(before, f"v_{part}")[key]
            assert found.sharding.is_equivalent_to(NamedSharding(mesh, spec), found.ndim), (part, key, found.sharding)
    after = jax.tree.leaves((ours, state._replace(stats=None)))
    for a, b in zip(after, jax.tree.leaves((params, before._replace(stats=None))), strict=True):
        assert not b.ndim or a.sharding.is_equivalent_to(b.sharding, b.ndim), (a.sharding, b.sharding)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_MATRICES])
def test_sums_travel_and_tensors_do_not(name):
    shapes, specs = {"w": (512, 256), "b": (1024,)}, {"w": P("x", "y"), "b": P("x")}
    opt, params = FRONTS[name](0.1), placed(mesh_of(8), tree(0, shapes), specs)
    text = jax.jit(opt.update).lower(params, opt.init(params), params).compile().as_text()
    assert ("all-reduce" in text) == bool(BY_NAME[name].rounds)
    for moving in ("all-gather", "all-to-all", "collective-permute"):
        assert moving not in text, text


def test_two_rules_that_are_clipped_by_the_norm_of_all_have_one_device_s_numbers():
    labels = {"w": "matrices", "b": "others", "stack": "matrices", "odd": "others"}
    rules = optax.partition({"matrices": made("Lamb", blocks=None), "others": made("AdamW")}, labels)
    opt, mesh, params = optax.chain(optax.clip_by_global_norm(1.0), rules), mesh_of(8), tree(0, SHAPES)
    wanted, _ = run(opt, params, gradients(2))
    there = placed(mesh, params)
    ours, state = goes_on(opt, there, started(mesh, opt, there), [placed(mesh, g) for g in gradients(2)])
    close(ours, wanted, 3e-6)
    for key in ("w", "stack"):
        mu = optax.tree_utils.tree_get_all_with_path(state, "mu")[0][1][key]
        assert mu.sharding.is_equivalent_to(there[key].sharding, mu.ndim)


@mainly("Lamb")
def test_with_sharding_in_types_the_state_has_the_types_that_a_step_makes(name):
    if name in OF_MATRICES:
        pytest.skip("types do not say how a product over what is cut is to lie")
    mesh = mesh_of(8, AxisType.Explicit)
    with jax.set_mesh(mesh):
        opt, params = optimizer(name), placed(mesh, tree(0, SHAPES))
        state = started(mesh, opt, params)
        ours, after = goes_on(opt, params, state, [placed(mesh, g) for g in gradients(2)])
        kept = (jax.tree.leaves(one._replace(stats=None)) for one in (after, state))
        for a, b in zip(*kept, strict=True):
            assert jax.typeof(a) == jax.typeof(b)
    close(jax.tree.map(np.asarray, ours), alone(name)[2][0], 3e-6)


@pytest.mark.parametrize(
    ("devices", "checks"), [(8, {}), slow(2, {}), slow(4, {}), slow(8, {"check_vma": False})], ids=str
)
@of_parts
@each
def test_parts_in_shard_map_with_axis_name_and_specs_have_one_device_s_numbers(name, devices, checks):
    opt, ratios = optimizer(name, axis_name=("x", "y"), specs=SPECS), {"w": P(), "b": P(), "stack": P("x"), "odd": P()}
    found = in_parts(opt, mesh_of(devices), tree(0, SHAPES), gradients(2), SPECS, ratios, **checks)
    wanted, state = alone(name)[2]
    close(found, (wanted, state.stats["trust_ratio"]), 3e-6)


@mainly("Adafactor")
def test_in_shard_map_the_first_state_has_the_types_that_a_step_makes(name):
    """So it can be carried through a scan."""
    opt, mesh, params = optimizer(name, None, axis_name=("x", "y"), specs=SPECS), mesh_of(8), tree(0, SHAPES)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(SPECS, SPECS), out_specs=P())
    def kept(params, g):
        state = opt.init(params)
        types = (jax.tree.map(jax.typeof, one) for one in (state, opt.update(g, state, params)[1]))
        assert next(types) == next(types)
        return 0

    kept(placed(mesh, params), placed(mesh, params))


def inits(opt, shape, spec):
    """The state that a device makes of its part of zeros."""
    made = []
    mapped = jax.shard_map(
        lambda p: made.append(opt.init(p)) or p, mesh=mesh_of(8), in_specs=spec, out_specs=spec, check_vma=False
    )
    jax.eval_shape(mapped, jax.ShapeDtypeStruct(shape, "float32"))
    return made[0]


@pytest.mark.parametrize("spec", [P(("x", "y")), P("x", "y"), P(None, ("y", "x"))], ids=str)
def test_a_part_is_factored_if_the_whole_is(spec):
    least = {"min_dim_size_to_factor": 16, "axis_name": ("x", "y"), "specs": spec}
    assert inits(FRONTS["Adafactor"](0.1, **least), (16, 16), spec).v_row is not None
    assert inits(FRONTS["Adafactor"](0.1, **least), (16, 8), spec).v_row is None


def test_blocks_along_an_axis_that_is_cut_are_refused():
    opt = FRONTS["Lamb"](0.1, blocks=2, axis_name=("x", "y"), specs=P("x", None))
    with pytest.raises(ParameterError, match=r"blocks of .* lie along axis 0, which is sharded .*x"):
        inits(opt, (8, 4), P("x", None))


@pytest.mark.parametrize(("name", "more"), [("Lamb", {}), ("Adafactor", {"min_dim_size_to_factor": 2})])
def test_blocks_before_an_axis_that_is_cut_have_one_device_s_numbers(name, more):
    shapes, specs, options = {"w": (8, 16)}, {"w": P(None, "x")}, {"blocks": 2, "stats": True, **more}
    opt, params, grads = made(name, **options), tree(0, shapes), [tree(i, shapes) for i in (1, 2)]
    wanted, state = goes_on(opt, params, opt.init(params), grads)
    cut = made(name, axis_name=("x", "y"), specs=specs, **options)
    found = in_parts(cut, mesh_of(4), params, grads, specs, {"w": P()})
    close(found, (wanted, state.stats["trust_ratio"]), 3e-6)


# ---- stored in few bits

STORED = {"w": (64, 128), "stack": (8, 16, 64), "v": (8192,), "b": (7,)}
CUTS = {"w": P("x", "y"), "stack": P("x"), "v": P("x"), "b": P()}
STORAGE = {"rounding": "stochastic", "master_weights": "split24", "seed": 5}


def storing(name, **more):
    kept = BY_NAME[name].rule.State._fields
    state_dtype = next(one for one in ("exp_avg", "momentum_buffer") if one in kept)
    return made(name, **STORAGE, state_dtype={state_dtype: "int8"}, **taken(name, {"factored": False}), **more)


@cache
def stored_alone(name):
    opt, params = storing(name), low(0)
    return goes_on(opt, params, opt.init(params), [low(1), low(2)])


def low(seed):
    return tree(seed, STORED, "bfloat16")


def nearly_all_alike(ours, wanted):
    """But for a few entries where sums round otherwise."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
        size = np.max(np.abs(b), initial=1e-30)
        assert np.sum(np.abs(a - b) > 2e-6 * size) <= max(1, 0.05 * a.size), (np.mean(a != b), a.shape)


@pytest.mark.parametrize(
    ("shape", "spec"), [((64, 96), P(None, "x")), ((4128,), P(("x", "y"))), ((2, 64, 64), P(None, None, "x"))], ids=str
)
def test_a_cut_through_groups_is_refused(shape, spec):
    opt = FRONTS["Lamb"](0.1, state_dtype="int8", axis_name=("x", "y"), specs=spec)
    with pytest.raises(ParameterError, match="splits groups of 64 elements"):
        inits(opt, shape, spec)


@pytest.mark.parametrize("devices", [4, slow(2)])
@mainly("Lars")
def test_codes_scales_remainders_and_random_bits_are_one_device_s(name, devices):
    mesh, opt = mesh_of(devices), storing(name)
    params = placed(mesh, low(0), CUTS)
    ours, state = goes_on(opt, params, opt.init(params), [placed(mesh, low(i), CUTS) for i in (1, 2)])
    for x in jax.tree.leaves(state.inner):
        assert x.ndim < 2 or x.shape[0] == 1 or x.sharding.spec[0] == "x", (x.shape, x.sharding)
    wanted, wanted_state = stored_alone(name)
    nearly_all_alike((ours, state.weights, state.inner), (wanted, wanted_state.weights, wanted_state.inner))


@pytest.mark.parametrize("devices", [4, slow(2), slow(8)])
@mainly("Lars", "Muon")  # whose matrices are brought together
def test_in_shard_map_they_are_too(name, devices):
    mesh, opt = mesh_of(devices), storing(name, axis_name=("x", "y"), specs=CUTS)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(CUTS, CUTS, CUTS), out_specs=(CUTS, CUTS))
    def train(params, *grads):
        state = opt.init(params)
        for g in grads:
            updates, state = opt.update(g, state, params)
            params = optax.apply_updates(params, updates)
        return params, state.weights

    ours = train(*(placed(mesh, low(i), CUTS) for i in range(3)))
    wanted, state = stored_alone(name)
    nearly_all_alike(ours, (wanted, state.weights))
