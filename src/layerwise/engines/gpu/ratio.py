"""LAMB and LARS on the GPU: measure, settle the ratio, apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import Call, Tables
from layerwise.engines.gpu.kernels import lamb, lars
from layerwise.engines.gpu.layout import Group
from layerwise.engines.gpu.method import Method
from layerwise.rules.asks import Squares

NAMES = ("weight_norm", "update_norm", "trust_ratio")


class Ratio(Method):
    """What is measured where there is a trust ratio."""

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        # By jobs, which everybody has, and not by groups, which those who hold nothing of them have not.
        self.asks = any(job.h.adapt is not False for job in tables.jobs)

    @classmethod
    def measures(cls, job: Job) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(NAMES) if job.h.adapt is not False or name == "trust_ratio"}


class Lamb(Ratio):
    settings = staticmethod(lamb.settings)

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        return job.state.exp_avg, job.state.exp_avg_sq

    @classmethod
    def apart(cls, job: Job) -> tuple[Any, ...]:
        return (job.h.adapt is not False,)

    def step(self, call: Call) -> None:
        tables = call.tables
        call.tell(lamb.tell)
        call.clip()
        measured = [group for group in tables.layers.groups if group.kind.apart[0]]
        for group in measured:
            call.each(lamb.measure, [group], tables.partials, tables.partials.shape[1], LATE=_late(group, call))
        call.settle(lamb.settle, Squares(None)) if self.asks else call.unasked(lamb.settle)
        for group in tables.layers.groups:
            call.each(lamb.apply, [group], tables.answers, LATE=_late(group, call))


def _late(group: Group, call: Call) -> bool:
    rounded = any(dtype is not group.kind.compute for dtype in group.kind.dtypes[2:])
    return rounded or call.others is not None or not group.kind.apart[0]


class Lars(Ratio):
    settings = staticmethod(lars.settings)

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        return job.state.momentum_buffer, None

    @classmethod
    def apart(cls, job: Job) -> tuple[Any, ...]:
        return job.h.adapt is not False, job.state.momentum_buffer is not None

    def step(self, call: Call) -> None:
        tables = call.tables
        call.tell(lars.tell)
        call.clip()
        measured = [group for group in tables.layers.groups if group.kind.apart[0]]
        call.each(lars.measure, measured, tables.partials, tables.partials.shape[1])
        call.settle(lars.settle, Squares(None)) if self.asks else call.unasked(lars.settle)
        for group in tables.layers.groups:
            call.each(lars.apply, [group], tables.answers, MOMENTUM=group.kind.apart[1])
