"""torchtitan's container of optimizers, extended by these names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torchtitan.components.optimizer import OptimizersContainer as Container

from layerwise.torch.groups._members import Group
from layerwise.trainers import classes
from layerwise.trainers._split import splitting_class


class OptimizersContainer(Container):  # type: ignore[misc]  # torchtitan need not be installed
    """A container whose groups may name the optimizers here, such as "layerwise_lamb", besides torchtitan's own.

    A group's `optimizer_kwargs` are the options of its optimizer. If the container's `implementation` is "for-loop",
    these optimizers use fused=False and foreach=False; otherwise they use the fastest engine.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Container.Config):  # type: ignore[misc]
        """The configuration of torchtitan's container."""

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., Optimizer]:
        optimizer = classes().get(name)
        if optimizer is None:
            own: Callable[..., Optimizer] = Container._resolve_optimizer_factory(name)
            return own
        return partial(_made, optimizer)


def _made(optimizer: type[Any], groups: Sequence[Group], **options: object) -> Optimizer:
    """Return the optimizer of groups that contain torchtitan's implementation setting."""
    fast = all(group.get("fused") or group.get("foreach") for group in groups)
    plain = [{key: x for key, x in group.items() if key not in ("fused", "foreach")} for group in groups]
    how = {} if fast else {"fused": False, "foreach": False}
    made: Optimizer = splitting_class(optimizer)(plain, **{**how, **options})
    return made
