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
from layerwise.jax._slots import WAY_OUT, computing, zeros
from layerwise.jax._unread import Unread, stored
from layerwise.storage import WEIGHTS, groups
from layerwise.storage.bits import key_of
from layerwise.storage.coded import CODED, coded_of
from layerwise.storage.forms import chosen, scales_of
from layerwise.storage.index import index_of
from layerwise.storage.options import Wanted, is_signed
from layerwise.storage.stored import Stored
from layerwise.storage.weights import BESIDE

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


def unread(x: Any, view: Callable[[Any], Any]) -> Any:
    """Return a part of the state as a rule's task takes it."""
    return Unread(x.codes, x.scale, view) if isinstance(x, Grouped) else None if x is None else view(x)


def weights_of(p: Any, held: Any, view: Callable[[Any], Any]) -> Any:
    """Return weights with all their stored precision, as a rule's task takes them."""
    if held is None:
        return view(p)
    return view(held) if jnp.issubdtype(held.dtype, jnp.floating) else Unread(p, held, view)


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
        dtype, signed = self.dtype_of(field), is_signed(self.rule, field)
        coded = CODED.get(dtype or "")
        if coded is None or shape is None:
            return _mesh.with_axes(zeros(self.p, shape, dtype, signed), self.p, self.cut)
        codes = zeros(self.p, shape, coded.dtype(signed))
        scale = zeros(self.p, scales_of(shape), "float32", by_rows=True)
        return Grouped(codes, _mesh.with_axes(scale, self.p, self.cut, every=True))

    def dtype_of(self, field: str) -> str | None:
        """Return the name of the dtype that stores a field; None is that of the arithmetic."""
        own = computing(self.p.dtype).name
        alike = self.alike[field] and not jnp.iscomplexobj(self.p)
        found = chosen(self.want, field, own, self.dtypes.get(field), alike, self._whole()).dtype
        if found in CODED:
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
        return zeros(self.p, tuple(self.p.shape), BESIDE[kind].dtype) if kind else None

    # ---- writing

    def written(self, field: str, old: Any, new: Any, t: Any) -> Any:
        """Return a part of the state, stored like the old one."""
        old = old if isinstance(old, Grouped) else Grouped(old, None)
        dtype = old.codes.dtype
        coded = coded_of(dtype.name)
        draws = self.want.draws_state(field, coded.name if coded else dtype.name, self.dtypes.get(field))
        if not coded and (dtype not in LOW or not (self.alike[field] and draws)):
            return new.astype(dtype)
        codes, scale = self._stored(old.codes, old.scale, field if draws else None).encode(new, t)
        return Grouped(codes.astype(dtype), scale) if coded else rounded(codes, dtype)

    def _stored(self, array: Any, beside: Any, drawn: str | None) -> Stored:
        """Return an array in its format, rounded by the random bits of a field, or to nearest."""
        if drawn is None:
            return stored(array, beside)
        return stored(array, beside, key_of(self.want.seed, self.name.replace("/", "."), drawn), self._places())

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
        draws = self.want.draws_weights(None if held is None else held.dtype.name)
        p, rest = self._stored(self.p, held, WEIGHTS if draws else None).encode(x, t)
        return (BITS.as_floats(rounded(p, dtype)), None) if held is None else (p, rounded(rest, held.dtype))

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
    dtypes, scales = [one.dtype(signed) for one in CODED.values()], scales_of(shape) if shape else None
    for kind, x, allowed, wanted in (
        ("codes", found.codes, dtypes, shape),
        ("scales", found.scale, ["float32"], scales),
    ):
        if not shape or tuple(jnp.shape(x)) != wanted or getattr(x, "dtype", None) not in allowed:
            must = f"{' or '.join(allowed)} of the shape {wanted}"
            raise StateError(f"the {kind} of {what} must be {must}, but are {x!r}. {WAY_OUT}")


def check_held(name: str, p: Any, held: Any, kind: Any) -> None:
    """Raise if the companions of the weights do not have the form of `master_weights`."""
    wanted = BESIDE[kind].dtype if is_low(p) and kind else None
    found = None if held is None else getattr(held, "dtype", type(held))
    if found != wanted or (held is not None and tuple(jnp.shape(held)) != tuple(p.shape)):
        allowed = f"{'None' if wanted is None else wanted} of the shape {tuple(p.shape)}, as {name} needs it"
        raise StateError(sentence("weights", allowed, held, f"With master_weights={kind!r}. {WAY_OUT}"))
