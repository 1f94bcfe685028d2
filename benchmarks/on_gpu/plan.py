"""The parts in order of importance, for as long as there is time; none that fails takes the rest with it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from harness.measure import in_short
from harness.shapes import SETS
from on_gpu import check, graph, profiled, rivals
from on_gpu.check import Outcome
from on_gpu.place import OPTIMIZERS, Place
from on_gpu.sweep import sweep
from on_gpu.tables import Results

ROUNDS = {"gpt-1b": 15, "bert-base": 31, "resnet50": 51, "tiny-1000": 51}  # in order of importance
FEW = 3  # rounds where an interpreter takes the steps
OF_SWEEP = 15
CHECKING = 0.5  # of the time may go into checks where there is more to do


@dataclass(frozen=True)
class Deadline:
    seconds: float
    begun: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.begun)

    def passed(self) -> bool:
        return self.left() <= 0


class Part(NamedTuple):
    name: str
    run: Callable[[], None]


@dataclass
class Run:
    """What is done, and what came of it."""

    place: Place
    results: Results
    deadline: Deadline
    write: Callable[[list[dict[str, object]]], None] = lambda rows: None
    wrong: int = 0
    left_out: list[str] = field(default_factory=list)

    def parts(self, only: Sequence[str], models: Sequence[str]) -> Iterator[Part]:
        """What shows errors, then what the aims are about, and last what has to be compiled first."""
        known = {"check": check.outcomes, "profile": profiled.outcomes, "graph": graph.outcomes}
        for name in filter(only.__contains__, known):
            if name == "check" or not self.place.interpreted:
                yield Part(name, partial(self.judge, name, known[name], CHECKING if len(only) > 1 else 1.0))
            else:
                self.left_out.append(f"{name}, which needs a GPU")
        if "graph" in only:
            yield from (
                Part(f"graph, {name}", partial(graph.table, self.results, self.place, name)) for name in OPTIMIZERS
            )
        if "table" in only:
            yield from (Part(f"table, {model}", partial(self.tables, model)) for model in models)
        if "sweep" in only:
            rounds = self.rounds(OF_SWEEP)
            yield from (
                Part(f"sweep, {name}", partial(sweep, self.results, self.place, name, rounds)) for name in OPTIMIZERS
            )
        if "table" in only:
            yield from (
                Part(f"compiled, {model}, {name}", partial(self.compiled, model, name))
                for model in models
                for name in OPTIMIZERS
            )

    def rounds(self, wanted: int) -> int:
        return FEW if self.place.interpreted else wanted

    def carry_out(self, parts: Iterator[Part]) -> None:
        for part in parts:
            if self.deadline.passed():
                self.left_out.append(f"{part.name}, for which there was no time")
                continue
            try:
                part.run()
                gc.collect()  # what one part kept goes before the next one comes
                self.place.wait()
            except torch.OutOfMemoryError:
                self.left_out.append(f"{part.name}, for which there is too little memory")
            except Exception as problem:
                self.wrong += 1
                self.results.say(f"{part.name} failed: {in_short(problem)}")
            self.write(self.results.new_rows())  # so that what comes does not take what is there with it

    def judge(self, name: str, outcomes: Callable[[Place], Iterator[Outcome]], part: float) -> None:
        """Show them all, in no more than this part of the time that is left."""
        found, least = 0, (1 - part) * self.deadline.left()
        for outcome in outcomes(self.place):
            self.results.say(str(outcome))
            found += outcome.wrong
            if self.deadline.left() <= least:
                self.left_out.append(f"{name} beyond {outcome.what!r}, for which there was no time")
                break
        self.wrong += found
        self.results.say(f"{found} wrong" if found else "nothing is wrong", "")

    def tables(self, model: str) -> None:
        shapes = SETS[model]()
        for dtype in (torch.float32, torch.bfloat16):
            work = self.place.work(shapes, dtype)
            for name in OPTIMIZERS:
                peers = rivals.eager(name) if dtype == torch.float32 else [rivals.ours(name), *rivals.in_formats(name)]
                rounds = self.rounds(ROUNDS[model])
                self.results.show(self.results.measure("table", name, model, work, peers, rounds))
            del work  # before the next is made

    def compiled(self, model: str, name: str) -> None:
        work, peers = self.place.work(SETS[model]()), rivals.compiled(name, self.place, self.deadline.left)
        self.results.show(self.results.measure("compiled", name, model, work, peers, self.rounds(ROUNDS[model])))
