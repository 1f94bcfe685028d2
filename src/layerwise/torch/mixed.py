"""The optimizer whose groups name their rules, made as those of `optimizers.py` are."""

from layerwise.catalog import docstrings
from layerwise.catalog.making import Home
from layerwise.catalog.signatures import of_mixed
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.optimizers import TYPES

__all__ = ["Mixed"]

Mixed = Home(__name__, TYPES).class_of("Mixed", Optimizer, docstrings.of_mixed(of_mixed()), of_mixed())
