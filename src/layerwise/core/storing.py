"""The storage of one tensor's weights and state: making it, converting it, and handing it to engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

from layerwise.core.library import LOW, WIDE, Array, Library, computing
from layerwise.core.plan import Held, Plan
from layerwise.core.slot import Arrays, NamedState, stored
from layerwise.engines import Job
from layerwise.storage import WEIGHTS, Format, Storage
from layerwise.storage.bits import Key, key_of
from layerwise.storage.coded import CODED
from layerwise.storage.forms import Chosen, blocks_cut_rows, chosen, row_dims, scales_of
from layerwise.storage.index import index_of
from layerwise.storage.options import PLAIN, Wanted, is_signed
from layerwise.storage.weights import BESIDE, MASTER, Beside


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

    def named(self, arrays: Mapping[str, Array]) -> NamedState:
        """Return the tensor's arrays with what they mean."""
        return NamedState(self.lib, arrays)

    def chosen(self, field: str) -> Chosen:
        """Return the dtype in which a field is to be stored."""
        plan, own = self.plan, computing(self.lib.dtype(self.p))
        each = plan.elementwise[field], plan.smallest, plan.why_not_grouped
        return chosen(self.want, field, own, self._settled(field), *each)

    def _settled(self, field: str) -> str | None:
        return self.plan.h.state_dtypes().get(field)

    def is_plain(self, arrays: Mapping[str, Array]) -> bool:
        """Return True if nothing is to be converted, and all arrays are plain numbers, rounded to nearest."""
        if self.want != PLAIN or len(arrays) - ("step" in arrays) != len(self.plan.fields):
            return False
        return all(field in arrays and self.lib.dtype(arrays[field]) in WIDE for field in self.plan.fields)

    # ---- making and converting

    def put_state_in_form(self, arrays: Arrays) -> None:
        """Make missing parts of the state, and convert those that are stored otherwise than wanted."""
        for field, shape in self.plan.state_shapes.items():
            if shape is None:
                continue
            if field not in arrays:
                arrays.update(self._made(field, self.chosen(field).dtype))
            elif field in self.want.state or (self.named(arrays).coded(field) and self.plan.why_not_grouped()):
                self._convert(arrays, field)

    def _made(self, field: str, dtype: str) -> dict[str, Array]:
        coded = CODED.get(dtype)
        if coded is None:
            return {field: self.plan.zeros(self.lib, field, self.p, dtype)}
        codes = self.plan.zeros(self.lib, field, self.p, coded.dtype(is_signed(self.plan.rule, field)))
        return {field: codes, field + coded.suffix: self.plan.scales(self.lib, self.p)}

    def _convert(self, arrays: Arrays, field: str) -> None:
        state, dtype = self.named(arrays), self.chosen(field).dtype
        if dtype == state.form(field):
            return
        numbers, found = self.lib.here(state.numbers(field)), self._made(field, dtype)
        here, coded = self.lib.here(found[field]), CODED.get(dtype)
        if coded is not None:
            scale = self.lib.here(found[field + coded.suffix])
            numbers, scales = stored(self.lib, here, Format(scale, None, coded)).encode(numbers, 0)
            self.lib.write(scale, scales)
        self.lib.write(here, numbers)
        state.replace(field, None)
        arrays.update(found)

    # ---- weights

    def put_weights_in_form(self, arrays: Arrays, into: Array) -> bool:
        """Store the weights in the wanted form, without losing precision that is already stored.

        Return True if the weights themselves changed: `into` then has the new ones. It is called when a step is about
        to be taken. Earlier the weights may not have been loaded yet, and a remainder means nothing without them.
        """
        state, want = self.named(arrays), self._wanted_beside()
        known = state.beside_weights()
        keys = [one.key for one in want]
        if known == want or [one.key for one in known] == keys == [MASTER]:  # in the dtype that it was loaded in
            return False
        is_master = keys == [MASTER]
        full = state.weights_in_full(self.p) if is_master or (want and known) else None
        for one in known:
            del arrays[one.key]
        for one in want:
            here = self.lib.zeros_like(self.lib.here(self.p), one.dtype)
            arrays[one.key] = full if is_master else self.lib.like(self.p, here)
        if is_master or full is None:  # else the weights lack nothing of what is known of them
            return False
        state.set_weights(into, full)
        return True

    def _wanted_beside(self) -> list[Beside]:
        """Return the kinds of what is to stand beside the weights."""
        return [BESIDE[self.want.master]] if self.is_low and self.want.master else []

    def rounds_to(self, arrays: Mapping[str, Array]) -> str | None:
        """Return the dtype to which each step rounds weights to nearest, if it keeps nothing of the difference."""
        loses = self.is_low and not self.named(arrays).beside_weights() and not self.want.draws_weights()
        return self.lib.dtype(self.p) if loses else None

    def report(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Return the storage of the tensor and its state, present or from its first step on, and its bytes."""
        state, own = self.named(arrays), self.lib.dtype(self.p)
        beside = [one.dtype for one in (state.beside_weights() if arrays else self._wanted_beside())]
        bits, formats, why = prod(self.plan.shape) * sum(map(bits_of, (own, *beside))), {}, {}
        for field in self.plan.fields:
            planned = self.chosen(field)
            formats[field] = found = state.form(field) if field in arrays else planned.dtype
            bits += prod(self.plan.state_shapes[field] or ()) * bits_of(found)
            bits += prod(scales_of(self.plan.shape)) * 32 if found in CODED else 0
            if planned.why and found == planned.dtype:
                why[field] = planned.why
        shown = "".join(f"+{bits_of(one)}" for one in beside)
        return {"weights": own + shown, "state": formats, "bytes": bits // 8, "why": why}

    # ---- for engines

    def jobs(self, arrays: Mapping[str, Array]) -> Iterator[Job]:
        """Yield the jobs of the tensor."""
        if self.is_plain(arrays):
            yield from self.plan.jobs(self.lib, self.p, arrays, lambda held: None)
            return
        index = cache(lambda: self.plan.index(self.p))
        master = self.named(arrays).master
        stepped = self.p if master is None else master
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
        state = self.named(arrays)
        rest = state.remainder
        drawn = self.want.draws_weights(None if rest is None else self.lib.dtype(rest))
        if not self.is_low or state.master is not None or (rest is None and not drawn):
            return None
        beside = None if rest is None else held.view(self.lib.here(rest))
        return Format(beside, self._key(WEIGHTS) if drawn else None)

    def _format(self, arrays: Mapping[str, Array], field: str, held: Held) -> Format | None:
        if self.plan.state_shapes[field] is None or field not in arrays:
            return None
        state = self.named(arrays)
        form, coded = state.form(field), state.coded(field)
        drawn = self._key(field) if self.want.draws_state(field, form, self._settled(field)) else None
        if coded is not None:
            scale = self.lib.here(arrays[state.beside(field)])
            rows = blocks_cut_rows(len(self.plan.shape), held.piece.part)
            return Format(held.view(scale) if rows else scale, drawn, coded)
        return Format(None, drawn) if drawn and form in LOW and self.plan.elementwise[field] else None

    def _key(self, field: str) -> Key:
        return key_of(self.want.seed, self.plan.key, field)


def bits_of(dtype: str) -> int:
    """Return the bits of a number of a dtype, which its name ends with."""
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))
