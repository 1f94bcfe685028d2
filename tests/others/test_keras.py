"""Keras's tests of its optimizers, which come in its wheel, on those of layerwise.keras, with its NumPy backend."""

from __future__ import annotations

from functools import partial

import pytest
from others.theirs import cases, check_expected, module, run_case, standing_in, tried

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Keras's own are many
with pytest.MonkeyPatch.context() as environment:
    environment.setenv("KERAS_BACKEND", "numpy")
    keras = module("keras")
    lamb, adafactor, general = (
        module(f"keras.src.optimizers.{name}_test") for name in ("lamb", "adafactor", "optimizer")
    )

import layerwise.keras as front  # noqa: E402


@keras.saving.register_keras_serializable()
class Adam(front.AdamW):
    """Ours under Keras's name."""


LIKE_THEIRS = {
    "Lamb": partial(front.Lamb.like, "keras.Lamb"),
    "Adafactor": partial(front.Adafactor.like, "keras.Adafactor"),
    "SGD": front.SGD,
    "Adam": Adam,
    "AdamW": front.AdamW,
}
BY_NAME = {name.lower(): make for name, make in LIKE_THEIRS.items()}
get_theirs = general.optimizers.get
CASES = [
    *cases(lamb.LambTest),
    *cases(adafactor.AdafactorTest),
    *cases(general.OptimizerTest, "'(sgd|adamw?|adafactor)'"),
]


def get(identifier):
    """Keras's `get`, where our names are meant."""
    given = identifier if isinstance(identifier, dict) else {"class_name": identifier, "config": {}}
    make = BY_NAME.get(given["class_name"])
    return get_theirs(identifier) if make is None else make(**given["config"])


@pytest.mark.parametrize(("case", "method"), CASES)
def test_tests_of_others_pass_with_our_optimizers(case, method, monkeypatch, request):
    monkeypatch.setattr(lamb, "Lamb", LIKE_THEIRS["Lamb"])
    monkeypatch.setattr(adafactor, "Adafactor", LIKE_THEIRS["Adafactor"])
    monkeypatch.setattr(general, "optimizers", standing_in(general.optimizers, **LIKE_THEIRS, get=get))
    tried(lambda: run_case(case, method, ("requires_trainable_backend",)), "keras", request.node.callspec.id)


def test_expected_differences_are_up_to_date():
    check_expected("keras", CASES)
