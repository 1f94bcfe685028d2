"""Parameters that rules for hidden matrices, such as Muon, leave to AdamW, and that rules for rows, such as Adam-mini,
split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from layerwise.catalog.registry import ENTRIES
from layerwise.errors import warn
from layerwise.options.by_name import first_few
from layerwise.options.settings import Hyper

ADAMW = ENTRIES["AdamW"]
EMBEDDINGS = {"emb", "embed", "embedding", "embeddings", "wpe", "wte"}  # a name that contains one of these words
TOKENS = {"token", "tokens"}  # a name that ends with one of these
MATRICES = {"linear", "mlp", "proj", "projection"}  # words that rule out the ones above
HEADS = {"classifier", "embed_out", "head", "lm_head", "output_layer"}
OUTPUTS = {"output"}  # a head at the top of a model, but the last matrix of a block inside a layer
WRAPPERS = {"_fsdp_wrapped_module", "_orig_mod", "model", "module"}


def is_misplaced_vector(h: Hyper, shape: Sequence[int]) -> bool:
    """Return True if a rule for hidden matrices would step this tensor, which is not a matrix."""
    return h.of_matrices and len(shape) < 2


def is_unsplit_matrix(h: Hyper, shape: Sequence[int]) -> bool:
    """Return True if a rule for rows would step this tensor, which has several rows, as one block."""
    return h.by_row and len(shape) > 1 and shape[0] > 1


def is_embedding_or_head(name: str) -> bool:
    """Return True if the last part of a name, before "weight", is that of an embedding or of a model's head."""
    *path, last = [one for one in name.split(".") if one not in WRAPPERS and one not in ("weight", "bias")] or [""]
    words = last.lower().split("_")
    if last in HEADS or (last in OUTPUTS and not path):
        return not any(one.isdigit() for one in path)  # a name with numbers belongs to one of several layers
    return bool(EMBEDDINGS & {*words} or words[-1] in TOKENS) and not MATRICES & {*words}


def adamw_rate_ratio(h: Any) -> float:
    """Return AdamW's learning rate as a multiple of that of the matrices: 1 if their steps are as long as AdamW's."""
    usual = {spec: type(h).__dataclass_fields__[spec].default for spec in ("lr", "scale")}
    own: Any = ADAMW.hyper.__dataclass_fields__["lr"].default
    return 1.0 if h.scale != usual["scale"] else own / usual["lr"]


def warn_of_nonhidden(optimizer: str, names: Iterable[object], way_out: str) -> None:
    """Warn that a rule for hidden matrices also steps these parameters."""
    warn(f"{optimizer} is for hidden matrices, but also steps other parameters: {first_few(names)}. {way_out}")
