"""Triton kernels: those of each rule, cut at its yields, and those that rules share.

A launch runs a function of `passes.py`, or for state by rows and columns of `statistics.py`. The others are device
functions that these call, and `tables.py` names the columns of the tables that they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class PrintedFunctions:
    """The printed device functions of a program."""

    values: Any
    apply: Any
    answers: tuple[Any, ...]  # of each round, and one where there is none
    keep: Any = None
    terms: tuple[Any, ...] = ()
    row: Any = None  # makes state of a row, and what elements are computed with
    column: Any = None
    remember: Any = None  # makes the numbers of the layer's state
