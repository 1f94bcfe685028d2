"""Drivers answer a rule's requests: `local` for whole tensors, `in_rounds` if other ranks hold parts of them."""

from layerwise.drive.parts import Others, TensorRequest, ToBring, in_rounds
from layerwise.drive.requests import PLAIN, Run, beside, dims_of, once_of
from layerwise.drive.whole import local

__all__ = ["PLAIN", "Others", "Run", "TensorRequest", "ToBring", "beside", "dims_of", "in_rounds", "local"]
__all__ += ["once_of"]
