"""Time a step of the PyTorch, NumPy or JAX front against what its users would take instead.

python benchmarks/fronts.py torch
python benchmarks/fronts.py numpy
python benchmarks/fronts.py jax

All implementations of an optimizer run in one process, in turns, on the same float32 numbers and with their own default
number of threads. A ratio is a median over ours: below 1 the other is faster. JAX's steps are jitted, with parameters
and state donated; how long they take to compile is timed too, and optax.adamw stands for what the memory allows. timm
is measured where it is installed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

from arrays import JAX_PEERS, NUMPY_PEERS, Jitted
from harness.peers import PEERS, Peer
from harness.shapes import SETS, parameters
from harness.tensors import of_shapes
from harness.timing import Timing
from layerwise.cli.info import version_of
from rows import RESULTS, alternately, append, figures, in_turns, parser_of, provenance, show

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
CATALOGUES = {"torch": PEERS, "numpy": NUMPY_PEERS, "jax": JAX_PEERS}
ROUNDS = {
    "torch": {"bert-base": 11, "tiny-1000": 41},
    "numpy": {"digits": 500, "bert-base": 15, "tiny-1000": 50},
    "jax": {"bert-base": 11, "square-197": 31, "tiny-1000": 31},
}


def versions() -> dict[str, str]:
    """Of the peers that other benchmarks do not have."""
    return {name: version_of(name) or "" for name in ("pytorch_optimizer", "timm", "bitsandbytes")}


def jitted(work: Any, peers: Sequence[Peer], rounds: int) -> tuple[dict[str, Timing], dict[str, float]]:
    """The times of a step, and of its compilation."""
    steps: dict[str, Any] = {peer.label: peer.start(work) for peer in peers}
    compiling = {label: compile_time(step) for label, step in steps.items()}
    return alternately({label: step.step for label, step in steps.items()}, rounds), compiling


def compile_time(step: Jitted) -> float:
    """The shorter of two."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        step.compile()
        seconds.append(time.perf_counter() - start)
    return round(min(seconds), 3)


def measure(front: str, optimizer: str, set_name: str, rounds: int) -> list[dict[str, object]]:
    shapes, peers = SETS[set_name](), CATALOGUES[front][optimizer]
    work, compiling = of_shapes(shapes), dict[str, float]()
    if front == "jax":
        found, compiling = jitted(work, peers, rounds)
    else:
        found = in_turns(optimizer, set_name, work, peers, rounds)
    common = {"optimizer": optimizer, "shapes": set_name, "tensors": len(shapes), "parameters": parameters(shapes)}
    ours = next(iter(found.values()))
    return [
        {
            **common,
            "implementation": label,
            **figures(timing, ours),
            "max_ms": round(1e3 * max(timing.rounds), 4),
            **({"compile_s": compiling[label]} if compiling else {}),
        }
        for label, timing in found.items()
    ]


def main() -> None:
    parser = parser_of(__doc__, "FRONT_front.csv")
    parser.add_argument("front", choices=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the small sets; nothing is written")
    parser.add_argument("--shapes", choices=SETS, action="append", help="only these sets; may be repeated")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, action="append", help="only these; may be repeated")
    given = parser.parse_args()
    rounds = {name: 3 if given.quick else n for name, n in ROUNDS[given.front].items()}
    origin = {**provenance(), **(versions() if given.front == "torch" else {})}
    for set_name in given.shapes or [name for name in rounds if not (given.quick and name == "bert-base")]:
        for optimizer in given.optimizer or OPTIMIZERS:
            rows = measure(given.front, optimizer, set_name, rounds.get(set_name, 11))
            columns = [name for name in ("implementation", "median_ms", "q1_ms", "q3_ms", "ratio", "compile_s")
                       if name in rows[0]]  # fmt: skip
            show(f"{optimizer}, {set_name}", rows, columns)
            if not (given.quick or given.no_write):
                append(RESULTS / f"{given.front}_front.csv", [{**row, **origin} for row in rows])
            gc.collect()  # what an optimizer held goes before the next ones come


if __name__ == "__main__":
    main()
