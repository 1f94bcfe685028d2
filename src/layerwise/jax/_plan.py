"""The plan of one parameter's step under JAX: the pieces that a rule steps, its state, and how both are stored.

A transformation reads whole arrays and returns whole arrays. Weights belong to the caller, who adds updates to them. So
an update is the difference between the intended and the present weights. In float32 it is exact, unless a weight falls
to less than 2^-15 of its value; the error is then no larger than float32's rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from operator import add
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.errors import ParameterError
from layerwise.jax import _mesh
from layerwise.jax._bits import BITS, rounded
from layerwise.jax._drive import Cut, PieceStep, size
from layerwise.jax._dtypes import arithmetic_dtype, common_dtype, real
from layerwise.jax._storage import LOW, Grouped, Shape, companion_dtype, formatted_array, numbers, unread, weights_of
from layerwise.jax._types import Array, Dtype
from layerwise.layout.pieces import Layout, elementwise, kept_dims
from layerwise.rules.requests import Now, Stepped
from layerwise.rules.states import is_signed
from layerwise.storage import STATE, WEIGHTS, quantized_groups
from layerwise.storage.bits import WORD, Key, key_of
from layerwise.storage.coded import CODED, coded_of
from layerwise.storage.formatted_arrays import FormattedArray
from layerwise.storage.index import Index, index_of
from layerwise.storage.options import RequestedStorage
from layerwise.storage.state_dtypes import scales_of, stored_dtype

MOST = 1 << 32  # the largest tensor whose elements 32-bit integers can count


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of one parameter's step."""

    rule: ModuleType
    name: str
    p: Array
    layout: Layout
    cut: Cut
    decayed: bool
    want: RequestedStorage

    @cached_property
    def dtype(self) -> Dtype:
        """The dtype of the arithmetic and of the state: at least single precision."""
        return arithmetic_dtype(self.p.dtype)

    @cached_property
    def shapes(self) -> dict[str, Shape | None]:
        """The stored shape of each field of the state."""
        return dict(zip(self.rule.State._fields, self.layout.state_shapes(), strict=True))

    @cached_property
    def _alike(self) -> dict[str, bool]:
        kept = zip(self.rule.State._fields, kept_dims(self.rule, self.layout, self.p.ndim), strict=True)
        return elementwise(self.rule, dict(kept))

    def _settled(self, field: str) -> str | None:
        return self.layout.pieces[0].h.state_dtypes().get(field)

    @cached_property
    def _whole(self) -> Shape:
        return _mesh.whole_shape(tuple(self.p.shape), self.cut)

    # ---- before the first step

    def fresh(self, field: str) -> Array:
        """Return a field of the initial state, laid out over devices like the parameter."""
        shape, signed = self.shapes[field], is_signed(self.rule, field)
        if shape is None:
            return None
        dtype = self._dtype_of(field)
        if coded := CODED.get(dtype or ""):
            codes = _mesh.zeros(self.p, self.cut, shape, coded.dtype(signed))
            return Grouped(codes, _mesh.zeros(self.p, self.cut, scales_of(shape), "float32", of_rows=True))
        own = self.dtype if signed else real(self.dtype)  # also for complex parameters
        return _mesh.zeros(self.p, self.cut, shape, dtype or own)

    def _dtype_of(self, field: str) -> str | None:
        """Return the name of the dtype that stores a field; None is the dtype of the arithmetic."""
        own, alike = self.dtype.name, self._alike[field] and not jnp.iscomplexobj(self.p)
        found = stored_dtype(self.want, field, own, self._settled(field), alike, self._whole).dtype
        if found in CODED:
            self._check_groups()
        return None if found == own else found

    def _check_groups(self) -> None:
        """Raise if the sharding of the parameter would split groups."""
        here = tuple(self.p.shape)
        row = prod(here[1:]) if len(here) > 1 else here[0]
        for d, axes in enumerate(self.cut):
            if axes and (d > 0 or len(here) == 1) and (d > 1 or row % quantized_groups.GROUP):
                way_out = "Shard its first dimension, or store this part of the state in bfloat16."
                raise ParameterError(
                    f"{self.name} is sharded along dimension {d} over {axes}, which splits groups of "
                    f"{quantized_groups.GROUP} elements that share a scale. {way_out}"
                )

    def held(self) -> Array:
        """Return the initial companion of the weights, or None."""
        dtype = companion_dtype(self.p, self.want.master)
        if dtype == "float32":
            return jnp.asarray(self.p).astype(dtype)
        return None if dtype is None else _mesh.zeros(self.p, self.cut, tuple(self.p.shape), dtype)

    # ---- a step

    def tasks(self, g: Array, state: Sequence[Array], held: Array, now: Now) -> Iterator[PieceStep]:
        """Yield the step of each piece."""
        for piece in self.layout.pieces:
            arrays = tuple(unread(x, piece.view) for x in (weights_of(self.p, held), g, *state))
            cut = _mesh.cut_of_piece(self.cut, piece)
            yield PieceStep(self.rule, piece.h, piece.shape, piece.block_dims, arrays, now, self.dtype, cut)

    def moved(self, stepped: Sequence[Stepped], g: Array, held: Array, t: Array) -> tuple[Array, Array]:
        """Return the update of the parameter, and the companion of its weights.

        The update has the common dtype of gradient and parameter; float32 if it leads to weights that are rounded here.
        """
        move = self._joined([reduce(add, [a * x for a, x in one.moves]) for one in stepped], self.p.shape)
        if held is None and (self.p.dtype not in LOW or self.want.rounding is None):
            return move.astype(common_dtype(self.p, g)), None
        before = BITS.as_floats(self.p)
        after, beside = self._rounded(BITS.as_floats(numbers(weights_of(self.p, held))) + move, held, t)
        return after - before, beside

    def _rounded(self, x: Array, held: Array, t: Array) -> tuple[Array, Array]:
        """Return float32 weights rounded to the parameter's dtype, and the rest."""
        dtype = self.p.dtype
        if held is not None and jnp.issubdtype(held.dtype, jnp.floating):
            return BITS.as_floats(rounded(x, dtype)), x
        draws = self.want.draws_weights(None if held is None else held.dtype.name)
        p, rest = self._stored(self.p, held, self._key(WEIGHTS) if draws else None).encode(x, t)
        return (BITS.as_floats(rounded(p, dtype)), None) if held is None else (p, rounded(rest, held.dtype))

    def written(self, stepped: Sequence[Stepped], before: Sequence[Array], t: Array) -> list[Array]:
        """Return the state after a step, each field stored like the old one."""
        fields = zip(self.shapes.items(), before, zip(*(one.state for one in stepped), strict=True), strict=True)
        return [
            None if old is None else self._written(field, old, self._joined(pieces, shape), t)
            for (field, shape), old, pieces in fields
        ]

    def _written(self, field: str, old: Array, new: Array, t: Array) -> Array:
        old = old if isinstance(old, Grouped) else Grouped(old, None)
        dtype = old.codes.dtype
        coded = coded_of(dtype.name)
        draws = self.want.draws_state(field, coded.name if coded else dtype.name, self._settled(field))
        if not coded and (dtype not in LOW or not (self._alike[field] and draws)):
            return new.astype(dtype)
        key = self._key(STATE, lower=not is_signed(self.rule, field)) if draws else None
        codes, scale = self._stored(old.codes, old.unit, key).encode(new, t)
        return Grouped(codes.astype(dtype), scale) if coded else rounded(codes, dtype)

    def measured(self, stepped: Sequence[Stepped], tasks: Sequence[PieceStep]) -> dict[str, Array]:
        """Return the measurements of the pieces, joined: numbers, or arrays with one number per block."""
        each = [task.measured(one) for one, task in zip(stepped, tasks, strict=True)]
        joined = {key: jnp.concatenate([one[key] for one in each]) for key in each[0]}
        blocked = self.layout.pieces[0].part is not None
        return joined if blocked else {key: value[0] for key, value in joined.items()}

    def _joined(self, pieces: Sequence[Array], shape: Any) -> Array:
        part = self.layout.pieces[0].part
        if part is not None and part.one is not None:
            return jnp.concatenate(pieces, axis=part.axis)
        return pieces[0].reshape(shape) if pieces[0].shape != tuple(shape) else pieces[0]

    # ---- random bits

    def _key(self, whose: str, lower: bool = False) -> Key:
        return key_of(self.want.seed, self.name.replace("/", "."), whose, lower)

    def _stored(self, array: Array, beside: Array, key: Key | None) -> FormattedArray:
        """Return an array in its format, rounded by the random bits of a key, or to nearest."""
        return formatted_array(array, beside) if key is None else formatted_array(array, beside, key, self._index())

    def _index(self) -> Index:
        """Return the indices of the elements in the whole tensor. Only the device knows where its part begins."""
        if prod(self._whole) > MOST:
            raise ParameterError(
                f"{self.name} has {prod(self._whole)} elements, more than the 2^32 that JAX's integers can count for "
                'random rounding. Split it, or pass rounding="nearest".'
            )
        here, index = tuple(self.p.shape), index_of(self._whole)
        offset: Array = np.uint32(0)
        for n, stride, axes in zip(here, index.strides, self.cut, strict=False):
            at: Array = np.uint32(0)
            for axis in axes:
                at = at * np.uint32(size(axis)) + jax.lax.axis_index(axis).astype(jnp.uint32)
            offset = offset + at * np.uint32(n * stride & WORD)
        return replace(index, shape=here, offset=offset)
