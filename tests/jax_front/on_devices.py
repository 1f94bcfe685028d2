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
from jax_front.front import FRONTS, NAMES, close, made, taken, tree

from layerwise.errors import ParameterError

SHAPES = {"w": (16, 24), "b": (24,), "stack": (8, 16, 8), "odd": (16, 3)}
SPECS = {"w": P("x", "y"), "b": P(), "stack": P("x", None, "y"), "odd": P("x")}
MESHES = {2: (2, 1), 4: (2, 2), 8: (4, 2)}
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
    assert "all-reduce" in text
    for moving in ("all-gather", "all-to-all", "collective-permute"):
        assert moving not in text, text


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
    """shard_map with axis_name alone: which parameters are cut is in their types."""
    mesh, specs = mesh_of(8), {"w": P("x", "y"), "b": P(), "stack": P("x"), "odd": P(None, None)}
    more = taken(name, {"factored": False})
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
    more = taken(name, {"factored": False})
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


CHECKS = {
    **{f"under_jit-{n}-{d}": partial(under_jit, n, d) for n in NAMES for d in MESHES},
    **{f"in_parts-{n}-{d}": partial(in_parts, n, d) for n in NAMES for d in MESHES},
    **{f"in_parts_unchecked-{n}": partial(in_parts, n, 8, check_vma=False) for n in NAMES},
    **{
        f"{check.__name__}-{n}": partial(check, n)
        for n in NAMES
        for check in (
            stays_where_it_is,
            gathers_nothing,
            in_the_type,
            keeps_its_types,
            by_what_jax_knows,
            does_not_guess,
        )
    },
}


def main():
    gc.freeze()  # as conftest.py does
    found = {}
    for name, check in CHECKS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
