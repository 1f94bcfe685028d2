"""The optimizers as `torch.optim.Optimizer`s.

>>> import torch
>>> from layerwise.torch import Lamb
>>> model = torch.nn.Linear(3, 1)
>>> opt = Lamb(model.named_parameters(), lr=0.01, weight_decay=0.01)
>>> model(torch.ones(2, 3)).sum().backward()
>>> opt.step()
>>> sorted(opt.stats())
['bias', 'weight']
"""

from importlib import import_module
from typing import TYPE_CHECKING

from layerwise.options.misspellings import lacking
from layerwise.torch import flat, optimizers
from layerwise.torch.checkpoints.foreign._convert import convert, convert_back
from layerwise.torch.flat import Segments, Stretch
from layerwise.torch.mixed import Mixed
from layerwise.torch.optimizers import *  # noqa: F403  # its `__all__` are the optimizers
from layerwise.torch.sharding._routes import set_most_peers
from layerwise.torch.step._engines import set_bucket_size
from layerwise.torch.tools._in_backward import step_in_backward
from layerwise.torch.tools._overlap import overlap
from layerwise.torch.tools._param_groups import ParamGroups, param_groups
from layerwise.torch.tools._schedulers import scheduler
from layerwise.torch.tools._weights import full_precision_state_dict, load_full_precision_state_dict

if TYPE_CHECKING:
    from layerwise.contrib.heatmap import heatmap
    from layerwise.contrib.monitor import monitor
    from layerwise.contrib.noise import NoiseScale

OPTIONAL = {
    "NoiseScale": "layerwise.contrib.noise",
    "heatmap": "layerwise.contrib.heatmap",
    "monitor": "layerwise.contrib.monitor",
}
__all__ = [
    "Mixed",
    "NoiseScale",
    "ParamGroups",
    "Segments",
    "Stretch",
    "convert",
    "convert_back",
    "flat",
    "full_precision_state_dict",
    "heatmap",
    "load_full_precision_state_dict",
    "monitor",
    "overlap",
    "param_groups",
    "scheduler",
    "set_bucket_size",
    "set_most_peers",
    "step_in_backward",
]
__all__ += optimizers.__all__


if not TYPE_CHECKING:  # a type checker would assume that every name exists

    def __getattr__(name):
        if name in OPTIONAL:
            return getattr(import_module(OPTIONAL[name]), name)
        raise lacking(__name__, name, __all__)
