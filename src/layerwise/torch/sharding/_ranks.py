"""The processes that hold other parts of an optimizer's parameters, and the agreement with them on each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from operator import is_
from typing import TYPE_CHECKING, cast
from weakref import ReferenceType, ref

import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence
from layerwise.torch.groups._members import Members
from layerwise.torch.groups._options import GroupOptions
from layerwise.torch.sharding import _cuts as cuts
from layerwise.torch.sharding._agreement import Agreement
from layerwise.torch.sharding._cuts import CHANGES, WHOLE, ranks_named
from layerwise.torch.sharding._dtensors import is_dtensor
from layerwise.torch.sharding._wrapped_modules import check_own, check_replaced

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Ranks:
    """The knowledge about other processes, renewed when parameters or descriptions of them have changed."""

    def __init__(
        self,
        members: Members,
        groups: Mapping[str, ProcessGroupRef | None],
        settings: GroupOptions,
        alone: AbstractContextManager[object],
        changed: Callable[[], None],
    ) -> None:
        self._members, self._settings = members, settings
        self._alone, self._changed = alone, changed  # entered by one thread at a time; called before steps are
        self.groups = dict(groups)
        """The process groups that the optimizer was given, or None, by the names of its arguments."""
        self.copies: tuple[cuts.Axis, ...] = ()
        """The processes that have copies of tensors."""
        self.agreed = Agreement(())
        """The agreement with all of them; none is needed on one process."""
        self.wrapped = False
        """Whether some parameters are not plain tensors."""
        self.searched_ddp = False
        """Whether DistributedDataParallel was looked for since steps are taken in a process group."""
        # Parameters that groups were created with.
        self._added: MutableMapping[Tensor, object] = WeakTensorKeyDictionary()
        self.current: Agreement | None = None
        """The agreement with the processes that hold other parts of the parameters, as long as `described` is true."""
        self.described: int | None = None
        """The number of changes of descriptions when that was determined; None if parameters are new."""
        self._changes = CHANGES[0]  # the last seen
        self._known: dict[int, ReferenceType[Tensor]] = {}  # all parameters whose cuts are known
        self._searched = False

    @property
    def model_group(self) -> ProcessGroupRef | None:
        """All processes that hold tensors of the model, or None."""
        return self.groups["model_group"]

    def set_group(self, name: str, group: ProcessGroupRef | None) -> None:
        """Agree with these processes from now on."""
        self.groups[name], self.described = group, None

    def added(self, params: Sequence[Tensor]) -> None:
        """Record that a group was created with these."""
        self._added.update(dict.fromkeys(params))
        self.described = None

    def check_model(self) -> None:
        """Raise if parameters without gradients are no longer the model's."""
        search = cuts.in_group() and not self._searched
        self._searched = check_replaced(self._members.all(), search) or self._searched

    def are_known(self, params: Sequence[Tensor]) -> bool:
        """Return True if these were in the groups when the cuts of all parameters were determined."""
        known = [self._known.get(id(p)) for p in params]
        return None not in known and all(map(is_, [one() for one in known if one is not None], params))

    def agreement(self) -> Agreement | None:
        """Return the agreement with the processes that hold other parts of the parameters, or None."""
        if self.described != CHANGES[0]:
            with self._alone:
                self._agree_anew()
        return self.current

    def renewed(self, agreement: Agreement | None) -> Agreement | None:
        """Return the agreement that replaces this one if the members of groups have changed."""
        of_all, self.described = agreement in (None, self.agreed), None
        found = self.agreement()
        return found if of_all else agreement

    def _agree_anew(self) -> None:
        """Find the processes that hold other parts of the parameters, unless another thread has done so."""
        if self._changes != CHANGES[0]:
            self._changes, self.described = CHANGES[0], None
            self._changed()
        if self.described is not None:
            return
        check_own(self._members.places, self._added)  # before names: a partition has none
        members = self._members.all()
        found = cuts.cuts_of([p for p, _ in members], [name for _, name in members])
        self._known = {id(p): ref(p) for p, _ in members}
        self._check_left(found)
        before = self.agreed.axes, self.agreed.replicas, self.agreed.model_group, self.copies
        self.copies = self._copies()
        axes, replicas = cuts.axes_of(found, self.copies)
        self.wrapped = found.count(WHOLE) < len(found)
        shared = bool(axes) or any(group is not None for group in self.groups.values())
        if shared and self._settings.differentiable:
            raise ContradictionError(
                sentence("differentiable", "False with sharded parameters", True, "Differentiate on one process.")
            )
        group = None if self.model_group is None else self.model_group.group
        # Kept if possible: its list of sums then need not be exchanged again.
        if before != (axes, replicas, group, self.copies):
            self.agreed = Agreement(axes, replicas, group)
            self._changed()
        divided = bool(replicas) and self._multiplies() and not self._settings.differentiable
        self.current, self.described = self.agreed if shared or divided else None, self._changes

    def _multiplies(self) -> bool:
        """Return True if some groups multiply matrices, of which replicas share the work."""
        return any(self._settings.rules.of(group).hyper.of_matrices for group in self._members.groups)

    def _copies(self) -> tuple[cuts.Axis, ...]:
        """Return the processes that have copies of tensors, as an axis of the parameters' device."""
        group = self.groups["replica_group"]
        if group is None:
            return ()
        devices = (p.device.type for p, _ in self._members.all())
        return (cuts.axis_of(group.group, device=next(devices, "")),)

    def _check_left(self, found: Sequence[object]) -> None:
        """Raise if one of the parameters with these cuts has left its state behind."""
        kept = self._members.optimizer.state
        left = {p.shape for p in kept if isinstance(p, Tensor) and id(p) not in self._known and not is_dtensor(p)}
        each = zip(self._members.all(), found, strict=True) if left else ()
        bare = (name for (p, name), cut in each if isinstance(cut, cuts.Cut) and p.shape in left and p not in kept)
        if name := next(bare, None):
            raise ParameterError(
                f"{name} is a DTensor that replaced another tensor in its group, and the state still belongs to that "
                "tensor. Create the optimizer after sharding the model and load the state through "
                "torch.distributed.checkpoint, or start over after optimizer.state.clear()."
            )


class ProcessGroupRef:
    """A process group that survives copies and pickles of objects that refer to it.

    A copy refers to the same group. A pickle records the ranks: the default group is found again when it is loaded, and
    any other group has to be given again.
    """

    def __init__(self, name: str, group: ProcessGroup) -> None:
        self._name, self._group = name, cast("ProcessGroup | None", group)
        self._ranks = None if group is dist.group.WORLD else tuple(dist.get_process_group_ranks(group))

    def __deepcopy__(self, memo: object) -> ProcessGroupRef:
        return self

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_group": None}

    @property
    def group(self) -> ProcessGroup:
        """The process group, if this process knows it."""
        if self._group is None and self._ranks is None and dist.is_available() and dist.is_initialized():
            self._group = dist.group.WORLD
        if self._group is None:
            missing = "of all processes" if self._ranks is None else f"of {ranks_named(self._ranks)}"
            raise ContradictionError(
                f"`{self._name}` was a process group {missing} when this optimizer was pickled, and has to be set "
                f"again in this process. Set optimizer.{self._name} to a process group, or to None if no other "
                "process has a share."
            )
        return self._group


def process_group_ref(name: str, group: object) -> ProcessGroupRef | None:
    """Return the group as an optimizer keeps it; raise unless it is a process group, or None."""
    if group is None:
        return None
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return ProcessGroupRef(name, group)
    way_out = "Pass what torch.distributed.new_group() returned."
    raise HyperparameterError(sentence(name, "a process group that this process is in", group, way_out))
