"""One step on its way through the kernels: the tables that they read, and the launches that all rules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import index
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from layerwise.drive import Others, TensorRequest, dims_of
from layerwise.engines import Job
from layerwise.engines.gpu.kernels import parts
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.launch import Kernels
from layerwise.engines.gpu.layout import Group, Kind, Layers
from layerwise.rules.asks import ModelSum, Squares

OF_TORCH = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
States = Sequence[Sequence[Tensor | None]]  # those of p's shape, of each job
SHARED = ("lr", "weight_decay", "max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value", "maximize")
JOBS = 128  # jobs whose coefficients one program computes
ADAPT = {False: at.NEVER.value, True: at.ALWAYS.value, "decayed": at.DECAYED.value}


@dataclass(frozen=True)
class Sizes:
    """The sizes of the pieces that programs take."""

    chunk: int = 8192  # elements that one program takes
    block: int = 1024  # elements that it holds at a time
    lanes: int = 256  # sums that are added at a time
    wide: tuple[int, int, int] = (1, 32, 128)  # matrices, rows and columns that a program holds at a time,
    narrow: tuple[int, int, int] = (64, 4, 4)  # of small matrices,
    single: tuple[int, int, int] = (4096, 1, 1)  # and of those of one number
    tiles: int = 8  # such tiles that it takes, one below the other
    entries: int = 1024  # row or column statistics that one program takes
    strips: int = 32  # strips' sums that are added at a time


class Shared:
    """Memory that several tables of the same jobs share: the answers, and room for numbers between launches."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.answers = torch.zeros((layers, at.ANSWERS.value), dtype=torch.float64, device=device)
        self._room = torch.empty(0, dtype=torch.float64, device=device)

    def room(self, numbers: int) -> Tensor:
        """Return room for so many numbers; every step writes them before it reads them."""
        if len(self._room) < numbers:
            self._room = torch.empty(numbers, dtype=torch.float64, device=self._room.device)
        return self._room[:numbers]


class Tables:
    """The tables of a list of jobs on the device, valid while the jobs stay what they are."""

    def __init__(
        self,
        jobs: Sequence[Job],
        states: States,
        settings: Any,
        layers: Layers,
        step_params: Tensor,
        sizes: Sizes,
        shared: Shared | None = None,
    ) -> None:
        device = step_params.device
        self.jobs, self.layers, self.step_params, self.sizes = jobs, layers, step_params, sizes
        self.shared = Shared(layers.n, device) if shared is None else shared
        self.coefficients = torch.from_numpy(_coefficients(jobs, settings)).to(device)
        self.pointers = torch.from_numpy(_pointers(jobs, states)).to(device)
        real: Any = {"dtype": torch.float64, "device": device}
        self.partials = torch.zeros((2, layers.chunks), **real)  # two partial sums of each chunk
        self.sums = torch.zeros((2, layers.n), **real)  # two totals of each layer
        self.clips = torch.ones(layers.n, **real)  # what gradients are divided by
        self.answers = self.shared.answers
        self.own, self.model = (self._bounds(name) for name in ("max_grad_norm_per_tensor", "max_grad_norm"))
        self.bounded = self.own is not None or self.model is not None
        self.always_ready = self.bounded or any(
            getattr(job.h, "maximize", False) or getattr(job.h, "value_bounds", None) for job in jobs
        )
        self.kernels = Kernels()
        self.requests: dict[Any, list[TensorRequest]] = {}  # made so far, by request and count

    def _bounds(self, name: str) -> Tensor | None:
        """Return this bound for each layer, or None if no job has one."""
        each = [getattr(job.h, name, None) or inf for job in self.jobs]
        if set(each) <= {inf}:
            return None
        return torch.tensor(each, dtype=torch.float64, device=self.step_params.device)[self.layers.job_of]


def _coefficients(jobs: Sequence[Job], settings: Any) -> np.ndarray:
    rows, known = np.zeros((len(jobs), at.COEFFICIENTS.value)), {}
    for j, job in enumerate(jobs):
        if id(job.h) not in known:
            (low, high), (grad_low, grad_high) = (
                bounds or (None, None)
                for bounds in (getattr(job.h, "trust_clip", None), getattr(job.h, "value_bounds", None))
            )
            fixed = {
                at.SIGN: -1.0 if getattr(job.h, "maximize", False) else 1.0,
                at.GRAD_LOW: -inf if grad_low is None else grad_low,
                at.GRAD_HIGH: inf if grad_high is None else grad_high,
                at.ADAPT: ADAPT[getattr(job.h, "adapt", True)],
                at.LOW: -inf if low is None else low,
                at.HIGH: inf if high is None else high,
                at.ZERO_RATIO: getattr(job.h, "zero_norm_ratio", 1.0),
                at.MIN_NORM: getattr(job.h, "min_norm", 0.0),
                at.L2: getattr(job.h, "l2", 0.0),
                **settings(job.h),
            }
            known[id(job.h)] = list(map(index, fixed)), list(fixed.values())
        columns, values = known[id(job.h)]
        rows[j, columns] = values
    return rows


def _pointers(jobs: Sequence[Job], states: States) -> np.ndarray:
    rows = np.zeros((len(jobs), at.OPERANDS.value), np.int64)
    for j, (job, own) in enumerate(zip(jobs, states, strict=True)):
        rows[j, at.P] = job.p.data_ptr()
        rows[j, at.S0.value : at.S0.value + len(own)] = [0 if x is None else x.data_ptr() for x in own]
    return rows


class Call:
    """One step, with the launches that all rules share."""

    def __init__(self, tables: Tables, skip: Tensor | None, ready: bool, others: Others | None) -> None:
        self.tables, self.others = tables, others
        self.ready = ready or tables.always_ready
        self.skip = tables.step_params if skip is None else skip.view(torch.uint8)  # any table will do if there is none
        self.skips = skip is not None
        # The constants of kernels that depend on the step, and not on layers.
        self.variant = self.ready, tables.bounded, self.skips, others is not None

    def coefficients(self, kernel: Any) -> None:
        """Compute the coefficients of all jobs."""
        tables, jobs = self.tables, len(self.tables.jobs)
        tables.kernels[kernel, -(-jobs // JOBS)](tables.step_params, tables.coefficients, jobs, BLOCK=JOBS)

    def each(self, kernel: Any, groups: Sequence[Group], *args: Any, **flags: Any) -> None:
        """Launch a kernel on all chunks of these groups. `args` come between the arguments that all kernels take."""
        tables = self.tables
        for group in groups:
            tables.kernels[kernel, group.size](
                tables.step_params, tables.coefficients, tables.pointers, tables.layers.table, group.chunks,
                tables.clips, *args, self.skip, len(tables.jobs), **self.dtypes(group.kind),
                READY=self.ready, SKIPS=self.skips, ALIGNED=group.kind.aligned,
                CHUNK=tables.sizes.chunk, BLOCK=tables.sizes.block, **flags,
            )  # fmt: skip

    def answer(self, answer_of: Any, request: Any) -> None:
        """Compute the rule's answers from the partial sums here and those of others."""
        self._answer(answer_of, add=True, last=self.others is None)
        if self.others is not None:
            self._exchange_all(self.others, request, self.tables.sums)
            self._answer(answer_of, add=False, last=True)

    def answer_unmeasured(self, answer_of: Any) -> None:
        """Compute the rule's answers where nothing is measured; others still take part in one round."""
        if self.others is not None:
            self.others.add_up((), self.tables.sums.new_zeros(0))
        self._answer(answer_of, add=False, last=True)

    def _answer(self, answer_of: Any, add: bool, last: bool) -> None:
        tables = self.tables
        tables.kernels[parts.answer, tables.layers.n](
            tables.coefficients, tables.layers.table, tables.partials, tables.sums, tables.answers, tables.layers.n,
            tables.partials.shape[1], self.skip, ANSWER_OF=answer_of, ADD=add, LAST=last, SKIPS=self.skips,
            LANES=tables.sizes.lanes,
        )  # fmt: skip

    def dtypes(self, kind: Kind) -> dict[str, Any]:
        named = zip(("PARAM", "GRAD", "STATE0", "STATE1", "COMPUTE"), (*kind.dtypes, kind.compute), strict=True)
        return {name: OF_TORCH[dtype] for name, dtype in named}

    def tensor_request(self, job: int, request: Any, length: int) -> TensorRequest:
        of = self.tables.jobs[job]
        return TensorRequest(job, type(request), dims_of(request, of.p.ndim, of.block_dims), length)

    def each_layer(self, job: int, request: Any) -> TensorRequest:
        return self.tensor_request(job, request, self.tables.layers.count(job))

    def exchange(self, others: Others, requests: Sequence[TensorRequest], *partial_sums: tuple[Tensor, Tensor]) -> None:
        """Have others add to the sums at these places, which are in the order of the requests."""
        totals = others.add_up(requests, torch.cat([sums[places] for sums, places in partial_sums]))
        each = totals.split([len(places) for _, places in partial_sums])
        for (sums, places), completed in zip(partial_sums, each, strict=True):
            sums[places] = completed

    def _exchange_all(self, others: Others, request: Any, sums: Tensor) -> None:
        """Have others add to these sums, each row of which is one request for all jobs."""
        made, key = self.tables.requests, (type(request), len(sums))
        if key not in made:
            made[key] = [self.each_layer(j, request) for _ in sums for j in range(len(self.tables.jobs))]
        requests = made[key]
        sums.copy_(others.add_up(requests, sums.flatten()).view_as(sums))

    def clip(self) -> None:
        """Compute what gradients are divided by where their norms are bounded."""
        tables = self.tables
        if not tables.bounded:
            return
        self.each(parts.square, tables.layers.groups, tables.partials)
        add_up = tables.kernels[parts.add_up, tables.layers.n]
        add_up(tables.layers.table, tables.partials, tables.sums, LANES=tables.sizes.lanes)
        squares, clips = tables.sums[0].clone(), torch.ones_like(tables.clips)
        if tables.own is not None:
            if self.others is not None:
                self._exchange_all(self.others, Squares(None), tables.sums[:1])
            clips = (tables.sums[0].sqrt() / tables.own).clamp_(min=1).masked_fill_(tables.own.isinf(), 1)
        if tables.model is not None:
            total = self._of_model(squares / clips.square())
            clips = clips * (total.sqrt() / tables.model).clamp_(min=1)
        tables.clips.copy_(clips)

    def _of_model(self, squares: Tensor) -> Tensor:
        """Return the sum over the model, given the sums of the layers."""
        if self.others is None:
            return squares.sum()
        tables, request, made = self.tables, ModelSum(None), self.tables.requests
        if ModelSum not in made:
            made[ModelSum] = [self.tensor_request(j, request, 1) for j in range(len(tables.jobs))]
        sums = torch.segment_reduce(squares, "sum", lengths=tables.layers.lengths, unsafe=True, initial=0)
        total: Tensor = self.others.add_up(made[ModelSum], sums)[0]
        return total
