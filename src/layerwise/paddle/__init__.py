"""The optimizers as `paddle.optimizer.Optimizer`s, in dynamic graph mode and in programs of the static graph.

>>> import paddle
>>> from layerwise.paddle import Lamb
>>> model = paddle.nn.Linear(3, 1)
>>> opt = Lamb(learning_rate=0.01, parameters=model.parameters())
>>> model(paddle.ones([2, 3])).sum().backward()
>>> opt.step()
>>> opt.clear_grad()
>>> sorted(opt.stats()) == sorted(p.name for p in model.parameters())
True
"""

# _optimizer.py is the base of all classes; _groups.py and _spelling.py read what it is given. Its steps
# are core's, on the tensors of _arrays.py, or in the static graph operations (_static.py, _append.py) on
# variables (_variables.py). _checkpoints.py saves and loads, with the names of _state.py.

from typing import TYPE_CHECKING

from layerwise.options.misspellings import lacking
from layerwise.paddle import optimizers
from layerwise.paddle._spelling import preset
from layerwise.paddle.optimizers import *  # noqa: F403  # its `__all__` are the optimizers

__all__ = ["preset"]
__all__ += optimizers.__all__


if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name):
        raise lacking(__name__, name, __all__)
