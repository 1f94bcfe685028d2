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
    Register PyTorch's types of tensors, their dtypes, and their table of C functions, or None.
    """

def open_plain(tensor: object, parameter: object, exchange: object | None) -> bool:
    """
    Register another library's types of tensors and its table of C functions; return False if its version is unknown.
    """

def use_torch_functions(addresses: tuple[int, int, int], plain: object, negated: object) -> bool:
    """
    Use PyTorch's functions at these addresses (is_neg, storage size, offset); return False if methods disagree.
    """

def reaches(array: object) -> bool:
    """Return True if an array has floating-point numbers in host memory."""

def read_format(array: object, beside: object | None, numbers: object, rows: int) -> bool:
    """
    Read an array in a storage format into a float32 array; return False, and do nothing, if a kind is unsupported.
    """

def write_format(
    array: object, beside: object | None, numbers: object, rows: int, first: int, key: tuple[int, int] | None, t: int
) -> bool:
    """
    Write float32 numbers into an array in its format; return False, and do nothing, if a kind is unsupported.
    """

def in_memory(tensors: list[object]) -> bool:
    """
    Return True if all of these are plain floating-point tensors whose memory holds their values.
    """

def counts(tensors: list[object]) -> list[int] | None:
    """
    Return the number in each of these int64 tensors, or None if one is of another kind.
    """

def count(tensors: list[object]) -> bool:
    """
    Add one to each of these counts; return False, and do nothing, if one is of another kind.
    """

class Kept:
    """
    A record of the objects in the state of parameters, from when a step was prepared.
    """

    def __init__(self, params: list[object], states: dict[object, object]) -> None: ...
    def same(self, params: list[object], states: dict[object, object]) -> bool:
        """Return True if the state consists of the same objects."""

class Places:
    """
    A record of jobs' arrays from when the jobs were prepared, and of the kinds of the first gradients.
    """

    def __init__(self, arrays: list[object]) -> None: ...
    def same(self, arrays: list[object]) -> bool:
        """
        Return True if all arrays have the same address and layout, and their memory still holds their numbers.
        """

    def like(self, grads: list[object]) -> bool:
        """
        Return True if gradients are floating-point tensors on the devices, and of the shapes, of the first ones.
        """

class Signals:
    """A context that delays the signals that Python handles."""

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object | None, error: object | None, trace: object | None) -> None: ...

def open_jobs(names: tuple[str, ...]) -> None:
    """Register the fields of jobs, by name and in order."""

def programs() -> list[str]:
    """Return the names of the printed programs."""

class Batch:
    """Jobs that are laid out once and stepped many times."""

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
        Step jobs like the first, with the model's sum if it is known; return False, and do nothing, if they differ.
        """

    def takes(self, jobs: list[object], grads: list[object], nows: list[object], places: Places) -> bool:
        """Return True if `step` would step these jobs."""

    def retune(self, hs: list[object], forms: list[object]) -> bool:
        """
        Take other numbers in the hyperparameters; return False, and do nothing, if they need another layout.
        """

    def begin(self, jobs: list[object], grads: list[object], nows: list[object], places: Places) -> bool:
        """
        Begin a step of a batch that stops at each round of requests; return False if the jobs differ.
        """

    def measure(self) -> bool:
        """
        Compute the next round's sums, given the last round's as they are in `sums`; return False if none is left.
        """

    def sums(self) -> NDArray[numpy.float64]:
        """
        Return the sums of a round's requests, one after the other, to be completed in place.
        """

    def apply(self) -> None:
        """Write parameters and state, once all sums are known."""

    def leave(self) -> None:
        """End the step, or give it up before anything is written."""

    def measured(self, job: int, which: int) -> list[float]:
        """Return one of the last step's measurements, a number for each block."""
