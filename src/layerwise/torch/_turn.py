"""Parameters that step together: checked, laid out and handed to an engine once, while they stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.engines import Engine, Job, Prepared
from layerwise.hyper import Settings
from layerwise.layout import Layout
from layerwise.rules.asks import Now
from layerwise.telemetry import summary
from layerwise.torch import _state


class Due(NamedTuple):
    """Parameters of one group whose turn it is, and the settings of the group."""

    number: int
    group: dict[str, Any]
    h: Settings
    params: list[Tensor]


@dataclass(frozen=True)
class Plan:
    """How one parameter is stepped."""

    name: str
    h: Settings
    shape: torch.Size
    dtype: torch.dtype
    layout: Layout
    state_shapes: dict[str, tuple[int, ...] | None]


# All that checks and plans look at. It is compared at every step, so each is read by a function written in C.
OF_PARAMETER = (type, attrgetter("shape"), attrgetter("dtype"), Tensor.data_ptr, Tensor.stride)
OF_GRADIENT = (attrgetter("layout"), attrgetter("shape"), attrgetter("dtype"), attrgetter("device"))


def marks(params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[list[Any]]:
    """What tells whether parameters and gradients are still what they were when they were checked."""
    return [
        *(list(map(look, params)) for look in OF_PARAMETER),
        *(list(map(look, grads)) for look in OF_GRADIENT),
    ]


def options(dues: Sequence[Due]) -> list[tuple[Any, ...]]:
    """What of the groups' settings is part of the plan; the rates are not."""
    return [(due.h, len(due.params), due.group["capturable"], due.group["master_weights"]) for due in dues]


class Turn:
    """A prepared step of these parameters."""

    def __init__(
        self,
        dues: Sequence[Due],
        plans: Sequence[Plan],
        seen: Any,
        states: Any,
        on_device: bool,
        rule: Any,
        engine: Engine,
    ) -> None:
        self.params = [p for due in dues for p in due.params]
        self.plans, self.on_device, self._seen = plans, on_device, seen
        self._all_states, self.states = states, [states[p] for p in self.params]
        self._whole = all(plan.layout.pieces[0].part is None for plan in plans)
        self._masters = [i for i, state in enumerate(self.states) if "master" in state]
        self._addresses = self._marks_of_state()
        self._prepared: Prepared = engine.prepare(
            [
                job
                for p, plan, state in zip(self.params, plans, self.states, strict=True)
                for job in _jobs(rule, p, plan, state)
            ]
        )

    def holds(self, seen: Any) -> bool:
        """Whether everything is as it was when this was prepared."""
        return bool(self._seen == seen) and self._marks_of_state() == self._addresses

    def _marks_of_state(self) -> list[Any]:
        states = list(map(self._all_states.get, self.params))
        kept = [x for state in states if state for x in state.values()]
        return [list(map(id, states)), list(map(id, kept)), list(map(Tensor.data_ptr, kept))]

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
        _state.count([state["step"] for state in self.states], skip)
        for i in self._masters:
            self.params[i].copy_(self.states[i]["master"])

    def _nows(self, dues: Sequence[Due], scale: Any) -> Iterator[Now]:
        states = iter(self.states)
        for due in dues:
            lr, weight_decay = due.group["lr"], due.group["weight_decay"]
            given = 1.0 if lr is None else lr, weight_decay, 1.0 if scale is None else scale
            rates = [_scalar(x, due.group["differentiable"]) for x in given]
            known: dict[int, Now] = {}
            for _ in due.params:
                step = next(states)["step"]
                if self.on_device or due.group["capturable"]:
                    yield Now(step + 1, *rates)
                    continue
                t = int(step.item()) + 1
                if t not in known:
                    known[t] = Now(t, *rates)
                yield known[t]

    def stats(self) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
        """Each parameter with its name and what its step measured."""
        measured = iter(self._prepared.stats())
        for p, plan in zip(self.params, self.plans, strict=True):
            pieces = plan.layout.pieces
            yield p, plan.name, summary([_on_host(next(measured)) for _ in pieces], pieces)


def _jobs(rule: Any, p: Tensor, plan: Plan, state: dict[str, Any]) -> Iterator[Job]:
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
