"""The optimizers as functions that return optax transformations, and their states, made of what their rules declare.

`optimizers.pyi`, which `make generate` prints, shows them to readers and their tools.
"""

from optax import GradientTransformationExtraArgs

from layerwise.catalog.making import TargetModule
from layerwise.jax._make import ByLeaf, Number, Rate, make

TYPES = {
    "ByLeaf": ByLeaf,
    "GradientTransformationExtraArgs": GradientTransformationExtraArgs,
    "Number": Number,
    "Rate": Rate,
}

_made = TargetModule(__name__, TYPES).functions(make, "GradientTransformationExtraArgs")
globals().update(_made)
__all__ = list(_made)
