"""A run that an optimizer of MLX's own began goes on here as it would have gone on there, and back again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract.apis import Torch, arrays, close, numpy_of, walk

from layerwise import convert, preset
from layerwise.errors import StateError

mx = pytest.importorskip("mlx.core")
theirs: Any = pytest.importorskip("mlx.optimizers")

SHAPES = {"matrix": (4, 3), "column": (5, 1), "vector": (5,)}
MATRICES = {"matrix": (4, 3), "column": (5, 1)}
ADAM = {"betas": (0.8, 0.95), "eps": 1e-8}
KINDS = {  # theirs, ours in PyTorch, and how near they are after 20 steps
    "Adam": ("AdamW", {**ADAM, "bias_correction": True}, {**ADAM, "weight_decay": 0.0}, {}),
    "AdamW": ("AdamW", {**ADAM, "bias_correction": True, "weight_decay": 0.125}, {**ADAM, "weight_decay": 0.125}, {}),
    "Adam, uncorrected": ("Lamb", ADAM, {**ADAM, "bias_correction": False, "adapt": False}, {}),
    "Lion": ("Lion", {"weight_decay": 0.125}, {"betas": (0.9, 0.99), "weight_decay": 0.125}, {}),
    "SGD": ("SGD", {"momentum": 0.9, "weight_decay": 0.125}, {"momentum": 0.9, "weight_decay": 0.125}, {}),
    "Adafactor": ("Adafactor", {"beta_1": 0.9, "relative_step": False}, {**preset("mlx.Adafactor"), "beta1": 0.9}, {}),
    "Muon": ("Muon", {}, preset("mlx.Muon"), MATRICES),
}


@pytest.fixture(autouse=True)
def cpu():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


class There:
    """A run with an optimizer of MLX's own."""

    def __init__(self, name: str, weights: Any, **options: Any) -> None:
        self.opt = getattr(theirs, name)(learning_rate=0.125, **options)
        self.params = {key: mx.array(np.asarray(w), mx.float64) for key, w in weights.items()}

    def step(self, grads: Any) -> None:
        given = {key: mx.array(np.asarray(g), mx.float64) for key, g in grads.items()}
        self.params = self.opt.apply_gradients(given, self.params)

    def weights(self) -> Any:
        return {key: numpy_of(w).astype(np.float64) for key, w in self.params.items()}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_of_mlx_goes_on_here_and_back_there(name):
    rule, options, mine, shapes = KINDS[name]
    name = name.partition(",")[0]
    scaled = {"scale_parameter": True} if name == "Adafactor" else {}
    before: Any = walk(There(name, arrays(0, shapes or SHAPES), **options), range(3))
    here = Torch().make(rule, before.weights(), lr=0.125, **mine, **scaled)
    assert convert.write(convert.read(before.opt), here.opt) is here.opt
    close(walk(here, range(3, 23)).weights(), walk(before, range(3, 23)).weights(), 1e-6)
    back: Any = There(name, here.weights(), **options)
    convert.write(convert.read(here.opt), back.opt, back.params)
    close(walk(back, range(23, 43)).weights(), walk(here, range(23, 43)).weights(), 1e-6)


@pytest.mark.parametrize("name", ["RMSprop", "Adamax", "AdaDelta"])
def test_an_optimizer_that_has_no_counterpart_is_refused(name):
    run: Any = walk(There(name, arrays(0, SHAPES)), range(1))
    with pytest.raises(StateError, match=f"MLX's state of {name} cannot be converted"):
        convert.read(run.opt)


def test_a_state_that_fits_nothing_there_changes_nothing():
    run: Any = walk(There("SGD", arrays(0, SHAPES), momentum=0.9), range(2))
    here = Torch().make("AdamW", arrays(0, SHAPES))
    with pytest.raises(StateError, match=r"is of SGD, but column is stepped by AdamW\. Pass an SGD"):
        convert.write(convert.read(run.opt), here.opt)
    assert not here.opt.state
    with pytest.raises(StateError, match="has no state yet"):
        convert.read(There("SGD", arrays(0, SHAPES)).opt)
    fresh = There("SGD", arrays(0, SHAPES), momentum=0.9)
    with pytest.raises(StateError, match=r"no state yet.*init\(params\)"):
        convert.write(convert.read(run.opt), fresh.opt)
