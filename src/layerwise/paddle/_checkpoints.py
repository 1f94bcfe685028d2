"""Saving and loading of an optimizer, in both of Paddle's modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from paddle.base import core, dygraph
from paddle.optimizer.lr import LRScheduler

from layerwise.core.library import LOW
from layerwise.core.plan import Plan
from layerwise.core.slot import Slot
from layerwise.core.slots import Slots
from layerwise.errors import ParameterError, StateError, warn
from layerwise.options.by_name import first_few
from layerwise.options.settings import Hyper
from layerwise.paddle import _state
from layerwise.paddle._arrays import TENSORS, Tensor, dtype_name, shape_of
from layerwise.paddle._state import BESIDE, MASTER_KEY, MASTERS, SCHEDULER, StateNames
from layerwise.paddle._static import Graph
from layerwise.storage.sixteen_bits import MASTER


class Checkpoints:
    """The state of an optimizer as Paddle saves it."""

    # The optimizer's attributes.
    _hyper: type[Hyper]
    _rule: ModuleType
    _name: str | None
    _graph: Graph | None
    _tensors: Slots
    _members: list[Tensor]
    _settings: dict[str, Hyper]
    _multi_precision: bool
    _learning_rate: float | LRScheduler
    _master_weights: dict[str, Tensor]
    _heed_wrappers: Callable[[], None]
    _plan_of: Callable[..., Plan]

    def clear_state(self, which: str | Tensor | None = None) -> None:
        """Forget the state of one parameter, given itself or by name, or of all: the next step starts it again."""
        name = which.name if isinstance(which, TENSORS) else which
        if self._graph is None:
            self._tensors.clear(name)
            self._master_weights = _state.masters_of(self._tensors.slots)
            return
        slots = self._graph.slots()
        if name is not None and name not in slots:
            raise ParameterError(f"no state is kept for {name!r}. Names with state: {first_few(slots)}.")
        self._graph.put({} if name is None else {key: slot for key, slot in slots.items() if key != name})

    @property
    def _names(self) -> StateNames:
        return StateNames(self._hyper.optimizer, "" if self._name is None else f"{self._name}_")

    def state_dict(self) -> dict[str, Any]:
        """Return the state under the names that Paddle's optimizers give it, for paddle.save.

        In the static graph it is read from the scope, into arrays of NumPy, as paddle.static.save writes them.
        """
        if self._graph is None:
            self._heed_wrappers()
            found = _state.dump(self._names, self._settings, self._tensors.slots)
        else:
            slots = self._graph.slots()
            with dygraph.guard():
                found = _in_numpy(_state.dump(self._names, self._settings, slots))
        if isinstance(self._learning_rate, LRScheduler):
            found[SCHEDULER] = self._learning_rate.state_dict()
        return found

    def set_state_dict(self, state_dict: object) -> None:
        """Load a saved state of this class or of Paddle's own; or raise StateError and change nothing.

        It may have been saved in the other mode. In the static graph, run the startup program first.
        """
        if not isinstance(state_dict, Mapping):
            shown = type(state_dict).__name__
            raise StateError(f"the state must be a dict, but is {shown}. Pass what state_dict() returned.")
        saved = {key: np.array(x) if isinstance(x, core.DenseTensor) else x for key, x in state_dict.items()}
        if self._graph is None:
            slots = self._loaded(saved)
            _state.load_scheduler(self._learning_rate, saved)
            self._tensors.replace_slots(slots)
            self._master_weights = _state.masters_of(slots)
            return
        self._graph.check_begun()
        with dygraph.guard():
            slots = self._loaded(saved)
        _state.load_scheduler(self._learning_rate, saved)
        self._graph.put(slots)

    load_state_dict = set_state_dict
    set_dict = set_state_dict

    def _loaded(self, saved: Mapping[str, object]) -> dict[str, Slot]:
        known = {p.name: p for p in self._members}
        arrays = {key: x for key, x in saved.items() if key not in BESIDE}
        if not arrays:
            raise StateError(
                "the state is empty, like the state of Paddle's optimizers before their first step. Pass a state "
                "with arrays, or call clear_state() to start over."
            )
        found = _state.by_parameter(self._names, self._rule.State._fields, known, arrays)
        masters = self._masters(saved.get(MASTERS), known, found)
        if self._graph is None:
            self._heed_wrappers()
        slots = {}
        for name, one in found.items():
            p = known[name]
            slots[name] = slot = _state.slot_of(self._names, self._plan_of(p, self._settings[name]), p, one)
            if name in masters:
                master = _state.copy_of_saved(f"the master weight of {name}", masters[name], p, shape_of(p), "float32")
                slot.arrays[MASTER] = _state.rename_master(p, master, getattr(masters[name], "name", None))
        return slots

    def _masters(
        self, saved: object, known: Mapping[str, Tensor], found: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the master weights that are needed here; those of a program are part of the rest of the state."""
        masters = {} if saved is None else saved
        if not isinstance(masters, Mapping) or not masters.keys() <= known.keys():
            shown = [*masters] if isinstance(masters, Mapping) else type(masters).__name__
            raise StateError(f"{MASTERS!r} must be a dict from names of parameters, but is {shown}.")
        masters = {**{name: one[MASTER_KEY] for name, one in found.items() if MASTER_KEY in one}, **masters}
        low = [p.name for p in self._members if dtype_name(p) in LOW] if self._multi_precision else []
        if dropped := [name for name in masters if name not in low]:
            warn(
                f"the state holds master weights of {first_few(dropped)}, which are dropped. Pass multi_precision=True "
                "to keep those of float16 and bfloat16 parameters.",
            )
        return {name: master for name, master in masters.items() if name in low}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_called": [p.name for p in self._members], "_planned_with": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        called = state.pop("_called")
        self.__dict__.update(state)
        # Copies of parameters have names of their own.
        now = dict(zip(called, (p.name for p in self._members), strict=True))
        self._tensors.slots = {now[name]: slot for name, slot in self._tensors.slots.items()}
        self._master_weights = {now[name]: master for name, master in self._master_weights.items()}


def _in_numpy(state: Mapping[str, Any]) -> dict[str, object]:
    return {key: _in_numpy(x) if isinstance(x, Mapping) else x.numpy() for key, x in state.items()}
