"""What test_sharding.py runs in a process of its own, where the host stands for eight devices."""

from __future__ import annotations

import gc
import json
import sys
import traceback
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_front.front import BY_NAME, FRONTS, close, made, taken, tree

from layerwise.errors import ContradictionError, ParameterError
from layerwise.jax._drive import Cut
from layerwise.jax._storage import Storing
from layerwise.storage.options import Wanted

SHAPES = {"w": (16, 24), "b": (24,), "stack": (8, 16, 8), "odd": (16, 3)}
SPECS = {"w": P("x", "y"), "b": P(), "stack": P("x", None, "y"), "odd": P("x")}
MESHES = {2: (2, 1), 4: (2, 2), 8: (4, 2)}
ALIKE = {"factored": False, "dims": False}  # with which all dimensions of a tensor are alike
WHOLE = {"w": None, "b": None, "stack": "each", "odd": None}  # no blocks of what is cut through the middle


def mesh_of(devices, axis_type=AxisType.Auto):
    return Mesh(np.array(jax.devices()[:devices]).reshape(MESHES[devices]), ("x", "y"), axis_types=(axis_type,) * 2)


def placed(mesh, params, specs=SPECS):
    return {key: jax.device_put(value, NamedSharding(mesh, specs[key])) for key, value in params.items()}


def steps(update, params, state, grads):
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def settled(mesh, state):
    """The state as steps hand it over, with its scalars on all devices, so that the first step compiles for all."""
    replicated = NamedSharding(mesh, P())
    return jax.tree.map(lambda x: x if x.committed else jax.device_put(x, replicated), state)


def options(name, **more):
    return {**taken(name, {"max_grad_norm": 1.0, "factored": "last"}), "stats": True, **more}


@cache
def alone(name, in_blocks):
    """One optimizer, and its step compiled for one device, for all that is compared with it."""
    opt = made(name, **options(name, **({"blocks": WHOLE} if in_blocks else {})))
    return opt, jax.jit(opt.update)


@cache
def expected(name, *seeds, in_blocks=True):
    """What one device makes of the gradients of these seeds."""
    (opt, update), params = alone(name, in_blocks), tree(0, SHAPES)
    return steps(update, params, opt.init(params), [tree(seed, SHAPES) for seed in seeds])


def under_jit(name, devices):
    """One device's numbers, and the state laid out as the parameters are."""
    mesh, grads = mesh_of(devices), [tree(i, SHAPES) for i in (1, 2, 3)]
    opt, params = made(name, **options(name, blocks=WHOLE)), placed(mesh, tree(0, SHAPES))
    state = opt.init(params)
    check_layout(name, state, mesh)
    ours, state = steps(jax.jit(opt.update), params, settled(mesh, state), [placed(mesh, g) for g in grads])
    wanted, wanted_state = expected(name, 1, 2, 3)
    close(ours, wanted, 3e-6)
    close(state.stats, wanted_state.stats, 3e-6)


def check_layout(name, state, mesh):
    for part in ("mu", "trace"):
        if getattr(state, part, None) is not None:
            for key, spec in SPECS.items():
                assert getattr(state, part)[key].sharding.is_equivalent_to(NamedSharding(mesh, spec), len(SHAPES[key]))
    if name == "Adafactor":
        for part, key, spec in (
            ("row", "w", P("x", None)),
            ("col", "w", P(None, "y")),
            ("row", "stack", P("x", None, None)),
            ("col", "stack", P("x", None, "y")),
            ("col", "odd", P(None, None)),
        ):
            found = getattr(state, f"v_{part}")[key]
            assert found.sharding.is_equivalent_to(NamedSharding(mesh, spec), found.ndim), (part, key, found.sharding)


def stays_where_it_is(name):
    """A step under jit moves nothing: what comes out is laid out as what went in."""
    mesh = mesh_of(8)
    opt, params = made(name, **options(name)), placed(mesh, tree(0, SHAPES))
    state = opt.init(params)
    new, after = steps(jax.jit(opt.update), params, state, [placed(mesh, tree(1, SHAPES))])
    for a, b in zip(
        jax.tree.leaves((new, after._replace(stats=None))),
        jax.tree.leaves((params, state._replace(stats=None))),
        strict=True,
    ):
        if b.ndim:
            assert a.sharding.is_equivalent_to(b.sharding, b.ndim), (a.sharding, b.sharding)


def gathers_nothing(name):
    """No device sees a whole parameter: sums travel, tensors do not."""
    mesh = mesh_of(8)
    shapes, specs = {"w": (512, 256), "b": (1024,)}, {"w": P("x", "y"), "b": P("x")}
    opt, params = FRONTS[name](0.1), placed(mesh, tree(0, shapes), specs)
    text = jax.jit(opt.update).lower(params, opt.init(params), params).compile().as_text()
    assert ("all-reduce" in text) == bool(BY_NAME[name].rounds)
    for moving in ("all-gather", "all-to-all", "collective-permute"):
        assert moving not in text, text


def mixed(devices):
    """Two rules in a partition, clipped by the norm of all before it, under jit: one device's numbers."""
    labels = {"w": "matrices", "b": "others", "stack": "matrices", "odd": "others"}
    rules = optax.partition({"matrices": made("Lamb", blocks=None), "others": made("AdamW")}, labels)
    opt, mesh = optax.chain(optax.clip_by_global_norm(1.0), rules), mesh_of(devices)
    params, grads = tree(0, SHAPES), [tree(i, SHAPES) for i in (1, 2, 3)]
    wanted, _ = steps(jax.jit(opt.update), params, opt.init(params), grads)
    there = placed(mesh, params)
    ours, state = steps(jax.jit(opt.update), there, settled(mesh, opt.init(there)), [placed(mesh, g) for g in grads])
    close(ours, wanted, 3e-6)
    for key, p in optax.tree_utils.tree_get_all_with_path(state, "mu")[0][1].items():
        if key in labels and labels[key] == "matrices":
            assert p.sharding.is_equivalent_to(there[key].sharding, p.ndim)


def in_the_type(name):
    """Sharding in types (explicit axes): the state's is what a step makes of it."""
    mesh = mesh_of(8, AxisType.Explicit)
    with jax.set_mesh(mesh):
        opt, params = made(name, **options(name, blocks=WHOLE)), placed(mesh, tree(0, SHAPES))
        grads = [placed(mesh, tree(i, SHAPES)) for i in (1, 2)]
        state = opt.init(params)
        ours, after = steps(jax.jit(opt.update), params, settled(mesh, state), grads)
        for a, b in zip(
            jax.tree.leaves(after._replace(stats=None)), jax.tree.leaves(state._replace(stats=None)), strict=True
        ):
            assert jax.typeof(a) == jax.typeof(b), (jax.typeof(a), jax.typeof(b))
    wanted, _ = expected(name, 1, 2)
    close(jax.tree.map(np.asarray, ours), wanted, 3e-6)


def in_parts(name, devices, check_vma=True):
    """shard_map with axis_name and specs: each device has its part, also of the state."""
    mesh, grads = mesh_of(devices), [tree(i, SHAPES) for i in (1, 2)]
    opt = made(name, **options(name, blocks=WHOLE, axis_name=("x", "y"), specs=SPECS))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(SPECS, P()), out_specs=(SPECS, STATS), check_vma=check_vma)
    def train(params, grads):
        state = opt.init(params)
        for i in range(2):
            here = jax.tree.map(lambda g, p, i=i: part_of(g[i], p, mesh), grads, params)
            updates, state = opt.update(here, state, params)
            params = optax.apply_updates(params, updates)
        return params, {key: state.stats[key]["trust_ratio"] for key in SHAPES}

    def part_of(g, p, mesh):
        key = next(k for k, s in SHAPES.items() if s == g.shape)
        for d, axis in enumerate(SPECS[key]):
            if axis is not None:
                n = g.shape[d] // mesh.shape[axis]
                g = jax.lax.dynamic_slice_in_dim(g, jax.lax.axis_index(axis) * n, n, d)
        return g

    stacked = jax.tree.map(lambda *g: jnp.stack(g), *grads)
    ours, ratios = train(placed(mesh, tree(0, SHAPES)), stacked)
    wanted, state = expected(name, 1, 2)
    close(ours, wanted, 3e-6)
    close(ratios, {key: state.stats[key]["trust_ratio"] for key in SHAPES}, 3e-6)


STATS = {"w": P(), "b": P(), "stack": P("x"), "odd": P()}


def by_what_jax_knows(name):
    """shard_map with axis_name alone: which parameters are cut is in their types, but not along which dimension."""
    if needed := taken(name, {"factored": "last", "dims": "first"}):
        with pytest.raises(ContradictionError, match=f"`specs` must be given with axis_name and {next(iter(needed))}="):
            made(name, axis_name="x", **needed)
    mesh, specs = mesh_of(8), {"w": P("x", "y"), "b": P(), "stack": P("x"), "odd": P(None, None)}
    more = taken(name, ALIKE)
    opt, plain = made(name, axis_name=("x", "y"), **more), made(name, **more)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(specs, specs), out_specs=specs)
    def step(params, grads):
        updates, _ = opt.update(grads, opt.init(params), params)
        return updates

    params, grads = tree(0, SHAPES), tree(1, SHAPES)
    wanted, _ = jax.jit(plain.update)(grads, plain.init(params), params)
    close(step(params, grads), wanted, 3e-6)


def does_not_guess(name):
    mesh = mesh_of(2)
    more = taken(name, ALIKE)
    opt = made(name, axis_name="x", **more)
    step = jax.shard_map(lambda p: opt.init(p), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    with pytest.raises(ParameterError, match="Pass specs"):
        step(jnp.ones((4, 2)))


def keeps_its_types(name):
    """Inside shard_map a state can be carried through a scan."""
    mesh, opt = mesh_of(8), made(name, **options(name, axis_name=("x", "y"), specs=SPECS))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(SPECS, SPECS), out_specs=SPECS)
    def train(params, grads):
        def one(carry, _):
            params, state = carry
            updates, state = opt.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(one, (params, opt.init(params)), None, length=3)[0][0]

    params, grads = tree(0, SHAPES), tree(1, SHAPES)
    close(train(params, grads), expected(name, 1, 1, 1, in_blocks=False)[0], 3e-6)


STORED = {"w": (64, 128), "stack": (8, 16, 64), "v": (8192,), "b": (7,)}
CUTS = {"w": P("x", "y"), "stack": P("x"), "v": P("x"), "b": P()}
STORAGE = {"rounding": "stochastic", "master_weights": "split24", "state_dtype": {"exp_avg": "int8"}, "seed": 5}


def low(seed):
    return tree(seed, STORED, "bfloat16")


def stored(name, devices, parts=False):
    """Codes, scales, remainders and weights are one device's, but for a few where sums round otherwise."""
    kept = BY_NAME[name].rule.State._fields
    mesh, state_dtype = mesh_of(devices), next(one for one in ("exp_avg", "momentum_buffer") if one in kept)
    more = {**STORAGE, "state_dtype": {state_dtype: "int8"}, **taken(name, {"factored": False})}
    if parts:
        opt = made(name, axis_name=("x", "y"), specs=CUTS, **more)

        @jax.jit
        @partial(jax.shard_map, mesh=mesh, in_specs=(CUTS, CUTS), out_specs=(CUTS, CUTS))
        def train(params, grads):
            state = opt.init(params)
            updates, state = opt.update(grads, state, params)
            return optax.apply_updates(params, updates), state.weights

        ours = train(placed(mesh, low(0), CUTS), placed(mesh, low(1), CUTS))
    else:
        opt, params = made(name, **more), placed(mesh, low(0), CUTS)
        ours, state = steps(jax.jit(opt.update), params, opt.init(params), [placed(mesh, low(i), CUTS) for i in (1, 2)])
        ours = ours, state.weights, state.inner
        for x in jax.tree.leaves(state.inner):
            assert x.ndim < 2 or x.shape[0] == 1 or x.sharding.spec[0] == "x", (x.shape, x.sharding)
    plain = made(name, **more)
    new, state = steps(jax.jit(plain.update), low(0), plain.init(low(0)), [low(i) for i in ((1,) if parts else (1, 2))])
    wanted = (new, state.weights) if parts else (new, state.weights, state.inner)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
        size = np.max(np.abs(b), initial=1e-30)
        assert np.mean(np.abs(a - b) > 2e-6 * size) < 0.05, (np.mean(a != b), a.shape)


def bits_of_parts():
    """Random bits of a part are those of the whole, whatever cuts it."""
    names = ("w", "stack", "v")

    def drawn(params, cuts):
        return {
            name: lars_storing(name, params[name], cut)._random("", jnp.int32(7)).array for name, cut in cuts.items()
        }

    def cut_of(name, ndim):
        dims = tuple(() if a is None else (a,) for a in (*CUTS[name], *[None] * (ndim - len(CUTS[name]))))
        return Cut(tuple(a for one in dims for a in one), dims)

    params = {name: jnp.zeros(STORED[name], jnp.bfloat16) for name in names}
    whole = jax.jit(partial(drawn, cuts=dict.fromkeys(names, Cut((), None))))(params)
    in_parts = partial(drawn, cuts={name: cut_of(name, len(STORED[name])) for name in names})
    specs = {name: CUTS[name] for name in names}
    for devices in (2, 4, 8):
        mapped = jax.shard_map(in_parts, mesh=mesh_of(devices), in_specs=(specs,), out_specs=specs, check_vma=False)
        for part, wanted in zip(jax.tree.leaves(jax.jit(mapped)(params)), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(np.asarray(part), np.asarray(wanted))


def lars_storing(name, p, cut):
    return Storing(None, name, p, cut, Wanted(rounding="stochastic", seed=4), {}, {})


# By kind, each of one optimizer. The slow ones differ from another in the number of devices.
KINDS = {
    **{f"stored-{d}": partial(stored, devices=d) for d in (2, 4)},
    **{f"stored_in_parts-{d}": partial(stored, devices=d, parts=True) for d in (2, 4)},
    **{f"under_jit-{d}": partial(under_jit, devices=d) for d in MESHES},
    **{f"in_parts-{d}": partial(in_parts, devices=d) for d in MESHES},
    "in_parts_unchecked": partial(in_parts, devices=8, check_vma=False),
    "stays_where_it_is": stays_where_it_is,
    "gathers_nothing": gathers_nothing,
    "in_the_type": in_the_type,
    "keeps_its_types": keeps_its_types,
    "by_what_jax_knows": by_what_jax_knows,
    "does_not_guess": does_not_guess,
}
ALONE = {"bits_of_parts": bits_of_parts, "mixed_rules": partial(mixed, 8)}
OF_PARTS = {"in_parts-8", "by_what_jax_knows"}  # which depend on what a rule sums
SLOW = {"stored-2", "stored_in_parts-2", "under_jit-2", "under_jit-8", "in_parts-2", "in_parts-4", "in_parts_unchecked"}


def main():
    gc.freeze()  # as conftest.py does
    found = {}
    for one in sys.argv[1:]:
        kind, _, name = one.partition(" ")
        try:
            KINDS[kind](name) if name else ALONE[kind]()
            found[one] = ""
        except Exception:
            found[one] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
