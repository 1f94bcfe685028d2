"""One step on its way through the kernels: the tables that they read, and the launches that all rules share."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import Others, TensorRequest
from layerwise.engines import Job
from layerwise.engines.gpu.kernels import parts, passes
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.launch import Kernels
from layerwise.engines.gpu.layout import Group, Layers, Sizes
from layerwise.engines.gpu.program import states_of
from layerwise.engines.gpu.step_params import StepParams
from layerwise.engines.gpu.stored import formats_of, table_of
from layerwise.engines.programs import program_for, tensor_request
from layerwise.rules.asks import ModelSum, Squares


class Shared:
    """Memory that several tables of the same jobs share: the answers, and room for numbers between launches."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.answers = torch.zeros((layers, at.ANSWERS.value), dtype=torch.float64, device=device)
        self._room = torch.empty(0, dtype=torch.float64, device=device)

    def room(self, numbers: int) -> Tensor:
        """Return room for so many numbers; every step writes them before it reads them."""
        if len(self._room) < numbers:
            # All bits set are nan in either dtype: a proof must not pass on what an earlier step left here.
            self._room = torch.full((numbers,), -1, device=self._room.device).view(torch.float64)
        return self._room[:numbers]


class Tables:
    """The tables of a list of jobs on the device, valid while the jobs stay what they are."""

    def __init__(
        self, jobs: Sequence[Job], layers: Layers, step_params: StepParams, sizes: Sizes, shared: Shared
    ) -> None:
        device = step_params.device
        self.jobs, self.layers, self.sizes = jobs, layers, sizes
        self.step_params, self.width = step_params.table, step_params.width
        self.shared = shared
        self.storage = table_of(jobs, device) if any(map(formats_of, jobs)) else None
        self.pointers = torch.from_numpy(_pointers(jobs, self.storage)).to(device)
        self.programs = [program_for(job) for job in jobs]
        sums = [len(program.totals) for program in self.programs]
        real: Any = {"dtype": torch.float64, "device": device}
        # The partial sums of a round of each chunk, and all totals of each layer.
        self.partials = torch.zeros(
            (max([1, *(len(r) for p in self.programs for r in p.rounds)]), layers.chunks), **real
        )
        self.sums = torch.zeros((max(1, *sums), layers.n), **real)
        self.clips = torch.ones(layers.n, **real)  # what gradients are divided by
        self.answers = self.shared.answers
        self.own, self.model = (self._bounds(name) for name in ("max_grad_norm_per_tensor", "model_bound"))
        self.bounded = self.own is not None or self.model is not None
        self.always_ready = self.bounded or any(job.h.maximize or job.h.value_bounds for job in jobs)
        self.kernels = Kernels()
        self.requests: dict[Any, list[TensorRequest]] = {}  # made so far, by request and count

    def _bounds(self, name: str) -> Tensor | None:
        """Return this bound for each layer, or None if no job has one."""
        each = [getattr(job.h, name, None) or inf for job in self.jobs]
        if set(each) <= {inf}:
            return None
        return torch.tensor(each, dtype=torch.float64, device=self.step_params.device)[self.layers.job_of]


def _divisors(squares: Tensor, bounds: Tensor) -> Tensor:
    """Return by what gradients with these squares are divided, so that no norm exceeds its bound."""
    return (squares.sqrt() / bounds).clamp_(min=1).masked_fill_(bounds.isinf(), 1)  # where inf/inf would be nan


def _pointers(jobs: Sequence[Job], storage: Tensor | None) -> np.ndarray:
    rows = np.zeros((len(jobs), at.OPERANDS.value), np.int64)
    for j, (row, job) in enumerate(zip(rows, jobs, strict=True)):
        states = [job.p if x is None else x for x in states_of(job)]
        row[at.STORAGE] = 0 if storage is None else storage[j].data_ptr()
        row[at.P], row[at.S0.value : at.S0.value + len(states)] = job.p.data_ptr(), [x.data_ptr() for x in states]
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

    def each(self, kernel: Any, group: Group, *args: Any, **constants: Any) -> None:
        """Launch a kernel on all chunks of a group. `args` come between the arguments that all kernels take."""
        tables = self.tables
        tables.kernels.launch(
            kernel, group.size, tables.step_params, tables.pointers, tables.layers.table, group.chunks, tables.clips,
            *args, self.skip, tables.width, READY=self.ready, SKIPS=self.skips, **group.constants, **constants,
        )  # fmt: skip

    def places(self, job: int, total: int) -> np.ndarray:
        """Return the places of a total of a job's layers among the sums."""
        own = self.tables.layers.of(job)
        return total * self.tables.layers.n + np.arange(own.start, own.stop)

    def each_layer(self, job: int, request: Any) -> TensorRequest:
        return tensor_request(job, self.tables.jobs[job], request, self.tables.layers.count(job))

    def _exchange_all(self, others: Others, request: Any, sums: Tensor) -> None:
        """Let other ranks add to these sums, each row of which is one request for all jobs."""
        made, key = self.tables.requests, (type(request), len(sums))
        if key not in made:
            made[key] = [self.each_layer(j, request) for _ in sums for j in range(len(self.tables.jobs))]
        requests = made[key]
        sums.copy_(others.add_up(requests, sums.flatten()).view_as(sums))

    def clip(self) -> None:
        """Compute the divisors of gradients whose norms are bounded."""
        tables = self.tables
        if not tables.bounded:
            return
        for group in tables.layers.groups:
            self.each(passes.square, group, tables.partials)
        add_up = parts.add_up, tables.layers.n, tables.layers.table, tables.partials, tables.sums
        tables.kernels.launch(*add_up, LANES=tables.sizes.lanes)
        squares, clips = tables.sums[0].clone(), torch.ones_like(tables.clips)
        if tables.own is not None:
            if self.others is not None:
                self._exchange_all(self.others, Squares(None), tables.sums[:1])
            clips = _divisors(tables.sums[0], tables.own)
        if tables.model is not None:
            total = self._of_model(squares / clips.square())
            clips = clips * _divisors(total, tables.model)
        tables.clips.copy_(clips)

    def _of_model(self, squares: Tensor) -> Tensor:
        """Return the sum over the model, given the sums of the layers."""
        if self.others is None:
            return squares.sum()
        tables, request, made = self.tables, ModelSum(None), self.tables.requests
        if ModelSum not in made:
            made[ModelSum] = [tensor_request(j, job, request, 1) for j, job in enumerate(tables.jobs)]
        sums = torch.segment_reduce(squares, "sum", lengths=tables.layers.lengths, unsafe=True, initial=0)
        total: Tensor = self.others.add_up(made[ModelSum], sums)[0]
        return total
