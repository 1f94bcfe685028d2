"""The base of all optimizers for named arrays, updated in place."""

from __future__ import annotations

from collections.abc import Container, Mapping
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from layerwise.catalog.presets import Like
from layerwise.core.first_step import FirstStep, warn_of_first_steps
from layerwise.core.lock import StepLock
from layerwise.core.plan import Plan
from layerwise.core.slot import Slot
from layerwise.core.slots import PlannedTensor, Slots, TensorsToStep
from layerwise.engines.compiled import signals_wait
from layerwise.errors import ArgumentError, ContradictionError, GradientError, ParameterError, sentence, warn
from layerwise.layout.pieces import lay_out
from layerwise.numpy import _arrays, _saved
from layerwise.numpy._arrays import Array
from layerwise.numpy._options import Options, names_of, refitted
from layerwise.numpy._steps import LIBRARY, PLAIN, RATES, WAYS_OUT, NumpyApi, OccupiedMemory
from layerwise.options.by_name import Name, as_name, check_matched, check_twin, first_few
from layerwise.options.misspellings import advice, check_keywords, explaining_missing
from layerwise.options.settings import Hyper, scheduled

MODULE = ".optimizers"  # the module whose classes the package exports


def _are_weights(lr: object) -> bool:
    """Return True for arrays by name or in a list, which other libraries take as the first argument."""
    if isinstance(lr, Mapping):
        lr = list(lr.values())
    each = lr if isinstance(lr, (list, tuple)) else ()
    return any(isinstance(one, tuple) or hasattr(one, "shape") for one in each)


class Optimizer(Like):
    """The base of all optimizers of this API; each has one rule.

    Every option is an attribute that you can read, and set with effect from the next step. A misspelt name raises an
    error.
    """

    _rule: ModuleType
    _hyper: type[Hyper]

    _way_out = "Weights are passed to each step: opt.step_all(weights, grads), both by name."

    def __init__(self, given: Mapping[str, object]) -> None:
        # No docstring, because the classes would inherit it; `given` has every argument by name.
        lr = given["lr"]
        if _are_weights(lr):
            kind = type(lr).__name__
            raise ArgumentError(f"`lr` must be a number or a function of the step, but is {kind}. {self._way_out}")
        self._options = Options.of(self._hyper, given)
        self._tensors = Slots(LIBRARY)
        self._seen: dict[Name, tuple[int, ...]] = {}  # names with their shapes, stepped or not
        self._one_at_a_time = StepLock()
        self._matched = False  # whether all patterns are known to match a name
        self._unmet: frozenset[Name] = frozenset()  # names of a loaded state, until one of them is stepped

    @property
    def steps(self) -> int:
        """The largest number of steps taken by a name. Schedules follow it."""
        return self._tensors.furthest

    @property
    def skipped(self) -> int:
        """The number of steps skipped because of nan or inf."""
        return self._tensors.skipped

    @explaining_missing("step() takes one array; opt.step_all(weights, grads) takes all of them, by name.")
    def step(self, name: Name, weights: Array, grad: Array) -> None:
        """Update one named array in place.

        Args:
            name: The name, under which its state is kept.
            weights: The array.
            grad: Its gradient, which is not changed.
        """
        if limit := self._options.h.model_bound:
            raise ContradictionError(
                sentence("max_grad_norm", "None for step()", limit, "All gradients are needed at once: use step_all().")
            )
        with self._one_at_a_time, signals_wait:
            name = as_name(name)
            firsts = self._take({name: weights}, {name: grad}, whole=False)
        if firsts:
            warn_of_first_steps(firsts, WAYS_OUT)

    @explaining_missing("It takes weights and their gradients, both by name.")
    def step_all(self, weights: Mapping[Name, Array], grads: Mapping[Name, Array]) -> None:
        """Update named arrays in place: all of them, or none if one of the arguments is wrong.

        Names without a gradient, or with None, keep their weights and their state.

        Args:
            weights: The arrays by name.
            grads: Their gradients by name, which are not changed.
        """
        both: dict[str, object] = {"weights": weights, "grads": grads}
        for argument, given in both.items():
            if not isinstance(given, Mapping):
                shown = type(given).__name__
                raise ParameterError(f"`{argument}` must be a mapping from names to arrays, but is {shown}.")
        for name in grads:
            if name not in weights:
                raise GradientError(f"there is a gradient for {name!r}, but no weights. Weights: {first_few(weights)}.")
        with self._one_at_a_time, signals_wait:
            firsts = self._take(weights, grads, whole=True)
        if firsts:
            warn_of_first_steps(firsts, WAYS_OUT)

    def _take(self, weights: Mapping[Name, Array], grads: Mapping[Name, Array], whole: bool) -> list[FirstStep]:
        """Step these names: all, or none if one cannot be stepped. Return what are first steps."""
        api, kept = NumpyApi(self, whole), self._tensors
        names = [name for name, g in grads.items() if not (whole and g is None)]
        due = TensorsToStep(names, [weights[name] for name in names], [grads[name] for name in names])
        known = not whole or (self._matched and not self._unmet)
        step = kept.reusable_step(api, due) if known and {*map(type, due.names)} <= PLAIN else None
        if step is None:
            due = self._checked(weights, grads, due, whole)
            step = kept.reusable_step(api, due)
        memory = OccupiedMemory(due.names, due.params)
        firsts: list[FirstStep] = []
        if self._options.given["skip_nonfinite"] and not all(map(_arrays.is_finite, due.grads, due.params)):
            kept.skipped += 1
        elif due.names:
            due = due._replace(grads=memory.apart(due.grads))
            with np.errstate(all="ignore"):
                firsts = kept.step_tensors(api, due, self._options.engines, step)
        self._matched |= whole  # a step of all has checked that all patterns match a name
        if not weights.keys() <= self._seen.keys():
            self._seen |= {as_name(name): np.shape(w) for name, w in weights.items() if name not in self._seen}
        return firsts

    def _checked(
        self, weights: Mapping[Name, Array], grads: Mapping[Name, Array], due: TensorsToStep, whole: bool
    ) -> TensorsToStep:
        """Return the work of a step, from names and arrays that are checked one by one."""
        for option, by_name in self._options.by_name.items():
            if whole and not self._matched:
                check_matched(option, by_name.patterns, [*weights, *self._seen])
        if whole and self._unmet:
            self._meet(weights)
        names = {self._named(name, weights): name for name in due.names}
        each = [self._entry(name, weights[key], grads[key]) for name, key in names.items()]
        return TensorsToStep(list(names), [p for p, _ in each], [g for _, g in each])

    def _meet(self, weights: Mapping[Name, Array]) -> None:
        """Warn if no weights have a name of the loaded state, which then belongs to another model."""
        known, self._unmet = self._unmet, frozenset()
        if weights and known.isdisjoint(map(as_name, weights)):
            warn(
                f"the loaded state is of {first_few(sorted(known, key=str))}, but no weights have one of these names; "
                f"the weights are {first_few(weights)} and start with new state. Pass weights by the names with which "
                "they were saved."
            )

    def _named(self, name: object, given: Container[object]) -> Name:
        own = as_name(name)
        if own not in self._slots:
            check_twin(own, given, self._seen, self._slots)
        return own

    def _entry(self, name: Name, weights: object, grad: object) -> tuple[Array, Array]:
        p = _arrays.check_parameter(name, weights)
        slot = self._slots.get(name)
        if slot is not None and slot.shape != p.shape:
            raise ParameterError(
                f"weights of {name!r} had the shape {slot.shape} and now have {p.shape}. Pass another name, or drop "
                f"the old state with clear_state({name!r})."
            )
        return p, _arrays.check_gradient(name, grad, p)

    def _planned(
        self, name: Name, shape: tuple[int, ...], machine_eps: float = 1.0, options: Options | None = None
    ) -> PlannedTensor:
        options = options or self._options
        said = {option: by_name(name) for option, by_name in options.by_name.items()}
        decay = said["decay"]
        place, factor = (decay, 1.0) if isinstance(decay, str) else (None, decay)
        asked = {"adapt": said["adapt"], "l2": said["l2"], "decay": place}
        own = {option: value for option, value in asked.items() if value is not None}
        h = replace(options.h, **own) if own else options.h
        plan = Plan.of(name, self._rule, h, shape, lay_out(name, self._rule, h, shape, said["blocks"], machine_eps))
        return PlannedTensor(plan, options.storage, (said["lr_scale"], factor))

    # ---- options

    @classmethod
    def _names(cls) -> list[str]:
        return names_of(cls._hyper)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names():
            raise AttributeError(self._hint(name))
        value = self._options.given[name]
        if name in RATES:
            return scheduled(value, name, self.steps)
        return MappingProxyType(value) if isinstance(value, Mapping) else value  # a write to one would have no effect

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and name in self._names():
            self.set_options(**{name: value})
        elif name.startswith("_") or hasattr(type(self), name) or "_hyper" not in vars(type(self)):
            object.__setattr__(self, name, value)  # and attributes of classes that a user derives
        else:
            raise AttributeError(self._hint(name))

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._names()})

    def _hint(self, name: str) -> str:
        known = [*self._names(), *(one for one in dir(type(self)) if not one.startswith("_"))]
        return f"{type(self).__name__} has no attribute {name!r}. {advice(name, known)}"

    def set_options(self, **options: object) -> None:
        """Set several options, all or none, with effect from the next step.

        They are checked together: `set_options(momentum=0.9, nesterov=True)` is valid although nesterov alone may not
        be.

        Args:
            **options: The options by name.
        """
        check_keywords(type(self).__name__, [name for name in options if name not in self._names()], self._names())
        changed = self._options.changed(options)
        if not options.keys() <= {*RATES}:
            before, states = self._options, {}
            for name, slot in self._slots.items():
                plan = self._planned(name, slot.shape, options=changed).plan
                states[name] = refitted(name, slot, plan, before, changed)
            self._tensors.replace_slots(states)
            self._matched = False
        self._options = changed

    # ---- state

    @property
    def _slots(self) -> dict[Name, Slot]:
        return self._tensors.slots

    @property
    def num_parameters(self) -> int:
        """The number of names seen: those given to step_all, or with a state."""
        return len(self.parameters)

    @property
    def parameters(self) -> dict[Name, tuple[int, ...]]:
        """The names seen so far, stepped or given without a gradient, and their shapes."""
        return self._seen | {name: slot.shape for name, slot in self._slots.items()}

    def stats(self) -> dict[Name, dict[str, Array]]:
        """Return the measurements of each name's last step: numbers, or arrays with one number per block.

        `weight_norm` is ‖p‖, `update_norm` the length that ‖p‖ is compared with, `update_rms` the same as root mean
        square, and `trust_ratio` their ratio as used. Quantities that a step does not measure are missing.
        """
        return self._tensors.stats()

    def clear_state(self, name: Name | None = None) -> None:
        """Forget the state of one name, or of all. The next step starts it again.

        Args:
            name: The name; None means all.
        """
        self._tensors.clear(name)
        self._seen = {one: shape for one, shape in self._seen.items() if name not in (None, one)}

    def state_dict(self) -> dict[str, Array]:
        """Return the whole state, to continue bit for bit, in new plain arrays: np.savez(file, **opt.state_dict())."""
        return _saved.dump(self._hyper.optimizer, self._slots, self._settings(), self.skipped, self.steps)

    def _settings(self) -> dict[str, object]:
        """Return the settings that can change while training, without schedules, the role of lr, and the seed."""
        h = self._options.h
        values = {name: getattr(h, name) for name in _saved.SETTINGS if hasattr(h, name)}
        kept = {name: value for name, value in values.items() if not callable(value)}
        return {**kept, "seed": self._options.storage.seed}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Load a saved state, or raise StateError and change nothing.

        State keeps the format in which it was saved until the next step, and then follows `state_dtype`. lr,
        weight_decay and the seed are restored; schedules of this optimizer stay.

        Args:
            state: The result of `state_dict()`, or the file that it was saved to, as np.load returns it.
        """
        saved = _saved.load(self._hyper.optimizer, state, self._settings(), lambda *of: self._planned(*of).plan)
        self._options, own = self._options.changed(saved.settings), self._tensors
        own.skipped, own.furthest = saved.skipped, saved.step
        own.replace_slots(saved.slots)
        self._seen.clear()
        self._unmet = frozenset(saved.slots)

    def __copy__(self) -> Optimizer:
        return deepcopy(self)  # two optimizers must not share a state

    def __repr__(self) -> str:
        return f"{type(self).__module__.removesuffix(MODULE)}.{type(self).__name__}({self._options.in_words()})"
