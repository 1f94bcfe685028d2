"""Steps of the JAX API where JAX promotes no dtype by itself, as careful users have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def strict() -> Iterator[None]:
    """Make transformations whose init and update run so, whatever is done around them: optax needs promotion."""
    import jax

    from layerwise.jax._transform import Transformation

    def strictly(method: Any) -> Any:
        @wraps(method)
        def run(*args: Any, **more: Any) -> Any:
            with jax.numpy_dtype_promotion("strict"):
                return method(*args, **more)

        return run

    plain = Transformation.init, Transformation.update
    Transformation.init, Transformation.update = map(strictly, plain)
    yield
    Transformation.init, Transformation.update = plain
