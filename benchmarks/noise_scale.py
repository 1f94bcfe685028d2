"""Measure what `NoiseScale` adds to the backward passes of a training step, all in turns.

The model is the transformer of backward_memory.py, in float32; a step has two micro-batches, and no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from backward_memory import Transformer
from harness.timing import Timing
from layerwise.torch import NoiseScale
from rows import RESULTS, alternately, append, parser_of, provenance, show

TABLE = "noise_scale.csv"
PASSES, WORDS = 2, 8192


def step_of(sequences: int, length: int, measured: bool) -> Callable[[], None]:
    """The passes of a step of its own model."""
    torch.manual_seed(0)
    model, text = Transformer(words=WORDS), torch.randint(WORDS, (sequences, length + 1))
    noise = NoiseScale(model) if measured else None

    def step() -> None:
        model.zero_grad()
        for _ in range(PASSES):
            (model(text) / PASSES).backward()
        if noise is not None:
            noise.update(sequences, 1 / PASSES)

    return step


def row(sequences: int, length: int, plain: Timing, measured: Timing) -> dict[str, object]:
    pairs = Timing([b - a for a, b in zip(plain.rounds, measured.rounds, strict=True)])
    low, high = pairs.quartiles
    figures = {"plain_s": plain.median, "added_s": pairs.median, "added_low_s": low, "added_high_s": high}
    return {"sequences": sequences, "length": length, "rounds": len(pairs.rounds)} | {
        key: f"{x:.5f}" for key, x in figures.items()
    }


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--sequences", type=int, default=4, help="in a micro-batch (%(default)s)")
    parser.add_argument("--length", type=int, default=128, help="words in each (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    shape = given.sequences, given.length
    steps = {name: step_of(*shape, name == "measured") for name in ("plain", "measured")}
    found = row(*shape, **alternately(steps, given.rounds))
    show("noise scale", [found])
    if not given.no_write:
        append(RESULTS / TABLE, [found | provenance()])


if __name__ == "__main__":
    main()
