"""The process group of other tensors of one model, as an optimizer keeps, copies and pickles it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.torch.sharding._cuts import ranks_named


class ModelGroup:
    """A process group that survives copies and pickles of what refers to it.

    A copy refers to the same group. A pickle says which ranks there were: the default group is found again where it is
    read, and any other group has to be given again.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._ranks = None if group is dist.group.WORLD else tuple(dist.get_process_group_ranks(group))

    def __deepcopy__(self, memo: Any) -> ModelGroup:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_group": None, "_ranks": self._ranks}

    @property
    def group(self) -> Any:
        """The process group, if it is known here."""
        if self._group is None and self._ranks is None and dist.is_available() and dist.is_initialized():
            self._group = dist.group.WORLD
        if self._group is None:
            missing = "of all processes" if self._ranks is None else f"of {ranks_named(self._ranks)}"
            raise ContradictionError(
                f"`model_group` was a process group {missing} when this optimizer was pickled, and is not known in "
                "this process. Set optimizer.model_group to a process group, or to None for a model that is whole here."
            )
        return self._group


def as_model_group(group: Any) -> ModelGroup | None:
    """Return the group as an optimizer keeps it, or raise unless it is a process group, or None."""
    if group is None:
        return None
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return ModelGroup(group)
    way_out = "Pass what torch.distributed.new_group() gave."
    raise HyperparameterError(sentence("model_group", "a process group that this process is in", group, way_out))
