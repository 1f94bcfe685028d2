"""Measurements of a step by their names, for engines that leave them where their kernels wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np


class Measured(Mapping[str, Any]):
    """The measurements of one job in the last step; each is read on access, by its place."""

    __slots__ = ("_places", "_read")

    def __init__(self, read: Callable[[int], Any], names: tuple[str, ...]) -> None:
        self._read, self._places = read, _places(names)

    def __getitem__(self, name: str) -> Any:
        return np.array(self._read(self._places[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy is of the numbers


@cache
def _places(names: tuple[str, ...]) -> dict[str, int]:
    return {name: i for i, name in enumerate(names)}
