"""The parameters of an optimizer and their names, which survive changes to the list of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any
from weakref import proxy, ref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.errors import ParameterError

Group = Mapping[str, Any]
"""A group of parameters, as it is read."""
GroupDict = dict[str, Any]
State = dict[str, Any]  # of a parameter, by name; other programs have entries there too
"""The same, where it is changed."""


class Members:
    """The parameters of an optimizer, in its groups as they are now, and the name that each was given."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.own = ref(optimizer)
        self.optimizer: Any = proxy(optimizer)
        """The optimizer, which refers to this: another strong reference would create a cycle."""
        self._names: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()
        self.buffers: Sequence[Sequence[Tensor]] = ()  # of each group, where a wrapper puts them in only to step them

    @property
    def groups(self) -> list[GroupDict]:
        """The optimizer's groups."""
        found: list[GroupDict] = self.optimizer.param_groups
        return found

    def named(self, number: int) -> list[tuple[Tensor, str]]:
        """Return the parameters of this group, each with its name or else with its index.

        Pruning and freezing remove parameters from `params` and leave `param_names` unchanged. The names are then
        realigned, so that no parameter gets the name of another.
        """
        group = self.groups[number]
        params, names = group["params"], group.get("param_names")
        if not names:
            return self._places_in(number)
        known = [self._names.get(p) for p in params]
        if not _in_step(known, names):
            group["param_names"] = names = _put_in_step(known, names, number)
        for p, name in zip(params, names, strict=True):
            self._names[p] = name
        return list(zip(params, names, strict=True))

    def all(self) -> list[tuple[Tensor, str]]:
        """Return the same for all groups, after their names have been realigned with their parameters."""
        return [each for number in range(len(self.groups)) for each in self.named(number)]

    def places(self) -> Iterator[tuple[Tensor, str]]:
        """Yield the parameters of all groups, each with its position, whatever its name."""
        return chain.from_iterable(map(self._places_in, range(len(self.groups))))

    def _places_in(self, number: int) -> list[tuple[Tensor, str]]:
        return [(p, position_name(i, number)) for i, p in enumerate(self.groups[number]["params"])]

    def names_of(self, dues: Sequence[Any]) -> list[str]:
        """Return the names of all parameters of a step of some groups."""
        found: list[str] = []
        for due in dues:
            names = {id(p): name for p, name in self.named(due.number)}
            found += [names[id(p)] for p in due.params]
        return found

    def __len__(self) -> int:
        return sum(len(group["params"]) for group in self.groups)


def position_name(i: int, number: int) -> str:
    """Return the name of a parameter without a given name."""
    return f"parameter {i} of group {number}"


def is_named(group: Group) -> bool:
    """Return True if a group's parameters have names other than their numbers."""
    return "param_names" in group or any(isinstance(one, tuple) for one in group["params"])


@contextmanager
def named_by_places(groups: Sequence[GroupDict]) -> Iterator[None]:
    """Name parameters by their position in groups without names, if other groups have names; undo this on an error.

    PyTorch requires names for all groups or for none, but callers that add a group later seldom have names.
    """
    without = [(number, group) for number, group in enumerate(groups) if not is_named(group)]
    without = without if len(without) < len(groups) else []
    for number, group in without:
        group["param_names"] = [position_name(i, number) for i in range(len(group["params"]))]
    try:
        yield
    except Exception:
        for _, group in without:
            del group["param_names"]
        raise


def _in_step(known: Sequence[str | None], names: Sequence[str]) -> bool:
    """Return True if the names are the known ones of these parameters, or new ones that the caller gave to all."""
    if len(known) != len(names):
        return False
    renamed = not {name for name in known if name is not None} <= set(names)
    return renamed or [given if name is None else name for name, given in zip(known, names, strict=True)] == list(names)


def _put_in_step(known: Sequence[str | None], names: Sequence[str], number: int) -> list[str]:
    """Return the known names; a parameter that replaced another takes over its name."""
    taken, found = set(known), []
    for i, name in enumerate(known):
        if name is None:
            if len(known) != len(names) or names[i] in taken:
                raise ParameterError(
                    f"parameter {i} of group {number} has no name, but others have one. Update the group's "
                    "'param_names' together with its 'params', or add the parameter with add_param_group()."
                )
            name = names[i]
        found.append(name)
    return found


def distinct_name(name: str, others: Sequence[str] | Mapping[str, object]) -> str:
    """Return a name that is not among the others: parameters of two models may have the same name."""
    copies = sum(other == name or other.startswith(f"{name} (") for other in others)
    return f"{name} ({copies + 1})" if copies else name


Form = Callable[[str], str]

# Modules that wrap another, and the attribute that only they have; DDP's "module" may also be a module's own.
WRAPPERS = {
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
}


def _without(components: set[str]) -> Form:
    def form(name: str) -> str:
        *modules, last = name.split(".")
        return ".".join([*(module for module in modules if module not in components), last])

    return form


# Forms in which names are compared: first unchanged, then without the prefixes of wrappers, level by level.
FORMS: tuple[Form, ...] = (str, _without(WRAPPERS), _without({*WRAPPERS, "module"}))
without_wrappers = FORMS[-1]
