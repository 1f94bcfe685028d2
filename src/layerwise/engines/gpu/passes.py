"""The passes of printed programs over the jobs on one device: measure and answer in rounds, then apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import PLAIN, Others, TensorRequest
from layerwise.engines.gpu.call import Call, Tables
from layerwise.engines.gpu.kernels import passes
from layerwise.engines.gpu.layout import Group
from layerwise.engines.gpu.program import Functions, functions_for
from layerwise.engines.gpu.stored import is_factored
from layerwise.engines.programs import MEASURED, STATISTICS, requests_of
from layerwise.engines.structures import Program

AS_THEY_ARE = [request.__name__ for request in PLAIN]  # the kinds of sums that are not of squares


class Spans(NamedTuple):
    """The layers of one program, and the places of their partial sums."""

    program: Program
    functions: Functions
    table: Tensor
    partials: Tensor


class Passes:
    """The launches of a step, made for one set of tables."""

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        """Make the launches; `arrays` are the operands of each job."""
        self.tables = tables
        # By the jobs, which are the same on every rank; a rank without elements of them has no groups.
        self.jobs = [j for j in range(len(tables.jobs)) if not is_factored(tables.jobs[j])]
        self.rounds = max((len(tables.programs[j].rounds) for j in self.jobs), default=0)
        self.groups = [group for group in tables.layers.groups if not group.kind.factored]
        self.spans = self.spans_of(self.jobs, tables.layers.starts, tables.partials)
        self._asked: dict[int, tuple[list[TensorRequest], Tensor]] = {}

    def spans_of(self, jobs: Sequence[int], starts: np.ndarray, partials: Tensor) -> list[Spans]:
        """Return the layers of each program; `starts` are the first partial sum of each layer and their number."""
        tables, found = self.tables, []
        for program in dict.fromkeys(tables.programs[j] for j in jobs):
            own = [j for j in jobs if tables.programs[j] == program]
            layers = np.concatenate([np.arange(*tables.layers.firsts[j : j + 2]) for j in own])
            if len(layers):
                rows = torch.from_numpy(np.stack([layers, *starts[layers].T], -1))
                functions, rows = functions_for(tables.jobs[own[0]]), rows.to(tables.step_params.device)
                found.append(Spans(program, functions, rows, partials))
        return found

    def step(self, call: Call) -> None:
        call.clip()
        for number in range(self.rounds):
            self.measure(call, number)
            self._answer(call, number)
        if call.others is not None and not self.rounds and not self.tables.bounded:
            call.others.add_up([], self.tables.sums.new_zeros(0))  # all meet, even if nothing is asked
        for spans in self.spans:
            if not spans.program.rounds:
                self.launch_answer(call, spans, 0, 0, add=False, ask=True)
        self.apply(call)

    # ---- rounds

    def measure(self, call: Call, number: int) -> None:
        tables = self.tables
        for group in self.groups:
            program, functions, late = group.kind.program, group.kind.functions, is_late(group, call)
            if number >= len(program.rounds):
                continue
            kinds, last = program.rounds[number], number + 1 == len(program.rounds)
            keeps = program.keeps_by(number) and (late or number == program.keeps)
            call.each(
                passes.measure, group, tables.answers, tables.partials, tables.partials.shape[1],
                KEEP=functions.keep, TERMS=functions.terms[number], SUMS=len(kinds),
                PLAIN=sum(1 << i for i, kind in enumerate(kinds) if kind in AS_THEY_ARE), KEEPS=keeps,
                WRITES=program.keep_writes if keeps and not late else 0,
                LAST=keeps and not late and last and not program.rereads,
            )  # fmt: skip

    def _answer(self, call: Call, number: int) -> None:
        """Make the rule's answers from the local partial sums and those of other ranks."""
        self.answer(call, number, add=True, ask=call.others is None)
        if call.others is not None:
            self.complete(call, number, call.others)
            self.answer(call, number, add=False, ask=True)

    def answer(self, call: Call, number: int, add: bool, ask: bool) -> None:
        """Add up this round's local partial sums, or make answers from the totals, or both."""
        for spans in self.spans:
            if number < len(spans.program.rounds):
                first = spans.program.first(number)
                self.launch_answer(call, spans, first, first + len(spans.program.rounds[number]), add, ask, number)

    def launch_answer(
        self, call: Call, spans: Spans, first: int, totals: int, add: bool, ask: bool, number: int = 0
    ) -> None:
        tables, program, functions = self.tables, spans.program, spans.functions
        tables.kernels.launch(
            passes.answer, len(spans.table), tables.step_params, tables.layers.table, spans.table, spans.partials,
            spans.partials.shape[1], tables.sums, tables.answers, tables.layers.n, call.skip, tables.width,
            FIRST_TOTAL=first, TOTALS=totals, ADD=add, ANSWER=functions.answers[number], REMEMBER=functions.remember,
            STATES=len(program.layer_states), ASKED=ask, LAST=ask and totals == len(program.totals),
            SKIPS=call.skips, LANES=tables.sizes.lanes,
        )  # fmt: skip

    def complete(self, call: Call, number: int, others: Others) -> None:
        """Let other ranks add to the sums of a round."""
        (requests, places), sums = self.asked(call, number), self.tables.sums.view(-1)
        sums[places] = others.add_up(requests, sums[places])

    def asked(self, call: Call, number: int) -> tuple[list[TensorRequest], Tensor]:
        """Return the requests of a round but for statistics, and the places of their sums; all ranks see the same."""
        if number not in self._asked:
            requests, places = [], [np.zeros(0, np.int64)]
            for j, job in enumerate(self.tables.jobs):
                each = enumerate(requests_of(job)[MEASURED:])
                rounds = [one[STATISTICS * (i == 0 and is_factored(job)) :] for i, one in each]
                first = sum(map(len, rounds[:number]))
                for n, request in enumerate(rounds[number] if number < len(rounds) else (), first):
                    requests.append(call.each_layer(j, request))
                    places.append(call.places(j, n))
            self._asked[number] = requests, torch.from_numpy(np.concatenate(places)).to(self.tables.sums.device)
        return self._asked[number]

    # ---- the end

    def apply(self, call: Call) -> None:
        for group in self.groups:
            program, functions = group.kind.program, group.kind.functions
            keeps = program.keeps is not None and is_late(group, call)
            call.each(
                passes.apply, group, self.tables.answers, KEEP=functions.keep, APPLY=functions.apply,
                TERMS=functions.terms[-1] if program.rounds else None, MEASURED=bool(program.rounds), KEEPS=keeps,
                WRITES=program.apply_writes | (program.keep_writes if keeps else 0),
            )  # fmt: skip


def is_late(group: Group, call: Call) -> bool:
    """Return True if nothing is stored before `apply`: other ranks may refuse, or kept state would be rounded."""
    kept, states = group.kind.program.keep_writes, group.kind.dtypes[2:]
    rounded = any(kept >> i & 1 and dtype is not group.kind.compute for i, dtype in enumerate(states))
    return rounded or call.others is not None
