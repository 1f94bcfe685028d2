"""Sequences of events on one NumPy optimizer: each step is that of an optimizer rebuilt before it, bit for bit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from contract import sequences
from contract.apis import arrays, as_dtype, bits
from contract.sequences import NAMES, SHAPES, dtypes, names, numbers, raised, rules
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import layerwise.numpy

LAYOUTS = {"C": np.ascontiguousarray, "F": np.asfortranarray, "another": lambda x: x * 2}


class Events(sequences.Sequence):
    @initialize(name=rules, skip_nonfinite=st.booleans(), low=st.sets(names).map(sorted))
    def begin(self, name: str, skip_nonfinite: bool, low: list[str]) -> None:
        self.rules = [name] * 3
        given = arrays(0, {name: SHAPES[name] for name in NAMES})
        self.weights = {name: as_dtype(x, "bfloat16" if name in low else "float32") for name, x in given.items()}
        own = {"lr": 0.1, "blocks": {"*.square": 2}}
        self.opt = getattr(layerwise.numpy, name)(**own, skip_nonfinite=skip_nonfinite)

    def rebuilt(self) -> tuple[Any, dict[str, Any]]:
        other = type(self.opt)(**{name: getattr(self.opt, name) for name in self.opt._names()})
        other.load_state_dict(self.opt.state_dict())
        return other, {name: w.copy(order="K") for name, w in self.weights.items()}

    def kept(self, opt: Any, weights: dict[str, Any]) -> Any:
        return bits((weights, opt.state_dict()))

    def take(self, opt: Any, weights: dict[str, Any], grads: dict[str, Any], how: str) -> None:
        opt.step_all(weights, {name: as_dtype(g, weights[name].dtype.name) for name, g in grads.items()})

    def set_option(self, number: int, key: str, value: Any) -> None:
        raised(lambda: self.opt.set_options(**{key: value}))

    @rule(number=numbers, engine=st.sampled_from([None, "rule"]))
    def engine(self, number: int, engine: str | None) -> None:
        self.set_option(number, "engine", engine)

    @rule(name=names, dtype=dtypes)
    def dtype(self, name: str, dtype: str) -> None:
        self.weights[name] = as_dtype(self.weights[name], dtype)

    @rule(name=names, how=st.sampled_from(sorted(LAYOUTS)))
    def other_weights(self, name: str, how: str) -> None:
        self.weights[name] = np.asarray(LAYOUTS[how](self.weights[name]), self.weights[name].dtype)

    @rule(which=st.integers(0, 20), factor=st.sampled_from([0, 2]))
    def state(self, which: int, factor: int) -> None:
        """Load a state of which an array is another."""
        saved = self.opt.state_dict()
        arrays_of = sorted(key for key, x in saved.items() if "/" in key and x.dtype.kind == "f")
        if arrays_of:
            key = arrays_of[which % len(arrays_of)]
            self.load({**saved, key: saved[key] * saved[key].dtype.type(factor)})


def test_each_step_of_a_sequence_is_that_of_an_optimizer_rebuilt_before_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sequences.tried(Events)
