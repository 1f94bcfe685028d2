"""What the rules are compared with, as functions of the rules, so that mutants are compared with it too."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from cases import CASES, Case, case_of
from namespaces import Namespace, trajectory
from reference.paths import NUMPY, close, data

from layerwise import drivers
from layerwise.engines import Job
from layerwise.engines.rule import RuleEngine
from layerwise.numpy import _arrays
from layerwise.rules.requests import Now

WORLD = SimpleNamespace(
    rules={case.name: case.rule for case in CASES},
    cases=CASES,
    local=drivers.drive_whole,
    Run=drivers.TensorRun,
    RuleEngine=RuleEngine,
)


def matches_reference(world: Any, case: Case, options: Any, seed: int, space: Namespace = NUMPY) -> None:
    """Drawn data, against the float64 loops written from the paper."""
    settings = case.hyper(**options)
    params, grads = data(seed)
    lrs = [settings.lr * k for k in (1.0, 0.5, 2.0, 0.0)]
    rule = world.rules[settings.optimizer]
    ours = trajectory(space, rule, settings, params, grads, lrs=lrs, local=world.local, run=world.Run)
    for t, theirs in enumerate(_by_reference(case, options, seed, lrs)):
        close(ours[t], theirs, 1e-12, f"step {t + 1} {options}")


KNOWN: dict[Any, list[list[Any]]] = {}  # loops take longer than all rules and errors compared with them


def _by_reference(case: Case, options: Any, seed: int, lrs: list[float]) -> list[list[Any]]:
    """Return the parameters after each step of the loops."""
    key = case.name, seed, repr(options)
    if key not in KNOWN:
        KNOWN[key], oracle = [], case.reference(**options)
        params, grads = data(seed)
        names = [str(i) for i in range(len(params))]
        theirs = dict(zip(names, params, strict=True))
        for lr, gs in zip(lrs, grads, strict=True):
            theirs = oracle.step(theirs, dict(zip(names, gs, strict=True)), lr=lr)
            KNOWN[key].append([np.copy(x) for x in theirs.values()])
    return KNOWN[key]


def reference(world: Any) -> None:
    # Of all optimizers in turn, so that an error in one of them is found soon.
    for seed in range(40 if os.environ.get("CI") else 10):
        for case in world.cases:
            matches_reference(world, case, case.drawn(seed), seed)
    for case in world.cases:
        for option, value in case.unusual():  # which draws may have missed where it shows
            matches_reference(world, case, case.alone(option, value)[1], 0)


def of_each(oracle: str) -> Callable[[Any], None]:
    """Return an oracle that asks every optimizer's own."""

    def ask(world: Any) -> None:
        for case in world.cases:
            own = getattr(case, oracle)
            if own is not None:
                own(world)

    return ask


def slices(world: Any) -> None:
    """A tensor taken in slices takes the step it takes as a whole, and measures the same."""
    for seed in range(6 if os.environ.get("CI") else 2):
        for case in world.cases:
            settings = case.hyper(**case.drawn(seed))
            for shape, block_dims in (
                ((9, 5), ()),
                ((40,), ()),
                ((2, 13, 3), ()),
                ((3, 4, 5), (0,)),
                ((6, 2, 2), (0,)),
            ):
                whole = _whole(case.name, shape, block_dims, seed)
                for size in (1, 7, 16):
                    close(_in_slices(world, settings, shape, block_dims, seed, size), whole, 1e-11, (size, settings))


@cache
def _whole(name: str, shape: Any, block_dims: Any, seed: int) -> list[Any]:
    return _in_slices(WORLD, case_of(name).hyper(**case_of(name).drawn(seed)), shape, block_dims, seed, None)


def _in_slices(world: Any, settings: Any, shape: Any, block_dims: Any, seed: int, size: int | None) -> list[Any]:
    """Parameter, state and stats after three steps."""
    engine = world.RuleEngine(_arrays.Arrays(), size)
    rule = world.rules[settings.optimizer]
    draw = np.random.default_rng(seed)
    h, p = settings.fit(shape, block_dims, 1e-16), draw.normal(size=shape)
    shapes = rule.shapes(h, shape)
    state = type(shapes)(*(None if s is None else np.zeros(s) for s in shapes))
    prepared = engine.prepare([Job(rule, h, p, state, block_dims)])
    for t in (1, 2, 3):
        now = Now(t, settings.lr or 1.0, settings.weight_decay, beta2=settings.beta2_of(t))
        prepared.step([draw.normal(size=shape)], [now])
    [stats] = prepared.stats()
    return [p, *(s for s in state if s is not None), *(stats[key] for key in sorted(stats))]


ORACLES: dict[str, Callable[[Any], None]] = {
    "reference": reference,
    "vectors": of_each("vectors"),
    "properties": of_each("properties"),
    "limits": of_each("limits"),
    "slices": slices,
}
