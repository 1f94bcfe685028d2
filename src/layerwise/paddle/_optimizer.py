"""The common part of all optimizers as Paddle has them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import paddle
from paddle.optimizer.lr import LambdaDecay, LRScheduler

from layerwise.core.library import LOW
from layerwise.core.slot import Slot
from layerwise.core.storing import Storing
from layerwise.errors import HyperparameterError, ScheduledError, StateError, sentence, warn
from layerwise.names import few
from layerwise.paddle import _state
from layerwise.paddle._arrays import Tensor, dtype_name
from layerwise.paddle._spelling import joined, preset
from layerwise.paddle._state import BESIDE, MASTERS, SCHEDULER, Names
from layerwise.paddle._stepping import LIBRARY, LR, Stepping, as_rate
from layerwise.storage.options import PLAIN
from layerwise.storage.weights import MASTER
from layerwise.variants import Like


class Optimizer(Stepping, Like):
    """A `paddle.optimizer.Optimizer` that carries out a rule."""

    @classmethod
    def _like(cls, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return joined(preset(name), given)

    @property
    def skipped(self) -> int:
        """The number of steps left out because of nan or inf."""
        return self._tensors.skipped

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return len(self._members)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the measurements of each parameter's last step by its name: numbers, or with blocks an array.

        They are `weight_norm`, `update_norm`, both also as `_rms`, and `trust_ratio`.
        """
        return self._tensors.stats()

    def get_lr(self) -> float:
        """Return the learning rate: the number, or what the scheduler says now."""
        rate = self._learning_rate
        return float(rate() if isinstance(rate, LRScheduler) else rate)

    def set_lr(self, value: float) -> None:
        """Set the learning rate, which no scheduler may have."""
        value = LR("value", value, "Pass a number such as 1e-3.")
        if isinstance(self._learning_rate, LRScheduler):
            raise ScheduledError(
                f"the learning rate follows a scheduler, which {value!r} would end. Change the scheduler, or replace "
                "it by set_lr_scheduler."
            )
        self._learning_rate = value

    def set_lr_scheduler(self, scheduler: Any) -> None:
        """Let the learning rate follow this scheduler from now on."""
        if not isinstance(scheduler, LRScheduler):
            raise HyperparameterError(
                sentence("scheduler", "an LRScheduler of Paddle", scheduler, "set_lr takes a number.")
            )
        as_rate(scheduler())
        self._learning_rate = scheduler

    def clear_state(self, which: str | Tensor | None = None) -> None:
        """Forget the state of one parameter, given itself or by name, or of all: they begin again when next stepped."""
        self._tensors.clear(which.name if isinstance(which, paddle.Tensor) else which)
        self._master_weights = _state.masters_of(self._tensors.slots)

    # ---- checkpoints

    @property
    def _names(self) -> Names:
        return Names(self._hyper.optimizer, "" if self._name is None else f"{self._name}_")

    def state_dict(self) -> dict[str, Any]:
        """Return the state under the names that Paddle's optimizers give it, for paddle.save."""
        self._heed_wrappers()
        found = _state.dump(self._names, self._settings, self._tensors.slots)
        if isinstance(self._learning_rate, LRScheduler):
            found[SCHEDULER] = self._learning_rate.state_dict()
        return found

    def set_state_dict(self, state_dict: Any) -> None:
        """Take over a saved state, of this class or of Paddle's own; or raise StateError and stay as it was."""
        if not isinstance(state_dict, Mapping):
            shown = type(state_dict).__name__
            raise StateError(f"the state must be a dict, but is {shown}. Pass what state_dict() returned.")
        arrays = {key: x for key, x in state_dict.items() if key not in BESIDE}
        masters = state_dict.get(MASTERS)
        slots = self._loaded(arrays, {} if masters is None else masters)
        self._load_scheduler(state_dict)
        self._tensors.begin(slots)
        self._master_weights = _state.masters_of(slots)

    load_state_dict = set_state_dict
    set_dict = set_state_dict

    def _loaded(self, arrays: Mapping[str, Any], masters: Any) -> dict[str, Slot]:
        known = {p.name: p for p in self._members}
        found = _state.by_parameter(self._names, self._rule.State._fields, known, arrays)
        if not isinstance(masters, Mapping) or not masters.keys() <= known.keys():
            shown = [*masters] if isinstance(masters, Mapping) else type(masters).__name__
            raise StateError(f"{MASTERS!r} must be a dict from names of parameters here, but is {shown}.")
        low = [p.name for p in self._members if dtype_name(p) in LOW] if self._multi_precision else []
        if dropped := [name for name in masters if name not in low]:
            warn(
                f"the state holds master weights that are dropped, of {few(dropped)}: multi_precision=True "
                "keeps those of float16 and bfloat16 parameters.",
            )
        self._heed_wrappers()
        slots = {}
        for name, one in found.items():
            p, h = known[name], self._settings[name]
            slots[name] = slot = _state.slot_of(self._names, h, p, self._begun(p, h), one)
            if name in masters and name in low:
                like = LIBRARY.cast(p, "float32")
                master = _state.taken(f"the master weight of {name}", masters[name], like)
                slot.arrays[MASTER] = _state.named_master(p, master, getattr(masters[name], "name", None))
        return slots

    def _begun(self, p: Tensor, h: Any) -> dict[str, Any]:
        """Return the state with which a parameter begins, with None for what there is not."""
        storing, begun = Storing(LIBRARY, self._plan_of(p, h), LIBRARY.dtype(p), PLAIN), dict[str, Any]()
        storing.put_state_in_form(p, begun)
        return {**dict.fromkeys(self._rule.State._fields), **begun}

    def _load_scheduler(self, state: Mapping[str, Any]) -> None:
        scheduler = self._learning_rate
        saved = state.get(SCHEDULER)
        if not (saved is None or isinstance(saved, Mapping)):
            raise StateError(
                f"{SCHEDULER!r} must be a dict, but is {type(saved).__name__}. Leave it out, or load it again."
            )
        if not isinstance(scheduler, LRScheduler):
            if saved:
                warn(f"{SCHEDULER} of the state is dropped: there is no scheduler here.")
            return
        if saved is None and not isinstance(scheduler, LambdaDecay):
            raise StateError(f"the state holds no {SCHEDULER!r}. Pass that of an optimizer with a scheduler.")
        before = deepcopy({key: x for key, x in vars(scheduler).items() if not callable(x)})
        try:
            if saved:
                scheduler.set_state_dict(saved)
            as_rate(scheduler())
        except Exception as problem:
            vars(scheduler).update(before)
            raise StateError(f"{SCHEDULER!r} does not fit the scheduler here: {problem}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_called": [p.name for p in self._members], "_planned_with": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        called = state.pop("_called")
        self.__dict__.update(state)
        # Copies of parameters have names of their own.
        now = dict(zip(called, (p.name for p in self._members), strict=True))
        self._tensors.slots = {now[name]: slot for name, slot in self._tensors.slots.items()}
        self._master_weights = {now[name]: master for name, master in self._master_weights.items()}

    def __repr__(self) -> str:
        return f"layerwise.paddle.{type(self).__name__}(learning_rate={self.get_lr()}, {len(self._members)} parameters)"
