"""The cuts of parameters: none under jit; under shard_map, by the axes of a mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
from jax.sharding import PartitionSpec

from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence
from layerwise.jax import _trees
from layerwise.jax._drive import WHOLE, Axes, Cut, size, varying
from layerwise.jax._trees import Leaves
from layerwise.layout import Layout, Piece, divided
from layerwise.rules.asks import Shape

WAY_OUT = 'Pass the name of an axis of the mesh such as axis_name="data", or a tuple of names.'


@dataclass(frozen=True)
class Mesh:
    """The axes along which parameters may be cut; none under jit. `specs` gives the dimension that each cuts."""

    axes: Axes
    specs: Any

    def cuts(self, params: Any, leaves: Leaves) -> list[Cut]:
        """Return the cut of each parameter."""
        if not self.axes:
            return [WHOLE] * len(leaves.arrays)
        if self.specs is None:
            return self._varying(leaves)
        specs = _trees.by_leaf("specs", self.specs, params, leaves, _spec)
        return [self._cut(*row) for row in zip(leaves.names, leaves.arrays, specs, strict=True)]

    def _varying(self, leaves: Leaves) -> list[Cut]:
        """Return the cuts by the axes along which JAX knows parameters to differ, without specs."""
        cuts = [Cut(tuple(axis for axis in self.axes if axis in varying(p)), None) for p in leaves.arrays]
        if leaves.arrays and not any(cut.axes for cut in cuts):
            raise ParameterError(
                f"no parameter is known to differ along axis_name={self.axes}. Pass specs, the in_specs of the "
                "parameters; shard_map(check_vma=False) does not know either."
            )
        return cuts

    def _cut(self, name: str, p: Any, spec: PartitionSpec) -> Cut:
        dims = tuple(_names(cut) for cut in (*spec, *[None] * (p.ndim - len(spec))))
        if len(dims) != p.ndim:
            raise ParameterError(f"{name} has {p.ndim} dimensions, and its specs {spec} {len(spec)}.")
        unknown = {axis for cut in dims for axis in cut} - {*self.axes}
        if unknown:
            raise ContradictionError(
                sentence("axis_name", f"such that it has {sorted(unknown)}, which cut {name}", self.axes, WAY_OUT)
            )
        return Cut(tuple(axis for cut in dims for axis in cut), dims)


def as_mesh(axis_name: Any, specs: Any, needs_specs: str | None) -> Mesh:
    """Return the mesh of these arguments, or raise; `needs_specs` names the options that need specs."""
    names = () if axis_name is None else axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    if axis_name is not None and (not names or not all(isinstance(name, str) for name in names)):
        raise HyperparameterError(sentence("axis_name", "a name or a tuple of names", axis_name, WAY_OUT))
    if specs is not None and not names:
        raise ContradictionError(sentence("specs", "None without axis_name", specs, "Under jit no specs are needed."))
    if names and specs is None and needs_specs is not None:
        raise ContradictionError(
            sentence("specs", f"given with axis_name and {needs_specs}", None, "Pass the in_specs of the parameters.")
        )
    return Mesh(tuple(names), specs)


def whole_shape(shape: Shape, cut: Cut) -> Shape:
    """Return the shape of a tensor, given the shape of its shard."""
    return tuple(n * k for n, k in zip(shape, _parts(shape, cut), strict=True))


def _parts(shape: Shape, cut: Cut) -> Shape:
    """Return the number of parts along each dimension of a tensor."""
    return tuple(prod(map(size, axes)) for axes in cut.dims or ((),) * len(shape))


def shard_layout(rule: Any, layout: Layout, name: str, shape: Shape, cut: Cut) -> Layout:
    """Return the layout of a shard, with the settings that were fitted to the whole tensor."""
    pieces = []
    for piece in divided(layout, _parts(shape, cut), by_one=False).pieces:
        part = piece.part
        if part is not None and not part.drop and cut.dims is not None and cut.dims[part.axis]:
            raise ParameterError(
                f"the blocks of {name} lie along axis {part.axis}, which {cut.dims[part.axis]} cut. "
                'Cut another axis, or stack the blocks along an axis of their own: blocks="each".'
            )
        here = shape if part is None else part.shape(shape)
        pieces.append(replace(piece, shape=here, fields=tuple(rule.shapes(piece.h, here))))
    return Layout(tuple(pieces))


def cut_of_piece(cut: Cut, piece: Piece) -> Cut:
    """Return the cut of a piece, in the dimensions that the rule sees."""
    part = piece.part
    if cut.dims is None or part is None or part.drop or part.one is not None:
        return cut
    return cut._replace(dims=(*cut.dims[: part.axis], (), *cut.dims[part.axis :]))


def with_axes(made: Any, p: Any, cut: Cut, every: bool = False) -> Any:
    """Return a part of the state, marked for JAX as differing along the axes that cut it, like its parameter.

    These are the axes of dimensions that it extends along, or `every` one.
    """
    if made is None or (made.shape == p.shape and not every) or cut.dims is None or not varying(p):
        return made
    axes = cut.axes if every else tuple(axis for d, n in enumerate(made.shape) if n > 1 for axis in cut.dims[d])
    if not axes:
        return made
    lax: Any = jax.lax
    return lax.pcast(made, axes, to="varying") if hasattr(lax, "pcast") else lax.pvary(made, axes)


def _names(cut: Any) -> Axes:
    return () if cut is None else tuple(cut) if isinstance(cut, tuple) else (cut,)


def _spec(argument: str, value: Any) -> PartitionSpec:
    if not isinstance(value, PartitionSpec):
        raise HyperparameterError(sentence(argument, "made of PartitionSpecs", value, "Pass the parameters' in_specs."))
    return value
