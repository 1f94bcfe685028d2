"""The options of storage, the same in every front: how weights and state are wanted to be stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from layerwise import checks
from layerwise.errors import HyperparameterError, sentence
from layerwise.hyper import Hyper
from layerwise.rules.asks import Nonnegative

MASTER, REMAINDER, SCALE = "master", "remainder", "_scale"  # of state, beside what rules name; the last is a suffix
REMAINDER_BITS = {"split": 16, "split24": 8}
OPTIONS = ("master_weights", "rounding", "state_dtype", "seed")
DTYPES = checks.dtype("float32", "bfloat16", "int8")
WAY_OUT = 'Pass "float32", "bfloat16" or "int8", or a mapping from names of state to these.'


class Wanted(NamedTuple):
    """How weights and state are wanted to be stored."""

    master: bool | str = False
    rounding: str | None = None
    state: Mapping[str, str] = {}  # by field; those that are missing stay as they are
    seed: int = 0

    def draws_weights(self, kept: int = 0) -> bool:
        """Return whether 16-bit weights are rounded at random, beside which so many bits are kept."""
        return self.rounding == "stochastic" and kept != REMAINDER_BITS["split"]

    def draws_state(self, field: str) -> bool:
        """Return whether a field that is stored in 16 bits is rounded at random.

        Near 1, as decay rates are, rounding to nearest would leave an average where it is.
        """
        by_default = self.rounding is None and self.state.get(field) == "bfloat16"
        return self.rounding == "stochastic" or by_default


def _state_dtype(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: None if one is None else DTYPES.convert(one) for key, one in value.items()}
    return None if value is None else DTYPES.convert(value)


MASTERS = checks.one_of(False, True, *REMAINDER_BITS)
ROUNDINGS = checks.one_of(None, "nearest", "stochastic")
STATE = checks.Check(f"{DTYPES.allowed}, a mapping to these by field, or None", _state_dtype)
SEED = checks.integer(0, bits=63)


def wanted(given: Mapping[str, Any], rule: Any) -> Wanted:
    """Return what is wanted, or raise if it is what there is not."""
    master = MASTERS("master_weights", given["master_weights"], 'Pass True, "split", "split24", or False.')
    rounding = ROUNDINGS("rounding", given["rounding"], 'Pass "stochastic" or "nearest".')
    asked = STATE("state_dtype", given["state_dtype"], WAY_OUT)
    seed = SEED("seed", given["seed"], "Pass an integer, the same on all processes.")
    fields = rule.State._fields
    if isinstance(asked, Mapping) and (unknown := asked.keys() - {*fields}):
        names = f"names among {', '.join(fields)}"
        raise HyperparameterError(sentence("state_dtype", names, sorted(map(str, unknown)), WAY_OUT))
    by_field = asked if isinstance(asked, Mapping) else dict.fromkeys(fields, asked)
    return Wanted(master, rounding, {key: one for key, one in by_field.items() if one is not None}, seed)


def check_fits(want: Wanted, h: Hyper, argument: str = "momentum_dtype") -> None:
    """Raise where a storage format contradicts the dtype that another option gives to a field."""
    for field, dtype in h.state_dtypes().items():
        if want.state.get(field, dtype) != dtype:
            allowed = f"{dtype!r} for {field!r}, as {argument} has it"
            raise HyperparameterError(sentence("state_dtype", allowed, want.state[field], "Drop one of them."))


@cache
def is_signed(rule: Any, field: str) -> bool:
    """Return whether a field of a rule's state may be negative."""
    return bool(get_type_hints(rule.State, include_extras=True)[field] != Nonnegative)
