"""The optimizer whose groups name their rules, made as those of `optimizers.py` are."""

from layerwise.catalog import docstrings
from layerwise.catalog.making import TargetModule
from layerwise.catalog.signatures import of_mixed
from layerwise.torch._optimizer import Optimizer
from layerwise.torch.optimizers import TYPES

__all__ = ["Mixed"]

Mixed = TargetModule(__name__, TYPES).class_of("Mixed", Optimizer, docstrings.mixed_doc(of_mixed()), of_mixed())
