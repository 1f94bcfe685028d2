"""The optimizers as `keras.optimizers.Optimizer`s, on Keras's backends TensorFlow, JAX, PyTorch and NumPy.

Their names are registered with `keras.saving`, so that a saved model loads once this package is imported.
"""

# _optimizer.py is the base of all classes, _backends.py the functions of each backend, and _adamw_for_rest.py AdamW
# for what rules for hidden matrices leave.

from typing import TYPE_CHECKING

import keras

from layerwise.keras import optimizers
from layerwise.keras.optimizers import *  # noqa: F403  # its `__all__` are the optimizers
from layerwise.options.misspellings import lacking

__all__ = optimizers.__all__

for _name in __all__:
    keras.saving.register_keras_serializable("layerwise")(getattr(optimizers, _name))


if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name):
        raise lacking(__name__, name, __all__)
