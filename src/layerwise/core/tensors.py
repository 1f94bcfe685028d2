"""The tensors of one optimizer, for APIs that keep state in slots: what is kept of each, and how it steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakSet

from layerwise.core.library import Array, Library
from layerwise.core.plan import Plan
from layerwise.core.slot import Slot
from layerwise.core.storing import Storing
from layerwise.engines import Job
from layerwise.errors import ParameterError, warn
from layerwise.names import Name, few
from layerwise.storage.options import Wanted

Numbers = tuple[int, float, float]  # the step that a tensor takes, its learning rate and its weight decay


class Planned(NamedTuple):
    """The plan of one tensor's step, and what its API says besides."""

    plan: Plan
    want: Wanted
    own: Any = None  # what only the API reads


@dataclass(eq=False)
class Due:
    """A tensor as it steps, for as long as its settings, its slot, and the kind of its weights stay the same."""

    planned: Planned
    slot: Slot
    kind: Hashable
    jobs: Sequence[Job]  # without the weights, unless the API keeps these
    converted: Array | None  # weights that become others because they are stored in another way
    loses: str | None  # the dtype of weights in 16 bits that are rounded to nearest, with nothing kept beside

    @property
    def plan(self) -> Plan:
        return self.planned.plan

    @property
    def name(self) -> Name:
        return self.planned.plan.name


class Tensors:
    """The slots of one optimizer, and what of its tensors' steps was planned."""

    def __init__(self, lib: Library, keeps: bool) -> None:
        self.lib, self.keeps = lib, keeps  # whether weights are the optimizer's, or the user's, who may pass others
        self.slots: dict[Any, Slot] = {}
        self.furthest = 0  # the step count of the tensor that has gone furthest
        self.skipped = 0
        self.prepared: WeakSet[Any] = WeakSet()  # steps that know them
        self.last: Any = None  # and that which was taken last
        self._dues: dict[Name, Due] = {}

    def __reduce__(self) -> Any:
        kept = {"slots": self.slots, "furthest": self.furthest, "skipped": self.skipped}
        return Tensors, (self.lib, self.keeps), kept

    def kinds(self, params: Iterable[Array]) -> list[Hashable]:
        """Return what must stay the same of weights: that they are these, or if they are the user's, their kind."""
        return list(map(id if self.keeps else self.lib.kind, params))

    def due(self, plan: Callable[[Name, Array], Planned], name: Name, p: Array) -> Due:
        """Return a tensor as it steps: as before, or planned again where its slot or weights are others."""
        found, slot, [kind] = self._dues.get(name), self.slots.get(name), self.kinds([p])
        if found is not None and found.slot is slot and found.kind == kind:
            return found
        given = plan(name, p)
        storing = Storing(self.lib, given.plan, self.lib.dtype(p), given.want)
        own, converted = self._in_form(storing, p, slot)
        jobs = storing.jobs(given.plan, p, own.arrays)
        if not self.keeps and own.master is None:
            jobs = [job._replace(p=None) for job in jobs]
        return Due(given, own, kind, jobs, converted, storing.rounds_to(own.arrays))

    def _in_form(self, storing: Storing, p: Array, slot: Slot | None) -> tuple[Slot, Array | None]:
        """Return the slot in its wanted storage, and the weights if they change with it. Nothing is changed yet."""
        if slot is not None and storing.is_plain(slot.arrays):
            return slot, None
        arrays = {} if slot is None else dict(slot.arrays)
        storing.put_state_in_form(p, arrays)
        weights = self.lib.copy(p) if storing.is_low else p
        converted = weights if storing.put_weights_in_form(p, arrays, weights) else None
        if slot is not None:
            alike = arrays.keys() == slot.arrays.keys() and all(x is slot.arrays[key] for key, x in arrays.items())
            return slot if alike else replace(slot, arrays=arrays), converted
        name = storing.plan.name
        for field, stored in storing.chosen.items():
            if stored.by_layout:
                warn(f"{field!r} of {name!r} is stored in {stored.dtype} and not in 8 bits: {stored.why}.")
        return Slot(arrays, shape=storing.plan.shape), converted

    def keep(self, dues: Sequence[Due]) -> list[Due]:
        """Keep how tensors have stepped, and their slots; return those that did so for the first time."""
        new = [due for due in dues if due.name not in self.slots and 0 not in due.plan.shape]
        for due in dues:
            self.slots[due.name], self._dues[due.name], due.converted = due.slot, due, None
        return new

    def forget(self) -> None:
        """Plan tensors again when they are next due, and let go of their arrays until then."""
        self._dues, self.last = {}, None
        for one in list(self.prepared):
            one.release()

    def begin(self, slots: dict[Any, Slot]) -> None:
        """Go on with these slots in place of those that there are."""
        self.slots = slots
        self.forget()

    def clear(self, name: Name | None) -> None:
        """Forget the state of one tensor, or of all."""
        if name is not None and (isinstance(name, bool) or name not in self.slots):
            raise ParameterError(f"no state is kept for {name!r}. Known are: {few(self.slots)}.")
        self.furthest = 0 if name is None else self.furthest
        self.begin({one: slot for one, slot in self.slots.items() if name not in (None, one)})

    def stats(self) -> dict[Any, dict[str, Any]]:
        """Return the measurements of each tensor's last step."""
        return stats_of(self.slots)


def stats_of(slots: Mapping[Any, Slot]) -> dict[Any, dict[str, Any]]:
    """Return the measurements of the last steps of these tensors that have taken one."""
    last = {name: slot.last for name, slot in slots.items() if slot.last is not None}
    stats = {id(taken): taken.stats() for taken in {id(taken): taken for taken, _ in last.values()}.values()}
    return {name: stats[id(taken)][i] for name, (taken, i) in last.items()}


class Asked(NamedTuple):
    """The tensors of one optimizer that are due, and what it says of them."""

    tensors: Tensors
    names: Sequence[Name]
    params: Sequence[Array]
    grads: Sequence[Array]
    plan: Callable[[Name, Array], Planned]
    numbers: Callable[[Sequence[Due]], Sequence[Numbers]]
    peak: Callable[[Due, float], float | None]  # of the learning rate, as far as it is known
    check: Callable[[], None] | None = None  # all that is given, before it is prepared
    has_blocks: bool = False  # whether blocks were given, be it of others
