"""Whatever happened to an optimizer, its next step is bit for bit that of one made anew from the same numbers.

hypothesis draws sequences of events. Before each step an optimizer is rebuilt: new objects, from copies of weights,
options and state. If the two differ, the shortest sequence that shows it is printed, as a program.
"""

from __future__ import annotations

import copy
import os
import pickle
from threading import Thread
from typing import Any

import numpy as np
from cases import CASES, case_of
from contract.apis import arrays, bits
from draws import ALIKE
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import layerwise
from layerwise.errors import LayerwiseError

# A name begins with the number of its group. One tensor is large enough for 8 bits.
SHAPES = {"0.large": (64, 65), "0.square": (6, 6), "1.vector": (6,), "1.scalar": (), "2.square": (4, 4)}
NAMES = sorted(SHAPES)
STORAGE = {
    "state_dtype": (None, "int8", "bfloat16", "float32"),
    "rounding": (None, "nearest", "stochastic"),
    "master_weights": (False, True, "split", "split24"),
    "seed": (0, 3),
}

WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}

names = st.sampled_from(NAMES)
dtypes = st.sampled_from(["float32", "bfloat16", "float64"])
rules = st.sampled_from(sorted(case.name for case in CASES))
three_rules = st.lists(rules, min_size=3, max_size=3)
numbers = st.sampled_from([0, 1, 0, 1, 2])
rates = st.sampled_from([0.02, 0.3])


def values_of(name: str) -> dict[str, Any]:
    """The options that may change while this optimizer steps, with their values."""
    return {**{key: x for key, x in case_of(name).options.items() if key != "lr"}, "weight_decay": (0.0, 0.1)}


class Sequence(RuleBasedStateMachine):
    """One optimizer and what happens to it, in any API. A step follows each event, unless several come `at_once`."""

    opt: Any
    weights: dict[str, Any]
    rules: list[str]  # of the groups

    def __init__(self) -> None:
        super().__init__()
        self.taken, self.at_once, self.saved, self.frozen = 0, 0, list[Any](), set[str]()
        self.threads_before = layerwise.get_num_threads()

    def teardown(self) -> None:
        layerwise.set_num_threads(self.threads_before)

    # ---- what an API does

    def rebuilt(self) -> tuple[Any, dict[str, Any]]:
        """Return an optimizer that has nothing but the numbers of this one, and its weights."""
        raise NotImplementedError

    def take(self, opt: Any, weights: dict[str, Any], grads: dict[str, Any], how: str) -> None:
        """Take a step."""
        raise NotImplementedError

    def kept(self, opt: Any, weights: dict[str, Any]) -> Any:
        """Return weights and state by name."""
        raise NotImplementedError

    def set_option(self, number: int, key: str, value: Any) -> None:
        raise NotImplementedError

    def keep_options(self) -> None:
        """Remember the options of a step that was taken."""

    def restore_options(self) -> None:
        """Go back to those that were remembered: a step has refused the present ones."""

    # ---- steps

    def both_step(self, how: str = "plain", spoil: Any = None, but: Any = ()) -> None:
        """Let both take a step on the same gradients. If it fails, both have to, and nothing may have changed."""
        self.taken += 1
        grads = arrays(self.taken, {name: w.shape for name, w in sorted(self.weights.items())})
        grads = {name: g for name, g in grads.items() if name not in {*but, *self.frozen}}
        for name in sorted(grads)[: 0 if spoil is None else 1]:
            grads[name] = spoil(grads[name])
        before, skipped, other = self.kept(self.opt, self.weights), int(self.opt.skipped), list[Any]()
        error = raised(lambda: other.extend(self.rebuilt()))
        if error is None:
            skipped -= int(other[0].skipped)
            error = raised(lambda: self.take(*other, grads, how))
        own = raised(lambda: self.take(self.opt, self.weights, grads, how))
        assert own is error or how == "raising"  # before options are looked at
        if error is not None:
            assert how == "in backward" or self.kept(self.opt, self.weights) == before
            self.restore_options()
            return
        self.keep_options()
        assert self.kept(self.opt, self.weights) == self.kept(*other)
        assert int(self.opt.skipped) - int(other[0].skipped) == skipped
        stats, found = other[0].stats(), self.opt.stats()
        assert bits({name: found.get(name) for name in stats}) == bits(stats)

    @invariant()
    def step(self) -> None:
        self.at_once -= 1
        if self.at_once < 0:
            self.both_step()

    @rule(events=st.integers(0, 2))
    def several(self, events: int) -> None:
        self.at_once = events

    @rule(but=st.sets(names, min_size=1, max_size=3).map(sorted))
    def step_without(self, but: list[str]) -> None:
        self.both_step(but=but)

    @rule()
    def step_on_nan(self) -> None:
        self.both_step(spoil=lambda g: g + np.where(np.arange(g.size).reshape(g.shape) == 0, np.nan, 0.0))

    @rule()
    def step_on_a_bad_gradient(self) -> None:
        self.both_step(spoil=lambda g: np.zeros((*g.shape, 2)))

    @rule()
    def step_in_a_thread(self) -> None:
        problems: list[BaseException] = []
        thread = Thread(target=lambda: problems.append(raised(self.both_step, BaseException, lambda x: x)))
        thread.start()
        thread.join()
        if problems[0] is not None:
            raise problems[0]

    # ---- events between steps

    @rule(n=st.integers(1, 2))
    def threads(self, n: int) -> None:
        layerwise.set_num_threads(n)

    @rule(data=st.data(), number=numbers)
    def option(self, data: Any, number: int) -> None:
        values = values_of(self.rules[number])
        key = data.draw(st.sampled_from(sorted(values)))
        self.set_option(number, key, data.draw(st.sampled_from(values[key])))

    @rule(number=numbers, option=st.sampled_from([(key, x) for key, values in STORAGE.items() for x in values]))
    def storage(self, number: int, option: tuple[str, Any]) -> None:
        self.set_option(number, *option)

    @rule(number=numbers, lr=rates)
    def rate(self, number: int, lr: float) -> None:
        self.set_option(number, "lr", lr)

    @rule(name=names)
    def freeze(self, name: str) -> None:
        self.frozen ^= {name}

    @rule()
    def save(self) -> None:
        self.saved.append(copy.deepcopy(self.opt.state_dict()))

    @rule()
    def load_own(self) -> None:
        self.load(self.opt.state_dict())

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 2))
    def load_older(self, which: int) -> None:
        self.load(copy.deepcopy(self.saved[which % len(self.saved)]))

    def load(self, state: Any) -> None:
        """Load a state that may no longer fit."""
        before = self.kept(self.opt, self.weights)
        if raised(lambda: self.opt.load_state_dict(state)):
            assert self.kept(self.opt, self.weights) == before

    @rule(how=st.sampled_from(sorted(WAYS)))
    def copied(self, how: str) -> None:
        self.opt, self.weights = WAYS[how]((self.opt, self.weights))

    @rule(name=names)
    def clear(self, name: str) -> None:
        raised(lambda: self.opt.clear_state(name))


def raised(act: Any, kinds: Any = (LayerwiseError, ValueError, ZeroDivisionError), of: Any = type) -> Any:
    """Return the type of the error that something raises, or None."""
    try:
        act()
    except kinds as problem:
        return of(problem)
    return None


def tried(machine: type[Sequence]) -> None:
    """Try sequences of events: always the same few, and in CI many."""
    many = 1000 if os.environ.get("CI") or os.environ.get("EVERY") else 60
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=many,
            stateful_step_count=20,
            derandomize=True,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            **ALIKE,
        ),
    )
