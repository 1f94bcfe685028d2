"""The choice of a model's hidden matrices, for `mlx.optimizers.MultiOptimizer`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from layerwise.errors import ParameterError
from layerwise.options.checks import NONE, PATTERNS, all_matched

nn: Any = import_module("mlx.nn")  # has no types
EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
HEADS = (nn.Linear, nn.QuantizedLinear)


def hidden_matrices(model: object, exclude_layers: Sequence[str] | None = None) -> Callable[[str, mx.array], bool]:
    """Return a filter for a model's hidden matrices: not its embeddings, its head or its vectors.

    Args:
        model: The model.
        exclude_layers: Regular expressions; parameters whose path contains a match are left out. None means the head:
            the last `nn.Linear` of the model.
    """
    if not isinstance(model, nn.Module):
        raise ParameterError(
            f"`model` must be an mlx.nn.Module, but is a {type(model).__name__}. Pass the model itself."
        )
    way_out = 'Pass parts of their paths, such as ["lm_head"], or None for the last nn.Linear.'
    patterns = (PATTERNS | NONE)("exclude_layers", exclude_layers, way_out)
    layers: Any = tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module)
    paths: Any = tree_flatten(model.parameters())
    out = [path for path, layer in layers if isinstance(layer, EMBEDDINGS)]
    if patterns is None:
        out += [path for path, layer in layers if isinstance(layer, HEADS)][-1:]
    else:
        all_matched("exclude_layers", patterns, [path for path, _ in paths])

    def is_hidden(path: str, weight: mx.array) -> bool:
        excluded = path.rpartition(".")[0] in out or any(re.search(one, path) for one in patterns or ())
        return weight.ndim > 1 and not excluded

    return is_hidden
