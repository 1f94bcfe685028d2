"""The options of storage, the same in every API."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options import checks
from layerwise.options.misspellings import did_you_mean, nearest
from layerwise.options.settings import Hyper
from layerwise.rules.states import is_of_layer, is_statistic
from layerwise.storage.coded import CODED
from layerwise.storage.sixteen_bits import BESIDE

OPTIONS = ("master_weights", "rounding", "state_dtype", "seed")
DTYPES = checks.dtype("float32", "bfloat16", *CODED)
FEW = "a mean of rows or columns", "one number of each layer"
WAY_OUT = '"bfloat16" is 16 bits, and "int8" 8 bits with a scale for every 64 numbers.'


class RequestedStorage(NamedTuple):
    """The requested storage of weights and state."""

    master: bool | str = False
    rounding: str | None = None
    state: Mapping[str, str] = {}  # by field; missing fields keep the dtype of the arithmetic
    seed: int = 0

    def as_options(self) -> dict[str, object]:
        """Return the options by name."""
        return dict(zip(OPTIONS, self, strict=True))

    def draws_weights(self, beside: str | None = None) -> bool:
        """Return True if 16-bit weights, with a remainder of this dtype, are rounded at random.

        By default those with an 8-bit remainder are: rounding to nearest would lose every step below half of the last
        place.
        """
        if beside == BESIDE["split"].dtype:  # weights that need no extra bits
            return False
        return self.rounding == "stochastic" or (self.rounding is None and beside == BESIDE["split24"].dtype)

    def draws_state(self, field: str, dtype: str, settled: str | None = None) -> bool:
        """Return True if a field stored in 16 or 8 bits is rounded at random.

        By default bfloat16 and 8 bits are, even if they come from a checkpoint: with decay rates near 1, rounding to
        nearest would never move an average. A field that another option stores in bfloat16 (`settled`) is rounded to
        nearest.
        """
        few = dtype in ("bfloat16", *CODED)
        by_default = self.rounding is None and few and (settled is None or field in self.state)
        return self.rounding == "stochastic" or by_default


PLAIN = RequestedStorage()


def _state_dtype(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: None if one is None else DTYPES.convert(one) for key, one in value.items()}
    return None if value is None else DTYPES.convert(value)


MASTERS = checks.one_of(False, *BESIDE)
ROUNDINGS = checks.one_of(None, "nearest", "stochastic")
STATE = checks.Check(f"None, {DTYPES.allowed}, or a mapping from names of state to these", _state_dtype)
SEED = checks.integer(0, bits=63)
CHECKS = {
    "master_weights": (MASTERS, 'True keeps a float32 copy; "split" and "split24" keep bits that 16-bit weights lack.'),
    "rounding": (ROUNDINGS, '"stochastic" rounds up or down at random, so that small steps are not lost.'),
    "state_dtype": (STATE, WAY_OUT),
    "seed": (SEED, "Pass an integer, the same on all processes."),
}
# The largest step count: exact as a float, of which powers are computed, and far below the limit of int64.
COUNT = checks.integer(0, bits=53)


def requested_storage(given: Mapping[str, object], rule: ModuleType) -> RequestedStorage:
    """Return the requested storage, or raise if it does not exist."""
    master, rounding, state, seed = (checked_option(name, given[name]) for name in OPTIONS)
    return RequestedStorage(master, rounding, _by_field(rule, state), seed)


def checked_option(name: str, value: object) -> Any:
    """Return the value of one of these options, checked alone."""
    check, way_out = CHECKS[name]
    return check(name, value, way_out)


def _by_field(rule: ModuleType, asked: Any) -> dict[str, str]:
    """Return the requested dtypes by field."""
    fields = rule.State._fields
    if not isinstance(asked, Mapping):
        return {} if asked is None else dict.fromkeys(fields, asked)
    if unknown := asked.keys() - {*fields}:
        first = min(map(str, unknown))
        hint = did_you_mean(nearest(first, fields, 1)) or "Leave it out."
        known = checks.alternatives(fields, "and")
        raise HyperparameterError(f"`state_dtype` names {first!r}, but the state has {known}. {hint}")
    for field, dtype in asked.items():
        few = FEW[0] if is_statistic(rule, field) else FEW[1] if is_of_layer(rule, field) else ""
        if few and dtype not in (None, "float32"):
            allowed = f"float32 for {field!r}, {few}"
            raise HyperparameterError(sentence("state_dtype", allowed, dtype, "Leave it out: it has few values."))
    return {key: asked[key] for key in fields if asked.get(key) is not None}


def check_fits(want: RequestedStorage, h: Hyper, argument: str = "momentum_dtype") -> None:
    """Raise if a storage format contradicts the dtype that another option gives a field."""
    for field, dtype in h.state_dtypes().items():
        if want.state.get(field, dtype) != dtype:
            allowed = f"{dtype!r} for {field!r}, as in {argument}"
            raise ContradictionError(sentence("state_dtype", allowed, want.state[field], "Drop one of them."))
