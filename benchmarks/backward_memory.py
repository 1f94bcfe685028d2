"""Measure what a training step takes on top of the model, with and without `step_in_backward`.

The model is a small transformer in float32. What is counted are PyTorch's allocations on the CPU in the second step,
from the profiler: their largest sum at one time, beside what was there before (weights and optimizer state). Then the
same on each of several processes, over which fully_shard has cut the model layer by layer; there also the most that
gradients take at one time, as the hooks of the backward pass find them, and the collectives of a step, FSDP2's among
them. All processes find the same numbers, but for what the profiler sees of Gloo: the first one's are shown.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import layerwise.torch
from harness.memory import peak_on_cpu
from rows import RESULTS, append, parser_of, provenance, show
from sharding import Sent

OPTIMIZERS = ("Lamb", "Lars", "Adafactor")
RANKS = (1, 2, 4)
TABLE = "backward_memory.csv"
MIB = 2**20
TIMES = 6
COUNTED = ("held_mib", "held_in_backward_mib", "collectives", "collectives_in_backward")  # where ranks are several


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


def layer_by_layer(model: Transformer) -> Transformer:
    """The model, cut up over all processes; without them, as it is."""
    if dist.is_initialized():
        for module in (model.words, *model.body.layers, model.head, model):
            fully_shard(module)
    return model


def measured(optimizer: str, in_backward: bool) -> dict[str, int]:
    """Bytes on top in the second step, the most bytes of gradients in it, and the collectives that it takes."""
    torch.manual_seed(0)
    model = layer_by_layer(Transformer())
    opt = getattr(layerwise.torch, optimizer)(model.named_parameters(), lr=1e-3)
    held = watched(model) if dist.is_initialized() else [0]  # before anything is stepped
    if in_backward:
        layerwise.torch.step_in_backward(opt)
    text = torch.randint(8192, (2, 33))

    def step() -> None:
        model(text).backward()
        opt.step()
        opt.zero_grad()

    step()  # makes the state
    # Gloo's threads give back what they sent a moment later, or after the next allocation: the least of several.
    on_top = min(peak_on_cpu(step) for _ in range(TIMES if dist.is_initialized() else 1))
    with Sent() as sent:
        step()
    return {"on_top": on_top, "held": max(held), "collectives": sent.number}


def watched(model: nn.Module) -> list[int]:
    """Return a list to which the bytes of this process's gradients are added whenever one more has arrived."""
    params: list[Any] = list(model.parameters())
    found: list[int] = []

    def look(_: Any) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        held = [(g.to_local() if hasattr(g, "to_local") else g).untyped_storage() for g in grads]
        found.append(sum({one.data_ptr(): one.nbytes() for one in held}.values()))

    for p in params:
        p.register_post_accumulate_grad_hook(look)
    return found


def row_of(optimizer: str, ranks: int, plain: dict[str, int], freed: dict[str, int]) -> dict[str, Any]:
    n = sum(p.numel() for p in Transformer().parameters())

    def mib(x: float) -> str:
        return f"{x / MIB:.0f}" if ranks == 1 else f"{x / MIB:.1f}"

    row = {"optimizer": optimizer, "ranks": ranks, "parameters": n, "gradients_mib": mib(4 * n / ranks)}
    row |= {"on_top_mib": mib(plain["on_top"]), "in_backward_mib": mib(freed["on_top"])}
    counts = mib(plain["held"]), mib(freed["held"]), plain["collectives"], freed["collectives"]
    return row | (dict(zip(COUNTED, counts, strict=True)) if ranks > 1 else dict.fromkeys(COUNTED, ""))


def rows_here(ranks: int) -> list[dict[str, Any]]:
    return [row_of(one, ranks, measured(one, False), measured(one, True)) for one in OPTIMIZERS]


def on_rank(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    rows = rows_here(ranks)
    if rank == 0:
        torch.save(rows, Path(folder, "rows"))
    dist.destroy_process_group()


def rows_of(ranks: int) -> list[dict[str, Any]]:
    if ranks == 1:
        return rows_here(ranks)
    os.environ |= {"OMP_NUM_THREADS": "1", "LAYERWISE_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_rank, (ranks, folder), ranks)
        rows: list[dict[str, Any]] = torch.load(Path(folder, "rows"))
    return rows


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("--ranks", type=int, choices=RANKS, action="append", help="only so many; may be repeated")
    given = parser.parse_args()
    rows = [row for ranks in given.ranks or RANKS for row in rows_of(ranks)]
    show("memory of a step in the backward pass", rows)
    if not given.no_write:
        append(RESULTS / TABLE, [{**row, **provenance()} for row in rows])


if __name__ == "__main__":
    main()
