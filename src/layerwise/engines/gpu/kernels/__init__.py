"""Triton kernels: those of each rule, cut at its yields, and those that rules share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Functions:
    """The printed device functions of a program."""

    values: Any
    apply: Any
    answers: tuple[Any, ...]  # of each round, and one where there is none
    keep: Any = None
    terms: tuple[Any, ...] = ()
    row: Any = None  # makes state of a row, and what elements are computed with
    column: Any = None
    remember: Any = None  # makes the numbers of the layer's state
