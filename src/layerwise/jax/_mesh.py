"""The sharding of parameters: none under jit; under shard_map, by the axes of a mesh."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence
from layerwise.jax import _trees
from layerwise.jax._drive import Axes, Cut, size, varying
from layerwise.jax._trees import Leaves
from layerwise.jax._types import Array, Dtype, Tree
from layerwise.layout.pieces import Layout, Piece, sharded_layout
from layerwise.rules.requests import Shape

WAY_OUT = 'Pass the name of an axis of the mesh such as axis_name="data", or a tuple of names.'


def axes_of(axis_name: object, specs: Tree) -> Axes:
    """Return the mesh axes that may shard parameters; none under jit."""
    names = () if axis_name is None else axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    if axis_name is not None and (not names or not all(isinstance(name, str) for name in names)):
        raise HyperparameterError(sentence("axis_name", "a name or a tuple of names", axis_name, WAY_OUT))
    if (specs is None) != (axis_name is None):
        allowed = "None without axis_name" if axis_name is None else "given with axis_name"
        raise ContradictionError(sentence("specs", allowed, specs, "Pass both under shard_map, and neither under jit."))
    return tuple(names)


def cuts(axes: Axes, specs: Tree, params: Tree, leaves: Leaves) -> list[Cut]:
    """Return the sharding of each parameter."""
    if not axes:
        return [()] * len(leaves.arrays)
    each = _trees.by_leaf("specs", specs, params, leaves, _spec)
    return [_cut(axes, *row) for row in zip(leaves.names, leaves.arrays, each, strict=True)]


def _cut(known: Axes, name: str, p: Array, spec: PartitionSpec) -> Cut:
    cut = tuple(_names(axes) for axes in (*spec, *[None] * (p.ndim - len(spec))))
    if len(cut) != p.ndim:
        raise ParameterError(f"{name} has {p.ndim} dimensions, but its specs {spec} have {len(spec)}.")
    unknown = {axis for axes in cut for axis in axes} - {*known}
    if unknown:
        allowed = f"with known axes; {sorted(unknown)}, which shard {name}, are not known"
        raise ContradictionError(sentence("axis_name", allowed, known, WAY_OUT))
    return cut


def whole_shape(shape: Shape, cut: Cut) -> Shape:
    """Return the shape of a tensor, given the shape of its shard."""
    return tuple(n * k for n, k in zip(shape, _parts(shape, cut), strict=True))


def _parts(shape: Shape, cut: Cut) -> Shape:
    return tuple(prod(map(size, axes)) for axes in cut or ((),) * len(shape))


def shard_layout(rule: ModuleType, layout: Layout, name: str, shape: Shape, cut: Cut) -> Layout:
    """Return the layout of a shard, with the settings that were fitted to the whole tensor."""
    pieces = []
    for piece in sharded_layout(layout, _parts(shape, cut), replicas=0).pieces:
        part = piece.part
        if part is not None and not part.drop and cut[part.axis]:
            raise ParameterError(
                f"the blocks of {name} lie along axis {part.axis}, which is sharded over {cut[part.axis]}. Shard "
                'another axis, or stack the blocks along an axis of their own: blocks="each".'
            )
        here = shape if part is None else part.shape(shape)
        pieces.append(replace(piece, shape=here, fields=tuple(rule.shapes(piece.h, here))))
    return Layout(tuple(pieces))


def cut_of_piece(cut: Cut, piece: Piece) -> Cut:
    """Return the sharding of a piece, in the dimensions that the rule sees."""
    part = piece.part
    if not cut or part is None or part.drop or part.one is not None:
        return cut
    return (*cut[: part.axis], (), *cut[part.axis :])


def zeros(p: Array, cut: Cut, shape: Shape, dtype: Dtype, of_rows: bool = False) -> Array:
    """Return zeros for the state of a parameter, laid out over devices like it; `of_rows` if they are scales of
    groups.
    """
    sharding = _sharding(p, shape, of_rows)
    if sharding is None and shape == tuple(p.shape):
        return jnp.zeros_like(p, dtype=dtype)
    made = jnp.zeros(shape, dtype, device=sharding)
    if not cut or not varying(p):
        return made
    # Marked for JAX as varying along the axes that shard it: scales along all, others along those of their dimensions.
    along = cut if of_rows else [axes for axes, n in zip(cut, shape, strict=True) if n > 1]
    axes = tuple(axis for one in along for axis in one)
    lax: Any = jax.lax
    mark = partial(lax.pcast, to="varying") if hasattr(lax, "pcast") else lax.pvary
    return mark(made, axes) if axes else made


def _sharding(p: Array, shape: Shape, of_rows: bool) -> NamedSharding | None:
    """Return the parameter's sharding, without dimensions that are missing or shorter in the state."""
    traced = isinstance(p, jax.core.Tracer)
    found = getattr(jax.typeof(p) if traced else p, "sharding", None)
    if not isinstance(found, NamedSharding):
        return None
    mesh = found.mesh
    if traced and (mesh.empty or not mesh._any_axis_explicit):
        return None
    spec = (*found.spec, *[None] * len(p.shape))[: len(p.shape)]
    if of_rows:
        spec = (spec[0], *[None] * (len(shape) - 1))

    def divides(axes: object, n: int, of: int) -> bool:
        if axes is None or isinstance(axes, type(PartitionSpec.UNCONSTRAINED)):
            return False
        return n == of or (n > 1 and n % prod(mesh.shape[axis] for axis in _names(axes)) == 0)

    kept = [axes if divides(axes, *sizes) else None for axes, *sizes in zip(spec, shape, p.shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*kept))


def _names(axes: Any) -> Axes:
    return () if axes is None else tuple(axes) if isinstance(axes, tuple) else (axes,)


def _spec(argument: str, value: object) -> PartitionSpec:
    if not isinstance(value, PartitionSpec):
        raise HyperparameterError(sentence(argument, "made of PartitionSpecs", value, "Pass the parameters' in_specs."))
    return value
