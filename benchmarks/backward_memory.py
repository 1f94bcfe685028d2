"""Measure what a training step takes on top of the model, with and without `step_in_backward`.

The model is a small transformer in float32. What is counted are PyTorch's allocations on the CPU in the second step,
from the profiler: their largest sum at one time, beside what was there before (weights and optimizer state).
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import layerwise.torch
from layerwise.cli.bench.memory import peak_on_cpu
from rows import RESULTS, append, provenance

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
TABLE = "backward_memory.csv"
MIB = 2**20


class Transformer(nn.Module):
    """A language model whose every layer has the same size."""

    def __init__(self, width: int = 512, depth: int = 8, words: int = 8192) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(words, width)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(self.words(text[:, :-1])))
        return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def measured(optimizer: str, in_backward: bool) -> tuple[int, int]:
    """Parameters, and bytes on top in the second step."""
    torch.manual_seed(0)
    model = Transformer()
    opt = getattr(layerwise.torch, optimizer)(model.named_parameters(), lr=1e-3)
    if in_backward:
        layerwise.torch.step_in_backward(opt)
    text = torch.randint(8192, (2, 33))

    def step() -> None:
        model(text).backward()
        opt.step()
        opt.zero_grad()

    step()  # makes the state
    return sum(p.numel() for p in model.parameters()), peak_on_cpu(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-write", action="store_true", help=f"do not append to {RESULTS.name}/{TABLE}")
    given = parser.parse_args()
    table = Table("optimizer", "parameters", "all gradients, MiB", "on top, MiB", "stepping in backward, MiB")
    rows = []
    for optimizer in OPTIMIZERS:
        (n, plain), (_, freed) = measured(optimizer, False), measured(optimizer, True)
        mib = [f"{x / MIB:.0f}" for x in (4 * n, plain, freed)]
        table.add_row(optimizer, f"{n:,}", *mib)
        keys = ("gradients_mib", "on_top_mib", "in_backward_mib")
        rows.append({"optimizer": optimizer, "parameters": n, **dict(zip(keys, mib, strict=True)), **provenance()})
    Console().print(table)
    if not given.no_write:
        append(RESULTS / TABLE, rows)


if __name__ == "__main__":
    main()
