"""Keras's arrays as rules take them: the functions of the backend's own library."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import keras

from layerwise.drive.scaled import Namespace
from layerwise.errors import EngineError

MODULES = {"jax": "jax.numpy", "torch": "torch", "numpy": "numpy"}


@cache
def namespace() -> Namespace:
    """Return the functions of the backend that Keras runs on, of which there is one for each process."""
    backend = keras.config.backend()
    if backend not in MODULES:
        raise EngineError(
            f"layerwise.keras needs one of the backends {', '.join(MODULES)}, and Keras runs on {backend}. Set "
            "KERAS_BACKEND before Keras is imported; on TensorFlow, layerwise.numpy can step copies of the weights."
        )
    return Namespace(import_module(MODULES[backend]))
