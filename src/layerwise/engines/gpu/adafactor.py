"""Second moments by rows and columns on the GPU: these layers are measured and applied by their planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.drive import Others, TensorRequest
from layerwise.engines.gpu.call import Call, Tables
from layerwise.engines.gpu.factored import Factored, Programs
from layerwise.engines.gpu.kernels import planes, statistics
from layerwise.engines.gpu.kernels.formats import BITS
from layerwise.engines.gpu.layout import Group
from layerwise.engines.gpu.passes import Passes
from layerwise.engines.programs import MEASURED, STATISTICS, requests_of, tensor_request
from layerwise.engines.structures import Program

OF_WEIGHTS = (1 << BITS) - 1  # bits of their form


class WithPlanes(Passes):
    """Passes with planes for some jobs. They take two rounds: statistics and Σp², then Σu².

    The rest of their programs is printed: u stands in the place of the program's term for it.
    """

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        super().__init__(tables, arrays)
        self.rounds = max(self.rounds, 2)
        self.factored = Factored(tables, arrays)
        starts = self.factored.starts
        self.tiled = self.spans_of([*self.factored.by_job], starts, self.factored.tiled)
        self._statistics: Statistics | None = None

    # ---- rounds

    def measure(self, call: Call, number: int) -> None:
        super().measure(call, number)
        tiled = self.factored.tiled
        if number == 0:
            for group in self.factored.groups:
                scales, formats = _of_update(group.kind.program) > 0, group.kind.formats & OF_WEIGHTS
                self._each_tile(call, planes.measure, group, tiled, SCALES=scales, FORMATS=formats)
            self._add_statistics()
        if number == 1:
            self._renew(call, STORE=call.others is None, MAKE_FACTORS=True)
            for group in self.factored.groups:
                self._each_tile(call, planes.squares, group, tiled, CLAMPS=group.kind.clamps, FORMATS=0)

    def _add_statistics(self) -> None:
        factored = self.factored
        self._each(statistics.fold, factored.of_sums, factored.piles)
        self._each(statistics.total, factored.of_rows, factored.sides)
        self._each(statistics.fold, factored.of_totals, factored.piles)

    def _renew(self, call: Call, **flags: bool) -> None:
        args = self.tables.step_params, call.skip, self.tables.width
        self._each(statistics.renew, self.factored.of_all, self.factored.sides, *args, SKIPS=call.skips, **flags)

    def _each(self, kernel: Any, launches: Sequence[Programs], table: Tensor, *args: Any, **constants: Any) -> None:
        for pairs, of in launches:
            self.tables.kernels.launch(kernel, len(pairs), table, pairs, *args, **of, **constants)

    def answer(self, call: Call, number: int, add: bool, ask: bool) -> None:
        super().answer(call, number, add, ask)
        for spans in self.tiled:
            of_update = _of_update(spans.program)
            if number == 0 and add and of_update:
                self.launch_answer(call, spans, 0, of_update, add=True, ask=False)
            if number == 1:
                self.launch_answer(call, spans, of_update, of_update + 1, add, ask)

    def complete(self, call: Call, number: int, others: Others) -> None:
        if number:
            super().complete(call, number, others)
            return
        self._statistics = found = self._statistics or Statistics(call, self.factored)
        (requests, places), sums = self.asked(call, number), self.tables.sums.view(-1)
        totals = others.add_up([*found.requests, *requests], torch.cat([found.gathered(), sums[places]]))
        found.totals, sums[places] = totals.split([len(totals) - len(places), len(places)])
        found.put_back()

    # ---- the end

    def apply(self, call: Call) -> None:
        super().apply(call)
        for group in self.factored.groups:
            kind = group.kind
            self._each_tile(
                call, planes.apply, group, self.tables.answers, APPLY=kind.functions.apply, CLAMPS=kind.clamps
            )
        if self._statistics is not None and call.others is not None:
            self._statistics.put_back()  # over the factors, which are no longer needed
            self._renew(call, STORE=True, MAKE_FACTORS=False)

    def _each_tile(self, call: Call, kernel: Any, group: Group, *args: Any, **constants: Any) -> None:
        """Launch a kernel on all tiles of a group."""
        tables, of = self.tables, {**group.constants, **constants}
        tables.kernels.launch(
            kernel, group.size, tables.step_params, tables.pointers, self.factored.planes, group.chunks, tables.clips,
            *args, call.skip, tables.width, READY=call.ready, SKIPS=call.skips, **of,
        )  # fmt: skip


class Statistics:
    """The statistics whose sums other ranks complete, in the order of the tensor: row and column sums, of G and R."""

    def __init__(self, call: Call, factored: Factored) -> None:
        self.requests: list[TensorRequest] = []
        self.totals, found = torch.zeros(0), []
        for j, laid in factored.by_job.items():
            of_both = laid.totals.places(laid.layers).reshape(laid.layers, 2, laid.plane.matrices)
            own = [*((sums.dtype, sums.places(laid.layers)) for sums in laid.sums)]
            own += [(laid.totals.dtype, of_both[:, i].ravel()) for i in (0, 1)]
            means = requests_of(call.tables.jobs[j])[MEASURED][:STATISTICS]
            self.requests += [
                tensor_request(j, call.tables.jobs[j], one, len(at)) for one, (_, at) in zip(means, own, strict=True)
            ]
            found += own
        kinds = np.concatenate([np.full(len(places), dtype.itemsize) for dtype, places in found])
        places, self._length = np.concatenate([places for _, places in found]), len(kinds)
        self._stores = [
            (factored.store.view(dtype), *(torch.from_numpy(x).to(factored.store.device) for x in (of, places[of])))
            for dtype in (torch.float32, torch.float64)
            for of in (np.flatnonzero(kinds == dtype.itemsize),)
        ]

    def gathered(self) -> Tensor:
        """Return the partial sums."""
        found = self._stores[0][0].new_zeros(self._length, dtype=torch.float64)
        for store, of, places in self._stores:
            found[of] = store[places].double()
        return found

    def put_back(self) -> None:
        """Write the totals to the places of the statistics."""
        for store, of, places in self._stores:
            store[places] = self.totals[of].to(store.dtype)


def _of_update(program: Program) -> int:
    """Return the place of Σu² among the program's totals. One before it is Σp²."""
    return program.cached[0]
