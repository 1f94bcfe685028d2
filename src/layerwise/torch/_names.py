"""The names of an optimizer's parameters, which survive changes to the list of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.errors import ParameterError


class Named(torch.optim.Optimizer):
    """An optimizer whose parameters keep their names, even if its groups are changed by hand."""

    _names: Names

    def _named(self, number: int) -> list[tuple[Tensor, str]]:
        """Return the parameters of this group, each with its name or else with its place."""
        return self._names.of(self.param_groups[number], number)

    @property
    def num_parameters(self) -> int:
        """The number of parameters, counted as tensors."""
        return sum(len(group["params"]) for group in self.param_groups)

    def _put_names_in_step(self) -> None:
        """Give every group the names of the parameters that it has now."""
        for i in range(len(self.param_groups)):
            self._named(i)

    def state_dict(self) -> dict[str, Any]:
        """Return groups and state, with parameters as numbers, without the state of parameters that are in no group any
        more.
        """
        self._put_names_in_step()
        members = {id(p) for group in self.param_groups for p in group["params"]}
        others = {p: one for p, one in self.state.items() if isinstance(p, Tensor) and id(p) not in members}
        for p in others:
            del self.state[p]
        try:
            return super().state_dict()
        finally:
            self.state.update(others)


class Names:
    """The name that each parameter was given; holds no parameter alive."""

    def __init__(self) -> None:
        self._of: Any = WeakTensorKeyDictionary()

    def of(self, group: dict[str, Any], number: int) -> list[tuple[Tensor, str]]:
        """Return the group's parameters, each with its name or else with its place.

        Pruning and freezing take parameters out of `params` and leave `param_names` alone. The names are then put in
        step again, so that no parameter gets the name of another.
        """
        params, names = group["params"], group.get("param_names")
        if not names:
            return [(p, f"parameter {i} of group {number}") for i, p in enumerate(params)]
        known = [self._of.get(p) for p in params]
        if not _in_step(known, names):
            group["param_names"] = names = _put_in_step(known, names, number)
        for p, name in zip(params, names, strict=True):
            self._of[p] = name
        return list(zip(params, names, strict=True))


def _in_step(known: Sequence[str | None], names: Sequence[str]) -> bool:
    """Return True if the names are the known ones of these parameters, or new ones that the caller gave to all."""
    if len(known) != len(names):
        return False
    renamed = not {name for name in known if name is not None} <= set(names)
    return renamed or all(name in (None, given) for name, given in zip(known, names, strict=True))


def _put_in_step(known: Sequence[str | None], names: Sequence[str], number: int) -> list[str]:
    """Return the names known; a parameter that took the place of another takes its name as well."""
    taken, found = set(known), []
    for i, name in enumerate(known):
        if name is None:
            if len(known) != len(names) or names[i] in taken:
                raise ParameterError(
                    f"parameter {i} of group {number} has no name, and the others have. Change the group's "
                    "'param_names' along with its 'params', or pass the parameter to add_param_group."
                )
            name = names[i]
        found.append(name)
    return found
