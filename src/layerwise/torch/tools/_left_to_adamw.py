"""The rule of what another leaves: for rules of hidden matrices AdamW, with a rate that fits theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from layerwise.catalog.hidden import ADAMW, is_called_otherwise, rate_ratio
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options.checks import number
from layerwise.torch.groups._rules import OF_ALL_RULES, RULE, name_of
from layerwise.torch.groups._settings import RATES as WAYS_OUT

Options = dict[str, Any]
RATES = ("initial_lr", "max_lr", "min_lr")  # that schedulers put into groups
SHARED = (*OF_ALL_RULES, "weight_decay")  # options that the rest takes over


def called_otherwise(name: str, p: Tensor, module: nn.Module) -> bool:
    """Return True if a parameter's name is that of an embedding or a head."""
    return is_called_otherwise(name)


def rules_of(rule: Any, others: Any, options: Mapping[str, Any]) -> tuple[Options, Options | None]:
    """Return the options of groups with the rule, and of those that it leaves to another; None if it leaves none."""
    first = {**({} if rule is None else {RULE: name_of(rule)}), **options}
    hyper = None if rule is None else ENTRIES[first[RULE]].hyper
    usual = _usual(hyper, options) if hyper is not None and hyper().of_matrices else {}
    if others is False or (others is None and not usual):
        return first, None
    if rule is None:
        raise HyperparameterError(sentence("rule", "given beside others", None, 'Pass one such as rule="lamb".'))
    own = dict(others) if isinstance(others, Mapping) else {} if others is None else {RULE: others}
    own[RULE] = name_of(own.get(RULE, usual.get(RULE)))
    return first, {**usual, **own} if own[RULE] == usual.get(RULE) else own


def _usual(hyper: Any, options: Mapping[str, Any]) -> Options:
    """Return the rest's options beside a rule of hidden matrices with these."""
    own = {spec.name: spec.default for spec in fields(hyper)}
    ratio = rate_ratio(hyper(**{name: options[name] for name in ("scale",) if name in options}))
    # What a group has besides options holds for its rest, too, but for names of state that AdamW has not.
    kept = {key: x for key, x in options.items() if key in SHARED or key not in own}
    if isinstance(kept.get("state_dtype"), Mapping):
        del kept["state_dtype"]
    rates = {name: options[name] for name in RATES if name in options} | {"lr": options.get("lr", own["lr"])}
    rates = {
        name: ratio * (x if isinstance(x, Tensor) else number(0)(name, x, WAYS_OUT["lr"])) for name, x in rates.items()
    }
    return {"weight_decay": own["weight_decay"], **kept, **rates, RULE: ADAMW.name}


def kept_by_rest(rule: type, own: Mapping[str, Any], rest: Options | None) -> Options:
    """Return the rest's options in a trainer's group: its decay, if it has some, and what is no option go on."""
    mine = {spec.name for spec in fields(ENTRIES[name_of(rule)].hyper)}
    kept = {key: x for key, x in own.items() if key in SHARED or key not in mine}
    undecayed = {"weight_decay": 0.0} if own.get("weight_decay") == 0 else {}
    return {**kept, **(rest or {}), **undecayed}


def check_other_params(rest: Options | None, given: Any) -> None:
    """Raise if parameters are chosen for a rule that there is not."""
    if rest is None and given is not None:
        way_out = 'Pass their rule, such as others="adamw".'
        raise ContradictionError(sentence("other_params", "None without others", given, way_out))
