"""One step on its way through the kernels: the tables they are given, and what all rules do alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from layerwise.drive import Others, TensorRequest, dims_of
from layerwise.engines import Job
from layerwise.engines.gpu.kernels import parts
from layerwise.engines.gpu.kernels import tables as at
from layerwise.engines.gpu.layout import Group, Kind, Layers
from layerwise.rules.asks import ModelSum, Squares

OF_TORCH = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
States = Sequence[Sequence[Tensor | None]]  # those of p's shape, of each job
TOLD = 128  # jobs that one program makes numbers for
ADAPT = {False: at.NEVER.value, True: at.ALWAYS.value, "decayed": at.DECAYED.value}


@dataclass(frozen=True)
class Sizes:
    """How work is cut."""

    chunk: int = 8192  # elements that one program takes
    block: int = 1024  # of which it has so many in hand
    lanes: int = 256  # sums that are added at a time
    tile: int = 4096  # elements of matrices that one program has in hand
    tiles: int = 8  # how many such it takes, one below the other
    entries: int = 512  # row or column statistics that one program takes
    strips: int = 32  # strips' sums that are added at a time


class Shared:
    """Memory that several tables of the same jobs have in common: what was measured, and room between launches."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.answers = torch.zeros((layers, at.ANSWERS.value), dtype=torch.float64, device=device)
        self._room = torch.empty(0, dtype=torch.float64, device=device)

    def room(self, numbers: int) -> Tensor:
        """Room for so many numbers, which every step writes before it reads them."""
        if len(self._room) < numbers:
            self._room = torch.empty(numbers, dtype=torch.float64, device=self._room.device)
        return self._room[:numbers]


class Tables:
    """What kernels are given of a list of jobs, on the device, for as long as the jobs stay what they are."""

    def __init__(
        self,
        jobs: Sequence[Job],
        states: States,
        settings: Any,
        layers: Layers,
        letter: Tensor,
        sizes: Sizes,
        shared: Shared | None = None,
    ) -> None:
        device = letter.device
        self.jobs, self.layers, self.letter, self.sizes = jobs, layers, letter, sizes
        self.shared = Shared(layers.n, device) if shared is None else shared
        self.numbers = torch.from_numpy(_numbers(jobs, settings)).to(device)
        self.pointers = torch.from_numpy(_pointers(jobs, states)).to(device)
        real: Any = {"dtype": torch.float64, "device": device}
        self.partials = torch.zeros((2, layers.chunks), **real)  # of what is summed, for each chunk
        self.sums = torch.zeros((2, layers.n), **real)  # the same, for each layer
        self.clips = torch.ones(layers.n, **real)  # what gradients are divided by
        self.answers = self.shared.answers
        self.own, self.model = (self._bounds(name) for name in ("max_grad_norm_per_tensor", "max_grad_norm"))
        self.bounded = self.own is not None or self.model is not None
        self.always_ready = self.bounded or any(job.h.maximize or job.h.value_bounds for job in jobs)
        self.questions: dict[Any, list[TensorRequest]] = {}  # those that were asked, by what is asked how often

    def _bounds(self, name: str) -> Tensor | None:
        """This bound of each layer, if there is one at all."""
        each = [getattr(job.h, name) or inf for job in self.jobs]
        if set(each) <= {inf}:
            return None
        return torch.tensor(each, dtype=torch.float64, device=self.letter.device)[self.layers.job_of]


def _numbers(jobs: Sequence[Job], settings: Any) -> np.ndarray:
    rows, known = np.zeros((len(jobs), at.NUMBERS.value)), {}
    for j, job in enumerate(jobs):
        if id(job.h) not in known:
            (low, high), (grad_low, grad_high) = (
                bounds or (None, None) for bounds in (getattr(job.h, "trust_clip", None), job.h.value_bounds)
            )
            told = {
                at.SIGN.value: -1.0 if job.h.maximize else 1.0,
                at.GRAD_LOW.value: -inf if grad_low is None else grad_low,
                at.GRAD_HIGH.value: inf if grad_high is None else grad_high,
                at.ADAPT.value: ADAPT[getattr(job.h, "adapt", True)],
                at.LOW.value: -inf if low is None else low,
                at.HIGH.value: inf if high is None else high,
                at.ZERO_RATIO.value: getattr(job.h, "zero_norm_ratio", 1.0),
                at.MIN_NORM.value: getattr(job.h, "min_norm", 0.0),
                at.L2.value: getattr(job.h, "l2", 0.0),
                **settings(job.h),
            }
            known[id(job.h)] = list(told), list(told.values())
        columns, values = known[id(job.h)]
        rows[j, columns] = values
    return rows


def _pointers(jobs: Sequence[Job], states: States) -> np.ndarray:
    rows = np.zeros((len(jobs), at.OPERANDS.value), np.int64)
    for j, (job, own) in enumerate(zip(jobs, states, strict=True)):
        rows[j, at.P.value] = job.p.data_ptr()
        rows[j, at.S0.value : at.S0.value + len(own)] = [0 if x is None else x.data_ptr() for x in own]
    return rows


class Call:
    """A step, and what all rules do alike on the way."""

    def __init__(self, tables: Tables, skip: Tensor | None, ready: bool, others: Others | None) -> None:
        self.tables, self.others = tables, others
        self.ready = ready or tables.always_ready
        self.skip = tables.letter if skip is None else skip.view(torch.uint8)  # a table stands for none
        self.skips = skip is not None
        # What kernels are compiled for besides what layers are like.
        self.variant = self.ready, tables.bounded, self.skips, others is not None

    def tell(self, kernel: Any) -> None:
        """Have the rule make its numbers of `now`."""
        tables, jobs = self.tables, len(self.tables.jobs)
        kernel[(-(-jobs // TOLD),)](tables.letter, tables.numbers, jobs, BLOCK=TOLD)

    def each(self, kernel: Any, groups: Sequence[Group], *args: Any, **flags: Any) -> None:
        """Launch a kernel on all chunks of these groups. `args` come between what all are given."""
        tables = self.tables
        for group in groups:
            kernel[(group.size,)](
                tables.letter, tables.numbers, tables.pointers, tables.layers.table, group.chunks, tables.clips,
                *args, self.skip, len(tables.jobs), **self.dtypes(group.kind),
                READY=self.ready, SKIPS=self.skips, FLAT=group.kind.flat, ALIGNED=group.kind.aligned,
                CHUNK=tables.sizes.chunk, BLOCK=tables.sizes.block, **flags,
            )  # fmt: skip

    def settle(self, answer: Any, ask: Any) -> None:
        """Have the rule answered: its sums over each layer, and over what others hold of it."""
        self._settle(answer, add=True, last=self.others is None)
        if self.others is not None:
            self._asked(self.others, ask, self.tables.sums)
            self._settle(answer, add=False, last=True)

    def unasked(self, answer: Any) -> None:
        """The same where nothing was measured; the others are met all the same."""
        if self.others is not None:
            self.others.add_up((), self.tables.sums.new_zeros(0))
        self._settle(answer, add=False, last=True)

    def _settle(self, answer: Any, add: bool, last: bool) -> None:
        tables = self.tables
        parts.settle[(tables.layers.n,)](
            tables.numbers, tables.layers.table, tables.partials, tables.sums, tables.answers, tables.layers.n,
            tables.partials.shape[1], self.skip, ANSWER=answer, ADD=add, LAST=last, SKIPS=self.skips,
            LANES=tables.sizes.lanes,
        )  # fmt: skip

    def dtypes(self, kind: Kind) -> dict[str, Any]:
        named = zip(("PARAM", "GRAD", "STATE0", "STATE1", "COMPUTE"), (*kind.dtypes, kind.compute), strict=True)
        return {name: OF_TORCH[dtype] for name, dtype in named}

    def question(self, job: int, ask: Any, length: int) -> TensorRequest:
        of = self.tables.jobs[job]
        return TensorRequest(job, type(ask), dims_of(ask, of.p.ndim, of.block_dims), length)

    def each_layer(self, job: int, ask: Any) -> TensorRequest:
        return self.question(job, ask, len(self.tables.layers.ways[job].bases))

    def ask(self, others: Others, questions: Sequence[TensorRequest], *asked: tuple[Tensor, Tensor]) -> None:
        """Have others add to what is at these places, which are one question after the other."""
        told = others.add_up(questions, torch.cat([sums[places] for sums, places in asked]))
        for (sums, places), answers in zip(asked, told.split([len(places) for _, places in asked]), strict=True):
            sums[places] = answers

    def _asked(self, others: Others, ask: Any, sums: Tensor) -> None:
        """Have others add to these sums, of which every row is one request of all jobs."""
        made, key = self.tables.questions, (type(ask), len(sums))
        if key not in made:
            made[key] = [self.each_layer(j, ask) for _ in sums for j in range(len(self.tables.jobs))]
        questions = made[key]
        sums.copy_(others.add_up(questions, sums.flatten()).view_as(sums))

    def clip(self) -> None:
        """What gradients are to be divided by, where their norms are bounded."""
        tables = self.tables
        if not tables.bounded:
            return
        self.each(parts.square, tables.layers.groups, tables.partials)
        parts.add[(tables.layers.n,)](tables.layers.table, tables.partials, tables.sums, LANES=tables.sizes.lanes)
        here, clips = tables.sums[0].clone(), torch.ones_like(tables.clips)
        if tables.own is not None:
            if self.others is not None:
                self._asked(self.others, Squares(None), tables.sums[:1])
            clips = (tables.sums[0].sqrt() / tables.own).clamp_(min=1).masked_fill_(tables.own.isinf(), 1)
        if tables.model is not None:
            total = self._of_model(here / clips.square())
            clips = clips * (total.sqrt() / tables.model).clamp_(min=1)
        tables.clips.copy_(clips)

    def _of_model(self, here: Tensor) -> Tensor:
        """The sum over the model, given that of each layer."""
        if self.others is None:
            return here.sum()
        tables, ask, made = self.tables, ModelSum(None), self.tables.questions
        if ModelSum not in made:
            made[ModelSum] = [self.question(j, ask, 1) for j in range(len(tables.jobs))]
        sums = torch.segment_reduce(here, "sum", lengths=tables.layers.lengths, unsafe=True, initial=0)
        total: Tensor = self.others.add_up(made[ModelSum], sums)[0]
        return total
