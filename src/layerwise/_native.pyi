"""Compiled part of layerwise."""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

def compiler() -> str:
    """Return the compiler that built this extension."""

def instruction_sets() -> list[str]:
    """
    Return the instruction sets of this machine that have kernels, fastest first.
    """

def instruction_set() -> str:
    """Return the instruction set in use."""

def use_instruction_set(name: str) -> bool:
    """
    Use another instruction set; return False if there is none of that name.
    """

def num_threads() -> int:
    """Return how many threads a step takes at most."""

def set_num_threads(n: int) -> None:
    """Let a step take at most n threads; the caller checks n."""

def open_torch(tensor: object, parameter: object, dtypes: tuple[object, ...], exchange: object | None) -> None:
    """
    Make PyTorch's tensors known: their types, their dtypes, and their table of C functions or None.
    """

def open_plain(tensor: object, parameter: object, exchange: object | None) -> bool:
    """
    Make tensors of another library known by its table of C functions; return False if that is of another version.
    """

def use_torch_functions(addresses: tuple[int, int, int], plain: object, negated: object) -> bool:
    """
    Ask functions of PyTorch's at these addresses (is_neg, storage size, offset); False if they contradict methods.
    """

def reaches(array: object) -> bool:
    """
    Return whether an array holds floating numbers in this machine's memory.
    """

def read_format(array: object, beside: object | None, numbers: object, rows: int) -> bool:
    """
    Read an array in a storage format into float32; return False, with nothing done, if one is of another kind.
    """

def write_format(
    array: object, beside: object | None, numbers: object, rows: int, first: int, key: tuple[int, int] | None, t: int
) -> bool:
    """
    Write float32 numbers in the format of an array; return False, with nothing done, if one is of another kind.
    """

def in_memory(tensors: list[object]) -> bool:
    """
    Return whether all of these are plain tensors of floating numbers whose memory holds their values.
    """

def counts(tensors: list[object]) -> list[int] | None:
    """
    Return the number that each of these tensors of int64 holds, or None if one is of another kind.
    """

def count(tensors: list[object]) -> bool:
    """
    Add one to each of these counts; return False, with nothing done, if one is of another kind.
    """

class Kept:
    """
    The objects that the state of parameters consisted of when a step was prepared.
    """

    def __init__(self, params: list[object], states: dict[object, object]) -> None: ...
    def same(self, params: list[object], states: dict[object, object]) -> bool:
        """Whether it consists of the same ones."""

class Places:
    """
    The arrays of jobs when these were prepared, and gradients as they first came.
    """

    def __init__(self, arrays: list[object]) -> None: ...
    def same(self, arrays: list[object]) -> bool:
        """
        Whether all of them lie where and how they lay, and their memory holds their numbers as it did.
        """

    def like(self, grads: list[object]) -> bool:
        """
        Whether gradients are floating tensors on the devices and of the shapes of the first ones, wherever they lie.
        """

class Signals:
    """A context in which signals wait that Python would handle."""

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object | None, error: object | None, trace: object | None) -> None: ...

def open_jobs(names: tuple[str, ...]) -> None:
    """Make the fields of jobs known, by their names in their order."""

def programs() -> list[str]:
    """Return the names of the printed programs."""

class Batch:
    """Jobs, laid out once and stepped again and again."""

    def __init__(
        self,
        jobs: list[object],
        grads: list[object],
        forms: list[object],
        numbers: object,
        rounds: Sequence[Sequence[tuple[int, int, int, int]]] | None = None,
    ) -> None: ...
    def step(
        self, jobs: list[object], grads: list[object], nows: list[object], places: Places, model: float | None = None
    ) -> bool:
        """
        Carry out jobs like the first, with the model's sum if it is known; False, with nothing done, if they differ.
        """

    def takes(self, jobs: list[object], grads: list[object], nows: list[object], places: Places) -> bool:
        """Whether `step` would carry them out."""

    def retune(self, hs: list[object], forms: list[object]) -> bool:
        """
        Go on with other numbers in the hyperparameters; False, with nothing done, if they need another layout.
        """

    def begin(self, jobs: list[object], grads: list[object], nows: list[object], places: Places) -> bool:
        """
        The same for a batch that stops at the requests of each round: take it for a step, or False.
        """

    def measure(self) -> bool:
        """
        Go on to the next sums, made of the last ones as they are in `sums` now; False if there are none left.
        """

    def sums(self) -> NDArray[numpy.float64]:
        """
        The numbers of a round's requests, one after the other, to be completed in place.
        """

    def apply(self) -> None:
        """With all sums known: write parameters and state."""

    def leave(self) -> None:
        """End the step, or give it up with nothing written."""

    def measured(self, job: int, which: int) -> list[float]:
        """One of the measurements of the last step, one number a block."""
