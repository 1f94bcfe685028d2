"""The storage of one tensor's weights and state: making it, converting it, and handing it to engines.

Arrays are kept by the names that checkpoints have: a field of the state as the rule calls it, the scales of one in 8
bits under its name with a suffix, and beside low weights their float32 master or the remainder that they lack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any, NamedTuple

from layerwise.core.library import LOW, Array, Library, computing
from layerwise.core.plan import Held, Plan
from layerwise.engines import Job
from layerwise.storage import WEIGHTS, Format, Storage
from layerwise.storage.bits import Key, key_of
from layerwise.storage.forms import Chosen, Field, blocks_cut_rows, chosen, row_dims
from layerwise.storage.index import index_of
from layerwise.storage.options import MASTER, PLAIN, REMAINDER, REMAINDER_BITS, SCALE, Wanted, is_signed
from layerwise.storage.stored import Stored

CODES = ("int8", "uint8")
FEW = (*LOW, *CODES)
Arrays = MutableMapping[str, Array]


def codes_of(rule: Any, field: str) -> str:
    """Return the dtype of 8-bit codes of a field."""
    return "int8" if is_signed(rule, field) else "uint8"


class Storing(NamedTuple):
    """The settings that decide the storage of one tensor."""

    lib: Library
    plan: Plan
    p: Array
    want: Wanted

    @property
    def is_low(self) -> bool:
        """True for weights of 16 bits."""
        return self.lib.dtype(self.p) in LOW

    def form(self, array: Array) -> str:
        """Return the dtype that stores an array, with one name for 8 bits."""
        dtype = self.lib.dtype(array)
        return "int8" if dtype in CODES else dtype

    def chosen(self, field: str) -> Chosen:
        """Return the dtype in which a field is to be stored."""
        own = computing(self.lib.dtype(self.p))
        which = Field(field, own, self._settled(field), self.plan.elementwise[field], self.plan.smallest)
        return chosen(which, self.want, self.plan.why_not_grouped)

    def _settled(self, field: str) -> str | None:
        return self.plan.h.state_dtypes().get(field)

    def is_plain(self, arrays: Mapping[str, Array]) -> bool:
        """Return True if nothing is to be converted, and all arrays are plain numbers, rounded to nearest."""
        if self.want != PLAIN or len(arrays) != len(self.plan.fields):
            return False
        return all(field in arrays and self.lib.dtype(arrays[field]) not in FEW for field in self.plan.fields)

    # ---- making and converting

    def put_state_in_form(self, arrays: Arrays) -> None:
        """Make missing parts of the state, and convert those that are stored otherwise than wanted."""
        for field, shape in self.plan.state_shapes.items():
            if shape is None:
                continue
            if field not in arrays:
                arrays.update(self._made(field, self.chosen(field).dtype))
            elif field in self.want.state or (self.form(arrays[field]) == "int8" and self.plan.why_not_grouped()):
                self._convert(arrays, field)

    def _made(self, field: str, dtype: str) -> dict[str, Array]:
        if dtype != "int8":
            return {field: self.plan.zeros(self.lib, field, self.p, dtype)}
        codes = self.plan.zeros(self.lib, field, self.p, codes_of(self.plan.rule, field))
        return {field: codes, field + SCALE: self.plan.scales(self.lib, self.p)}

    def _convert(self, arrays: Arrays, field: str) -> None:
        dtype = self.chosen(field).dtype
        if dtype == self.form(arrays[field]):
            return
        numbers, found = self.lib.here(self.numbers(arrays, field)), self._made(field, dtype)
        here = self.lib.here(found[field])
        if dtype == "int8":
            scale = self.lib.here(found[field + SCALE])
            form = Format(scale, None, is_signed(self.plan.rule, field))
            codes, scales = _stored(self.lib, here, form).encode(numbers, 0)
            self.lib.write(here, codes)
            self.lib.write(scale, scales)
        else:
            self.lib.write(here, numbers)
        arrays.pop(field + SCALE, None)
        arrays.update(found)

    def numbers(self, arrays: Mapping[str, Array], field: str) -> Array:
        """Return a field in floating point: itself, or the numbers of its groups."""
        return as_numbers(self.lib, arrays, field, is_signed(self.plan.rule, field))

    # ---- weights

    def put_weights_in_form(self, arrays: Arrays, into: Array) -> bool:
        """Store the weights in the wanted form, without losing precision that is already stored.

        Return True if the weights themselves changed: `into` then has the new ones. It is called when a step is about
        to be taken. Earlier the weights may not have been loaded yet, and a remainder means nothing without them.
        """
        kind: Any = self.want.master if self.is_low else False
        rest = arrays.get(REMAINDER)
        bits = None if rest is None else 8 * rest.dtype.itemsize
        if (MASTER in arrays) == (kind is True) and bits == REMAINDER_BITS.get(kind):
            return False
        known = MASTER in arrays or rest is not None
        full = full_weights(self.lib, self.p, arrays) if kind and (known or kind is True) else None
        arrays.pop(MASTER, None)
        arrays.pop(REMAINDER, None)
        if kind is True:
            arrays[MASTER] = full
        elif kind:
            here = self.lib.zeros_like(self.lib.here(self.p), f"int{REMAINDER_BITS[kind]}")
            arrays[REMAINDER] = self.lib.like(self.p, here)
            if known:  # else the weights lack nothing of what is known of them
                set_weights(self.lib, arrays, into, full)
                return True
        return False

    # ---- for engines

    def jobs(self, arrays: Mapping[str, Array]) -> Iterator[Job]:
        """Yield the jobs of the tensor."""
        if self.is_plain(arrays):
            yield from self.plan.jobs(self.lib, self.p, arrays, _plain)
            return
        index = cache(lambda: self.plan.index(self.p))
        stepped = arrays.get(MASTER, self.p)
        yield from self.plan.jobs(self.lib, stepped, arrays, lambda held: self._storage(arrays, held, index))

    def _storage(self, arrays: Mapping[str, Array], held: Held, index: Any) -> Storage | None:
        """Return the storage of the arrays of one job; None if all are plain and rounded to nearest."""
        own = self._replace(plan=self.plan.members[held.member])
        fields = [own._format(arrays, field, held) for field in self.plan.rule.State._fields]
        formats = (own._format_of_weights(arrays, held), *fields)
        if all(one is None for one in formats):
            return None
        draws = any(one is not None and one.key is not None for one in formats)
        seen = held.index(index) if draws else index_of(held.view(self.lib.here(self.p)).shape)
        return Storage(formats, seen, row_dims(len(own.plan.shape), held.piece.part))

    def _format_of_weights(self, arrays: Mapping[str, Array], held: Held) -> Format | None:
        rest = arrays.get(REMAINDER)
        drawn = self.want.draws_weights(0 if rest is None else 8 * rest.dtype.itemsize)
        if not self.is_low or MASTER in arrays or (rest is None and not drawn):
            return None
        beside = None if rest is None else held.view(self.lib.here(rest))
        return Format(beside, self._key(WEIGHTS) if drawn else None)

    def _format(self, arrays: Mapping[str, Array], field: str, held: Held) -> Format | None:
        if self.plan.state_shapes[field] is None or field not in arrays:
            return None
        form = self.form(arrays[field])
        drawn = self._key(field) if self.want.draws_state(field, form, self._settled(field)) else None
        if form == "int8":
            scale = self.lib.here(arrays[field + SCALE])
            rows = blocks_cut_rows(len(self.plan.shape), held.piece.part)
            return Format(held.view(scale) if rows else scale, drawn, is_signed(self.plan.rule, field))
        return Format(None, drawn) if drawn and form in LOW and self.plan.elementwise[field] else None

    def _key(self, field: str) -> Key:
        return key_of(self.want.seed, self.plan.key, field)


def _plain(held: Held) -> None:
    return None


def as_numbers(lib: Library, arrays: Mapping[str, Array], field: str, signed: bool) -> Array:
    """Return a field in floating point: itself, or the numbers of its groups."""
    value = arrays[field]
    if lib.dtype(value) not in CODES:
        return value
    form = Format(lib.here(arrays[field + SCALE]), None, signed)
    return lib.like(value, _stored(lib, lib.here(value), form).read())


def _stored(lib: Library, array: Array, form: Format) -> Stored:
    return Stored(array, form, index_of(tuple(array.shape)), min(1, array.ndim - 1), lib.bits)


def full_weights(lib: Library, p: Array, arrays: Mapping[str, Array]) -> Array:
    """Return weights with all their stored precision: their masters, or with their remainder, or themselves."""
    if MASTER in arrays:
        return lib.cast(arrays[MASTER], lib.dtype(arrays[MASTER]))
    if REMAINDER not in arrays:
        return lib.cast(p, computing(lib.dtype(p)))
    here, rest = lib.here(p), lib.here(arrays[REMAINDER])
    full = lib.zeros_like(here, "float32")
    for part, lacks, numbers in lib.rows(here, rest, full):
        lib.write(numbers, _stored(lib, part, Format(lacks)).read())
    return lib.like(p, full)


def set_weights(lib: Library, arrays: Arrays, into: Array, full: Array) -> None:
    """Set weights, and their companions, to float32 numbers."""
    full = lib.here(full)
    if MASTER in arrays:
        lib.write(lib.here(arrays[MASTER]), full)
    if REMAINDER not in arrays:
        lib.write(into, full)
        return
    for part, lacks, numbers in lib.rows(into, lib.here(arrays[REMAINDER]), full):
        weights, lacking = _stored(lib, part, Format(lacks)).encode(numbers, 0)
        lib.write(part, weights)
        lib.write(lacks, lacking)
