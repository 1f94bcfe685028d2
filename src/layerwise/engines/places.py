"""A check that arrays are unchanged since their step was prepared, for engines that do not see it on reading."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from layerwise.engines import Changed, Job
from layerwise.threads import extension

_native: Any = extension()


def arrays_of(jobs: Sequence[Job]) -> list[Any]:
    """Return the weights and state of jobs, as the extension counts them: in order, without those that are None."""
    beside = ([] if job.storage is None else job.storage.beside for job in jobs)
    arrays = (array for job, more in zip(jobs, beside, strict=True) for array in (job.p, *job.state, *more))
    return [array for array in arrays if array is not None]


def places_of(arrays: Sequence[Any]) -> Any:
    """Return the quickest possible record of the addresses and layouts of arrays."""
    try:
        return Marks(arrays) if _native is None else _native.Places(arrays)
    except ValueError:
        return Marks(arrays)


class Watched:
    """The arrays of jobs, and their places when these were prepared."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._arrays = arrays_of(jobs)
        self._places = places_of(self._arrays)
        self._gradients: Any = None  # an account of the first ones

    def check(self, grads: Sequence[Any]) -> None:
        """Raise `Changed` if an array has changed, or a gradient is of another kind than the first one."""
        grads = list(grads)
        if self._gradients is None:
            self._gradients = next(one for one in (self._places, Marks([])) if one.like(grads))
        if not (self._places.same(self._arrays) and self._gradients.like(grads)):
            raise Changed


class Marks:
    """The same record for arrays of any library, which are asked one by one."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = [_mark(array) for array in arrays]
        self._grads: list[Hashable] | None = None

    def same(self, arrays: Sequence[Any]) -> bool:
        """Return True if the place and layout of all of them are unchanged."""
        return self._arrays == [_mark(array) for array in arrays]

    def like(self, grads: Sequence[Any]) -> bool:
        """Return True if gradients are of the same kinds as the first ones."""
        found = [_kind(g) for g in grads]
        self._grads = self._grads or found
        return self._grads == found


def _mark(x: Any) -> Hashable:
    if hasattr(x, "is_neg"):  # a tensor of PyTorch
        return type(x), x.data_ptr(), x.shape, x.dtype, x.stride(), x.device, x.is_neg()
    if hasattr(x, "data_ptr"):  # a tensor of Paddle
        return type(x), _address(x), tuple(x.shape), x.dtype, tuple(x.strides), x._is_initialized() and str(x.place)
    face = x.__array_interface__
    return type(x), face["data"], x.shape, x.dtype, x.strides


def _address(x: Any) -> Any:
    try:
        return x.data_ptr()
    except RuntimeError:  # its memory was given away
        return None


def _kind(g: Any) -> Hashable:
    # As the extension counts them: its dtype is looked at when a gradient is used.
    return type(g), getattr(g, "layout", None), tuple(g.shape), str(getattr(g, "device", None))
