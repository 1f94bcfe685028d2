"""A run that an optimizer of Keras's own began goes on here as it would have gone on there, and back again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract.apis import Keras, NumPy, Torch, arrays, close, walk

from layerwise import convert, preset
from layerwise.errors import StateError

pytestmark = pytest.mark.slow
with pytest.MonkeyPatch.context() as environment:
    environment.setenv("KERAS_BACKEND", "numpy")
    keras: Any = pytest.importorskip("keras")

SHAPES = {"matrix": (4, 3), "column": (5, 1), "vector": (5,)}
MATRICES = {"matrix": (4, 3), "column": (5, 1)}
ADAM = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-12}
MOMENTS = {"betas": (0.8, 0.95), "eps": 1e-12}
DECAY = {"weight_decay": 0.125}
LION = {"beta_1": 0.9, "beta_2": 0.99}
KINDS: Any = {  # theirs, ours, and the shapes
    "Adam": (ADAM, "AdamW", {**MOMENTS, "weight_decay": 0.0}, SHAPES),
    "AdamW": ({**ADAM, **DECAY}, "AdamW", {**MOMENTS, **DECAY}, SHAPES),
    "Lamb": (ADAM, "Lamb", MOMENTS, SHAPES),
    "Lion": (LION, "Lion", {"betas": (0.9, 0.99)}, SHAPES),
    "SGD": ({"momentum": 0.9}, "SGD", {"momentum": 0.9}, SHAPES),
    "Adafactor": ({}, "Adafactor", {**preset("keras.Adafactor"), "lr_cap": 0.125}, SHAPES),
    "Muon": (
        {"exclude_layers": [], "weight_decay": None},
        "Muon",
        {**preset("keras.Muon"), "weight_decay": 0.0},
        MATRICES,
    ),
}


@pytest.fixture(autouse=True)
def world():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    with Keras().world():
        yield
    keras.config.set_floatx(before)


class There:
    """A run with an optimizer of Keras's own."""

    def __init__(self, name: str, weights: Any, **options: Any) -> None:
        self.opt = getattr(keras.optimizers, name)(learning_rate=0.125, **options)
        self.params = {key: keras.Variable(np.asarray(w), dtype="float64", name=key) for key, w in weights.items()}
        self.opt.build([*self.params.values()])

    def step(self, grads: Any) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            self.opt.apply([grads[key] for key in self.params], [*self.params.values()])

    def weights(self) -> Any:
        return {key: np.array(w.value) for key, w in self.params.items()}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_of_keras_goes_on_here_and_back_there(name):
    options, rule, mine, shapes = KINDS[name]
    rate = {} if name == "Adafactor" else {"lr": 0.125}
    before: Any = walk(There(name, arrays(0, shapes), **options), range(3))
    here = NumPy().make(rule, before.weights(), **mine, **rate)
    assert convert.write(convert.read(before.opt), here.opt) is here.opt
    close(walk(here, range(3, 23)).weights(), walk(before, range(3, 23)).weights(), 1e-6)
    back: Any = There(name, here.weights(), **options)
    convert.write(convert.read(here.opt), back.opt)
    close(walk(back, range(23, 43)).weights(), walk(here, range(23, 43)).weights(), 1e-6)


def test_a_kernel_lies_the_other_way_round_in_pytorch():
    """Also that of a layer with one output, whose shapes do not say over which dimension a mean ran."""
    axes = {"matrix": (1, 0), "column": (1, 0)}

    def there(named: Any) -> Any:
        return {key: x.T if key in axes else x for key, x in named.items()}

    before: Any = walk(There("Adafactor", arrays(0, SHAPES)), range(3))
    here = Torch().make("Adafactor", there(before.weights()), **KINDS["Adafactor"][2])
    convert.write(convert.read(before.opt), here.opt, axes=axes)
    for t in range(3, 23):
        grads = arrays(100 + t, SHAPES)
        before.step(grads)
        here.step(there(grads))
    close(here.weights(), there(before.weights()), 1e-6)


def test_an_optimizer_that_has_no_counterpart_is_refused():
    with pytest.raises(StateError, match="Keras's state of RMSprop cannot be converted"):
        convert.read(There("RMSprop", arrays(0, SHAPES)).opt)
    with pytest.raises(StateError, match="state of amsgrad, whose maximum"):
        convert.read(There("Adam", arrays(0, SHAPES), amsgrad=True).opt)
    with pytest.raises(StateError, match=r"optimizer\.build"):
        convert.read(keras.optimizers.Adam())


def test_a_state_that_does_not_fit_leaves_everything_unchanged():
    run: Any = walk(There("Adam", arrays(0, SHAPES)), range(2))
    before = [np.array(x.value) for x in run.opt.variables]
    kept = convert.read(run.opt)
    kept["vector"].fields["exp_avg"] = np.ones(4)
    with pytest.raises(StateError, match=r"the state of vector has .*\(4,\).*the optimizer has .*\(5,\)"):
        convert.write(kept, run.opt)
    counts = {**kept, "vector": kept["vector"]._replace(step=9)}
    with pytest.raises(StateError, match=r"different numbers of steps, \[2, 9\]"):
        convert.write(counts, run.opt)
    del kept["vector"]
    with pytest.raises(StateError, match="the state has no 'vector'"):
        convert.write(kept, run.opt)
    assert all(np.array_equal(x, y.value) for x, y in zip(before, run.opt.variables, strict=True))


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of NumPy, about Keras
@pytest.mark.parametrize("of", ["Keras", "ours"])
def test_a_saved_state_of_another_optimizer_is_skipped_with_a_warning(of, tmp_path):
    """Keras itself looks at the number of variables alone, which Adam and Lamb have as many of."""
    import layerwise.keras

    def model(optimizer: Any) -> Any:
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
        made.compile(optimizer=optimizer, loss="mse")
        made.optimizer.build(made.trainable_variables)
        return made

    def values(made: Any) -> list[Any]:
        return [np.array(x.value) for x in made.optimizer.variables]

    others = {"Keras": keras.optimizers.Adam, "ours": layerwise.keras.AdamW}
    one, two, other = model(layerwise.keras.Lamb(0.1)), model(layerwise.keras.Lamb(0.2)), model(others[of](0.3))
    one.optimizer.apply([np.ones((3, 2))], one.trainable_variables)
    files = {name: str(tmp_path / f"{name}.weights.h5") for name in ("one", "other")}
    one.save_weights(files["one"])
    other.save_weights(files["other"])
    two.load_weights(files["one"])
    kept = values(two)
    assert all(map(np.array_equal, kept, values(one)))
    found = {"Keras": "another package", "ours": "AdamW"}[of]
    with pytest.warns(UserWarning, match=f"was skipped: its 4 variables are of {found}, but this is Lamb"):
        two.load_weights(files["other"])
    assert all(map(np.array_equal, values(two), kept))
