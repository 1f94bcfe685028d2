"""The arrays that are kept for one tensor from step to step, by their names in checkpoints.

A field of the state has the name that its rule gives it. If it is stored as codes, its scales have that name plus a
suffix. 16-bit weights may have a float32 master or a remainder. In frameworks with a public state, other programs keep
entries there too, under names that no rule and no format has.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import mul, truediv
from typing import Any, NamedTuple

from layerwise.catalog.registry import ENTRIES
from layerwise.core.library import FLOATING, Library, arithmetic_dtype
from layerwise.core.plan import Plan
from layerwise.engines import Stats
from layerwise.rules.requests import Array, T
from layerwise.rules.states import is_signed
from layerwise.storage import CodedFormat, Format
from layerwise.storage.coded import CODED, FORMER
from layerwise.storage.formatted_arrays import FormattedArray
from layerwise.storage.index import index_of
from layerwise.storage.sixteen_bits import BESIDE, MASTER, REMAINDER, Companion
from layerwise.storage.state_dtypes import Shape, scales_of

Arrays = MutableMapping[str, Array]


@dataclass(eq=False)
class StepMeasurements:
    """The measurements of the last step of tensors that step together."""

    plans: Sequence[Plan]
    measured: Sequence[Stats] = ()

    def stats(self) -> list[dict[str, Array]]:
        """Return them in readable form, for each tensor."""
        each = iter(self.measured)
        return [next(plan.measured(each))[1] for plan in self.plans]


@dataclass(eq=False)
class Slot:
    """The state of one tensor, for APIs that keep it in objects of ours."""

    arrays: dict[str, Array]  # by the names that checkpoints have
    step: int = 0
    shape: tuple[int, ...] = ()
    last: tuple[StepMeasurements, int] | None = None  # its last step, and its place in it

    @property
    def master(self) -> Array | None:
        """The float32 copy of the weights, which steps change, if there is one."""
        return self.arrays.get(MASTER)


class ArraySpec(NamedTuple):
    """The requirements of one of the arrays."""

    shape: Shape
    dtypes: tuple[str, ...]
    needed: bool = True
    of: str = ""  # the field whose scales these are

    @property
    def others(self) -> tuple[str, ...]:
        """The dtypes besides any floating-point dtype, or all dtypes if there are few."""
        return self.dtypes[len(FLOATING) :] if {*FLOATING} <= {*self.dtypes} else self.dtypes


def possible_names(fields: Sequence[str]) -> set[str]:
    """Return all names that arrays of a rule with these fields may have."""
    beside = {field + coded.suffix for field in fields for coded in (*CODED.values(), *FORMER)}
    return {*fields, *beside, MASTER, REMAINDER}


@cache
def _all_names(formats: tuple[str, ...]) -> set[str]:
    """Return the names that arrays of any rule may have."""
    fields = chain.from_iterable([entry.rule.State._fields for entry in ENTRIES.values()])
    return {"step", *possible_names(tuple(fields))}


@cache
def _own_keys(keys: tuple[str, ...], formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return those that are names of a state of some rule, or of some format, or contain such a name.

    AMSGrad's `max_exp_avg_sq` is such a name: it belongs to an optimizer, not to another program's entries.
    """
    names = _all_names(formats)
    within = [name for name in names if "_" in name]
    return tuple(key for key in keys if key in names or (isinstance(key, str) and any(name in key for name in within)))


def own_entries(entries: Mapping[str, T]) -> dict[str, T]:
    """Return the entries of a tensor's state that belong, or seem to belong, to a rule or a format."""
    own = _own_keys(tuple(entries), tuple(CODED))
    return dict(entries) if len(own) == len(entries) else {key: entries[key] for key in own}


def entries_of_others(entries: Mapping[str, T]) -> dict[str, T]:
    """Return the entries of a tensor's state that belong to other programs."""
    own = _own_keys(tuple(entries), tuple(CODED))
    return {key: x for key, x in entries.items() if key not in own}


class NamedState(NamedTuple):
    """The arrays of one tensor: its state, and the companions of state and weights."""

    lib: Library
    arrays: Any  # the names may include "step"

    # ---- state

    def coded(self, field: str) -> CodedFormat | None:
        """Return the format of a field's codes; None if it has numbers, or is missing."""
        if field not in self.arrays:
            return None
        found = [one for one in (*CODED.values(), *FORMER) if self.lib.dtype(self.arrays[field]) in one.dtypes]
        return next((one for one in found if field + one.suffix in self.arrays), found[0] if found else None)

    def option_dtype(self, field: str) -> str:
        """Return the name of a field's dtype in options."""
        coded = self.coded(field)
        return str(self.lib.dtype(self.arrays[field])) if coded is None else coded.name

    def scales_name(self, field: str) -> str:
        """Return the name of the scales of a field's codes; the field's own name if it has numbers."""
        coded = self.coded(field)
        return field if coded is None else field + coded.suffix

    def coded_fields(self) -> dict[str, str]:
        """Return the fields that are stored as codes, with the names of their scales."""
        each = {field: self.scales_name(field) for field in self.arrays if field not in (MASTER, REMAINDER)}
        return {field: scales for field, scales in each.items() if scales != field and scales in self.arrays}

    def is_former(self) -> bool:
        """Return True if a field is stored as codes that are no longer written."""
        return any(self.coded(field) in FORMER for field in self.coded_fields())

    def in_floating_point(self, field: str) -> Array:
        """Return a field in floating point: itself, or the numbers of its codes."""
        value, coded = self.arrays[field], self.coded(field)
        if coded is None:
            return value
        form = Format(self.lib.local_part(self.arrays[field + coded.suffix]), None, coded)
        return self.lib.like(value, with_format(self.lib, self.lib.local_part(value), form).read())

    def all_in_floating_point(self) -> dict[str, Array]:
        """Return all entries, with numbers in place of codes and their scales."""
        codes = self.coded_fields()
        scales = {*codes.values()}
        return {
            key: self.in_floating_point(key) if key in codes else x
            for key, x in self.arrays.items()
            if key not in scales
        }

    def in_present_formats(self) -> dict[str, Array]:
        """Return all entries, with numbers in place of codes if some are no longer written."""
        return self.all_in_floating_point() if self.is_former() else dict(self.arrays)

    def replace(self, field: str, found: Array | None) -> None:
        """Replace a field by numbers, or by nothing."""
        self.arrays.pop(self.scales_name(field), None)
        self.arrays.pop(field, None)
        if found is not None:
            self.arrays[field] = found

    def multiply(self, field: str, by: float, inverse: bool) -> None:
        """Multiply or divide a field by a number; if it is stored as codes, the scales change."""
        key = self.scales_name(field)
        self.arrays[key] = (truediv if inverse else mul)(self.arrays[key], by)

    # ---- weights

    @property
    def master(self) -> Array | None:
        """The float32 copy of the weights, which steps change, if there is one."""
        return self.arrays.get(MASTER)

    @property
    def remainder(self) -> Array | None:
        """The remainder of the weights, if it is kept."""
        return self.arrays.get(REMAINDER)

    def companion_kinds(self) -> list[Companion]:
        """Return the kinds of the weights' companions."""
        return [Companion(key, self.lib.dtype(self.arrays[key])) for key in (MASTER, REMAINDER) if key in self.arrays]

    def weights_in_full(self, p: Array) -> Array:
        """Return weights with all their stored precision: their masters, the weights with their remainder, or the
        weights.
        """
        lib, master, rest = self.lib, self.master, self.remainder
        if master is not None:
            return lib.cast(master, lib.dtype(master))
        if rest is None:
            return lib.cast(p, arithmetic_dtype(lib.dtype(p)))
        here = lib.local_part(p)
        full = lib.zeros_like(here, "float32")
        for part, lacks, numbers in lib.row_chunks(here, lib.local_part(rest), full):
            lib.write(numbers, with_format(lib, part, Format(lacks)).read())
        return lib.like(p, full)

    def set_weights(self, into: Array, full: Array) -> None:
        """Set weights and their companions to float32 numbers."""
        lib, full = self.lib, self.lib.local_part(full)
        if self.master is not None:
            lib.write(lib.local_part(self.master), full)
        if self.remainder is None:
            lib.write(into, full)
            return
        for part, lacks, numbers in lib.row_chunks(into, lib.local_part(self.remainder), full):
            weights, lacking = with_format(lib, part, Format(lacks)).encode(numbers, 0)
            lib.write(part, weights)
            lib.write(lacks, lacking)

    # ---- checks

    def expected(self, plan: Plan, is_low: bool = True) -> dict[str, ArraySpec]:
        """Return the requirements of each array, also of those that may be missing, for 16-bit or other weights."""
        parts: dict[str, ArraySpec] = {}
        for field in plan.fields:
            signed, coded = is_signed(plan.rule, field), self.coded(field)
            is_grouped = plan.elementwise[field] and bool(plan.shape)  # a single number has no groups
            codes = [one.dtype(signed) for one in CODED.values()] if is_grouped else []
            parts[field] = ArraySpec(plan.state_shapes[field] or (), (*FLOATING, *dict.fromkeys(codes)))
            if coded is not None and plan.shape:
                parts[field + coded.suffix] = ArraySpec(scales_of(plan.shape), ("float32",), of=field)
        remainders = tuple(one.dtype for one in BESIDE.values() if one.key == REMAINDER and is_low)
        for key, dtypes in ((MASTER, FLOATING), (REMAINDER, remainders)):
            parts[key] = ArraySpec(plan.shape, dtypes, needed=False)
        return parts


def with_format(lib: Library, array: Array, form: Format) -> FormattedArray:
    """Return a whole array in its format."""
    return FormattedArray(array, form, index_of(tuple(array.shape)), min(1, array.ndim - 1), lib.bits)
