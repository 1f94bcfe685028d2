"""The optimizers for plain NumPy: named arrays, updated in place.

>>> import numpy as np
>>> from layerwise.numpy import Lamb
>>> w = np.array([3.0, 4.0])
>>> opt = Lamb(lr=0.1)
>>> opt.step("w", w, np.array([1.0, 1.0]))
>>> w.round(6)
array([2.646447, 3.646447])
"""

# _optimizer.py is the base of all classes, _options.py their settings, and _saved.py the form of a saved
# state. Steps are core's, with what _steps.py and _arrays.py add.

from typing import TYPE_CHECKING

from layerwise.numpy import optimizers
from layerwise.numpy.optimizers import *  # noqa: F403  # its `__all__` are the optimizers
from layerwise.options.misspellings import lacking

__all__ = optimizers.__all__


if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name):
        raise lacking(__name__, name, __all__)
