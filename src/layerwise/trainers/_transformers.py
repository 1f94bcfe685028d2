"""The names of optimizers in transformers' Trainer."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial, wraps
from typing import Any

from torch import nn
from torch.optim import Optimizer

from layerwise.errors import HyperparameterError, MissingPackageError, sentence
from layerwise.torch.groups._members import Group, GroupDict
from layerwise.torch.groups._rules import RULE
from layerwise.torch.tools._param_groups import SMALL, chosen
from layerwise.trainers import classes
from layerwise.trainers._split import splitting_class


def register() -> list[str]:
    """Add the optimizers to the Trainer's table and to the names that TrainingArguments accepts, and return the
    names.
    """
    try:
        from transformers import Trainer
        from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS
        from transformers.training_args import OptimizerNames
    except ImportError as problem:
        raise MissingPackageError(
            f"the Trainer's table of optimizers cannot be imported: {problem}. It needs transformers 5; with older "
            "versions, pass optimizer_cls_and_kwargs to the Trainer."
        ) from problem
    found = classes()
    for name, optimizer in found.items():
        _OPTIMIZER_HANDLERS.setdefault(name, partial(_handler, optimizer))
        _add_name(OptimizerNames, name)
    if not hasattr(Trainer.create_optimizer, "gives_its_rate"):
        Trainer.create_optimizer = _with_rate(Trainer.create_optimizer)
    return list(found)


def _with_rate(create: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """Return the Trainer's method, which gives its learning rate to a class of ours that comes without one."""

    @wraps(create)
    def create_optimizer(self: Any, *args: object, **kwargs: object) -> Optimizer:
        optimizer, options = self.optimizer_cls_and_kwargs or (None, {})
        hyper = getattr(optimizer, "_hyper", None)
        if hyper is not None and "lr" not in options and hyper.__dataclass_fields__["lr"].default is not None:
            self.optimizer_cls_and_kwargs = optimizer, {**options, "lr": self.args.learning_rate}
        return create(self, *args, **kwargs)

    create_optimizer.gives_its_rate = True  # type: ignore[attr-defined]
    return create_optimizer


def _add_name(names: Any, name: str) -> None:
    """Add a name to the enumeration: TrainingArguments looks up values in it, and HfArgumentParser all members."""
    if name in names._value2member_map_:
        return
    member = str.__new__(names, name)
    member._name_, member._value_ = name.upper(), name
    names._value2member_map_[name] = names._member_map_[member._name_] = member
    names._member_names_.append(member._name_)
    type.__setattr__(names, member._name_, member)  # some Pythons find pickled members by this


def _handler(optimizer: type[Any], context: Any) -> tuple[type[Any], dict[str, Any]]:
    """Return the class, and its options from TrainingArguments: lr, Adam's options if it has them, and optim_args."""
    options, h = optimizer._hyper.__dataclass_fields__, optimizer._hyper()
    given = {**context.optimizer_kwargs, **({"of_model": context.model} if h.of_matrices else {})}
    if "betas" in options:
        given["betas"] = context.adam_kwargs["betas"]
        if "eps" in options and isinstance(options["eps"].default, float):
            given["eps"] = context.adam_kwargs["eps"]
    if "weight_decay" in context.optim_args:
        way_out = "Pass TrainingArguments(weight_decay=...): the Trainer's groups use it, and override optim_args."
        raise HyperparameterError(
            sentence("optim_args' weight_decay", "left out", context.optim_args["weight_decay"], way_out)
        )
    given |= {name: _value(name, text) for name, text in context.optim_args.items()}
    if h.of_matrices:
        given["others"] = _with_adams(given.get("others"), context.adam_kwargs)
    elif getattr(h, "adapt", False) and "adapt" not in given and context.model is not None:
        return _sparing(optimizer, context.model), given
    return splitting_class(optimizer), given


def _sparing(optimizer: type[Any], model: nn.Module) -> type[Any]:
    """Return a class that makes the optimizer of the Trainer's groups, with biases and norms as in `param_groups`."""
    small, usual = {id(p) for p in chosen(model, SMALL)}, optimizer._hyper.of_small or {"adapt": False}

    def new(cls: type[Any], params: Any, **options: Any) -> Any:
        off = {name: options.get(name, value) for name, value in usual.items()}
        return optimizer([one for group in params for one in _apart(group, small, off)], **options)

    # What it makes is none of its instances, so that its __init__ is not called.
    return type(optimizer.__name__, (optimizer,), {"__new__": new, "__doc__": optimizer.__doc__})


def _apart(group: Group, small: Collection[int], off: Group) -> Iterator[GroupDict]:
    """Yield a group of the Trainer's in two, if it has both: the others, and biases and norms with these options."""
    for options, wanted in (({}, False), (off, True)):
        if found := [p for p in group["params"] if (id(p) in small) is wanted]:
            yield {**options, **group, "params": found}


def _with_adams(others: object, adams: Mapping[str, object]) -> object:
    """Return the rule for the parameters that are not hidden matrices: the named one, or AdamW with the Trainer's
    options.
    """
    if others is None or (isinstance(others, Mapping) and RULE not in others):
        return {**adams, **(others or {})}
    return others


def _value(name: str, text: str) -> object:
    """Return a value of optim_args, where everything is text: a number, None, True or a word."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        if not text.isidentifier():
            way_out = "A comma separates arguments there. For a value with a comma, use optimizer_cls_and_kwargs."
            raise HyperparameterError(sentence(f"optim_args' {name}", "a number or a word", text, way_out)) from None
        return text
