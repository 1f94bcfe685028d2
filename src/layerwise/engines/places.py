"""A check that arrays are unchanged since their step was prepared, for engines that do not see it on reading."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

from layerwise.engines import Changed, Job, Prepared
from layerwise.rules.asks import Now
from layerwise.storage.extension import extension

_native: Any = extension()


def arrays_of(jobs: Sequence[Job]) -> list[Any]:
    """Return the weights and state of jobs, as the extension counts them: in order, without those that are None."""
    each = [(job.p, *job.state, *(() if job.storage is None else job.storage.beside)) for job in jobs]
    return [array for arrays in each for array in arrays if array is not None]


def places_of(arrays: Sequence[Any]) -> Any:
    """Return the quickest possible record of the addresses and layouts of these arrays."""
    try:
        return Marks(arrays) if _native is None else _native.Places(arrays)
    except ValueError:
        return Marks(arrays)


class Looks:
    """A record of arrays, and of what kinds the first gradients were."""

    def __init__(self, arrays: Sequence[Any], grads: Sequence[Any] | None = None) -> None:
        self._places, self._gradients = places_of(arrays), cast("Any", None)
        if grads is not None:
            self.same(arrays, grads)

    def same(self, arrays: Sequence[Any], grads: Sequence[Any]) -> bool:
        """Return True if the arrays are as they were, and gradients of the first ones' kinds."""
        grads = list(grads)
        if self._gradients is None:
            self._gradients = next(one for one in (self._places, Marks([])) if one.like(grads))
        return bool(self._places.same(arrays) and self._gradients.like(grads))


class Watched(Prepared):
    """Prepared jobs whose arrays are looked at from here before each step."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._arrays = arrays_of(jobs)
        self._looks = Looks(self._arrays)

    def check(self, grads: Sequence[Any], nows: Sequence[Now] = (), skip: Any = None) -> None:
        """Raise `Changed` if an array has changed, or a gradient is of another kind than the first one."""
        if not self._looks.same(self._arrays, grads):
            raise Changed


class Objects:
    """The objects that the state of parameters consists of."""

    def __init__(self, params: Sequence[Any], states: Mapping[Any, Mapping[str, Any]]) -> None:
        self._seen = _objects(params, states)

    def same(self, params: Sequence[Any], states: Mapping[Any, Mapping[str, Any]]) -> bool:
        """Return True if it consists of the same ones."""
        return self._seen == _objects(params, states)


def objects_of(params: list[Any], states: Any) -> Any:
    """Return the quickest possible record of the objects that the state of parameters, a dict each, consists of."""
    return Objects(params, states) if _native is None else _native.Kept(params, states)


def _objects(params: Sequence[Any], states: Mapping[Any, Mapping[str, Any]]) -> list[Any]:
    own = list(map(states.get, params))
    return [list(map(id, own)), [(key, id(x)) for state in own if state for key, x in state.items()]]


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
        bytes_ = 0 if x.is_meta else x.untyped_storage().nbytes()  # which may have been given back
        return type(x), x.data_ptr(), x.shape, x.dtype, x.stride(), x.device, x.is_neg(), bytes_
    if hasattr(x, "data_ptr"):  # a tensor of Paddle
        return type(x), _address(x), tuple(x.shape), x.dtype, tuple(x.strides), x._is_initialized() and str(x.place)
    face = getattr(x, "__array_interface__", None)
    if face is None:  # an array of another library, which may not lie anywhere
        return type(x), id(x), tuple(x.shape), str(x.dtype)
    return type(x), face["data"], x.shape, x.dtype, x.strides


def _address(x: Any) -> Any:
    try:
        return x.data_ptr()
    except RuntimeError:  # its memory was given away
        return None


def _kind(g: Any) -> Hashable:
    # As the extension counts them: its dtype is looked at when a gradient is used.
    return type(g), getattr(g, "layout", None), tuple(g.shape), str(getattr(g, "device", None))
