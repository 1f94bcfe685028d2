"""The storage of one name's weights and state: its formats, making it, and converting it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from layerwise.layout import Piece
from layerwise.names import Name
from layerwise.numpy._arrays import BITS, Array, computing, named_dtype
from layerwise.numpy._slots import Plan, Slot
from layerwise.storage import WEIGHTS, Format, Storage
from layerwise.storage.bits import key_of
from layerwise.storage.forms import (
    CUT_BY_BLOCKS,
    Field,
    blocks_cut_groups,
    blocks_cut_rows,
    chosen,
    row_dims,
    scales_of,
)
from layerwise.storage.index import index_of
from layerwise.storage.options import MASTER, REMAINDER, SCALE, Wanted, is_signed
from layerwise.storage.stored import Stored

LOW = ("float16", "bfloat16")
REMAINDERS: dict[Any, np.dtype[Any]] = {"split": np.dtype(np.int16), "split24": np.dtype(np.int8)}


def is_group(x: Any) -> bool:
    return x is not None and x.dtype.name in ("int8", "uint8")


def code_dtype(rule: Any, field: str) -> np.dtype[Any]:
    """Return the dtype of a field's numbers in 8 bits."""
    return np.dtype(np.int8 if is_signed(rule, field) else np.uint8)


class Storing(NamedTuple):
    """The settings that decide the storage of one name."""

    name: Name
    rule: Any
    plan: Plan
    p: Array
    want: Wanted
    dtypes: Mapping[str, np.dtype[Any]]  # of fields that an option of the rule is about

    # ---- which format

    def dtype_of(self, field: str, warn: bool = False) -> np.dtype[Any]:
        """Return the dtype in which a field is to be stored."""
        own = computing(self.p.dtype).name
        which = Field(field, own, self._settled(field), self.plan.alike[field], self.p.shape)
        found = chosen(which, self.want, lambda: CUT_BY_BLOCKS if self._cut_by_blocks() else "")
        if found.by_layout and warn:
            kept = f"{field!r} of {self.name!r} is stored in {found.dtype} and not in 8 bits: {found.why}."
            warnings.warn(kept, stacklevel=2)
        return code_dtype(self.rule, field) if found.dtype == "int8" else named_dtype("state_dtype", found.dtype)

    def _settled(self, field: str) -> str | None:
        return self.dtypes[field].name if field in self.dtypes else None

    def _cut_by_blocks(self) -> bool:
        return blocks_cut_groups(self.p.shape, [piece.part for piece in self.plan.layout.pieces])

    # ---- making and converting

    def fresh(self) -> Slot:
        """Return the slot of a new name."""
        fields, beside = [], {}
        for field, shape in zip(self.rule.State._fields, self.plan.layout.state_shapes(), strict=True):
            array = None if shape is None else np.zeros(shape, self.dtype_of(field, warn=True))
            fields.append(array)
            if is_group(array):
                beside[field + SCALE] = np.zeros(scales_of(self.p.shape), np.float32)
        return self.in_form(Slot(self.p.shape, self.rule.State(*fields), beside=beside))[0]

    def in_form(self, slot: Slot) -> tuple[Slot, Array | None]:
        """Return a slot whose arrays are stored as wanted, and the weights if they change."""
        state, beside = slot.state, dict(slot.beside)
        for field, array in state._asdict().items():
            if array is not None and (field in self.want.state or (is_group(array) and self._cut_by_blocks())):
                state = state._replace(**{field: self._converted(field, array, beside)})
        weights = self._convert_weights(beside)
        if weights is None and state is slot.state and beside == slot.beside:
            return slot, None
        return Slot(slot.shape, state, slot.step, slot.measured, slot.layout, beside), weights

    def _converted(self, field: str, array: Array, beside: dict[str, Array]) -> Array:
        dtype = self.dtype_of(field)
        if dtype == array.dtype:
            return array
        numbers = as_numbers(self.rule, field, array, beside)
        beside.pop(field + SCALE, None)
        if dtype.name not in ("int8", "uint8"):
            return numbers.astype(dtype)
        scale = np.zeros(scales_of(self.p.shape), np.float32)
        form = Format(scale, None, is_signed(self.rule, field))
        codes, beside[field + SCALE] = _whole(np.zeros(array.shape, dtype), form).encode(numbers, 0)
        converted: Array = codes.astype(dtype)
        return converted

    def _convert_weights(self, beside: dict[str, Array]) -> Array | None:
        """Convert the companions of the weights to the wanted form, and return the weights if they change."""
        kind: Any = self.want.master if self.p.dtype.name in LOW else False
        rest = beside.get(REMAINDER)
        if (MASTER in beside) == (kind is True) and (None if rest is None else rest.dtype) == REMAINDERS.get(kind):
            return None
        full = full_weights(self.p, beside)
        beside.pop(MASTER, None)
        beside.pop(REMAINDER, None)
        if kind is True:
            beside[MASTER] = full
        elif kind:
            rest = np.zeros(self.p.shape, REMAINDERS[kind])
            weights, lacking = _whole(self.p, Format(rest)).encode(full, 0)
            beside[REMAINDER] = lacking.astype(rest.dtype)
            found: Array = weights.astype(self.p.dtype)
            return found
        return None

    # ---- for engines

    def storage_of(self, slot: Slot, piece: Piece) -> Storage | None:
        """Return the storage of the arrays of one job; None if all are plain and rounded to nearest."""
        fields = [self._format(field, x, slot, piece) for field, x in slot.state._asdict().items()]
        formats = (self._format_of_weights(slot, piece), *fields)
        if all(one is None for one in formats):
            return None
        return Storage(formats, piece.view(index_of(self.p.shape)), row_dims(self.p.ndim, piece.part))

    def _format_of_weights(self, slot: Slot, piece: Piece) -> Format | None:
        rest = slot.beside.get(REMAINDER)
        drawn = self.want.draws_weights(0 if rest is None else 8 * rest.dtype.itemsize)
        if self.p.dtype.name not in LOW or MASTER in slot.beside or (rest is None and not drawn):
            return None
        return Format(None if rest is None else piece.view(rest), self._key(WEIGHTS) if drawn else None)

    def _format(self, field: str, array: Array | None, slot: Slot, piece: Piece) -> Format | None:
        if array is None:
            return None
        dtype = "int8" if is_group(array) else array.dtype.name
        drawn = self._key(field) if self.want.draws_state(field, dtype, self._settled(field)) else None
        if is_group(array):
            scale, rows = slot.beside[field + SCALE], blocks_cut_rows(self.p.ndim, piece.part)
            return Format(piece.view(scale) if rows else scale, drawn, is_signed(self.rule, field))
        return Format(None, drawn) if drawn and dtype in LOW and self.plan.alike[field] else None

    def _key(self, field: str) -> Any:
        return key_of(self.want.seed, str(self.name), field)


def full_weights(p: Array, beside: Mapping[str, Array]) -> Array:
    """Return weights with all their stored precision: their masters, or with their remainder, or themselves."""
    if MASTER in beside:
        master: Array = beside[MASTER].copy()
        return master
    if REMAINDER not in beside:
        return np.array(p, computing(p.dtype))
    found: Array = _whole(p, Format(beside[REMAINDER])).read()
    return found


def as_numbers(rule: Any, field: str, array: Array, beside: Mapping[str, Array]) -> Array:
    """Return a field in floating point: itself, or the numbers of its groups."""
    if not is_group(array):
        return array
    found: Array = _whole(array, Format(beside[field + SCALE], None, is_signed(rule, field))).read()
    return found


def _whole(array: Array, form: Format) -> Stored:
    return Stored(array, form, index_of(array.shape), min(1, array.ndim - 1), BITS)
