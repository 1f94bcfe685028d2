"""A reader and a writer for each framework."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from layerwise.convert._kept import Axes, Kept, Names, TensorFields, fitted_to_target
from layerwise.errors import ParameterError, StateError, class_in_words, sentence

OURS = ("torch", "numpy", "keras", "mlx", "paddle")
THEIRS = ("keras", "mlx")


class Side(Protocol):
    """An optimizer of a framework."""

    def wanted(self) -> Mapping[str, TensorFields] | None:
        """Return the fields of each tensor by name, or None if the optimizer accepts any name."""

    def read(self) -> dict[str, Kept]:
        """Return the state."""

    def write(self, kept: Mapping[str, Kept]) -> object:
        """Load a state, or raise and change nothing."""


def read(optimizer: object, state: object = None, params: object = None) -> dict[str, Kept]:
    """Return the state of an optimizer of any of our APIs, of Keras's or of MLX's, for `write`.

    Numbers stored in fewer bits become float32. Master weights are not included.

    Args:
        optimizer: The optimizer, after its last step; in JAX, the transformation of `layerwise.jax`.
        state: Its state, in JAX.
        params: The parameters, in JAX.
    """
    found = _side(optimizer, state, params).read()
    if not found:
        raise StateError(f"the {type(optimizer).__name__} has no state yet. Pass one that has taken a step.")
    return found


def write(
    kept: Mapping[str, Kept], optimizer: object, params: object = None, *, names: Names = None, axes: Axes = None
) -> Any:
    """Make an optimizer continue from the result of `read`. Return its new state in JAX, and the optimizer in other
    frameworks.

    It has the same rule and options. Rates stay unchanged. If anything does not fit, StateError explains it, and the
    optimizer stays unchanged.

    Args:
        kept: What `read` returned.
        optimizer: The optimizer. In Keras it has been built, in PyTorch it was made of named parameters.
        params: The parameters, in JAX, and in MLX before `init`.
        names: The name there of each name here. None takes the same, where "dense/kernel" is also "dense.kernel".
        axes: The order there of dimensions, by name here, as numpy.transpose takes it: (1, 0) for a matrix that
            Keras, Paddle and flax have as (in, out) and PyTorch and MLX as (out, in).
    """
    if not isinstance(kept, Mapping) or not all(isinstance(one, Kept) for one in kept.values()):
        order = "The order is convert.write(convert.read(optimizer), target)."
        raise StateError(sentence("kept", "what read() returned", kept, order))
    side = _side(optimizer, None, params)
    return side.write(fitted_to_target(kept, side.wanted(), names, axes))


def _side(optimizer: object, state: object, params: object) -> Side:
    if isinstance(optimizer, tuple) and hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        if params is None:
            raise ParameterError("state of JAX needs `params`. Pass the parameters, as for init.")
        return _made("jax", "Ours", optimizer, state, params)
    for one in type(optimizer).__mro__:
        package, _, rest = one.__module__.partition(".")
        framework = rest.partition(".")[0]
        if package == "layerwise" and framework in OURS and hasattr(one, "_rule"):
            return _made(framework, "Ours", optimizer, params)
        if package in THEIRS:
            return _made(package, "Theirs", optimizer, params)
    raise StateError(
        f"{class_in_words(optimizer)} cannot be read or written. Pass an optimizer "
        "of layerwise, Keras or MLX. For other PyTorch optimizers, use layerwise.torch.convert; for optax, "
        "from_optax."
    )


def _made(framework: str, kind: str, *given: object) -> Side:
    """Return an optimizer's side. Its framework has already been imported."""
    made: Side = getattr(import_module(f"layerwise.convert._in_{framework}"), kind)(*given)
    return made
