"""Time a jitted step of the JAX front, and its compilation, against optax's.

Parameters and state are donated, and all implementations of an optimizer run in one process, in turns. A ratio is a
median over ours: below 1 the other is faster. optax.adam stands for what the memory allows.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import optax
from rich.console import Console

import layerwise.jax
from layerwise.cli.bench.shapes import SETS
from numpy_front import as_rows, show
from peers import random_arrays
from rows import RESULTS, alternately, append, provenance

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
ROUNDS = {"bert-base": 11, "tiny-1000": 31}
LR = 1e-3
TABLE = "jax_front.csv"


class Step:
    """A compiled step that holds its parameters and state."""

    def __init__(self, transform: Any, weights: dict[str, Any], grads: dict[str, Any]) -> None:
        # Copies, because jax may share memory with an array, and donating would then not be possible.
        params = jax.tree.map(lambda a: jax.numpy.array(a, copy=True), weights)
        self._held = (params, transform.init(params))
        self._grads = jax.tree.map(jax.numpy.asarray, grads)

        def update(params: Any, state: Any, grads: Any) -> Any:
            updates, state = transform.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        self._update = update
        self._compiled = self.compile()
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            self.compile()
            seconds.append(time.perf_counter() - start)
        self.compiling = min(seconds)

    def compile(self) -> Callable[..., Any]:
        jax.clear_caches()
        jitted = jax.jit(self._update, donate_argnums=(0, 1))
        return jitted.lower(*self._held, self._grads).compile()

    def __call__(self) -> None:
        self._held = jax.block_until_ready(self._compiled(*self._held, self._grads))


def transforms(optimizer: str) -> dict[str, Any]:
    name = optimizer.lower()
    return {
        f"layerwise.jax.{name}": getattr(layerwise.jax, name)(LR),
        f"optax.{name}": getattr(optax, name)(LR),
        "optax.adam": optax.adam(LR),
    }


def measure(optimizer: str, set_name: str, rounds: int) -> list[dict[str, object]]:
    shapes = SETS[set_name]()
    weights, grads = random_arrays(shapes, 0.02, seed=0), random_arrays(shapes, 1e-3, seed=1)
    steps = {name: Step(transform, weights, grads) for name, transform in transforms(optimizer).items()}
    rows = as_rows(optimizer, set_name, alternately(steps, rounds))
    for row, step in zip(rows, steps.values(), strict=True):
        row["compile_s"] = round(step.compiling, 3)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the small set; nothing is written")
    parser.add_argument("--shapes", choices=ROUNDS, action="append", help="only these sets; may be repeated")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="only these; may be repeated")
    parser.add_argument("--no-write", action="store_true", help=f"do not append to {RESULTS.name}/{TABLE}")
    given = parser.parse_args()
    console, origin = Console(), provenance()
    for set_name in given.shapes or (["tiny-1000"] if given.quick else ROUNDS):
        for optimizer in given.optimizer or OPTIMIZERS:
            rows = measure(optimizer, set_name, 3 if given.quick else ROUNDS[set_name])
            show(console, rows)
            console.print("compile s:", ", ".join(f"{row['implementation']} {row['compile_s']}" for row in rows))
            if not (given.quick or given.no_write):
                append(RESULTS / TABLE, [{**row, **origin} for row in rows])
            gc.collect()  # what an optimizer held goes before the next ones come


if __name__ == "__main__":
    main()
