"""Programs: the functions that the GPU engine's kernels call for one structure of a rule, and their lookup."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.programs import program_for

STATES = 4  # of the tensor's shape, for which kernels have operands; other state is a number of each layer


@dataclass(frozen=True, eq=False)
class Program:
    """The printed device functions of a program, with their inputs and outputs."""

    states: tuple[str, ...]
    layer_states: tuple[str, ...]  # those that are one number of the layer
    rounds: tuple[tuple[str, ...], ...]  # the kinds of sums in each
    keeps: int | None  # the round before whose sums `keep` makes state that is final
    keep_writes: int  # bits of the states that each of both makes
    apply_writes: int
    cached: tuple[int, ...]  # terms of the last round that cost most to make
    rereads: bool  # `apply` needs the gradient again
    values: Any
    keep: Any
    terms: tuple[Any, ...]
    apply: Any
    answers: tuple[Any, ...]  # of each round; None where it has none
    report: Any
    remember: Any  # makes the numbers of the layer's state; None where it has none

    @property
    def totals(self) -> tuple[str, ...]:
        """Return the kinds of the sums of all rounds, one after the other."""
        return sum(self.rounds, ())

    def first(self, number: int) -> int:
        """Return the first total of a round."""
        return len(sum(self.rounds[:number], ()))

    def keeps_by(self, number: int) -> bool:
        """Return True if `keep` has been made by the time of this round's sums."""
        return self.keeps is not None and number >= self.keeps


def functions_for(job: Job) -> Program:
    """Return the printed functions of a job."""
    rule = job.rule.__name__.rpartition(".")[2]
    module = import_module(f"layerwise.engines.gpu.printed.{rule}")
    found: Program = module.PROGRAMS[program_for(job).name]
    return found


def states_of(job: Job) -> list[Tensor | None]:
    """Return the states of the tensor's shape that the program names, and None for all other operands of kernels."""
    found = [getattr(job.state, name) for name in functions_for(job).states]
    return found + [None] * (STATES - len(found))


def layer_states_of(job: Job) -> list[Tensor]:
    """Return the states that are one number of each layer."""
    return [getattr(job.state, name) for name in functions_for(job).layer_states]
