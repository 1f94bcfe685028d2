"""Errors in kernels, made to see that they are found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from gpu.executed.cases import Error
from triton.runtime.jit import _triton_jit_function_registry


@contextmanager
def planted(error: Error) -> Iterator[None]:
    """Change the text of a function, and let all that call it be compiled again."""
    module, _, name = error.function.partition(".")
    function = getattr(import_module(f"layerwise.engines.gpu.kernels.{module}"), name)
    text = function.src
    assert error.old in text, f"{error.function} has another text"
    function._unsafe_update_src(text.replace(error.old, error.new))
    _forget()
    try:
        yield
    finally:
        function._unsafe_update_src(text)
        _forget()


def _forget() -> None:
    for function in _triton_jit_function_registry.values():
        function.hash = None
        function.device_caches.clear()
