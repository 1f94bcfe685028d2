"""What rules for hidden matrices, such as Muon, leave to AdamW, and what those for rows, such as Adam-mini, cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from layerwise.catalog.registry import ENTRIES
from layerwise.errors import warn
from layerwise.options.by_name import few

ADAMW = ENTRIES["AdamW"]
EMBEDDINGS = {"emb", "embed", "embedding", "embeddings", "wpe", "wte"}  # one of the words of such a name
TOKENS = {"token", "tokens"}  # the last of them
MATRICES = {"linear", "mlp", "proj", "projection"}  # beside which none of these is meant
HEADS = {"classifier", "embed_out", "head", "lm_head", "output_layer"}
OUTPUTS = {"output"}  # a head at the top of a model, and in a layer the last matrix of something
WRAPPERS = {"_fsdp_wrapped_module", "_orig_mod", "model", "module"}


def is_vector(h: Any, shape: Sequence[int]) -> bool:
    """Return True if a rule for hidden matrices has this tensor to step, which is no matrix."""
    return h.of_matrices and len(shape) < 2


def is_whole(h: Any, shape: Sequence[int]) -> bool:
    """Return True if a rule that is for rows has this tensor to step, which has several, as one block."""
    return h.by_row and len(shape) > 1 and shape[0] > 1


def is_called_otherwise(name: str) -> bool:
    """Return True if the last part of a name, before "weight", is that of an embedding or of a model's head."""
    *path, last = [one for one in name.split(".") if one not in WRAPPERS and one not in ("weight", "bias")] or [""]
    words = last.lower().split("_")
    if last in HEADS or (last in OUTPUTS and not path):
        return not any(one.isdigit() for one in path)  # with numbers it is in one of several layers
    return bool(EMBEDDINGS & {*words} or words[-1] in TOKENS) and not MATRICES & {*words}


def rate_ratio(h: Any) -> float:
    """Return AdamW's learning rate as a factor on that of the matrices: 1 for steps as long as AdamW's."""
    usual = {spec: type(h).__dataclass_fields__[spec].default for spec in ("lr", "scale")}
    own: Any = ADAMW.hyper.__dataclass_fields__["lr"].default
    return 1.0 if h.scale != usual["scale"] else own / usual["lr"]


def warn_of_others(optimizer: str, names: Iterable[Any], way_out: str) -> None:
    """Say that a rule for hidden matrices steps these parameters, too."""
    warn(f"{optimizer} is for hidden matrices, and steps other parameters too: {few(names)}. {way_out}")
