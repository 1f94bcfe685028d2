"""The addresses of arrays: whether any has changed since a step was prepared, and which share memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from layerwise.engines import ArraysChanged, Job, PreparedJobs
from layerwise.errors import ParameterError
from layerwise.rules.requests import Array, Now
from layerwise.storage.extension import extension

if TYPE_CHECKING:
    from layerwise._native import Kept

_native: Any = extension()


def arrays_of(jobs: Sequence[Job]) -> list[Array]:
    """Return the weights and state of jobs in the extension's order, without those that are None."""
    each = [(job.p, *job.state, *(() if job.storage is None else job.storage.beside)) for job in jobs]
    return [array for arrays in each for array in arrays if array is not None]


def addresses_of(arrays: Sequence[Array]) -> Any:
    """Return the fastest available record of the addresses and layouts of these arrays."""
    try:
        return PythonArraysRecord(arrays) if _native is None else _native.Places(arrays)
    except ValueError:
        return PythonArraysRecord(arrays)


States = Mapping[Array, Mapping[str, Array]]  # of parameters, by their names in checkpoints


class ArraysRecord:
    """A record of arrays, and of the kinds of the first gradients."""

    def __init__(self, arrays: Sequence[Array], grads: Sequence[Array] | None = None) -> None:
        self._places, self._gradients = addresses_of(arrays), cast("Any", None)
        if grads is not None:
            self.same(arrays, grads)

    def same(self, arrays: Sequence[Array], grads: Sequence[Array]) -> bool:
        """Return True if the arrays are unchanged, and gradients are of the first ones' kinds."""
        grads = list(grads)
        if self._gradients is None:
            self._gradients = next(one for one in (self._places, PythonArraysRecord([])) if one.like(grads))
        return bool(self._places.same(arrays) and self._gradients.like(grads))


class CheckedInPython(PreparedJobs):
    """Prepared jobs whose arrays are checked in Python before each step."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._arrays = arrays_of(jobs)
        self._looks = ArraysRecord(self._arrays)

    def check(self, grads: Sequence[Array], nows: Sequence[Now] = (), skip: Array | None = None) -> None:
        """Raise `ArraysChanged` if an array has changed, or a gradient is of another kind than the first one."""
        if not self._looks.same(self._arrays, grads):
            raise ArraysChanged


class StateObjects:
    """The objects that the state of parameters consists of."""

    def __init__(self, params: Sequence[Array], states: States) -> None:
        self._seen = _objects(params, states)

    def same(self, params: Sequence[Array], states: States) -> bool:
        return self._seen == _objects(params, states)


def state_objects_of(params: list[Array], states: States) -> Kept | StateObjects:
    """Return the fastest available record of the objects in the state of parameters, a dict each."""
    return StateObjects(params, states) if _native is None else _native.Kept(params, states)


def _objects(params: Sequence[Array], states: States) -> list[object]:
    own = list(map(states.get, params))
    return [list(map(id, own)), [(key, id(x)) for state in own if state for key, x in state.items()]]


class PythonArraysRecord:
    """The same record for arrays of any library, which are asked one by one."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = [_mark(array) for array in arrays]
        self._grads: list[Hashable] | None = None

    def same(self, arrays: Sequence[Array]) -> bool:
        """Return True if the place and layout of all of them are unchanged."""
        return self._arrays == [_mark(array) for array in arrays]

    def like(self, grads: Sequence[Array]) -> bool:
        """Return True if gradients are of the same kinds as the first ones."""
        found = [_kind(g) for g in grads]
        self._grads = self._grads or found
        return self._grads == found


def _mark(x: Array) -> Hashable:
    if hasattr(x, "is_neg"):  # a tensor of PyTorch
        bytes_ = 0 if x.is_meta else x.untyped_storage().nbytes()  # its memory may have been freed
        return type(x), x.data_ptr(), x.shape, x.dtype, x.stride(), x.device, x.is_neg(), bytes_
    if hasattr(x, "data_ptr"):  # a tensor of Paddle
        return type(x), _address(x), tuple(x.shape), x.dtype, tuple(x.strides), x._is_initialized() and str(x.place)
    face = getattr(x, "__array_interface__", None)
    if face is None:  # an array of another library, which may have no address
        return type(x), id(x), tuple(x.shape), str(x.dtype)
    return type(x), face["data"], x.shape, x.dtype, x.strides


def _address(x: Array) -> int | None:
    try:
        return int(x.data_ptr())
    except RuntimeError:  # its memory was freed
        return None


def _kind(g: Array) -> Hashable:
    # In the extension's order. A gradient's dtype is checked when the gradient is used.
    return type(g), getattr(g, "layout", None), tuple(g.shape), str(getattr(g, "device", None))


Name = TypeVar("Name")
SEARCHED = 1 << 20  # offsets that are listed to find equal ones


class StridedMemory(NamedTuple):
    """The place of an array, on any device: the numbers of NumPy's array interface, strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def byte_range(self) -> tuple[int, int]:
        """The first byte and the one after the last."""
        steps = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        below, above = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
        return self.address + below, self.address + above + self.itemsize

    @property
    def overlaps_itself(self) -> bool:
        """True if several elements share memory."""
        each = [(abs(s), n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1]
        reach = self.itemsize
        for stride, n in sorted(each):
            if stride < reach:
                break
            reach += (n - 1) * stride
        else:
            return False
        return 0 not in self.shape and self._has_twins(each)

    def _has_twins(self, each: list[tuple[int, int]]) -> bool:
        if any(stride < self.itemsize for stride, _ in each):
            return True
        count = prod(n for _, n in each)
        if count > SEARCHED:
            low, high = self.byte_range
            return high - low < count * self.itemsize
        offsets = np.zeros(1, np.int64)
        for stride, n in each:
            offsets = np.add.outer(offsets, np.arange(n) * stride).ravel()
        offsets.sort()
        return bool((np.diff(offsets) < self.itemsize).any())

    def as_array(self) -> np.ndarray:
        """Return an array at this place, to be compared with others and never read."""
        kind = {"version": 3, "typestr": f"|V{self.itemsize}", "shape": self.shape, "strides": self.strides}
        return np.asarray(SimpleNamespace(__array_interface__={**kind, "data": (self.address, True)}))


def overlapping_pair(arrays: Iterable[tuple[Name, StridedMemory]]) -> tuple[Name, Name] | None:
    """Return two arrays that share memory, or None."""
    open_: list[tuple[int, Name, StridedMemory]] = []  # those that end after the start of the next
    held = [(*lying.byte_range, name, lying) for name, lying in arrays if 0 not in lying.shape]
    for start, end, name, lying in sorted(held, key=lambda one: one[:2]):
        open_ = [other for other in open_ if other[0] > start]
        for _, other, there in open_:
            if np.shares_memory(there.as_array(), lying.as_array()):
                return other, name
        open_.append((end, name, lying))
    return None


def check_distinct(arrays: Iterable[tuple[Name, StridedMemory]], way_out: str) -> None:
    """Raise if parameters are tied: stepped under two names, one would move twice."""
    if found := overlapping_pair(arrays):
        one, other = found
        raise ParameterError(
            f"{one!r} and {other!r} share memory, so they are one parameter and would be stepped twice. {way_out}"
        )
