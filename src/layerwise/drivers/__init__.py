"""Drivers answer a rule's requests: `local` for whole tensors, `in_rounds` if other ranks hold parts of them."""

from layerwise.drivers.parts import Others, TensorRequest, ToBring, in_rounds
from layerwise.drivers.requests import PLAIN, Run, beside, dims_of, once_of
from layerwise.drivers.whole import local

__all__ = ["PLAIN", "Others", "Run", "TensorRequest", "ToBring", "beside", "dims_of", "in_rounds", "local"]
__all__ += ["once_of"]
