"""A codec of another optimizer's checkpoints: the names of its entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from layerwise.errors import StateError
from layerwise.torch.checkpoints._matching import MOVED
from layerwise.torch.groups._members import Group, State


def key_set(names: str) -> frozenset[str]:
    """Return keys of a group, given in one string."""
    return frozenset(names.split())


def float_count(step: int) -> Tensor:
    """Return a count as most optimizers of PyTorch keep it."""
    return torch.tensor(float(step))


class TargetParameter(NamedTuple):
    """A parameter of another optimizer, and our group from which its state comes."""

    optimizer: Any
    number: int  # of the group
    i: int  # in the group
    p: Tensor
    ours: Group

    @property
    def group(self) -> Group:
        found: Group = self.optimizer.param_groups[self.number]
        return found

    def check(self, option: str, wanted: object) -> None:
        """Raise unless our state was made with the target's value of an option."""
        if (made := self.ours.get(option, True)) != wanted:
            raise StateError(
                f"the state was made with {option}={made}, but the target has {option}={wanted}. It can only "
                "continue a run with the same option."
            )


@dataclass(frozen=True)
class Codec:
    """One optimizer of another package. Subclasses define everything besides names that differs."""

    fields: ClassVar[Mapping[str, str]]  # of a state: our name of each, and theirs
    says: ClassVar[Mapping[str, object]] = {}  # our options that define the meaning of its state

    rule: str  # our optimizer that takes the same steps
    has: frozenset[str]  # keys of each of its groups
    count: Callable[[int], object] | None = float_count  # the key of its step count, if it has one
    in_group: bool = False  # whether it counts steps in groups

    def numbers(self, theirs: State, key: str) -> Tensor:
        """Return the numbers under a key of theirs."""
        x: Tensor = theirs[key]
        # torchao has tensors of classes of its own, with 8 or 4 bits and their scales.
        return x.dequantize() if getattr(type(x), "dequantize", None) not in (None, Tensor.dequantize) else x

    def stored(self, x: Tensor, key: str, place: TargetParameter) -> State:
        """Return the entries, by key, in which theirs stores numbers."""
        return {key: x}

    def group_warning(self, theirs: Group, ours: Group | None = None) -> str | None:
        """Return warnings about a group of theirs, or about steps that differ from those of our group."""
        return None

    def checkpoint_warnings(self, saved: Group) -> Iterable[str]:
        """Return warnings about a checkpoint of theirs."""
        return filter(None, map(self.group_warning, saved["param_groups"]))

    def read(self, theirs: State, group: Group) -> State:
        """Return a parameter's state in our form."""
        return {
            "step": self.steps(theirs, group),
            **{ours: self.numbers(theirs, key) for ours, key in self.fields.items()},
        }

    def write(self, ours: State, place: TargetParameter) -> State:
        """Return a parameter's state in their form; raise if theirs cannot continue from it."""
        found = self.own_count(ours["step"])
        for key, name in self.fields.items():
            found |= self.stored(ours[key], name, place)
        return found

    def steps(self, theirs: State, group: Group) -> Any:
        """Return the number of steps that a parameter has taken."""
        if self.count is None:
            return 1  # it only matters that the first one is over
        return group["step"] if self.in_group and "step" not in theirs else theirs["step"]

    def own_count(self, steps: int) -> State:
        """Return the entries of a parameter's state for the number of steps."""
        return {} if self.in_group else self.counted(steps)

    def counted(self, steps: int) -> State:
        """Return the number of steps as theirs keeps it."""
        return {} if self.count is None else {"step": self.count(steps)}

    def read_options(self, theirs: Group) -> State:
        """Return the options of a group that record the progress of a run, or the meaning of its state."""
        return {name: theirs[name] for name in (*MOVED, "initial_lr", "maximize") if name in theirs} | dict(self.says)

    def write_options(self, ours: Group, theirs: Group) -> State:
        """Return the numbers that schedulers move, in tensors if theirs are."""
        moved = [name for name in MOVED if name in theirs]
        found = {name: ours[name] for name in (*moved, "initial_lr") if ours.get(name) is not None}
        if isinstance(lr := theirs.get("lr"), Tensor) and "lr" in found:
            found["lr"] = torch.as_tensor(found["lr"], dtype=lr.dtype, device=lr.device)
        return found
