"""The options of an optimizer, all checked together, and their changes while training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from layerwise import checks
from layerwise.core.plan import Plan
from layerwise.core.slot import NamedState, Slot
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.hyper import Hyper
from layerwise.keywords import meant
from layerwise.names import INSTEAD, ByName, Name, is_by_name
from layerwise.numpy._arrays import Arrays, named_dtype
from layerwise.numpy._by_name import settings_by_name
from layerwise.registry import ENTRIES
from layerwise.storage.coded import CODED
from layerwise.storage.options import OPTIONS, Wanted, check_fits, wanted

FLAGS = ("skip_nonfinite", "shared_count")
RATES = ("lr", "weight_decay")
BY_NAME = ("lr_scale", "decay", "blocks")
OPTIONAL = ("momentum_buffer", "exp_avg", "norm")  # what may start at 0, or go, in the middle


@dataclass(frozen=True)
class Options:
    """The settings of an optimizer."""

    h: Hyper
    by_name: Mapping[str, ByName]
    flags: Mapping[str, bool]
    engine: str | None
    state_dtypes: Mapping[str, np.dtype[Any]]
    stored: Mapping[str, Any]  # the options of storage as they were given
    storage: Wanted

    @classmethod
    def of(cls, hyper: type[Hyper], given: Mapping[str, Any], check_engine: Callable[[Any], Any]) -> Options:
        """Check the arguments: every option by its name."""
        own = {spec.name for spec in fields(hyper)}
        by_name = {name: given[name] for name in INSTEAD if is_by_name(given.get(name))}
        if "decay" not in own and given["decay"] is not None and "decay" not in by_name:
            raise HyperparameterError(
                sentence("decay", "a mapping or a callable of the name", given["decay"], "weight_decay sets its size.")
            )
        make: Callable[..., Hyper] = hyper
        h = make(**{name: given[name] for name in own - by_name.keys()})
        flags = {name: checks.FLAG(name, given[name], "Pass True or False.") for name in FLAGS}
        check_engine(given["engine"])
        by_name_checked = settings_by_name(hyper, {**given, **dict.fromkeys(INSTEAD), **by_name})
        dtypes = {key: named_dtype("momentum_dtype", name) for key, name in h.state_dtypes().items()}
        stored = {name: given[name] for name in OPTIONS}
        want = wanted(stored, ENTRIES[hyper.optimizer].rule)
        check_fits(want, h)
        for name in {*want.state.values()} - CODED.keys():
            named_dtype("state_dtype", name)
        return cls(h, by_name_checked, flags, given["engine"], dtypes, stored, want)

    def read(self, name: str) -> Any:
        """Return the value of an option. Mappings are read-only: writing to one would change nothing."""
        given = self.by_name[name].given if name in self.by_name else None
        if given is not None:
            return MappingProxyType(given) if isinstance(given, Mapping) else given
        if name in self.flags:
            return self.flags[name]
        if name in self.stored:
            return self.stored[name]
        return self.engine if name == "engine" else getattr(self.h, name, None)

    def changed(self, values: Mapping[str, Any], check_engine: Callable[[Any], Any]) -> Options:
        """Return the same with other values, checked together with the rest."""
        for name in RATES:
            if name in values and callable(getattr(self.h, name)) and not callable(values[name]):
                self._keep_schedule(name, values[name])
        if values.keys() <= {*RATES}:
            return replace(self, h=replace(self.h, **values))
        options = [spec.name for spec in fields(self.h)]
        known = {name: self.read(name) for name in (*options, *self.by_name, *self.flags, *OPTIONS, "engine")}
        try:
            return Options.of(type(self.h), {**known, **values}, check_engine)
        except ContradictionError as problem:
            if len(values) > 1:
                raise
            [name] = values
            raise ContradictionError(f"{problem} Options are set together by set_options({name}=…, …).") from None

    def seeded(self, seed: int | None) -> Options:
        """Return the same with another seed, if there is one."""
        if seed is None:
            return self
        return replace(self, stored={**self.stored, "seed": seed}, storage=self.storage._replace(seed=seed))

    def _keep_schedule(self, name: str, value: Any) -> None:
        type(self.h).check(name, value)
        raise ContradictionError(
            f"`{name}` follows a schedule, which {value!r} would end. Change the schedule, "
            f"or replace it by another: opt.{name} = lambda step: {'…' if value is None else value!r}."
        )


def refitted(name: Name, slot: Slot, plan: Plan, before: Options, options: Options) -> Slot:
    """Return the slot of one name for changed options, or raise if the present state does not allow them."""
    state = NamedState(Arrays(), dict(slot.arrays))
    wide = any(slot.arrays[field].dtype == np.float64 for field in plan.state_shapes if field in slot.arrays)
    default = np.dtype(np.float64 if wide else np.float32)
    alike = before.state_dtypes == options.state_dtypes
    recast = () if alike else {*before.state_dtypes, *options.state_dtypes}
    for field, shape in plan.state_shapes.items():
        old = slot.arrays.get(field)
        dtype = options.state_dtypes.get(field, default) if old is None or field in recast else old.dtype
        if (None if old is None else old.shape) == shape:
            if old is not None and old.dtype != dtype:
                state.replace(field, state.numbers(field).astype(dtype))
        elif field in OPTIONAL and (old is None or shape is None):
            state.replace(field, None if shape is None else np.zeros(shape, dtype))
        else:
            raise ContradictionError(
                f"{field} of {name!r} has the shape {None if old is None else old.shape} and would need {shape} with "
                f"these options. Forget it first with clear_state({name!r}), or make another optimizer."
            )
    return replace(slot, arrays=state.arrays)


class Settable:
    """Attributes that are options: each can be read and set, and a misspelt one raises."""

    _hyper: type[Hyper]

    def set_options(self, **options: Any) -> None:
        """Set several options, all or none, with effect from the next step.

        They are checked together, so `set_options(momentum=0.9, nesterov=True)` works even if one alone would not.
        """
        raise NotImplementedError

    def _read(self, name: str) -> Any:
        raise NotImplementedError

    @classmethod
    def _names(cls) -> list[str]:
        own = [spec.name for spec in fields(cls._hyper)]
        return [*own, *(name for name in BY_NAME if name not in own), *FLAGS, *OPTIONS, "engine"]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._names():
            return self._read(name)
        raise AttributeError(self._hint(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or self._is_users(name):
            object.__setattr__(self, name, value)
        elif name in self._names():
            self.set_options(**{name: value})
        elif hasattr(type(self), name) or (self._is_extended() and not self._is_near(name)):
            object.__setattr__(self, name, value)
        else:
            raise AttributeError(self._hint(name))

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._names()})

    def _is_extended(self) -> bool:
        """Return True for a class that a user derived from ours, which may have its own attributes."""
        return "_hyper" not in vars(type(self))

    def _is_users(self, name: str) -> bool:
        """Return True if a user's class declares this attribute."""
        mro = type(self).__mro__
        own = mro[: next(i for i, one in enumerate(mro) if "_hyper" in vars(one))]
        return any(name in vars(one) or name in vars(one).get("__annotations__", {}) for one in own)

    def _is_near(self, name: str) -> bool:
        """Return True if the name is another library's name of an option, or a misspelt one."""
        return "Is `" in meant(name, self._names(), cutoff=0.85)

    def _hint(self, name: str) -> str:
        known = [*self._names(), *(one for one in dir(type(self)) if not one.startswith("_"))]
        declared = " A class of your own declares what it adds: `name: type`." if self._is_extended() else ""
        return f"{type(self).__name__} has no attribute {name!r}. {meant(name, known)}{declared}"
