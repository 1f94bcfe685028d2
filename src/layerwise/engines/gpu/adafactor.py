"""Adafactor on the GPU: second moments of the tensor's shape by chunks, factored ones by their planes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import OF_TORCH, SHARED, Call, Sizes, Tables
from layerwise.engines.gpu.factored import Factored, Fold
from layerwise.engines.gpu.kernels import adafactor, planes, statistics
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.layout import Group
from layerwise.engines.gpu.method import Method
from layerwise.engines.gpu.planes import Tiling, Traits, not_planes, tiling_of, traits_of
from layerwise.engines.gpu.requests import Requests

MEASURED = {"update_rms": at.OF_UPDATE, "trust_ratio": at.RATIO, "weight_rms": at.OF_WEIGHTS}
WARPS = 8  # for kernels that hold a tile


class Adafactor(Method):
    options = (
        *SHARED,
        *("eps", "eps_mode", "clip_threshold", "beta2_decay", "beta2", "beta2_cap", "decay_offset", "beta1"),
        *("momentum_dtype", "lr_in_momentum", "decay_scale", "scale_parameter", "relative_step", "lr_cap"),
        *("warmup_init", "factored", "min_dim_size_to_factor"),
    )
    settings = staticmethod(adafactor.settings)

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        self.tables = tables
        self.factored = Factored(tables, arrays)
        self.unfactored = [group for group in tables.layers.groups if not group.kind.traits.factored]
        self._requests: Requests | None = None

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        return job.state.exp_avg, job.state.exp_avg_sq

    @classmethod
    def traits(cls, job: Job) -> Traits:
        return traits_of(job)

    @classmethod
    def measures(cls, job: Job) -> Mapping[str, int]:
        return {
            name: column.value for name, column in MEASURED.items() if job.h.scale_parameter or name != "weight_rms"
        }

    @classmethod
    def compiled_for(cls, job: Job, arrays: Sequence[Tensor], sizes: Sizes) -> Hashable:
        if not job.h.factored:
            return super().compiled_for(job, arrays, sizes)
        return tuple(a.dtype for a in arrays), cls.traits(job), tiling_of(job, arrays, sizes)

    @classmethod
    def pace(cls, h: Any) -> float:
        relative = 1e-6 if h.warmup_init else min(h.lr_cap, 1.0)
        return float(0.25 / relative if h.relative_step else 0.25)

    @classmethod
    def declined(cls, job: Job) -> str:
        return not_planes(job) if job.h.factored else ""

    def step(self, call: Call) -> None:
        others = call.others
        late = others is not None
        call.coefficients(adafactor.coefficients)
        call.clip()
        self._measure(call, late)
        if others is not None:
            self._answer(call, FIRST_ROUND=True, LAST_ROUND=False, ANSWER=False)
            self._requests = self._requests or Requests(call, self.factored)
            self._requests.first(call, others)
        self._renew(call, STORE=not late, MAKE_FACTORS=True)
        tiled = self.factored.tiled
        for group, tiling in self.factored.groups:
            self._tiled(call, planes.squares, group, tiling, tiled, tiled.shape[1], CLAMP=group.kind.traits.clamps)
        self._answer(call, FIRST_ROUND=not late, LAST_ROUND=True, ANSWER=not late)
        if others is not None and self._requests is not None:
            self._requests.last(call, others)
            self._answer(call, FIRST_ROUND=False, LAST_ROUND=False, ANSWER=True)
        self._apply(call)
        if others is not None and self._requests is not None:
            self._requests.again()  # over the factors, which are no longer needed
            self._renew(call, STORE=True, MAKE_FACTORS=False)

    def _measure(self, call: Call, late: bool) -> None:
        tables, factored = self.tables, self.factored
        for group in self.unfactored:
            of = group.kind.traits
            flags = {"SCALES": of.scales, "CLAMP": of.clamps, "LATE": late or _rounded(group)}
            call.each(adafactor.measure, [group], tables.partials, tables.partials.shape[1], **flags)
        for group, tiling in factored.groups:
            self._tiled(call, planes.measure, group, tiling, factored.tiled, SCALES=group.kind.traits.scales)
        self._fold(factored.of_sums)
        for programs in factored.of_rows:
            self.tables.kernels[statistics.total, len(programs.pairs)](
                factored.sides, programs.pairs, BM=programs.shape[0], BE=programs.shape[1], num_warps=WARPS
            )
        self._fold(factored.of_totals)

    def _fold(self, folds: Sequence[Fold]) -> None:
        for (pairs, (depth, length)), dtype in folds:
            self.tables.kernels[statistics.fold, len(pairs)](
                self.factored.piles, pairs, DTYPE=OF_TORCH[dtype], DEPTH=depth, LENGTH=length
            )

    def _renew(self, call: Call, **flags: bool) -> None:
        factored = self.factored
        for programs in factored.of_all:
            self.tables.kernels[statistics.renew, len(programs.pairs)](
                factored.sides, programs.pairs, self.tables.coefficients, call.skip, SKIPS=call.skips,
                BM=programs.shape[0], BE=programs.shape[1], num_warps=WARPS, **flags,
            )  # fmt: skip

    def _answer(self, call: Call, **flags: bool) -> None:
        tables, factored = self.tables, self.factored
        tables.kernels[adafactor.answer, tables.layers.n](
            tables.coefficients, tables.layers.table, factored.plane_of, factored.planes, tables.partials,
            tables.partials.shape[1], factored.tiled, factored.tiled.shape[1], tables.sums, tables.answers,
            tables.layers.n, call.skip, SKIPS=call.skips, LANES=tables.sizes.lanes, **flags,
        )  # fmt: skip

    def _apply(self, call: Call) -> None:
        for group in self.unfactored:
            of = group.kind.traits
            flags = {"MOMENTUM": of.momentum, "CLAMP": of.clamps, "LATE": call.others is not None or _rounded(group)}
            call.each(adafactor.apply, [group], self.tables.answers, **flags)
        for group, tiling in self.factored.groups:
            of = group.kind.traits
            flags = {"MOMENTUM": of.momentum, "CLAMP": of.clamps}
            self._tiled(call, planes.apply, group, tiling, self.tables.answers, **flags)

    def _tiled(self, call: Call, kernel: Any, group: Group, tiling: Tiling, *args: Any, **flags: Any) -> None:
        """Launch a kernel on all tiles of a group."""
        tables, factored = self.tables, self.factored
        matrices, rows, columns = tiling.tile
        tables.kernels[kernel, group.size](
            tables.step_params, tables.coefficients, tables.pointers, tables.layers.table, factored.planes,
            group.chunks, tables.clips, *args, call.skip, len(tables.jobs), **call.dtypes(group.kind), READY=call.ready,
            SKIPS=call.skips, VECTOR=tiling.vector, BM=matrices, BR=rows, BC=columns,
            DEPTH=tables.sizes.tiles, num_warps=WARPS, **flags,
        )  # fmt: skip


def _rounded(group: Group) -> bool:
    """Return whether V is rounded when it is stored, so that `apply` has to compute it again."""
    return group.kind.dtypes[3] is not group.kind.compute
