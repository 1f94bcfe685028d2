"""The functions of Keras's backends, as rules take them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from math import inf
from operator import attrgetter
from typing import Any

import keras
from keras import ops

from layerwise.core.library import computing
from layerwise.drivers.scaled import Namespace, Scaled
from layerwise.errors import EngineError


class Functions(Namespace):
    """The functions of a backend, for one step."""

    amax = staticmethod(ops.max)

    @property
    def quick(self) -> str | None:
        """The dtype in which the device multiplies faster what is computed in float32; None if there is none."""
        return {"cpu": None, "tpu": "bfloat16"}.get(_device(), "float16")

    def multiplies(self, x: Any, dtype: str) -> str | None:
        """Return a dtype of 16 bits if the device has products of it."""
        return dtype if self.quick in (dtype, "float16") else None

    def asarray(self, x: Any, dtype: Any) -> Any:
        """Return an array in a dtype."""
        return ops.cast(x, keras.backend.standardize_dtype(dtype))

    def weighted(self, G: Any, a: float, b: float, c: float) -> Any:
        """Return a + b·G + c·G² of matrices, summed before it is rounded."""
        own = computing(keras.backend.standardize_dtype(G.dtype))
        return a * ops.eye(G.shape[-1], dtype=own) + (b * ops.cast(G, own) + c * ops.cast(G @ G, own))

    def dense(self, gradient: Any) -> Any:
        """Return a gradient in full: an embedding's may have only the rows that were looked up."""
        return ops.convert_to_tensor(gradient, sparse=False)

    def number(self, x: Any) -> Any:
        """Return an array of one number; a plain number where it is at hand."""
        return x

    @staticmethod
    def outside() -> AbstractContextManager[Any]:
        """Return a context in which variables have values, even while a step is traced."""
        return nullcontext()


class AtHand(Functions):
    """The functions that rules have in this package for NumPy or PyTorch, whose arrays have values during a step."""

    def wide_squares(self, terms: Any, dims: tuple[int, ...]) -> Any:
        """Return the sum in float64."""
        return None if ops.dtype(terms) == "float64" else self._module.squares(terms, dims)

    def number(self, x: Any) -> Any:
        """Return a plain number, with which arithmetic is cheap."""
        return x if isinstance(x, Scaled) else x.item()

    as_number = number  # as sums that rules ask for become one


class OnTorch(AtHand):
    """PyTorch's functions: on a GPU a number would mean waiting for it, and while PyTorch compiles there is none."""

    def wide_squares(self, terms: Any, dims: tuple[int, ...]) -> Any:
        """Return the sum in float64."""
        return None if terms.device.type == "mps" else super().wide_squares(terms, dims)

    def number(self, x: Any) -> Any:
        """Return a plain number, if it is at hand."""
        if isinstance(x, Scaled) or x.device.type != "cpu" or import_module("torch").compiler.is_compiling():
            return x
        return x.item()

    as_number = number


class OnJax(Functions):
    """JAX's functions."""

    def wide_squares(self, terms: Any, dims: tuple[int, ...]) -> Any:
        """Return the sum by its root, which is taken in float64: JAX leaves that dtype wherever it is not enabled."""
        jax = import_module("jax")
        if terms.dtype == "float64" or not hasattr(jax, "enable_x64") or jax.default_backend() == "tpu":
            return None
        with jax.enable_x64(True):
            wide = terms.astype("float64")
            root = self.sqrt(self.sum(wide * wide, axis=dims, keepdims=True) if dims else wide * wide)
            return Scaled(root.astype(terms.dtype), self.ones((), terms.dtype))

    def still(self, numbers: Any) -> Any:
        """Return numbers that no loop computes again for each element."""
        jax = import_module("jax")
        return jax.tree.map(lambda x: jax.lax.optimization_barrier(x) if isinstance(x, jax.Array) else x, numbers)


class OnTensorFlow(Functions):
    """Keras's own functions, where they are TensorFlow's."""

    def wide_squares(self, terms: Any, dims: tuple[int, ...]) -> Any:
        """Return the sum in float64."""
        if ops.dtype(terms) == "float64":
            return None
        squares = ops.square(ops.cast(terms, "float64"))
        return ops.sum(squares, axis=dims, keepdims=True) if dims else squares

    @staticmethod
    def outside() -> AbstractContextManager[Any]:
        """Return a context of eager operations, in which a model is built."""
        made: AbstractContextManager[Any] = import_module("tensorflow").init_scope()
        return made

    def dense(self, gradient: Any) -> Any:
        """Return a gradient in full."""
        return import_module("tensorflow").convert_to_tensor(gradient)

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        """Return x within the bounds, of which each may be None."""
        return ops.clip(x, -inf if low is None else low, inf if high is None else high)


# With the modules that have their functions. Keras's own would serve all, but make float32 of PyTorch's float64.
BACKENDS: dict[str, tuple[type[Functions], str, str]] = {
    "tensorflow": (OnTensorFlow, "keras", "ops"),
    "jax": (OnJax, "jax", "numpy"),
    "torch": (OnTorch, "layerwise.torch.arrays._library", "Tensors.pure"),
    "numpy": (AtHand, "layerwise.numpy._arrays", "Arrays.pure"),
}


@cache
def _here() -> tuple[type[Functions], Any]:
    """Return the functions of the backend that Keras runs on, of which there is one for each process."""
    backend = keras.config.backend()
    if backend not in BACKENDS:
        raise EngineError(
            f"layerwise.keras needs one of the backends {', '.join(BACKENDS)}, and Keras runs on {backend}. Set "
            "KERAS_BACKEND before Keras is imported."
        )
    kind, module, name = BACKENDS[backend]
    return kind, attrgetter(name)(import_module(module))


@cache
def _device() -> str:
    """Return the kind of device that Keras computes on."""
    module: Any = import_module(keras.config.backend())
    if keras.config.backend() == "jax":
        return str(module.default_backend())
    if keras.config.backend() == "tensorflow":
        kinds = [one.device_type.lower() for one in module.config.list_logical_devices()]
        return next((kind for kind in ("tpu", "gpu") if kind in kinds), "cpu")
    there = keras.config.backend() == "torch" and (module.cuda.is_available() or module.backends.mps.is_available())
    return "gpu" if there else "cpu"


def namespace() -> Functions:
    """Return the functions of the backend for one step."""
    kind, module = _here()
    return kind(module)
