"""Where tests of others say something else of our optimizers on purpose: why, and where users read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Difference:
    tests: str  # a pattern of names
    says: str  # a pattern of the error
    why: str
    page: str  # and its heading

    def is_told(self) -> bool:
        page, _, heading = self.page.partition("#")
        return re.search(rf"^#+ {re.escape(heading)}$", (ROOT / page).read_text("utf-8"), re.MULTILINE) is not None


TORCH = "docs/coming-from.md#What else is different"
EXPECTED = {
    "optax": [
        Difference(
            "(sgd|adamw)-AliasTest-test_explicit_dtype-bfloat16-None-.*",
            r"dtype\(bfloat16\) != dtype\('float32'\)",
            "state of bfloat16 parameters is float32 unless a dtype is asked for",
            "docs/coming-from.md#optax",
        ),
        Difference(
            "(sgd|adamw)-AliasTest-test_explicit_dtype-.*-complex64-.*",
            "HyperparameterError: `(accumulator_dtype|mu_dtype)` must be",
            "a dtype of state is real; the state of complex parameters is complex by itself",
            "docs/coming-from.md#optax",
        ),
        Difference(
            "(came|sinkgd)-AliasTest-.*can_be_wrapped_in_inject_hyperparams.*",
            "HyperparameterError: `(min_dim_size_to_factor|iterations)` must be known when the step is traced",
            "what decides the form of the state or of the program is no array; optax's tests name adafactor's static",
            "docs/jax.md#Options",
        ),
    ],
    "keras": [
        Difference(
            "AdafactorTest-test_(config|correctness_with_golden)",
            "ContradictionError: `relative_step` must be left out with keras.Adafactor",
            "relative_step=False has no effect in Keras, and here it is refused",
            "docs/keras.md#What is different",
        ),
    ],
    "torch": [
        Difference("Adam.* takes amsgrad", "no option 'amsgrad'", "another rule", TORCH),
        Difference("Adafactor takes .* d", "no option 'd'", "it is called clip_threshold", TORCH),
        Difference(
            ".* refuses all optimizer param groups .*", "nothing is refused", "some may be named by places", TORCH
        ),
        Difference("Adam.* refuses betas must be either both .*", "nothing is refused", "a number is a number", TORCH),
        Difference("Adam.* refuses (lr|betas).*Tensor.*foreach.*", "nothing is refused", "lists take tensors", TORCH),
        Difference(
            "Adafactor refuses does not support complex .*",
            "ParameterError: .* is complex. Make torch.view_as_real",
            "refused before the first step, as a ValueError",
            TORCH,
        ),
    ],
    "timm": [
        Difference("convergence-sgd", r"`momentum` must be .* but is 1\.", "such a sum has no bound", TORCH),
    ],
}
