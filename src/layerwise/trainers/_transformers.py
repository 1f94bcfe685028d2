"""The names of optimizers in transformers' Trainer."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from functools import partial
from typing import Any

from layerwise.errors import HyperparameterError, MissingPackageError, sentence
from layerwise.torch.groups._rules import RULE
from layerwise.trainers import classes
from layerwise.trainers._split import by_name


def register() -> list[str]:
    """Add the optimizers to the Trainer's table and to the names that TrainingArguments takes, and return the names."""
    try:
        from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS
        from transformers.training_args import OptimizerNames
    except ImportError as problem:
        raise MissingPackageError(
            f"the Trainer's table of optimizers cannot be imported: {problem}. It is there from transformers 5 on; "
            "without it, pass optimizer_cls_and_kwargs to the Trainer."
        ) from problem
    found = classes()
    for name, optimizer in found.items():
        _OPTIMIZER_HANDLERS.setdefault(name, partial(_handler, optimizer))
        _add_name(OptimizerNames, name)
    return list(found)


def _add_name(names: Any, name: str) -> None:
    """Add a name to the enumeration, in which TrainingArguments looks up values, and HfArgumentParser all members."""
    if name in names._value2member_map_:
        return
    member = str.__new__(names, name)
    member._name_, member._value_ = name.upper(), name
    names._value2member_map_[name] = names._member_map_[member._name_] = member
    names._member_names_.append(member._name_)
    type.__setattr__(names, member._name_, member)  # by which some Pythons find what was pickled


def _handler(optimizer: type[Any], context: Any) -> tuple[type[Any], dict[str, Any]]:
    """Return the class, and its options made of TrainingArguments: lr, those of Adam where it has them, optim_args."""
    options, h = optimizer._hyper.__dataclass_fields__, optimizer._hyper()
    given = {**context.optimizer_kwargs, **({"of_model": context.model} if h.of_matrices else {})}
    if "betas" in options:
        given["betas"] = context.adam_kwargs["betas"]
        if "eps" in options and isinstance(options["eps"].default, float):
            given["eps"] = context.adam_kwargs["eps"]
    if "weight_decay" in context.optim_args:
        way_out = "Pass TrainingArguments(weight_decay=...): the Trainer's groups have it, and go before optim_args."
        raise HyperparameterError(
            sentence("optim_args' weight_decay", "left out", context.optim_args["weight_decay"], way_out)
        )
    given |= {name: _value(name, text) for name, text in context.optim_args.items()}
    if h.of_matrices:
        given["others"] = _with_adams(given.get("others"), context.adam_kwargs)
    return by_name(optimizer), given


def _with_adams(others: Any, adams: Mapping[str, Any]) -> Any:
    """Return the rule beside that of hidden matrices: unless another is named, AdamW with the Trainer's options."""
    if others is None or (isinstance(others, Mapping) and RULE not in others):
        return {**adams, **(others or {})}
    return others


def _value(name: str, text: str) -> Any:
    """Return a value of optim_args, in which all is text: a number, None, True or a word."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        if not text.isidentifier():
            way_out = "A comma divides arguments there; what holds one goes in optimizer_cls_and_kwargs."
            raise HyperparameterError(sentence(f"optim_args' {name}", "a number or a word", text, way_out)) from None
        return text
