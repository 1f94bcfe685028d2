"""The structures of rules, by which kernels are found: `engines/printed_programs.py` is a table of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

ANY = ...  # the form of a number, or of dimensions
ALONG = ("RowMean", "ColumnMean", "MatrixMean", "MeanOfRows")  # requests along dimensions, which come first


class Program(NamedTuple):
    """The kernels of one structure of a rule, with their inputs and outputs."""

    name: str
    stats: tuple[str, ...]  # the names of its measurements
    states: tuple[str, ...] = ()  # states of the tensor's shape
    lines: tuple[str, ...] = ()  # states with one number for each row, and for each column
    layer_states: tuple[str, ...] = ()  # states with one number per layer
    rounds: tuple[tuple[str, ...], ...] = ()  # the names of the requests in each
    keeps: int | None = None  # the round before whose sums `keep` computes state that is final
    keep_writes: int = 0  # bit masks of the states that each of both writes
    apply_writes: int = 0
    cached: tuple[int, ...] = ()  # terms of the last round that are most expensive to compute
    rereads: bool = True  # `apply` needs the gradient again

    def request_names(self, number: int) -> tuple[str, ...]:
        """Return the names of a round's requests with one number per layer."""
        return tuple(name for name in self.rounds[number] if name not in ALONG) if number < len(self.rounds) else ()

    def first_total(self, number: int) -> int:
        """Return the index of a round's first total, counted from that of the first round."""
        return sum(len(self.request_names(j)) for j in range(number))

    @property
    def num_totals(self) -> int:
        return self.first_total(len(self.rounds))

    def kept_before_sums(self, number: int) -> bool:
        """Return True if `keep` has run by the time of this round's sums."""
        return self.keeps is not None and number >= self.keeps


class PrintedRule(NamedTuple):
    """A rule with printed kernels.

    Programs are found by the existing parts of the state, followed by the forms of `options`.
    """

    options: tuple[str, ...]
    numbers: tuple[str, ...]  # options and fields of `now` that kernels take besides the coefficients
    programs: Mapping[tuple[object, ...], Program]


def option_forms(values: Iterable[object]) -> tuple[object, ...]:
    """Return options' values as far as they select kernels."""
    return tuple([x if x is None or isinstance(x, (bool, str)) else ANY for x in values])


def present_state(state: Iterable[object]) -> tuple[bool, ...]:
    """Return the parts of a state that exist."""
    return tuple([x is not None for x in state])
