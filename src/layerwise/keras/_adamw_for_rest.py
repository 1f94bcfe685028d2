"""The variables that rules for hidden matrices leave to AdamW, as Keras's own Muon does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from layerwise.catalog.hidden_matrices import ADAMW, adamw_rate_ratio
from layerwise.options.checks import NONE, PATTERNS, all_matched, number, one_of
from layerwise.options.fields import OFF
from layerwise.options.names import checked_pair
from layerwise.options.settings import Hyper

# Values that a preset sets for Keras's arguments.
OF_PRESETS: Mapping[str, Mapping[str, object]] = {"keras.Muon": {"exclude_layers": (), "adam_weight_decay": 0.004}}
EMBEDDING, BETAS = "embedding", ("adam_beta_1", "adam_beta_2")
Shape = tuple[int, ...]


CHECKED = {
    "exclude_layers": (PATTERNS | NONE, 'Pass parts of their paths, such as ["head"], or None for the last matrix.'),
    "exclude_embeddings": (one_of(True, False), "Pass True or False."),
    "adam_lr_ratio": (number(0) | NONE, "Pass a factor such as 0.05, or None."),
    "adam_weight_decay": (OFF, "Pass a number such as 0.01, 0 for none, or None for weight_decay."),
}


class AdamWForRest:
    """AdamW for variables that are not hidden matrices, and the choice of these variables."""

    def __init__(self, given: Mapping[str, object], h: Hyper) -> None:
        betas = checked_pair(ADAMW.hyper, "betas", BETAS, given)
        eps = ADAMW.hyper.check("eps", given["epsilon"], "epsilon")
        made: Any = ADAMW.hyper
        self.h: Hyper = made(lr=0.0, betas=betas, eps=eps, weight_decay=0.0, maximize=h.maximize)
        checked = {name: check(name, given[name], way_out) for name, (check, way_out) in CHECKED.items()}
        self.config = {**checked, **dict(zip(BETAS, betas, strict=True)), "epsilon": eps}
        ratio = self.config["adam_lr_ratio"]
        self.lr_ratio = adamw_rate_ratio(h) if ratio is None else ratio

    def decay(self, of_matrices: float | None) -> float | None:
        """Return the weight decay: the one of the matrices, or one of its own."""
        own = self.config["adam_weight_decay"]
        return of_matrices if own is None else own

    def picked(self, variables: Sequence[tuple[str, Shape]]) -> list[bool]:
        """Return those variables, given as paths and shapes, that are not hidden matrices."""
        matrices = [
            path
            for path, shape in variables
            if len(shape) == 2 and not (self.config["exclude_embeddings"] and EMBEDDING in path.lower())
        ]
        wanted = self.config["exclude_layers"]
        if wanted is None:
            hidden = {*matrices[:-1]}
        else:
            all_matched("exclude_layers", wanted, [path for path, _ in variables])
            hidden = {path for path in matrices if not any(re.search(pattern, path) for pattern in wanted)}
        return [path not in hidden for path, _ in variables]
