"""Objects that exist: of some classes PyTorch keeps no list, and a tensor does not name those that hold it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def alive(cls: type[T]) -> Iterator[T]:
    """Yield all objects of a class that this process holds. It takes some milliseconds, so ask once.

    Wrappers of a model are made after its optimizer or before it, by programs that need not show them to us. They hold
    parameters, which do not refer to them. Of DistributedDataParallel even the hooks on parameters are C++.
    """
    # Objects are asked by their type: `isinstance` also asks them, and proxies then do what they are proxies for.
    return (x for x in gc.get_objects() if issubclass(type(x), cls))
