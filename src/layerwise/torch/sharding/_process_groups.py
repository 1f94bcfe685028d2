"""A process group that an optimizer was given, as it keeps, copies and pickles it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.torch.sharding._cuts import ranks_named


class ProcessGroupRef:
    """A process group that survives copies and pickles of what refers to it.

    A copy refers to the same group. A pickle says which ranks there were: the default group is found again where it is
    read, and any other group has to be given again.
    """

    def __init__(self, name: str, group: Any) -> None:
        self._name, self._group = name, group
        self._ranks = None if group is dist.group.WORLD else tuple(dist.get_process_group_ranks(group))

    def __deepcopy__(self, memo: Any) -> ProcessGroupRef:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_group": None}

    @property
    def group(self) -> Any:
        """The process group, if it is known here."""
        if self._group is None and self._ranks is None and dist.is_available() and dist.is_initialized():
            self._group = dist.group.WORLD
        if self._group is None:
            missing = "of all processes" if self._ranks is None else f"of {ranks_named(self._ranks)}"
            raise ContradictionError(
                f"`{self._name}` was a process group {missing} when this optimizer was pickled, and is not known in "
                f"this process. Set optimizer.{self._name} to a process group, or to None if no other has a share."
            )
        return self._group


def process_group_ref(name: str, group: Any) -> ProcessGroupRef | None:
    """Return the group as an optimizer keeps it, or raise unless it is a process group, or None."""
    if group is None:
        return None
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return ProcessGroupRef(name, group)
    way_out = "Pass what torch.distributed.new_group() gave."
    raise HyperparameterError(sentence(name, "a process group that this process is in", group, way_out))
