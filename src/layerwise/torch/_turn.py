"""Parameters that step together: checked, laid out and handed to an engine once, while they stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.engines import Engine, Job, Prepared
from layerwise.hyper import Settings
from layerwise.layout import Layout
from layerwise.rules.asks import Now
from layerwise.telemetry import summary
from layerwise.torch import _state
from layerwise.torch._watch import States, watch


class Due(NamedTuple):
    """Parameters of one group whose turn it is, with their gradients, and the settings of the group."""

    number: int
    group: dict[str, Any]
    h: Settings
    params: list[Tensor]
    grads: list[Tensor]


@dataclass(frozen=True)
class Plan:
    """How one parameter is stepped."""

    name: str
    h: Settings
    shape: torch.Size
    dtype: torch.dtype
    layout: Layout
    state_shapes: dict[str, tuple[int, ...] | None]


def grads_of(dues: Sequence[Due]) -> list[Tensor]:
    """The gradients of all of them."""
    return [g for due in dues for g in due.grads]


def _options(dues: Sequence[Due]) -> list[tuple[Any, ...]]:
    """What of the groups' settings is part of the plan; the rates are not."""
    return [(due.h, len(due.params), due.group["capturable"], due.group["master_weights"]) for due in dues]


class Turn:
    """A prepared step of these parameters."""

    def __init__(
        self,
        dues: Sequence[Due],
        plans: Sequence[Plan],
        states: States,
        on_device: bool,
        rule: Any,
        engine: Engine,
    ) -> None:
        self.params = [p for due in dues for p in due.params]
        self.plans, self.on_device, self.states = plans, on_device, [states[p] for p in self.params]
        self._steps = [state["step"] for state in self.states]
        self._whole = all(plan.layout.pieces[0].part is None for plan in plans)
        self._masters = [i for i, state in enumerate(self.states) if "master" in state]
        self._options, self._watch = _options(dues), watch(self.params, grads_of(dues), states)
        self._prepared: Prepared = engine.prepare(
            [
                job
                for p, plan, state in zip(self.params, plans, self.states, strict=True)
                for job in _jobs(rule, p, plan, state)
            ]
        )

    def holds(self, dues: Sequence[Due], grads: list[Tensor], states: States) -> bool:
        """Whether everything is as it was when this was prepared."""
        return self._options == _options(dues) and self._watch.same(self.params, grads, states)

    def step(self, dues: Sequence[Due], grads: Sequence[Tensor], skip: Tensor | None, scale: Any) -> None:
        """Carry it out, count it, and round master weights into their parameters."""
        nows = list(self._nows(dues, scale))
        if self._whole:
            self._prepared.step(grads, nows, skip)
        else:
            pieces = [
                (g, now, piece)
                for g, now, plan in zip(grads, nows, self.plans, strict=True)
                for piece in plan.layout.pieces
            ]
            self._prepared.step([piece.view(g) for g, _, piece in pieces], [now for _, now, _ in pieces], skip)
        _state.count(self._steps, skip)
        for i in self._masters:
            self.params[i].copy_(self.states[i]["master"])

    def _nows(self, dues: Sequence[Due], scale: Any) -> Iterator[Now]:
        start = 0
        for due in dues:
            steps, start = self._steps[start : start + len(due.params)], start + len(due.params)
            lr, weight_decay = due.group["lr"], due.group["weight_decay"]
            given = 1.0 if lr is None else lr, weight_decay, 1.0 if scale is None else scale
            rates = [_scalar(x, due.group["differentiable"]) for x in given]
            if self.on_device or due.group["capturable"]:
                yield from (Now(step + 1, *rates) for step in steps)
            else:
                taken = _state.counts(steps)
                known = {n: Now(n + 1, *rates) for n in set(taken)}
                yield from (known[n] for n in taken)

    def stats(self) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
        """Each parameter with its name and what its step measured."""
        measured = iter(self._prepared.stats())
        for p, plan in zip(self.params, self.plans, strict=True):
            pieces = plan.layout.pieces
            yield p, plan.name, summary([_on_host(next(measured)) for _ in pieces], pieces)


def _jobs(rule: Any, p: Tensor, plan: Plan, state: Mapping[str, Any]) -> Iterator[Job]:
    stored = [state.get(key) if shape is not None else None for key, shape in plan.state_shapes.items()]
    for piece in plan.layout.pieces:
        fields = rule.State(*(None if s is None else piece.view(s) for s in stored))
        yield Job(rule, piece.h, piece.view(state.get("master", p)), fields, piece.block_dims)


def _scalar(value: float | Tensor, followed: bool) -> float | Tensor:
    """A number, where it is at hand and no gradient is to flow through it."""
    if not isinstance(value, Tensor):
        return value
    return value.reshape(()) if followed or value.device.type != "cpu" else value.item()


def _on_host(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu().double().numpy() if isinstance(v, Tensor) else v for k, v in measured.items()}
