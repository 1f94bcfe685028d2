"""The storage of weights and state under JAX: the format of each part, reading, and writing.

A transformation reads whole arrays and returns whole arrays, so formats show in its state's tree. Weights belong to the
caller, who adds updates to them. So an update is the difference between the intended weights and the present ones. In
float32 it is exact, unless a weight falls to less than 2^-15 of its value; it is then off by no more than float32
rounds anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.errors import ContradictionError, ParameterError, StateError, sentence
from layerwise.jax import _mesh
from layerwise.jax._bits import BITS, Places, rounded
from layerwise.jax._drive import Cut
from layerwise.jax._slots import SCALE, WAY_OUT, computing, zeros
from layerwise.jax._unread import Unread, stored
from layerwise.storage import WEIGHTS, Format, groups, weights
from layerwise.storage.bits import Key, at_step, key_of, random
from layerwise.storage.forms import Field, chosen, scales_of
from layerwise.storage.index import index_of
from layerwise.storage.options import REMAINDER_BITS, Wanted, is_signed

Shape = tuple[int, ...]
LOW = (jnp.bfloat16, jnp.float16)
MOST = 1 << 32  # elements of a tensor that integers of 32 bits count


class Grouped(NamedTuple):
    """A part of a state in 8 bits.

    Attributes:
        codes: The codes, of the parameter's shape.
        scale: The scale of each group of 64 numbers of a row.
    """

    codes: Any
    scale: Any


class MasterState(NamedTuple):
    """The state of an optimizer with `master_weights`.

    Attributes:
        inner: The optimizer's own state.
        weights: A tree like the parameters': what each weight lacks, in int16 or int8, or its copy in float32; None for
            parameters that are not of 16 bits.
    """

    inner: Any
    weights: Any


def is_low(p: Any) -> bool:
    return p.dtype in LOW


def unread(x: Any, signed: bool, view: Callable[[Any], Any]) -> Any:
    """Return a part of the state as a rule's task takes it."""
    return Unread(x.codes, x.scale, signed, view) if isinstance(x, Grouped) else None if x is None else view(x)


def weights_of(p: Any, held: Any, view: Callable[[Any], Any]) -> Any:
    """Return weights with all their stored precision, as a rule's task takes them."""
    if held is None:
        return view(p)
    return view(held) if jnp.issubdtype(held.dtype, jnp.floating) else Unread(p, held, True, view)


class Storing(NamedTuple):
    """The settings that decide the storage of one parameter."""

    rule: Any
    name: str
    p: Any
    cut: Cut
    want: Wanted
    dtypes: Mapping[str, str]  # of fields, as other options have it
    alike: Mapping[str, bool]  # whether a field extends along all dimensions

    def rounds(self, held: Any) -> bool:
        """Return True if the weights are rounded here, and not when updates are added to them."""
        return held is not None or (is_low(self.p) and self.want.rounding is not None)

    # ---- making

    def fresh(self, field: str, shape: Shape | None) -> Any:
        """Return a part of the state before the first step, laid out over devices like the parameter."""
        dtype = self.dtype_of(field)
        if dtype != "int8" or shape is None:
            return _mesh.with_axes(zeros(self.p, field, shape, dtype, is_signed(self.rule, field)), self.p, self.cut)
        codes = zeros(self.p, field, shape, "int8" if is_signed(self.rule, field) else "uint8")
        scale = zeros(self.p, SCALE, scales_of(shape), "float32")
        return Grouped(codes, _mesh.with_axes(scale, self.p, self.cut, every=True))

    def dtype_of(self, field: str) -> str | None:
        """Return the name of the dtype that stores a field; None is that of the arithmetic."""
        own = computing(self.p.dtype).name
        alike = self.alike[field] and not jnp.iscomplexobj(self.p)
        found = chosen(Field(field, own, self.dtypes.get(field), alike, self._whole()), self.want, lambda: "").dtype
        if found == "int8":
            self._check_groups()
        return None if found == own else found

    def _whole(self) -> Shape:
        return _mesh.whole_shape(tuple(self.p.shape), self.cut)

    def _check_groups(self) -> None:
        """Raise if a cut of the parameter would cut groups."""
        here = tuple(self.p.shape)
        for d, axes in enumerate(self.cut.dims or ()):
            rows = d == 0 and len(here) > 1
            row = prod(here[1:]) if len(here) > 1 else here[0]
            if axes and not rows and (d > 1 or row % groups.GROUP):
                way_out = "Cut its first dimension, or store this part of the state in bfloat16."
                raise ParameterError(
                    f"{self.name} is cut along dimension {d} over {axes}, which cuts groups of {groups.GROUP} elements "
                    f"that share a scale. {way_out}"
                )

    def held(self) -> Any:
        """Return the companions of the weights before the first step, or None."""
        kind: Any = self.want.master if is_low(self.p) else False
        if kind is True:
            return jnp.asarray(self.p).astype(computing(self.p.dtype))
        return zeros(self.p, "weights", tuple(self.p.shape), f"int{REMAINDER_BITS[kind]}") if kind else None

    # ---- writing

    def written(self, field: str, old: Any, new: Any, t: Any) -> Any:
        """Return a part of the state, stored like the old one."""
        dtype = "int8" if isinstance(old, Grouped) else old.dtype.name
        draws = self.want.draws_state(field, dtype, self.dtypes.get(field))
        if isinstance(old, Grouped):
            form = Format(old.scale, self._key(field) if draws else None, is_signed(self.rule, field))
            codes, scale = stored(old.codes, form, self._places() if draws else None).encode(new, t)
            return Grouped(codes.astype(old.codes.dtype), scale)
        if old.dtype not in LOW or not (self.alike[field] and draws):
            return new.astype(old.dtype)
        rounding = weights.round_bf16 if old.dtype == jnp.bfloat16 else weights.round_f16
        return rounded(rounding(BITS, BITS.as_floats(new), self._random(field, t)), old.dtype)

    def moved(self, held: Any, move: Any, t: Any) -> tuple[Any, Any]:
        """Return the update of the weights, in float32, and their companions afterwards."""
        before = BITS.as_floats(self.p)
        full = weights_of(self.p, held, lambda x: x)
        full = full.read() if isinstance(full, Unread) else full
        after, beside = self._rounded(BITS.as_floats(full) + move, held, t)
        return after - before, beside

    def _rounded(self, x: Any, held: Any, t: Any) -> tuple[Any, Any]:
        """Return float32 weights as numbers that the parameter's dtype holds, and what they lack."""
        dtype = self.p.dtype
        if held is not None and jnp.issubdtype(held.dtype, jnp.floating):
            return BITS.as_floats(rounded(x, dtype)), x
        bits = 0 if held is None else 8 * held.dtype.itemsize
        drawn = self._random(WEIGHTS, t) if self.want.draws_weights(bits) else None
        if held is None and drawn is None:
            return BITS.as_floats(rounded(x, dtype)), None
        if held is None:
            rounding = weights.round_bf16 if dtype == jnp.bfloat16 else weights.round_f16
            return BITS.as_floats(rounded(rounding(BITS, x, drawn), dtype)), None
        split = weights.split_bf16 if dtype == jnp.bfloat16 else weights.split_f16
        p, rest = split(BITS, x, bits, drawn if bits == 8 else None)
        return p, rounded(rest, held.dtype)

    def _places(self) -> Places:
        """Return the places of the elements in the whole tensor."""
        if self.cut.axes and self.cut.dims is None:
            allowed = "given with axis_name and rounding at random"
            raise ContradictionError(sentence("specs", allowed, None, "Pass the in_specs of the parameters."))
        whole, here = self._whole(), tuple(self.p.shape)
        if prod(whole) > MOST:
            raise ParameterError(
                f"{self.name} has {prod(whole)} elements, more than the 2^32 that JAX's integers count for rounding at "
                'random. Divide it, or pass rounding="nearest".'
            )
        index = index_of(whole)
        return Places(index[tuple(slice(0, n) for n in here)], _starts(self.cut, here))

    def _random(self, field: str, t: Any) -> Any:
        low, high = BITS.indices(self._places(), self.p)
        return random(at_step(self._key(field), BITS.step(t), BITS.word), low, high, BITS.word)

    def _key(self, field: str) -> Key:
        return key_of(self.want.seed, self.name.replace("/", "."), field)


def _starts(cut: Cut, here: Shape) -> tuple[Any, ...]:
    """Return the start of the local part of a tensor along each dimension."""
    starts: list[Any] = [0] * len(here)
    for d, axes in enumerate(cut.dims or ()):
        at: Any = None
        for axis in axes:
            place = jax.lax.axis_index(axis).astype(jnp.uint32)
            at = place if at is None else at * np.uint32(jax.lax.psum(1, axis)) + place
        starts[d] = 0 if at is None else at * np.uint32(here[d])
    return tuple(starts)


def check_grouped(what: str, found: Grouped, shape: Shape | None, signed: bool) -> None:
    """Raise unless a part of the state in groups is what init would make."""
    codes, scale = found
    dtype = "int8" if signed else "uint8"
    if shape is None or len(shape) == 0 or tuple(jnp.shape(codes)) != shape or getattr(codes, "dtype", None) != dtype:
        raise StateError(f"the codes of {what} must be {dtype} of the shape {shape}, but are {codes!r}. {WAY_OUT}")
    if tuple(jnp.shape(scale)) != scales_of(shape) or getattr(scale, "dtype", None) != jnp.float32:
        raise StateError(
            f"the scales of {what} must be float32 of the shape {scales_of(shape)}, but are {scale!r}. {WAY_OUT}"
        )


def check_held(name: str, p: Any, held: Any, kind: Any) -> None:
    """Raise if the companions of the weights do not have the form of `master_weights`."""
    wanted = None if not is_low(p) or not kind else "float32" if kind is True else f"int{REMAINDER_BITS[kind]}"
    found = None if held is None else getattr(held, "dtype", type(held))
    if found != wanted or (held is not None and tuple(jnp.shape(held)) != tuple(p.shape)):
        allowed = f"{'None' if wanted is None else wanted} of the shape {tuple(p.shape)}, as {name} needs it"
        raise StateError(sentence("weights", allowed, held, f"With master_weights={kind!r}. {WAY_OUT}"))
