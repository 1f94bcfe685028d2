"""LAMB and LARS on the GPU: measure, answer with the ratio, apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import SHARED, Call, Tables
from layerwise.engines.gpu.kernels import lamb, lars
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.layout import Group
from layerwise.engines.gpu.method import Method
from layerwise.rules.asks import Squares

OF_RATIO = (*SHARED, "adapt", "trust_clip", "zero_norm_ratio", "min_norm", "l2", "eps")
MEASURED = {"weight_norm": at.OF_WEIGHTS, "update_norm": at.OF_UPDATE, "trust_ratio": at.RATIO}


class Traits(NamedTuple):
    """Settings that the kernels of LAMB and LARS are compiled for."""

    adapts: bool
    momentum: bool


class Ratio(Method):
    """A rule whose only answer is a ratio of two norms."""

    kernels: Any
    flag: str  # a constant of its own kernels, which depends on the group
    flagged: tuple[Any, ...]  # the kernels that take it

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        # Decided by the jobs, which are the same on every rank; a rank without elements of them has no groups.
        self.measures_norms = any(job.h.adapt is not False for job in tables.jobs)

    @classmethod
    def measures(cls, job: Job) -> Mapping[str, int]:
        return {
            name: column.value for name, column in MEASURED.items() if job.h.adapt is not False or name == "trust_ratio"
        }

    def own(self, group: Group, call: Call) -> bool:
        """Return the value of the flag for this group."""
        raise NotImplementedError

    def step(self, call: Call) -> None:
        kernels, tables = self.kernels, call.tables
        call.coefficients(kernels.coefficients)
        call.clip()
        for group in tables.layers.groups:
            if group.kind.traits.adapts:
                self._each(call, kernels.measure, group, tables.partials, tables.partials.shape[1])
        if self.measures_norms:
            call.answer(kernels.answer_of, Squares(None))
        else:
            call.answer_unmeasured(kernels.answer_of)
        for group in tables.layers.groups:
            self._each(call, kernels.apply, group, tables.answers)

    def _each(self, call: Call, kernel: Any, group: Group, *args: Any) -> None:
        flags = {self.flag: self.own(group, call)} if kernel in self.flagged else {}
        call.each(kernel, [group], *args, **flags)


class Lamb(Ratio):
    options = (
        *OF_RATIO,
        *("betas", "eps_root", "bias_correction", "decay", "max_weight_norm", "grad_averaging", "trust_eps"),
    )
    settings = staticmethod(lamb.settings)
    kernels, flag, flagged = lamb, "LATE", (lamb.measure, lamb.apply)

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        return job.state.exp_avg, job.state.exp_avg_sq

    @classmethod
    def traits(cls, job: Job) -> Traits:
        return Traits(job.h.adapt is not False, True)

    def own(self, group: Group, call: Call) -> bool:
        rounded = any(dtype is not group.kind.compute for dtype in group.kind.dtypes[2:])
        return rounded or call.others is not None or not group.kind.traits.adapts


class Lars(Ratio):
    options = (*OF_RATIO, "momentum", "trust_coefficient", "nesterov", "dampening", "norm", "lr_in_momentum")
    settings = staticmethod(lars.settings)
    kernels, flag, flagged = lars, "MOMENTUM", (lars.apply,)

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        return job.state.momentum_buffer, None

    @classmethod
    def traits(cls, job: Job) -> Traits:
        return Traits(job.h.adapt is not False, job.state.momentum_buffer is not None)

    @classmethod
    def pace(cls, h: Any) -> float:
        return float(0.25 if h.adapt is False else 0.25 / h.trust_coefficient)

    def own(self, group: Group, call: Call) -> bool:
        return bool(group.kind.traits.momentum)
