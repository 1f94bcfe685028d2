"""The launches of a step of the jobs on one device: measure and answer in rounds, then apply."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerwise.drivers import PLAIN, OtherRanks, SharedRequest
from layerwise.engines.gpu.kernels import common, passes, statistics
from layerwise.engines.gpu.tables import LaunchGrid, Tables
from layerwise.engines.programs import MEASURED, IndexedRequest, requests_by_stage

if TYPE_CHECKING:
    import triton

AS_THEY_ARE = [request.__name__ for request in PLAIN]  # the kinds of sums that are not of squares
OF_TENSORS, OF_MODEL = range(MEASURED)  # stages of the norms of gradients


class LaunchInputs:
    """Everything that the launches of one step depend on."""

    def __init__(self, tables: Tables, skip: Tensor | None, ready: bool, others: OtherRanks | None) -> None:
        self.tables, self.others = tables, others
        self.ready = ready or tables.always_ready
        self.skip = tables.step_params if skip is None else skip.view(torch.uint8)  # any table will do if there is none
        self.skips = skip is not None
        # The constants of kernels that depend on the step, not on layers.
        self.variant = self.ready, tables.bounded, self.skips, others is not None


class Passes:
    """The launches of a step, for one set of tables."""

    def __init__(self, tables: Tables, copied: set[int]) -> None:
        self.tables, self.copied = tables, copied  # gradients that kernels cannot read in place
        self.variants: set[Hashable] = set()  # already stepped, so their kernels are compiled
        # By the jobs, which are the same on every rank; a rank without elements of them has no groups.
        self.rounds = max([1, *(len(kind.program.rounds) for kind in tables.kinds)])
        stages = requests_by_stage(tables.jobs) if tables.shared else []
        self._asked = [self._asks(each) for each in stages + [[]] * (MEASURED + self.rounds - len(stages))]

    def step(self, call: LaunchInputs) -> None:
        if self.tables.bounded:
            self._clip(call)
        for number in range(self.rounds):
            self._measure(call, number)
            self._answer(call, number)
        self._apply(call)

    # ---- norms of gradients

    def _clip(self, call: LaunchInputs) -> None:
        """Compute the divisors of gradients whose norms are bounded."""
        tables = self.tables
        sums, clips = tables.sums[: tables.layers.n], tables.clips.fill_(1)
        for group in tables.groups:
            self._each(
                call, passes.measure, group, tables.answers, tables.partials, tables.partials.shape[1],
                KEEP=None, TERMS=common.gradient_alone, SUMS=1, PLAIN=0, KEEPS=False, WRITES=0, LAST=False,
            )  # fmt: skip
        for spans in self.tables.spans:
            self._launch_answer(call, spans, 0, 1, adds=True)
        squares, divisors = sums.clone(), torch.ones_like(clips)
        if tables.own is not None:
            if call.others is not None:
                self._complete(OF_TENSORS, call.others)
            divisors = _divisors(sums, tables.own)
        if tables.model is not None:
            divisors = divisors * _divisors(self._of_model(call, squares / divisors.square()), tables.model)
        clips.copy_(divisors)

    def _of_model(self, call: LaunchInputs, squares: Tensor) -> Tensor:
        """Return the sum over the model, given the sums of the layers."""
        if call.others is None:
            return squares.sum()
        requests, numbers = self._asked[OF_MODEL]
        sums = torch.segment_reduce(squares, "sum", lengths=numbers, unsafe=True, initial=0)
        total: Tensor = call.others.add_up(requests, sums)[0]
        return total

    # ---- rounds

    def _measure(self, call: LaunchInputs, number: int) -> None:
        for group in self.tables.groups:
            if number < len(group.kind.program.rounds):
                self._measure_round(call, group, number)
        if number == 0:
            self._take(statistics.fold, self.tables.lines.fold)
            for programs in self.tables.lines.total:
                self._take(statistics.total, programs)

    def _measure_round(self, call: LaunchInputs, group: LaunchGrid, number: int) -> None:
        tables, functions, program, late = (
            self.tables,
            group.kind.functions,
            group.kind.program,
            stores_only_at_end(group, call),
        )
        kinds, last = program.request_names(number), number + 1 == len(program.rounds)
        terms, plain = functions.terms[number], sum(1 << i for i, one in enumerate(kinds) if one in AS_THEY_ARE)
        if group.kind.has_lines and number == 0:
            self._each(
                call, statistics.strips, group, tables.answers, tables.partials,
                TERMS=terms, SUMS=len(kinds), PLAIN=bool(plain),
            )  # fmt: skip
            return
        keeps = program.kept_before_sums(number) and (late or number == program.keeps)
        self._each(
            call, passes.measure, group, tables.answers, tables.partials, tables.partials.shape[1],
            KEEP=functions.keep, TERMS=terms, SUMS=len(kinds), PLAIN=plain, KEEPS=keeps,
            WRITES=program.keep_writes if keeps and not late else 0,
            LAST=keeps and not late and last and not program.rereads,
        )  # fmt: skip

    def _answer(self, call: LaunchInputs, number: int) -> None:
        """Compute the rule's answers from the local partial sums and those of other ranks."""
        self._answers(call, number, adds=True, asks=call.others is None)
        if call.others is not None:
            self._complete(MEASURED + number, call.others)
            self._answers(call, number, adds=False, asks=True)
        if number == 0:
            self._renew(call, STORE=call.others is None, MAKE=True)

    def _answers(self, call: LaunchInputs, number: int, adds: bool, asks: bool) -> None:
        """Add up this round's local partial sums, or compute answers from the totals, or both."""
        for spans in self.tables.spans:
            program = spans.kind.program
            first, end = program.first_total(number), program.first_total(number + 1)
            if number < max(1, len(program.rounds)) and ((adds and end > first) or asks):
                self._launch_answer(call, spans, first, end, number, adds, asks)

    def _complete(self, stage: int, others: OtherRanks) -> None:
        """Let other ranks add to the sums of a stage. All meet once in a step, even without requests."""
        requests, places = self._asked[stage]
        if requests or not self.tables.bounded:
            self.tables.sums[places] = others.add_up(requests, self.tables.sums[places])

    def _asks(self, asked: Sequence[IndexedRequest]) -> tuple[list[SharedRequest], Tensor]:
        """Return the requests of a stage, and the places of their sums; all ranks see the same."""
        places = np.concatenate([np.zeros(0, np.int64), *map(self._places, asked)])
        return [one.request for one in asked], self.tables.array_on_device(places)

    def _places(self, one: IndexedRequest) -> np.ndarray:
        """Return the places of the sums of a request.

        The sum over the model is one number of each job, and has the number of its layers in place of places.
        """
        j, kind, layers = one.request.job, self.tables.kinds[one.request.job], self.tables.layers
        of_job = np.arange(*layers.firsts[j : j + 2])
        if one.stage == OF_MODEL:
            return np.array([len(of_job)])
        along = [*self.tables.lines.sum_places(j)] if one.stage == MEASURED and kind.has_lines else []
        if one.which < len(along):
            return along[one.which]
        total = kind.program.first_total(max(one.stage - MEASURED, 0)) + one.which - len(along)
        return total * layers.n + of_job

    # ---- the end

    def _apply(self, call: LaunchInputs) -> None:
        for group in self.tables.groups:
            program, functions = group.kind.program, group.kind.functions
            keeps = program.keeps is not None and stores_only_at_end(group, call)
            writes = program.apply_writes | (program.keep_writes if keeps else 0)
            self._each(
                call, passes.apply, group, self.tables.answers, KEEP=functions.keep, APPLY=functions.apply,
                TERMS=functions.terms[-1] if program.rounds else None, MEASURED=bool(program.rounds), KEEPS=keeps,
                WRITES=writes,
            )  # fmt: skip
        if call.others is not None:
            self._renew(call, STORE=True, MAKE=False)

    # ---- launches

    def _each(
        self, call: LaunchInputs, kernel: triton.JITFunction, group: LaunchGrid, *args: object, **constants: Any
    ) -> None:
        """Launch a kernel on all chunks of a group. `args` come between the arguments that all kernels take."""
        tables = self.tables
        tables.kernels.launch(
            kernel, len(group.table), tables.step_params, tables.pointers, tables.layer_table, group.table,
            tables.clips, *args, call.skip, tables.width, READY=call.ready, SKIPS=call.skips, **group.constants,
            **constants,
        )  # fmt: skip

    def _launch_answer(
        self,
        call: LaunchInputs,
        spans: LaunchGrid,
        first: int,
        totals: int,
        number: int = 0,
        adds: bool = False,
        asks: bool = False,
    ) -> None:
        """Launch the kernel that computes all totals up to some number of them; those from `first` on are new."""
        tables, program, functions = self.tables, spans.kind.program, spans.kind.functions
        answer = functions.answers[min(number, len(functions.answers) - 1)]
        tables.kernels.launch(
            passes.answer, len(spans.table), tables.step_params, tables.layer_table, spans.table, tables.partials,
            tables.partials.shape[1], tables.sums, tables.answers, tables.layers.n, call.skip, tables.width,
            FIRST_TOTAL=first, TOTALS=totals, ADD=adds, ANSWER=answer,
            REMEMBER=functions.remember, STATES=len(program.layer_states), ASKED=asks,
            LAST=asks and totals == program.num_totals, SKIPS=call.skips, LANES=tables.sizes.lanes,
        )  # fmt: skip

    def _renew(self, call: LaunchInputs, **flags: bool) -> None:
        args = self.tables.step_params, call.skip, self.tables.width
        for programs in self.tables.lines.renew:
            self._take(statistics.renew, programs, *args, SKIPS=call.skips, **flags)

    def _take(self, kernel: triton.JITFunction, programs: LaunchGrid, *args: object, **constants: Any) -> None:
        """Launch a kernel on sums by rows and columns, if there are any."""
        if n := len(programs.table):
            sides, of = self.tables.lines.sides, programs.constants
            self.tables.kernels.launch(kernel, n, sides, programs.table, *args, **of, **constants)


def stores_only_at_end(group: LaunchGrid, call: LaunchInputs) -> bool:
    """Return True if nothing is stored before `apply`: other ranks may refuse, or kept state would be rounded."""
    kept, states = group.kind.program.keep_writes, group.kind.dtypes[2:]
    rounded = any(kept >> i & 1 and dtype is not group.kind.compute_dtype for i, dtype in enumerate(states))
    return rounded or call.others is not None


def _divisors(squares: Tensor, bounds: Tensor) -> Tensor:
    """Return the divisors of gradients with these squares, so that no norm exceeds its bound."""
    return (squares.sqrt() / bounds).clamp_(min=1).masked_fill_(bounds.isinf(), 1)  # otherwise inf/inf would be nan
