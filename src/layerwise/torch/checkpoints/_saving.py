"""The form in which an optimizer is saved."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import HyperparameterError
from layerwise.options.checks import of_python
from layerwise.options.settings import in_words
from layerwise.torch.checkpoints import _states
from layerwise.torch.step._stepper import stepper_of


def saved(optimizer: torch.optim.Optimizer, pack: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the state and the groups of an optimizer; `pack` is the `state_dict` that it has from PyTorch."""
    members = {id(p) for p, _ in stepper_of(optimizer).members.all()}  # which puts names in step
    left = {p: one for p, one in optimizer.state.items() if isinstance(p, Tensor) and id(p) not in members}
    for p in left:  # of parameters that are in no group any more, and may come back
        del optimizer.state[p]
    try:
        found = pack()
    finally:
        optimizer.state.update(left)
    states = found["state"]
    own = [key for group in found["param_groups"] for key in group["params"] if key in states]
    found["state"] = {**states, **{key: _states.saved(states[key]) for key in own}}
    for group in found["param_groups"]:
        group.update({key: of_python(x) for key, x in group.items()})
        with suppress(HyperparameterError):  # which the next step will refuse
            group.update(stepper_of(optimizer).groups.in_plain_form(group))
        group.update({key: in_words(value) for key, value in group.items() if callable(value)})
    return found
