"""The functions of Keras's backends, in the form that rules use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from math import inf
from operator import attrgetter
from typing import Any

import keras
from keras import ops

from layerwise.core.library import arithmetic_dtype
from layerwise.drivers.scaled import ScaledSum, StepNamespace
from layerwise.errors import EngineError
from layerwise.rules.requests import Array


class BackendFunctions(StepNamespace):
    """The functions of a backend, for one step."""

    amax = staticmethod(ops.max)

    @property
    def fast_product_dtype(self) -> str | None:
        """Return the dtype in which the device multiplies faster than in float32, or None."""
        return {"cpu": None, "tpu": "bfloat16"}.get(_device(), "float16")

    def multiplies(self, x: Array, dtype: str) -> str | None:
        """Return a 16-bit dtype if the device has products of it."""
        return dtype if self.fast_product_dtype in (dtype, "float16") else None

    def asarray(self, x: Array, dtype: object) -> Array:
        """Return an array in a dtype."""
        return ops.cast(x, keras.backend.standardize_dtype(dtype))

    def weighted(self, G: Array, a: float, b: float, c: float) -> Array:
        """Return a + b·G + c·G² of matrices, summed before rounding."""
        own = arithmetic_dtype(keras.backend.standardize_dtype(G.dtype))
        return a * ops.eye(G.shape[-1], dtype=own) + (b * ops.cast(G, own) + c * ops.cast(G @ G, own))

    def dense(self, gradient: Array) -> Array:
        """Return a gradient with all rows: an embedding's may have only the rows that were looked up."""
        return ops.convert_to_tensor(gradient, sparse=False)

    def number(self, x: Array) -> Array:
        """Return an array of one number; a Python number if it is at hand."""
        return x

    stacks = False
    """Whether operations cost more than to stack small variables."""

    @staticmethod
    def alone() -> bool:
        """Return whether each variable must be stepped by itself."""
        return False

    @staticmethod
    def outside() -> AbstractContextManager[object]:
        """Return a context in which variables have values, even while a step is traced."""
        return nullcontext()


class EagerFunctions(BackendFunctions):
    """The functions of this package for NumPy or PyTorch, whose arrays have values during a step."""

    def squares_in_float64(self, terms: Array, dims: tuple[int, ...]) -> Array:
        """Return the sum in float64."""
        return None if ops.dtype(terms) == "float64" else self._module.squares(terms, dims)

    def number(self, x: Array) -> Array:
        """Return a Python number, with which arithmetic is cheap."""
        return x if isinstance(x, ScaledSum) else x.item()

    as_number = number  # like the sums that rules request


class OnTorch(EagerFunctions):
    """PyTorch's functions. On a GPU a Python number would mean waiting for it, and while PyTorch compiles there is
    none.
    """

    stacks = True

    def squares_in_float64(self, terms: Array, dims: tuple[int, ...]) -> Array:
        """Return the sum in float64."""
        return None if terms.device.type == "mps" else super().squares_in_float64(terms, dims)

    def number(self, x: Array) -> Array:
        """Return a Python number, if it is at hand."""
        if isinstance(x, ScaledSum) or x.device.type != "cpu" or import_module("torch").compiler.is_compiling():
            return x
        return x.item()

    as_number = number


class OnJax(BackendFunctions):
    """JAX's functions."""

    def squares_in_float64(self, terms: Array, dims: tuple[int, ...]) -> Array:
        """Return the sum by its root, which is computed in float64: JAX cannot use that dtype outside if it is
        disabled.
        """
        jax = import_module("jax")
        if terms.dtype == "float64" or not hasattr(jax, "enable_x64") or jax.default_backend() == "tpu":
            return None
        with jax.enable_x64(True):
            wide = terms.astype("float64")
            root = self.sqrt(self.sum(wide * wide, axis=dims, keepdims=True) if dims else wide * wide)
            unit = self.where(root > 2.0**100, 2.0**32, 1.0)  # so that both fit the dtype
            return ScaledSum((root / unit).astype(terms.dtype), (unit * unit).astype(terms.dtype))

    def still(self, numbers: Array) -> Array:
        """Return numbers that no loop recomputes for each element."""
        jax = import_module("jax")
        return jax.tree.map(lambda x: jax.lax.optimization_barrier(x) if isinstance(x, jax.Array) else x, numbers)


class OnTensorFlow(BackendFunctions):
    """Keras's own functions, which are TensorFlow's here."""

    stacks = True

    def squares_in_float64(self, terms: Array, dims: tuple[int, ...]) -> Array:
        """Return the sum in float64."""
        if ops.dtype(terms) == "float64":
            return None
        squares = ops.square(ops.cast(terms, "float64"))
        return ops.sum(squares, axis=dims, keepdims=True) if dims else squares

    @staticmethod
    def alone() -> bool:
        """Return True if a strategy has variables on several devices."""
        return bool(import_module("tensorflow").distribute.has_strategy())

    @staticmethod
    def outside() -> AbstractContextManager[object]:
        """Return a context of eager operations, in which a model is built."""
        made: AbstractContextManager[object] = import_module("tensorflow").init_scope()
        return made

    def dense(self, gradient: Array) -> Array:
        """Return a gradient with all rows."""
        return import_module("tensorflow").convert_to_tensor(gradient)

    def clip(self, x: Array, low: Array, high: Array) -> Array:
        """Return x within the bounds, each of which may be None."""
        return ops.clip(x, -inf if low is None else low, inf if high is None else high)


# With the modules that have their functions. Keras's own functions would serve all, but turn PyTorch's float64 into
# float32.
BACKENDS: dict[str, tuple[type[BackendFunctions], str, str]] = {
    "tensorflow": (OnTensorFlow, "keras", "ops"),
    "jax": (OnJax, "jax", "numpy"),
    "torch": (OnTorch, "layerwise.torch.arrays._library", "Tensors.pure"),
    "numpy": (EagerFunctions, "layerwise.numpy._arrays", "Arrays.pure"),
}


@cache
def _here() -> tuple[type[BackendFunctions], Any]:
    """Return the functions of the backend that Keras runs on; it is the same throughout a process."""
    backend = keras.config.backend()
    if backend not in BACKENDS:
        raise EngineError(
            f"layerwise.keras needs one of the backends {', '.join(BACKENDS)}, but Keras runs on {backend!r}. Set "
            "KERAS_BACKEND before importing Keras."
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


def namespace() -> BackendFunctions:
    """Return the functions of the backend for one step."""
    kind, module = _here()
    return kind(module)
