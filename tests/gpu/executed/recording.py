"""Recordings of a step, which are replayed as CUDA graphs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.utils._python_dispatch import TorchDispatchMode

from layerwise.engines.gpu import prepared, step_params


class Recording(TorchDispatchMode):
    """Notes all that PyTorch would launch: what is written to memory is written when the recording is replayed.

    Results of an operation are in memory of their own, which each replay writes again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [
            arg for arg, x in zip(args, func._schema.arguments, strict=False) if x.alias_info and x.alias_info.is_write
        ]
        if written:
            self.calls.append(lambda: func(*args, **kwargs))
            return written[0]
        result = func(*args, **kwargs)
        if not func.is_view:
            self.calls.append(lambda: result.copy_(func(*args, **kwargs)))
        return result

    def replay(self) -> None:
        for call in self.calls:
            call()


@contextmanager
def recording(executor: Any) -> Iterator[Recording]:
    """Record what is launched, by PyTorch and by Triton, in this order."""
    found = Recording()
    executor.recorded = found.calls
    try:
        with patch.object(step_params, "capturing", _yes), patch.object(prepared, "capturing", _yes), found:
            yield found
    finally:
        executor.recorded = None


def _yes(device: Any) -> bool:
    return True
