"""The structures of rules, by which kernels are found: `engines/printed_programs.py` is a table of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

ANY = ...  # the form of a number, or of dimensions
ALONG = ("RowMean", "ColumnMean", "MatrixMean", "MeanOfRows")  # requests along dimensions, which come first


class Program(NamedTuple):
    """The kernels of one structure of a rule, with their inputs and outputs."""

    name: str
    stats: tuple[str, ...]  # what it reports
    states: tuple[str, ...] = ()  # those of the tensor's shape
    lines: tuple[str, ...] = ()  # those with one number for each row, and for each column
    layer_states: tuple[str, ...] = ()  # those that are one number of the layer
    rounds: tuple[tuple[str, ...], ...] = ()  # the names of the requests in each
    keeps: int | None = None  # the round before whose sums `keep` makes state that is final
    keep_writes: int = 0  # bits of the states that each of both makes
    apply_writes: int = 0
    cached: tuple[int, ...] = ()  # terms of the last round that cost most to make
    rereads: bool = True  # `apply` needs the gradient again

    def sums(self, number: int) -> tuple[str, ...]:
        """Return the names of a round's requests that are one number of a layer."""
        return tuple(name for name in self.rounds[number] if name not in ALONG) if number < len(self.rounds) else ()

    def first(self, number: int) -> int:
        """Return the first total of a round, counted from that of the first round."""
        return sum(len(self.sums(j)) for j in range(number))

    @property
    def totals(self) -> int:
        """Return how many there are in all rounds."""
        return self.first(len(self.rounds))

    def keeps_by(self, number: int) -> bool:
        """Return True if `keep` has been made by the time of this round's sums."""
        return self.keeps is not None and number >= self.keeps


class Printed(NamedTuple):
    """A rule with printed kernels.

    Programs are found by the existing parts of the state, followed by the forms of `options`.
    """

    options: tuple[str, ...]
    numbers: tuple[str, ...]  # options and fields of `now` that kernels take beside the coefficients
    programs: Mapping[tuple[Any, ...], Program]


def form_of(value: Any) -> Any:
    """Return an option's value as far as it selects kernels."""
    return value if value is None or isinstance(value, (bool, str)) else ANY


def presence_of(state: Iterable[Any]) -> tuple[bool, ...]:
    """Return the parts of a state that exist."""
    return tuple(x is not None for x in state)
