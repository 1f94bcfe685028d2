"""LAMB and LARS on the GPU: measure, settle the ratio, apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import Call
from layerwise.engines.gpu.kernels import lamb, lars
from layerwise.engines.gpu.layout import Group
from layerwise.rules.asks import Squares

NAMES = ("weight_norm", "update_norm", "trust_ratio")


class Lamb:
    """Which kernels a step takes, and in which order."""

    settings = staticmethod(lamb.settings)

    def states(self, job: Job) -> Sequence[Tensor | None]:
        return job.state.exp_avg, job.state.exp_avg_sq

    def apart(self, job: Job) -> tuple[Any, ...]:
        return (job.h.adapt is not False,)

    def step(self, call: Call) -> None:
        tables = call.tables
        call.tell(lamb.tell)
        call.clip()
        phased, at_once = call.divided()
        measured = [group for group in phased if group.kind.apart[0]]
        for group in measured:
            call.each(lamb.measure, [group], tables.partials, tables.partials.shape[1], LATE=_late(group, call))
        if phased or not at_once:
            call.settle(lamb.settle, Squares(None)) if measured else call.unasked(lamb.settle)
        for group in phased:
            call.each(lamb.apply, [group], tables.answers, LATE=_late(group, call))
        for group in at_once:
            call.at_once(lamb, group, own=_late(group, call))

    def measures(self, job: Job) -> dict[str, int]:
        return measures(job)


def _late(group: Group, call: Call) -> bool:
    rounded = any(dtype is not group.kind.compute for dtype in group.kind.dtypes[2:])
    return rounded or call.others is not None or not group.kind.apart[0]


class Lars:
    """The same of LARS."""

    settings = staticmethod(lars.settings)

    def states(self, job: Job) -> Sequence[Tensor | None]:
        return job.state.momentum_buffer, None

    def apart(self, job: Job) -> tuple[Any, ...]:
        return job.h.adapt is not False, job.state.momentum_buffer is not None

    def step(self, call: Call) -> None:
        tables = call.tables
        call.tell(lars.tell)
        call.clip()
        phased, at_once = call.divided()
        measured = [group for group in phased if group.kind.apart[0]]
        call.each(lars.measure, measured, tables.partials, tables.partials.shape[1])
        if phased or not at_once:
            call.settle(lars.settle, Squares(None)) if measured else call.unasked(lars.settle)
        for group in phased:
            call.each(lars.apply, [group], tables.answers, MOMENTUM=group.kind.apart[1])
        for group in at_once:
            call.at_once(lars, group, own=group.kind.apart[1])

    def measures(self, job: Job) -> dict[str, int]:
        return measures(job)


def measures(job: Job) -> dict[str, int]:
    """What the answers hold, by name."""
    return {name: i for i, name in enumerate(NAMES) if job.h.adapt is not False or name == "trust_ratio"}
