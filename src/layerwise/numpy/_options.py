"""The options of an optimizer, checked together, including those by name, and their changes while training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from layerwise.catalog.registry import ENTRIES
from layerwise.core.plan import Plan
from layerwise.core.slot import NamedState, Slot
from layerwise.engines import Engine, choose_engines
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.layout.blocks import as_blocks
from layerwise.numpy._arrays import Arrays, named_dtype
from layerwise.numpy._steps import ENGINES, RATES
from layerwise.options import checks
from layerwise.options.by_name import INSTEAD, ByName, Name, is_by_name
from layerwise.options.settings import Hyper, options_in_order
from layerwise.rules.states import is_signed
from layerwise.storage.coded import CODED
from layerwise.storage.options import OPTIONS, RequestedStorage, check_fits, checked_option, requested_storage

FLAGS = ("skip_nonfinite", "shared_count")
BY_NAME = ("lr_scale", "decay", "blocks")
ALWAYS_SHOWN = ("lr", "relative_step")
SCALE = checks.number(0)


def names_of(hyper: type[Hyper]) -> list[str]:
    return list(dict.fromkeys([*options_in_order(hyper), *BY_NAME, *FLAGS, *OPTIONS, "engine"]))


@dataclass(frozen=True)
class Options:
    """The settings of an optimizer."""

    given: Mapping[str, Any]  # every option by its name, in the form in which it is read
    h: Hyper
    by_name: Mapping[str, ByName]
    storage: RequestedStorage
    engines: tuple[Engine, ...]  # that may step

    @classmethod
    def of(cls, hyper: type[Hyper], given: Mapping[str, Any]) -> Options:
        """Check the arguments: every option by its name."""
        own = {spec.name for spec in fields(hyper)}
        several = {name: given[name] for name in INSTEAD if is_by_name(given.get(name))}
        if "decay" not in own and given["decay"] is not None and "decay" not in several:
            raise HyperparameterError(
                sentence("decay", "a mapping or a callable of the name", given["decay"], "weight_decay sets its size.")
            )
        make: Callable[..., Hyper] = hyper
        h = make(**{name: given[name] for name in own - several.keys()})
        flags = {name: checks.flag(name, given[name]) for name in FLAGS}
        engines = choose_engines(given["engine"], ENGINES)
        by_name = _by_name(hyper, {**given, **dict.fromkeys(INSTEAD), **several})
        want = requested_storage(given, ENTRIES[hyper.optimizer].rule)
        check_fits(want, h)
        for argument, names in (("momentum_dtype", h.state_dtypes().values()), ("state_dtype", want.state.values())):
            for name in {*names} - CODED.keys():
                named_dtype(argument, name)
        seen = {name: one.given for name, one in by_name.items() if one.given is not None}
        stored = {name: checked_option(name, given[name]) for name in OPTIONS}
        known = {**{name: given.get(name) for name in names_of(hyper)}, **vars(h), **flags, **stored, **seen}
        return cls(known, h, by_name, want, engines)

    def __reduce__(self) -> tuple[object, ...]:
        return Options.of, (type(self.h), self.given)

    def changed(self, values: Mapping[str, object]) -> Options:
        """Return the same settings with other values, checked together with the rest."""
        for name in RATES:
            if name in values and callable(getattr(self.h, name)) and not callable(values[name]):
                value = values[name]
                type(self.h).check(name, value)
                raise ContradictionError(
                    f"`{name}` follows a schedule, which {value!r} would end. Change the schedule, or replace it: "
                    f"opt.{name} = lambda step: {'…' if value is None else value!r}."
                )
        try:
            return Options.of(type(self.h), {**self.given, **values})
        except ContradictionError as problem:
            if len(values) > 1:
                raise
            [name] = values
            raise ContradictionError(f"{problem} To set options together, use set_options({name}=…, …).") from None

    def in_words(self) -> str:
        """Return the options that differ from the defaults, as they would be passed."""
        usual = {
            **vars(type(self.h)()),
            **dict.fromkeys(FLAGS, False),
            **RequestedStorage().as_options(),
            "state_dtype": None,
        }
        shown = [key for key, value in self.given.items() if key in ALWAYS_SHOWN or repr(value) != repr(usual.get(key))]
        return ", ".join(f"{key}={self.given[key]!r}" for key in shown)


def _by_name(h: type[Hyper], given: Mapping[str, object]) -> dict[str, ByName]:
    checked: dict[str, tuple[object, Callable[[str, Any], object]]] = {
        "lr_scale": (1.0, lambda name, value: SCALE(name, value, "Pass the factor on lr, such as 0.1, by name.")),
        "adapt": (None, lambda name, value: h.check("adapt", value, name)),
        "l2": (None, lambda name, value: h.check("l2", value, name)),
        "decay": (1.0, partial(_check_decay, h)),
        "blocks": (None, as_blocks),
    }
    return {name: ByName(name, given[name], default, check) for name, (default, check) in checked.items()}


def _check_decay(h: type[Hyper], argument: str, value: object) -> float | str:
    """Return the factor on a name's weight_decay; for LAMB, its place in the formula."""
    own, allowed = h.__dataclass_fields__.get("decay"), checks.FLAG | SCALE
    allowed = allowed if own is None else allowed | own.metadata["check"]
    found = allowed(argument, value, "True and False turn weight_decay on and off; a number multiplies it.")
    return found if isinstance(found, str) else float(found)


def refitted(name: Name, slot: Slot, plan: Plan, before: Options, options: Options) -> Slot:
    """Return the slot of one name for changed options; raise if the present state does not allow them."""
    state, dtypes, others = NamedState(Arrays(), dict(slot.arrays)), options.h.state_dtypes(), before.h.state_dtypes()
    wide = any(slot.arrays[field].dtype == np.float64 for field in plan.state_shapes if field in slot.arrays)
    for field, shape in plan.state_shapes.items():
        # At 0, or dropped, in the middle of a run: also an average that may be negative.
        may_begin = is_signed(plan.rule, field) or field in plan.rule.State._field_defaults
        old, dtype = slot.arrays.get(field), dtypes.get(field, "float64" if wide else "float32")
        if (None if old is None else old.shape) == shape:
            if old is not None and dtypes.get(field) != others.get(field):
                state.replace(field, state.in_floating_point(field).astype(dtype))
        elif may_begin and (old is None or shape is None):
            state.replace(field, None if shape is None else np.zeros(shape, dtype))
        else:
            raise ContradictionError(
                f"{field} of {name!r} has the shape {None if old is None else old.shape}, but needs {shape} with "
                f"these options. Drop the state first with clear_state({name!r}), or create another optimizer."
            )
    return replace(slot, arrays=state.arrays)
