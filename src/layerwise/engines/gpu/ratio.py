"""LAMB and LARS on the GPU: measure, settle the ratio, apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import Call, Tables
from layerwise.engines.gpu.kernels import lamb, lars, persistent
from layerwise.engines.gpu.layout import Group
from layerwise.engines.gpu.method import Method
from layerwise.engines.gpu.work import Work, work_of
from layerwise.rules.asks import Squares

NAMES = ("weight_norm", "update_norm", "trust_ratio")


class Ratio(Method):
    """A rule that measures, makes a ratio of it, and applies that."""

    kernels: Any
    flag: str  # what its kernels are told of a group, of its own
    told: tuple[Any, ...]  # to which of them

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        # By jobs, which everybody has, and not by groups, which those who hold nothing of them have not.
        self.asks = any(job.h.adapt is not False for job in tables.jobs)
        self.progress = torch.zeros(tables.layers.n, dtype=torch.int32, device=tables.letter.device)
        measured = [group for group in tables.layers.groups if group.kind.apart[0]]
        # Not with AMD, whose barriers between a program's threads do not wait for what they have stored.
        at_once = tables.sizes.persistent and torch.version.hip is None
        self.at_once = [(one, work_of(one, tables.sizes)) for one in measured] if at_once else []

    @classmethod
    def measures(cls, job: Job) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(NAMES) if job.h.adapt is not False or name == "trust_ratio"}

    def own(self, group: Group, call: Call) -> bool:
        """The flag's value."""
        raise NotImplementedError

    def step(self, call: Call) -> None:
        kernels, at_once = self.kernels, self.at_once if call.others is None else []
        call.tell(kernels.tell)
        call.clip()
        phased = [one for one in call.tables.layers.groups if not any(one is other for other, _ in at_once)]
        if phased or not at_once:
            self._in_phases(call, phased)
        for group, work in at_once:
            self._at_once(call, group, work)

    def _in_phases(self, call: Call, groups: Sequence[Group]) -> None:
        kernels, tables = self.kernels, call.tables
        for group in groups:
            if group.kind.apart[0]:
                self._each(call, kernels.measure, group, tables.partials, tables.partials.shape[1])
        call.settle(kernels.answer, Squares(None)) if self.asks else call.unasked(kernels.answer)
        for group in groups:
            self._each(call, kernels.apply, group, tables.answers)

    def _each(self, call: Call, kernel: Any, group: Group, *args: Any) -> None:
        flags = {self.flag: self.own(group, call)} if kernel in self.told else {}
        call.each(kernel, [group], *args, **flags)

    def _at_once(self, call: Call, group: Group, work: Work) -> None:
        kernels, tables = self.kernels, call.tables
        call.launch(
            persistent.step[(work.programs,)], group, work.items, tables.partials, tables.answers, self.progress,
            work.ticket, work.size, tables.partials.shape[1], MEASURE=kernels.measure_chunk, ANSWER=kernels.answer,
            APPLY=kernels.apply_chunk, OWN=self.own(group, call), LANES=tables.sizes.lanes,
        )  # fmt: skip


class Lamb(Ratio):
    settings = staticmethod(lamb.settings)
    kernels, flag, told = lamb, "LATE", (lamb.measure, lamb.apply)

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        return job.state.exp_avg, job.state.exp_avg_sq

    @classmethod
    def apart(cls, job: Job) -> tuple[Any, ...]:
        return (job.h.adapt is not False,)

    def own(self, group: Group, call: Call) -> bool:
        rounded = any(dtype is not group.kind.compute for dtype in group.kind.dtypes[2:])
        return rounded or call.others is not None or not group.kind.apart[0]


class Lars(Ratio):
    settings = staticmethod(lars.settings)
    kernels, flag, told = lars, "MOMENTUM", (lars.apply,)

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        return job.state.momentum_buffer, None

    @classmethod
    def apart(cls, job: Job) -> tuple[Any, ...]:
        return job.h.adapt is not False, job.state.momentum_buffer is not None

    def own(self, group: Group, call: Call) -> bool:
        return bool(group.kind.apart[1])
