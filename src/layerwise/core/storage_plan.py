"""The storage of weights and state: creation, conversion, and passing it to engines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import prod
from typing import Any, NamedTuple

from layerwise.core.library import LOW, WIDE, Library, arithmetic_dtype
from layerwise.core.plan import LocalPart, Plan, Shape
from layerwise.core.slot import Arrays, NamedState, with_format
from layerwise.engines import Job
from layerwise.rules.requests import Array
from layerwise.rules.states import is_signed
from layerwise.storage import STATE, WEIGHTS, Format, JobFormats
from layerwise.storage.bits import key_of
from layerwise.storage.coded import CODED
from layerwise.storage.index import index_of
from layerwise.storage.options import PLAIN, RequestedStorage
from layerwise.storage.quantized_groups import GROUP
from layerwise.storage.sixteen_bits import BESIDE, MASTER, Companion
from layerwise.storage.state_dtypes import ChosenDtype, blocks_cut_rows, row_dims, scales_of, stored_dtype

Where = tuple[Shape, Shape | None, int, Hashable]  # a job's information on the place of its part in the tensor


class Bytes(NamedTuple):
    """The bytes of a tensor's weights, with their companions, and of its state."""

    weights: int
    state: int


@dataclass(frozen=True)
class StoragePlan:
    """Everything that determines the storage of tensors with equal plans, so that it is computed once for all of
    them.
    """

    lib: Library
    plan: Plan  # of any of them
    dtype: str  # of their weights
    want: RequestedStorage

    @cached_property
    def is_low(self) -> bool:
        """True for weights of 16 bits."""
        return self.dtype in LOW

    def named(self, arrays: Mapping[str, Array]) -> NamedState:
        """Return a tensor's arrays with their meaning."""
        return NamedState(self.lib, arrays)

    @cached_property
    def dtype_per_field(self) -> dict[str, ChosenDtype]:
        """The dtype in which each field is to be stored."""
        plan, own, settled = self.plan, arithmetic_dtype(self.dtype), self.plan.h.state_dtypes()
        smallest = min((one.shape for one in plan.stored_together), key=prod)
        return {
            field: stored_dtype(
                self.want, field, own, settled.get(field), plan.elementwise[field], smallest, plan.why_not_grouped
            )
            for field in plan.fields
        }

    @cached_property
    def _plain(self) -> set[str]:
        """The names of arrays that are all plain, if their dtypes are wide."""
        return {*self.plan.fields} if self.want == PLAIN else {""}

    @cached_property
    def _wide(self) -> dict[object, bool]:
        """Whether a dtype, as the library has it, is wide: of those that were asked."""
        return {}

    def is_plain(self, arrays: Mapping[str, Array]) -> bool:
        """Return True if nothing has to be converted, and all arrays are plain numbers, rounded to nearest."""
        fields, wide = arrays.keys() - {"step"}, self._wide
        if fields != self._plain:
            return False
        for field in fields:
            x = arrays[field]
            if x.dtype not in wide:
                wide[x.dtype] = self.lib.dtype(x) in WIDE
            if not wide[x.dtype]:
                return False
        return True

    # ---- creation and conversion

    def convert_state(self, pairs: Iterable[tuple[Array, Arrays]]) -> None:
        """Make missing parts of tensors' states, and convert those that are stored otherwise than wanted."""
        makers_of = self._makers
        for p, arrays in pairs:
            for field, makers in makers_of.items():
                if field not in arrays:
                    for key, make in makers:
                        arrays[key] = make(p)
                elif field in self.want.state or (self.named(arrays).coded(field) and self.plan.why_not_grouped()):
                    self._convert(p, arrays, field)

    @cached_property
    def _makers(self) -> dict[str, list[tuple[str, Callable[[Array], Array]]]]:
        """Functions that create each field of a tensor, and its scales if it is stored as codes."""
        found = {}
        for field, (dtype, *_) in self.dtype_per_field.items():
            if (coded := CODED.get(dtype)) is None:
                found[field] = [(field, self.plan.zeros_maker(self.lib, field, dtype))]
                continue
            codes = self.plan.zeros_maker(self.lib, field, coded.dtype(is_signed(self.plan.rule, field)))
            found[field] = [(field, codes), (field + coded.suffix, partial(self.plan.new_scales, self.lib))]
        return found

    def _convert(self, p: Array, arrays: Arrays, field: str) -> None:
        state, dtype = self.named(arrays), self.dtype_per_field[field].dtype
        if dtype == state.option_dtype(field):
            return
        numbers = self.lib.local_part(state.in_floating_point(field))
        found = {key: make(p) for key, make in self._makers[field]}
        here, coded = self.lib.local_part(found[field]), CODED.get(dtype)
        if coded is not None:
            scale = self.lib.local_part(found[field + coded.suffix])
            numbers, scales = with_format(self.lib, here, Format(scale, None, coded)).encode(numbers, 0)
            self.lib.write(scale, scales)
        self.lib.write(here, numbers)
        state.replace(field, None)
        arrays.update(found)

    # ---- weights

    def convert_weights(self, p: Array, arrays: Arrays, into: Array) -> bool:
        """Store weights in the wanted format, without losing precision that is already stored.

        Return True if the weights themselves changed: `into` then has the new ones. Called when a step is about to be
        taken: earlier the weights may not have been loaded yet, and a remainder means nothing without them.
        """
        state, want = self.named(arrays), self._wanted_beside()
        known = state.companion_kinds()
        keys = [one.key for one in want]
        if known == want or [one.key for one in known] == keys == [MASTER]:  # in the dtype in which it was loaded
            return False
        is_master = keys == [MASTER]
        full = state.weights_in_full(p) if is_master or (want and known) else None
        for one in known:
            del arrays[one.key]
        for one in want:
            here = self.lib.zeros_like(self.lib.local_part(p), one.dtype)
            arrays[one.key] = full if is_master else self.lib.like(p, here)
        if is_master or full is None:  # otherwise the weights already have all known precision
            return False
        state.set_weights(into, full)
        return True

    def _wanted_beside(self) -> list[Companion]:
        """Return the kinds of the weights' wanted companions."""
        return [BESIDE[self.want.master]] if self.is_low and self.want.master else []

    def rounding_dtype(self, arrays: Mapping[str, Array]) -> str | None:
        """Return the dtype to which each step rounds weights to nearest without keeping the difference."""
        loses = self.is_low and not self.named(arrays).companion_kinds() and not self.want.draws_weights()
        return self.dtype if loses else None

    def report(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Return the present storage of the tensor and its state, or that of its first step, and its bytes."""
        state, own = self.named(arrays), self.dtype
        beside = [one.dtype for one in (state.companion_kinds() if arrays else self._wanted_beside())]
        formats = {
            key: state.option_dtype(key) if key in arrays else one.dtype for key, one in self.dtype_per_field.items()
        }
        why = {key: one.why for key, one in self.dtype_per_field.items() if one.why and formats[key] == one.dtype}
        shown = "".join(f"+{dtype_bits(one)}" for one in beside)
        found = {"weights": own + shown, "state": formats, "bytes": sum(self._bytes(formats, beside)), "why": why}
        products = self.plan.multiplied_in(own)
        return found | ({"products": products} if products else {})

    def bytes(self, parts: int = 1) -> Bytes:
        """Return the bytes from the first step on, of the largest of this many parts along the first dimension."""
        beside = [one.dtype for one in self._wanted_beside()]
        return self._bytes({key: one.dtype for key, one in self.dtype_per_field.items()}, beside, parts)

    def _bytes(self, formats: Mapping[str, str], beside: Iterable[str], parts: int = 1) -> Bytes:
        shape, state = _part(self.plan.shape, parts), 0
        cuts_groups = len(shape) == 1 and parts > 1 and shape[0] % GROUP > 0
        for field, stored_as in formats.items():
            whole, kept = self.plan.state_shapes[field] or (), self.plan.kept[field]
            own = arithmetic_dtype(self.dtype) if cuts_groups and stored_as in CODED else stored_as
            state += prod(_part(whole, parts) if kept and kept[0] else whole) * dtype_bits(own)
            state += prod(scales_of(shape)) * 32 if own in CODED else 0
        return Bytes(prod(shape) * sum(map(dtype_bits, (self.dtype, *beside))) // 8, state // 8)

    # ---- for engines

    def jobs(self, plan: Plan, p: Array, arrays: Mapping[str, Array]) -> list[Job]:
        lib, stepped, found = self.lib, arrays.get(MASTER, p), []
        here = lib.local_part(stepped) if self._is_cut else stepped
        own = arrays if here is stepped else {key: lib.local_part(arrays[key]) for key in plan.fields}
        index = None if self.is_plain(arrays) else cache(partial(plan.index, p))
        for held, keys, where in self._held:
            seen: Array = here
            state: Iterable[Any] = map(own.get, keys)
            if not self._itself:
                seen = held.view(here)
                state = (x if x is None else held.view(x, key) for x, key in zip(state, keys, strict=True))
            storage = None if index is None else self._storage(plan, p, arrays, index, held)
            found.append(Job(plan.rule, held.piece.h, seen, plan.rule.State(*state), *where, storage))
        return found

    @cached_property
    def _is_cut(self) -> bool:
        return self.plan.is_cut

    @cached_property
    def _itself(self) -> bool:
        return self.plan.is_single_job

    @cached_property
    def _held(self) -> list[tuple[LocalPart, tuple[Any, ...], Where]]:
        """The local parts, the names of their state, and their jobs' data besides arrays."""
        members = [member.state_shapes.items() for member in self.plan.stored_together]
        keys = [tuple(None if shape is None else key for key, shape in shapes) for shapes in members]
        return [
            (one, keys[one.member], (one.piece.block_dims, one.shape, one.parts, one.cut)) for one in self.plan.held
        ]

    def _storage(
        self, plan: Plan, p: Array, arrays: Mapping[str, Array], index: Any, held: LocalPart
    ) -> JobFormats | None:
        """Return the storage of the arrays of one job; None if all are plain and rounded to nearest."""
        own = replace(self, plan=plan.stored_together[held.member])  # its name determines the random bits
        fields = [own._format(arrays, field, held) for field in plan.rule.State._fields]
        formats = (own._format_of_weights(arrays, held), *fields)
        if all(one is None for one in formats):
            return None
        draws = any(one is not None and one.key is not None for one in formats)
        seen = held.index(index) if draws else index_of(held.view(self.lib.local_part(p)).shape)
        return JobFormats(formats, seen, row_dims(len(own.plan.shape), held.piece.part))

    def _format_of_weights(self, arrays: Mapping[str, Array], held: LocalPart) -> Format | None:
        state = self.named(arrays)
        rest = state.remainder
        drawn = self.want.draws_weights(None if rest is None else self.lib.dtype(rest))
        if not self.is_low or state.master is not None or (rest is None and not drawn):
            return None
        beside = None if rest is None else held.view(self.lib.local_part(rest))
        return Format(beside, key_of(self.want.seed, self.plan.key, WEIGHTS) if drawn else None)

    def _format(self, arrays: Mapping[str, Array], field: str, held: LocalPart) -> Format | None:
        if self.plan.state_shapes[field] is None or field not in arrays:
            return None
        state = self.named(arrays)
        form, coded = state.option_dtype(field), state.coded(field)
        drawn = None
        if self.want.draws_state(field, form, self.plan.h.state_dtypes().get(field)):
            drawn = key_of(self.want.seed, self.plan.key, STATE, lower=not is_signed(self.plan.rule, field))
        if coded is not None:
            scale = self.lib.local_part(arrays[state.scales_name(field)])
            rows = blocks_cut_rows(len(self.plan.shape), held.piece.part)
            return Format(held.view(scale) if rows else scale, drawn, coded)
        return Format(None, drawn) if drawn and form in LOW and self.plan.elementwise[field] else None


def _part(shape: Shape, parts: int) -> Shape:
    """Return the shape of the largest of this many parts along the first dimension."""
    return (-(-shape[0] // parts), *shape[1:]) if shape else shape


def dtype_bits(dtype: str) -> int:
    """Return the number of bits of a dtype, which its name ends with."""
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))
