"""The interface of a rule's launches: the kernels that a step takes, in their order."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from layerwise.engines import Job
from layerwise.engines.gpu.call import Call, Sizes, Tables
from layerwise.engines.gpu.layout import kind_of


class Method:
    """A rule's launches, made for one set of tables."""

    options: Collection[str]  # that the kernels carry out; jobs with others are declined

    def __init__(self, tables: Tables, arrays: Sequence[Sequence[Tensor]]) -> None:
        """`arrays` are the operands of each job."""

    @staticmethod
    def settings(h: Any) -> dict[Any, float]:
        """Return the coefficients that do not change from step to step."""
        raise NotImplementedError

    @classmethod
    def states(cls, job: Job) -> Sequence[Tensor | None]:
        """Return the two states of the parameter's shape, S0 and S1."""
        raise NotImplementedError

    @classmethod
    def traits(cls, job: Job) -> Any:
        """Return what the kernels of this job are compiled for besides dtypes and layout."""
        raise NotImplementedError

    @classmethod
    def measures(cls, job: Job) -> Mapping[str, int]:
        """Return the columns of the answers that are reported, by name."""
        raise NotImplementedError

    @classmethod
    def compiled_for(cls, job: Job, arrays: Sequence[Tensor], sizes: Sizes) -> Hashable:
        """Return what the kernels of a job with these operands are compiled for."""
        return kind_of(job, arrays, cls.traits(job))

    @classmethod
    def pace(cls, h: Any) -> float:
        """Return a learning rate with which a step moves weights by about a quarter of their size."""
        return 0.25

    @classmethod
    def declined(cls, job: Job) -> str:
        """Return the reason why this job in particular is not taken, or an empty string."""
        return ""

    def step(self, call: Call) -> None:
        raise NotImplementedError
