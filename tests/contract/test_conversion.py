"""A state that is read in one API and written in another continues there."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from cases import CASES
from contract.apis import NumPy, Torch, arrays, close, walk

from layerwise import convert
from layerwise.errors import HyperparameterError, StateError

SHAPES = {"matrix": (4, 3), "column": (5, 1), "vector": (5,), "stack": (2, 3, 4)}
LATER = range(3, 23)


def of(run: Any) -> tuple[Any, ...]:
    """What says which state is meant."""
    return (run.opt, run._state, run._weights) if run.api.name == "Jax" else (run.opt,)


def read(run: Any) -> Any:
    with run.program.world() if run.api.name == "Paddle static" else nullcontext():
        return convert.read(*of(run))


def write(kept: Any, run: Any, **more: Any) -> None:
    with run.program.world() if run.api.name == "Paddle static" else nullcontext():
        params = run._weights if run.api.name in ("Jax", "MLX") else None
        made = convert.write(kept, run.opt, params, **more)
    if run.api.name == "Jax":
        run._state = made
    else:
        assert made is run.opt


RATE = {"lr": 0.125}  # which float32 has, in which MLX and Keras hold rates


@pytest.mark.every
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_goes_on_in_another_api_and_back(api, case):
    own = {"exclude_layers": ()} if (api.name, case.name) == ("Keras", "Muon") else {}
    shapes = {name: x for name, x in SHAPES.items() if len(x) == 2} if own else SHAPES  # it leaves others to AdamW
    one = walk(NumPy().busy(case.name, arrays(0, shapes), **RATE), range(3))
    other = api.busy(case.name, one.weights(), **RATE, **own)
    write(read(one), other)
    close(walk(other, LATER).weights(), walk(one, LATER).weights(), 1e-9)
    back = NumPy().busy(case.name, other.weights(), **RATE)
    write(read(other), back)
    more = range(23, 43)
    close(walk(back, more).weights(), walk(other, more).weights(), 1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [("Fromage", {}), *((name, {"momentum": 0.0}) for name in ("ScaleSGD", "SinkGD", "SGD", "Lars", "Muon"))],
)
def test_a_run_of_a_rule_that_keeps_only_its_step_count_goes_on(api, name, options):
    shapes = {"matrix": SHAPES["matrix"]}
    one = walk(NumPy().make(name, arrays(0, shapes), **RATE, **options), range(3))
    other = api.make(name, one.weights(), **RATE, **options)
    write(read(one), other)
    kept = read(walk(other, [3]))
    assert {key: (x.step, x.shape, dict(x.fields)) for key, x in kept.items()} == {"matrix": (4, (4, 3), {})}
    torch = Torch().make(name, other.weights(), **RATE, **options)
    write(kept, torch)
    close(walk(torch, [4]).weights(), walk(walk(one, [3]), [4]).weights(), 1e-9)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Lamb", {"adapt": False, "decay": "decoupled"}), ("AdamW", {"eps": 1e-6, "weight_decay": 0.0})),
        (("AdamW", {"weight_decay": 0.0, "eps": 1e-6}), ("Lamb", {"adapt": False})),
        (("Lars", {"adapt": False, "lr_in_momentum": False}), ("SGD", {"momentum": 0.9})),
    ],
    ids=["LAMB", "AdamW", "LARS"],
)
def test_rules_that_take_the_same_steps_take_over_each_other(one, other):
    first = walk(NumPy().make(one[0], arrays(0, SHAPES), **RATE, **one[1]), range(3))
    torch = Torch().make(other[0], first.weights(), **RATE, **other[1])
    write(read(first), torch)
    close(walk(torch, LATER).weights(), walk(first, LATER).weights(), 1e-12)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (("Lamb", {}), ("AdamW", {}), r"is of Lamb, but \w+ is stepped by AdamW\. Pass a Lamb"),
        (
            ("Lars", {"adapt": False}),
            ("SGD", {"momentum": 0.9}),
            "made with lr_in_momentum=True, but the optimizer has",
        ),
        (("Lamb", {"grad_averaging": False}), ("Lamb", {}), "made with grad_averaging=False"),
        (("SGD", {"momentum": 0.9}), ("SGD", {}), "momentum_buffer"),
    ],
    ids=["rule", "lr", "option", "momentum"],
)
def test_mismatched_states_are_refused(one, other, told):
    run = walk(NumPy().make(one[0], arrays(0, SHAPES), **RATE, **one[1]), range(2))
    torch = Torch().make(other[0], run.weights(), **RATE, **other[1])
    with pytest.raises(StateError, match=told):
        write(read(run), torch)
    assert not torch.opt.state


def test_names_and_orders_of_dimensions_of_another_model():
    shapes = {"dense/kernel": (4, 3), "dense/bias": (3,), "conv": (2, 3, 4, 5)}
    run = walk(NumPy().busy("Adafactor", arrays(0, shapes), **RATE), range(2))
    orders = {"dense/kernel": (1, 0), "conv": (0, 1, 3, 2)}
    names = {"conv": "first.weight"}

    def there(named):
        turned = {name: np.transpose(x, orders.get(name, range(x.ndim))) for name, x in named.items()}
        return {names.get(name, name.replace("/", ".")): x for name, x in turned.items()}

    torch = Torch().busy("Adafactor", there(run.weights()), **RATE)
    with pytest.raises(StateError, match=r"the state has conv, but the optimizer has no conv.*Pass names"):
        write(read(run), torch)
    with pytest.raises(HyperparameterError, match="pattern 'kernel' in `axes` matches no parameter"):
        write(read(run), torch, names=names, axes={"kernel": (1, 0)})
    write(read(run), torch, names=names.get, axes=orders)
    for t in range(2, 22):
        grads = arrays(100 + t, shapes)
        run.step(grads)
        torch.step(there(grads))
    close(torch.weights(), there(run.weights()), 1e-12)


def test_an_object_that_is_no_optimizer_is_refused():
    import torch

    import layerwise.torch

    for one in (3, torch.optim.AdamW([torch.ones(2)])):
        with pytest.raises(StateError, match="cannot be read or written"):
            convert.read(one)
    run = NumPy().make("SGD", arrays(0, SHAPES))
    with pytest.raises(StateError, match="has no state yet"):
        convert.read(run.opt)
    with pytest.raises(StateError, match="have no names"):
        convert.read(layerwise.torch.SGD([torch.nn.Parameter(torch.ones(2))]))
    kept = convert.read(walk(run, range(1)).opt)
    with pytest.raises(StateError, match=r"The order is convert\.write\(convert\.read\(optimizer\), target\)"):
        convert.write(run.opt, kept)
    with pytest.raises(HyperparameterError, match=r"an order of the 2 dimensions.*but is \(1, 2\)"):
        convert.write(kept, run.opt, axes={"matrix": (1, 2)})
