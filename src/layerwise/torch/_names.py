"""Names of an optimizer's parameters, which stay theirs when somebody changes the list of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.errors import ParameterError


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
    """Whether the names are those of these parameters, as far as known, or new ones that the caller gave to all."""
    if len(known) != len(names):
        return False
    renamed = not {name for name in known if name is not None} <= set(names)
    return renamed or all(name in (None, given) for name, given in zip(known, names, strict=True))


def _put_in_step(known: Sequence[str | None], names: Sequence[str], number: int) -> list[str]:
    """The names known; a parameter that took the place of another takes its name as well."""
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
