"""The rule for the rest: with rules for hidden matrices AdamW, at a rate in proportion to theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from layerwise.catalog.hidden_matrices import ADAMW, adamw_rate_ratio, is_embedding_or_head
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.options.checks import number
from layerwise.options.settings import Hyper
from layerwise.torch.groups._members import Group
from layerwise.torch.groups._rules import OF_ALL_RULES, RULE, rule_name
from layerwise.torch.groups._rules import RATES as WAYS_OUT

Options = dict[str, Any]
RATES = ("initial_lr", "max_lr", "min_lr")  # put into groups by schedulers
SHARED = (*OF_ALL_RULES, "weight_decay")  # options that the rest takes over


def is_named_embedding(name: str, p: Tensor, module: nn.Module) -> bool:
    """Return True if a parameter's name is that of an embedding or a head."""
    return is_embedding_or_head(name)


def split_options(rule: object, others: object, options: Group) -> tuple[Options, Options | None]:
    """Return the options of groups with the rule, and of those that it leaves to another; None if it leaves none."""
    first = {**({} if rule is None else {RULE: rule_name(rule)}), **options}
    hyper = None if rule is None else ENTRIES[first[RULE]].hyper
    usual = _usual(hyper, options) if hyper is not None and hyper().of_matrices else {}
    if others is False or (others is None and not usual):
        return first, None
    if rule is None:
        raise HyperparameterError(
            sentence("rule", ("given when `others` is given"), None, 'Pass one such as rule="lamb".')
        )
    own = dict(others) if isinstance(others, Mapping) else {} if others is None else {RULE: others}
    own[RULE] = rule_name(own.get(RULE, usual.get(RULE)))
    return first, {**usual, **own} if own[RULE] == usual.get(RULE) else own


def _usual(hyper: type[Hyper], options: Group) -> Options:
    """Return the rest's options that go with these options of a rule for hidden matrices."""
    own = {spec.name: spec.default for spec in fields(hyper)}
    ratio = adamw_rate_ratio(hyper(**{name: options[name] for name in ("scale",) if name in options}))
    # Keys that are not options also apply to the rest, except names of state that AdamW does not have.
    kept = {key: x for key, x in options.items() if key in SHARED or key not in own}
    if isinstance(kept.get("state_dtype"), Mapping):
        del kept["state_dtype"]
    rates = {name: options[name] for name in RATES if name in options} | {"lr": options.get("lr", own["lr"])}
    rates = {
        name: ratio * (x if isinstance(x, Tensor) else number(0)(name, x, WAYS_OUT["lr"])) for name, x in rates.items()
    }
    return {"weight_decay": own["weight_decay"], **kept, **rates, RULE: ADAMW.name}


def kept_by_rest(rule: type, own: Mapping[str, object], rest: Options | None) -> Options:
    """Return the rest's options in a trainer's group, which keeps its decay, if it has one, and keys that are not
    options.
    """
    mine = {spec.name for spec in fields(ENTRIES[rule_name(rule)].hyper)}
    kept = {key: x for key, x in own.items() if key in SHARED or key not in mine}
    undecayed = {"weight_decay": 0.0} if own.get("weight_decay") == 0 else {}
    return {**kept, **(rest or {}), **undecayed}


def check_other_params(rest: Options | None, given: object) -> None:
    """Raise if parameters are chosen for a rule that is not given."""
    if rest is None and given is not None:
        way_out = 'Pass the rule for them, such as others="adamw".'
        raise ContradictionError(sentence("other_params", "None without `others`", given, way_out))
