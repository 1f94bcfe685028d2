"""The storage of parameters in PyTorch: what steps and answers need of it besides the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from layerwise.core.slot import NamedState
from layerwise.core.storing import Storing
from layerwise.storage.options import Wanted
from layerwise.storage.weights import REMAINDER
from layerwise.torch.sharding._cuts import local
from layerwise.torch.step._namespace import LIBRARY, named
from layerwise.torch.step._plan import Plan


def named_state(state: Any) -> NamedState:
    """Return a parameter's state with what its names mean."""
    return NamedState(LIBRARY, state)


def storing(plan: Plan, p: Tensor, want: Wanted) -> Storing:
    """Return what decides the storage of a parameter, and of those that are planned alike."""
    return Storing(LIBRARY, plan, LIBRARY.dtype(p), want)


class Remainders:
    """The remainders of split weights, some of which belong to weights that have been written to since."""

    def __init__(self, heres: Sequence[Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        each = zip(heres, states, strict=True)
        pairs = [(p, local(state[REMAINDER])) for p, state in each if REMAINDER in state]
        self._pairs, self._versions, self.any = pairs, [-1] * len(pairs), bool(pairs)

    @property
    def current(self) -> bool:
        """Whether the step wrote last."""
        return all(p._version == version for (p, _), version in zip(self._pairs, self._versions, strict=True))

    def follow(self) -> None:
        """Let weights that were set to zero be zero.

        Beside any other number, an outdated remainder is less than the weight's last place. Beside zero it would be the
        whole weight, and its norm is the measure of a step.
        """
        for (p, rest), version in zip(self._pairs, self._versions, strict=True):
            if p._version != version:
                rest.masked_fill_(p == 0, 0)

    def written(self) -> None:
        """Remember that everything written so far was written by the step."""
        self._versions = [p._version for p, _ in self._pairs]


def dtypes(p: Tensor, state: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtypes of a parameter and of its state, by name."""
    stored = {"": p, **{key: x for key, x in state.items() if key != "step"}}
    return {key or "weights": named(x.dtype) for key, x in sorted(stored.items())}
