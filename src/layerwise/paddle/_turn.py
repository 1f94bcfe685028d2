"""A step of some parameters: their jobs, prepared to be stepped again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import paddle

from layerwise.engines import Candidate, Job
from layerwise.engines.compiled import candidate
from layerwise.engines.distributor import prepare
from layerwise.engines.rule import RuleEngine
from layerwise.layout import Layout
from layerwise.paddle._arrays import Arrays, Tensor
from layerwise.paddle._groups import Settings
from layerwise.paddle._state import Slot
from layerwise.rules.asks import Now
from layerwise.telemetry import summary

ENGINES = (candidate(), Candidate("rule", RuleEngine(Arrays(), stack_size=1 << 12)))


class Due(NamedTuple):
    """A parameter that is to be stepped."""

    p: Tensor
    name: str
    settings: Settings
    slot: Slot
    layout: Layout


class Share(NamedTuple):
    """The jobs, by their places, whose gradients may be clipped together."""

    places: list[int]
    prepared: Any


class Turn:
    """Parameters that are stepped together, and the jobs that this takes."""

    def __init__(self, rule: Any, engines: Sequence[Any], dues: Sequence[Due], before: Turn | None) -> None:
        self.dues = list(dues)
        self._pieces = [(i, piece) for i, due in enumerate(dues) for piece in due.layout.pieces]
        self._viewed = any(piece.part is not None for _, piece in self._pieces)
        self._places = self._addresses()
        # Gradients that are clipped by a norm of their group are a step of their own.
        by_norm: dict[int | None, list[int]] = {}
        for place, (i, _) in enumerate(self._pieces):
            by_norm.setdefault(dues[i].settings.clipped_with, []).append(place)
        counts = any(piece.h.asks_of_model for i, piece in self._pieces if dues[i].settings.clipped_with is None)
        layouts = {} if before is None else before._layouts()
        self._shares = [
            Share(
                places, prepare(engines, [self._job(rule, k, counts and own is None) for k in places], layouts.get(own))
            )
            for own, places in by_norm.items()
        ]
        self._owners = list(by_norm)

    def _job(self, rule: Any, place: int, counts: bool) -> Job:
        i, piece = self._pieces[place]
        slot = self.dues[i].slot
        state = type(slot.state)(*(None if x is None else piece.view(x) for x in slot.state))
        stepped = self.dues[i].p if slot.master is None else slot.master
        return Job(rule, piece.h.counting() if counts else piece.h, piece.view(stepped), state, piece.block_dims)

    def _layouts(self) -> dict[int | None, Any]:
        return {own: share.prepared.layouts for own, share in zip(self._owners, self._shares, strict=True)}

    def _addresses(self) -> list[int]:
        """Return where parameters lie that engines see through views, which would not follow them elsewhere."""
        viewed = {i for i, piece in self._pieces if piece.part is not None}
        return [self.dues[i].p.data_ptr() for i in sorted(viewed)]

    def holds(self) -> bool:
        """Return whether views still show the parameters that they were made of."""
        return not self._viewed or self._places == self._addresses()

    def step(self, grads: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Step all parameters, or raise with none of them changed."""
        nows = self._nows(rates)
        if self._viewed or len(self._shares) > 1:
            grads = [piece.view(grads[i]) for i, piece in self._pieces]
            nows = [nows[i] for i, _ in self._pieces]
        if len(self._shares) > 1:
            for places, prepared in self._shares:
                prepared.check([grads[k] for k in places], [nows[k] for k in places])
        for places, prepared in self._shares:
            whole = len(self._shares) == 1
            prepared.step(grads if whole else [grads[k] for k in places], nows if whole else [nows[k] for k in places])
        for due in self.dues:
            due.slot.step += 1
            if due.slot.master is not None:
                due.p.copy_(paddle.cast(due.slot.master, due.p.dtype), False)

    def _nows(self, rates: Sequence[float]) -> list[Now]:
        made: dict[tuple[Any, ...], Now] = {}
        found = []
        for due, rate in zip(self.dues, rates, strict=True):
            key = due.slot.step, rate, due.settings.weight_decay
            now = made.get(key)
            if now is None:
                t = due.slot.step + 1
                now = made[key] = Now(t, rate, due.settings.weight_decay, beta2=due.settings.h.beta2_of(t))
            found.append(now)
        return found

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return what the last step measured, by parameter."""
        measured: dict[int, Any] = {}
        for places, prepared in self._shares:
            measured |= dict(zip(places, prepared.stats(), strict=False))
        found: dict[int, list[Any]] = {}
        for place, (i, piece) in enumerate(self._pieces):
            if place in measured:
                found.setdefault(i, []).append((measured[place], piece))
        return {self.dues[i].name: summary(*zip(*each, strict=True)) for i, each in found.items()}
