"""The functions that the GPU engine's kernels call for a program, and their lookup."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.programs import program_for


@dataclass(frozen=True, eq=False)
class Functions:
    """The printed device functions of a program."""

    values: Any
    apply: Any
    answers: tuple[Any, ...]  # of each round, and one where there is none
    keep: Any = None
    terms: tuple[Any, ...] = ()
    remember: Any = None  # makes the numbers of the layer's state


def functions_for(job: Job) -> Functions:
    """Return the printed functions of a job."""
    rule = job.rule.__name__.rpartition(".")[2]
    module = import_module(f"layerwise.engines.gpu.printed.{rule}")
    found: Functions = module.PROGRAMS[program_for(job).name]
    return found


def states_of(job: Job) -> list[Tensor]:
    """Return the states of the tensor's shape that the program names; p stands in for a factored one."""
    found = (getattr(job.state, name) for name in program_for(job).states)
    return [job.p if state is None else state for state in found]
