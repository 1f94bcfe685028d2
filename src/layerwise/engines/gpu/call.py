"""The tables that kernels read for a list of jobs, and what launches depend on from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import Others
from layerwise.engines import Job
from layerwise.engines.gpu.factored import Factored
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.kinds import Kind
from layerwise.engines.gpu.launch import Kernels
from layerwise.engines.gpu.layers import Layers
from layerwise.engines.gpu.layout import Sizes
from layerwise.engines.gpu.program import states_of
from layerwise.engines.gpu.step_params import StepParams
from layerwise.engines.gpu.stored import formats_of, table_of


class Tables:
    """The tables of a list of jobs on the device, valid while the jobs stay what they are."""

    def __init__(
        self,
        jobs: Sequence[Job],
        kinds: Sequence[Kind],
        step_params: StepParams,
        sizes: Sizes,
        answers: Tensor,
        shared: bool,
    ) -> None:
        """Make the tables; in `shared` ones others complete the sums. All tables of the jobs have the same answers."""
        self.held: list[Tensor] = []  # all that launches read and write, except what is the jobs'
        self.device = device = step_params.device
        self.jobs, self.kinds, self.sizes, self.shared = jobs, kinds, sizes, shared
        self.layers = layers = Layers(jobs, kinds, sizes)
        self.step_params, self.width = step_params.table, step_params.width
        self.answers = answers
        storage = self.put(table_of(jobs)) if any(map(formats_of, jobs)) else None
        self.pointers = self.put(_pointers(jobs, storage))
        real: Any = {"dtype": torch.float64, "device": device}
        # The partial sums of a round of each chunk; all totals of each layer, and statistics; what gradients are
        # divided by.
        most = max([1, *(len(one) for kind in kinds for one in kind.rounds)])
        self.partials = torch.zeros((most, layers.chunks), **real)
        self.clips = torch.ones(layers.n, **real)
        totals = max([1, *(len(kind.program.totals) for kind in kinds)])
        self.factored = Factored(jobs, layers, sizes, totals * layers.n)
        self.sums = torch.zeros(self.factored.sums, **real)
        # All bits set are nan in either dtype: what a launch had to write is not there before, not even in a proof.
        room = torch.full((self.factored.room,), -1, device=device).view(torch.float64)
        self.factored.lay_out(room, self.sums, shared, self.put)
        self.layer_table = self.put(layers.rows)
        self.groups = list(layers.chunks_of_kinds(sizes, self.put))
        self.spans = list(layers.of_programs(self.put))
        self.held += [self.step_params, self.answers, self.partials, self.clips, self.sums, room]
        self.own, self.model = (self._bounds(name) for name in ("max_grad_norm_per_tensor", "model_bound"))
        self.bounded = self.own is not None or self.model is not None
        self.always_ready = self.bounded or any(job.h.maximize or job.h.value_bounds for job in jobs)
        self.kernels = Kernels()

    def put(self, array: np.ndarray) -> Tensor:
        """Return an array on the device."""
        self.held.append(torch.from_numpy(array).to(self.device))
        return self.held[-1]

    def _bounds(self, name: str) -> Tensor | None:
        """Return this bound for each layer, or None if no job has one."""
        each = np.array([getattr(job.h, name, None) or inf for job in self.jobs])
        return None if np.isinf(each).all() else self.put(each[self.layers.job_of])


def _pointers(jobs: Sequence[Job], storage: Tensor | None) -> np.ndarray:
    rows = np.zeros((len(jobs), at.OPERANDS.value), np.int64)
    for j, (row, job) in enumerate(zip(rows, jobs, strict=True)):
        states = [x.data_ptr() for x in states_of(job)]
        row[at.STORAGE] = 0 if storage is None else storage[j].data_ptr()
        row[at.P], row[at.S0.value : at.S0.value + len(states)] = job.p.data_ptr(), states
    return rows


class Call:
    """What launches of one step depend on."""

    def __init__(self, tables: Tables, skip: Tensor | None, ready: bool, others: Others | None) -> None:
        self.tables, self.others = tables, others
        self.ready = ready or tables.always_ready
        self.skip = tables.step_params if skip is None else skip.view(torch.uint8)  # any table will do if there is none
        self.skips = skip is not None
        # The constants of kernels that depend on the step, and not on layers.
        self.variant = self.ready, tables.bounded, self.skips, others is not None
