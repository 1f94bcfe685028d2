"""Parameters as callers give them, and the mistakes that PyTorch passes over or explains by its own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import isgenerator
from itertools import chain
from numbers import Number
from typing import Any

from torch import Tensor, nn

from layerwise.errors import ArgumentError, HyperparameterError, ParameterError, sentence, warn
from layerwise.options.checks import is_used_up

NAMED = "Pass model.named_parameters()."
SHOWN = 3  # names in a message


def check_given(params: Any, way_out: str) -> None:
    """Raise for what is no parameters of an optimizer: one of them, a rate, a name, something that has some."""
    check_params(params)
    if isinstance(params, Tensor):
        raise ArgumentError("`params` must be an iterable of Tensors or dicts, but is one tensor. Put it in a list.")
    if isinstance(params, str) or not isinstance(params, Iterable):
        shown = repr(params) if isinstance(params, (str, Number)) else type(params).__name__
        raise ArgumentError(f"`params` must be parameters, but is {shown}. {way_out}")


def check_params(params: Any) -> None:
    """Raise for what has parameters and is none, and for a generator that has given them all before."""
    if isinstance(params, Mapping):
        raise ArgumentError(f"`params` must be a list of parameters, but is {_mapping(params)}")
    if isinstance(params, nn.Module) and not isinstance(params, nn.ParameterList):
        raise ParameterError(f"`params` must be parameters, but is the module {type(params).__name__}. {NAMED}")
    if callable(params) and not isinstance(params, Iterable):
        name = getattr(params, "__name__", type(params).__name__)
        raise ParameterError(f"`params` must be parameters, but is the function {name}. Call it: {name}().")
    if is_used_up(params):
        raise ParameterError(
            f"`params` is the generator {params.__name__!r}, which has nothing left: it gave its parameters to what "
            "used it before. Pass a list of them to both."
        )


def warn_of_set(params: Any) -> None:
    """Warn of parameters without an order, in the class in which newer versions of PyTorch do."""
    if isinstance(params, (set, frozenset)):
        why = "its order changes from run to run, and checkpoints know parameters without names by their order"
        warn(f"`params` is a {type(params).__name__}: {why}. {NAMED}", FutureWarning)


def check_group(group: Mapping[str, Any]) -> None:
    """Raise unless a group has something to take its parameters from."""
    if "params" not in group:
        keys = ", ".join(map(repr, group)) or "nothing"
        raise ParameterError(f"a parameter group must have 'params', but has {keys}. Add them, such as a list.")
    check_params(group["params"])


def check_blocks(blocks: Any, group: Mapping[str, Any], named: bool) -> None:
    """Raise if blocks are said by the names of parameters that have none."""
    if isinstance(blocks, Mapping) and group["params"] and not named:
        raise HyperparameterError(
            sentence("blocks", "None for parameters without names", blocks, "Pass named_parameters().")
        )


def _mapping(params: Mapping[Any, Any]) -> str:
    """Return what a mapping is, and the way out."""
    if "params" in params:
        return "one group. Put it in a list: [group]."
    if any(isinstance(p, Tensor) and p.requires_grad for p in params.values()):
        return f"{type(params).__name__}, by name. Pass its items(), which keep the names."
    return f"{type(params).__name__} of what does not train, such as the tensors of a state_dict. {NAMED}"


def listed(params: Any) -> Any:
    """Return a group's parameters as they can be looked at more than once; a set is left to PyTorch's error."""
    return [params] if isinstance(params, Tensor) else params if isinstance(params, set) else list(params)


def warn_of_odd(groups: Sequence[Mapping[str, Any]], given: Any) -> None:
    """Warn if the last of these groups got nothing out of an iterator, or names that others have."""
    if isinstance(given, Iterator) and not isgenerator(given) and not groups[-1]["params"]:
        warn(
            f"a parameter group is empty: the {type(given).__name__} that was its 'params' gave nothing. Pass a list "
            "if something else used it before.",
        )
    own = groups[-1].get("param_names", ())
    counts = Counter(chain.from_iterable(group.get("param_names", ()) for group in groups))
    if twins := [name for name in dict.fromkeys(own) if counts[name] > 1]:
        shown = ", ".join(map(repr, twins[:SHOWN])) + ", …" * (len(twins) > SHOWN)
        warn(
            f"several parameters are named {shown}. Patterns mean all of them, checkpoints tell them apart by their "
            "order. Put the model's name before the parameter's: (f'a.{name}', p) for name, p in a.named_parameters().",
        )
