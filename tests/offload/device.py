"""A device of PyTorch's own that stands in for an accelerator, and copies that end as late as they may.

Its tensors are around tensors in this machine's memory, which computes for them. Copies to and from it are put off: one
takes place when somebody waits for it, or, by other schedules, at once or at random times in between. Until then its
target holds nan. A copy whose source has changed meanwhile brings nan. So whatever reads a buffer before its copy has
ended, or reuses one before it was read, computes with nan.
"""

from __future__ import annotations

from collections import deque
from random import Random
from threading import Lock
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from layerwise.torch.offload import _copies

NAME = "farland"


class Far(torch.Tensor):
    """A tensor on that device, around one in this machine's memory."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        made = torch.Tensor._make_wrapper_subclass(
            cls, near.shape, near.stride(), dtype=near.dtype, device=torch.device(NAME, 0)
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        given = {key: x for key, x in (kwargs or {}).items() if key != "device"}
        known = {id(x.near): x for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, Far)}
        found = func(*tree_map(near, args), **tree_map(near, given))
        device = (kwargs or {}).get("device")
        if device is not None and torch.device(device).type == "cpu":
            return found
        return tree_map(lambda x: known[id(x)] if id(x) in known else far(x), found)


def near(x):
    return x.near if isinstance(x, Far) else x


def far(x):
    return Far(x) if isinstance(x, torch.Tensor) else x


class Copy(NamedTuple):
    """A copy that is under way, and its source as it was when it was asked for."""

    source: torch.Tensor
    target: torch.Tensor
    was: torch.Tensor

    def end(self) -> None:
        if torch.equal(_bits(self.source), _bits(self.was)):
            self.target.copy_(self.was)
        else:
            _fill_with_nan(self.target)


class Lane:
    """Copies in one direction, which end in their order."""

    def __init__(self) -> None:
        self._under_way: deque[Copy] = deque()
        self.begun = self._ended = 0
        self._lock = Lock()

    def begin(self, source: torch.Tensor, target: torch.Tensor) -> None:
        source, target = near(source.detach()), near(target.detach())
        with self._lock:
            self._under_way.append(Copy(source, target, source.clone()))
            _fill_with_nan(target)
            self.begun += 1

    def end(self, number: int) -> None:
        """End all copies up to this one."""
        with self._lock:
            while self._ended < number:
                self._under_way.popleft().end()
                self._ended += 1

    def end_some(self, random: Random) -> None:
        self.end(random.randint(self._ended, self.begun))


class Ended:
    """The end of all copies that a lane has begun so far."""

    def __init__(self, lane: Lane) -> None:
        self._lane, self._number = lane, lane.begun

    def wait(self) -> None:
        self._lane.end(self._number)

    follow = wait


class StandIn:
    """Copies between the host and the device, by a schedule: "late", "at once", or the seed of a random one."""

    schedule: str | int = "late"
    lanes: tuple[Lane, Lane] = Lane(), Lane()
    pinned_bytes = 0
    copied_bytes: tuple[int, int] = 0, 0
    most_pinned: int | None = None

    def __init__(self, device: torch.device) -> None:
        assert device.type == NAME

    @classmethod
    def begin(cls, schedule: str | int = "late") -> None:
        """Begin a test: nothing is under way, and nothing was counted."""
        cls.schedule, cls.lanes, cls.pinned_bytes, cls.copied_bytes = schedule, (Lane(), Lane()), 0, (0, 0)
        cls._random, cls.most_pinned = Random(schedule), None

    @classmethod
    def end(cls) -> None:
        """Let all copies end."""
        for lane in cls.lanes:
            lane.end(lane.begun)

    def pinned(self, size: int) -> torch.Tensor:
        cls = type(self)
        if cls.most_pinned is not None and cls.pinned_bytes + size > cls.most_pinned:
            raise _copies.unpinned(size, RuntimeError("out of locked memory"))
        cls.pinned_bytes += size
        return torch.full((size,), 255, dtype=torch.uint8)

    def copy(self, pairs, back) -> Ended:
        lane = self.lanes[back]
        for source, target in pairs:
            assert (source.device.type, target.device.type) == ((NAME, "cpu"), ("cpu", NAME))[back]
            lane.begin(source, target)
            size, (there, here) = source.numel() * source.element_size(), self.copied_bytes
            type(self).copied_bytes = (there, here + size) if back else (there + size, here)
        if self.schedule == "at once":
            self.end()
        elif self.schedule != "late":
            for one in self.lanes:
                one.end_some(self._random)
        return Ended(lane)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8) if x.ndim else x.reshape(1).view(torch.uint8)


def _fill_with_nan(x: torch.Tensor) -> None:
    with torch.no_grad():
        x.data.fill_(float("nan"))


def set_up() -> None:
    """Make the device, which a process has for good."""
    _setup_privateuseone_for_python_backend(NAME)
    _copies.KINDS[NAME] = StandIn
