"""Parameters as callers pass them, and mistakes that PyTorch ignores or reports unclearly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import isgenerator
from itertools import chain
from numbers import Number
from typing import Any

from torch import Tensor, nn

from layerwise.errors import ArgumentError, HyperparameterError, ParameterError, sentence, warn
from layerwise.options.checks import is_exhausted
from layerwise.options.misspellings import did_you_mean, nearest
from layerwise.torch.groups._members import Group

NAMED = "Pass model.named_parameters()."
SHOWN = 3  # names in a message


def check_given(params: object, way_out: str) -> None:
    """Raise for values that are not parameters of an optimizer: a single one, a rate, a name, or an object that has
    some.
    """
    check_params(params)
    if isinstance(params, Tensor):
        raise ArgumentError(
            "`params` must be an iterable of Tensors or dicts, but is a single tensor. Put it in a list."
        )
    if isinstance(params, str) or not isinstance(params, Iterable):
        shown = repr(params) if isinstance(params, (str, Number)) else type(params).__name__
        raise ArgumentError(f"`params` must be parameters, but is {shown}. {way_out}")


def check_params(params: Any) -> None:
    """Raise for an object that has parameters, and for an exhausted generator."""
    if isinstance(params, Mapping):
        raise ArgumentError(f"`params` must be a list of parameters, but is {_mapping(params)}")
    if isinstance(params, nn.Module) and not isinstance(params, nn.ParameterList):
        raise ParameterError(f"`params` must be parameters, but is the module {type(params).__name__}. {NAMED}")
    if callable(params) and not isinstance(params, Iterable):
        name = getattr(params, "__name__", type(params).__name__)
        raise ParameterError(f"`params` must be parameters, but is the function {name}. Call it: {name}().")
    if is_exhausted(params):
        raise ParameterError(
            f"`params` is the generator {params.__name__!r}, which is exhausted: other code has already iterated "
            "over it. Pass a list to both."
        )


def warn_of_set(params: object) -> None:
    """Warn about parameters without an order, with the class that newer versions of PyTorch use."""
    if isinstance(params, (set, frozenset)):
        why = "the order of a set changes from run to run, but checkpoints identify unnamed parameters by their order"
        warn(f"`params` is a {type(params).__name__}: {why}. {NAMED}", FutureWarning)


def check_group(group: Group) -> None:
    """Raise unless a group has something to take its parameters from."""
    if "params" not in group:
        keys = ", ".join(map(repr, group)) or "nothing"
        hint = did_you_mean(one for key in group for one in nearest(key, ["params"])) or "Add a list of parameters."
        raise ParameterError(f"a parameter group must have 'params', but has {keys}. {hint}")
    check_params(group["params"])


def check_blocks(blocks: object, group: Group, named: bool) -> None:
    """Raise if blocks are given by name, but the parameters have no names."""
    if isinstance(blocks, Mapping) and group["params"] and not named:
        raise HyperparameterError(
            sentence("blocks", "None when parameters have no names", blocks, "Pass named_parameters().")
        )


def _mapping(params: Mapping[object, object]) -> str:
    """Return the description of a mapping, and the way out."""
    if "params" in params:
        return "one group. Put it in a list: [group]."
    if any(isinstance(p, Tensor) and p.requires_grad for p in params.values()):
        return f"{type(params).__name__} from names to tensors. Pass its items(), which keep the names."
    return f"{type(params).__name__} of tensors that are not trained, such as those of a state_dict. {NAMED}"


def listed(params: Any) -> object:
    """Return a group's parameters as a list that can be read more than once; a set is left to PyTorch's error."""
    return [params] if isinstance(params, Tensor) else params if isinstance(params, set) else list(params)


def warn_of_odd(groups: Sequence[Group], given: object) -> None:
    """Warn if the last of these groups got nothing out of an iterator, or has names that are already taken."""
    if isinstance(given, Iterator) and not isgenerator(given) and not groups[-1]["params"]:
        warn(
            f"a parameter group is empty: its 'params', a {type(given).__name__}, gave no parameters. Pass a "
            "list if other code has already iterated over it.",
        )
    own = groups[-1].get("param_names", ())
    counts = Counter(chain.from_iterable(group.get("param_names", ()) for group in groups))
    if twins := [name for name in dict.fromkeys(own) if counts[name] > 1]:
        shown = ", ".join(map(repr, twins[:SHOWN])) + ", …" * (len(twins) > SHOWN)
        warn(
            f"several parameters are named {shown}. A pattern matches all of them, and checkpoints tell them "
            f"apart only by their order. Prefix each name with its model: (f'a.{{name}}', p) for name, p in "
            "a.named_parameters().",
        )
