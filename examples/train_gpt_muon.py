"""Train a small GPT by Muon and AdamW, its parameters sharded by FSDP2, on the pages of Python's own reference.

    torchrun --standalone --nproc-per-node 2 examples/train_gpt_muon.py --save checkpoint
    torchrun --standalone --nproc-per-node 3 examples/train_gpt_muon.py --resume checkpoint --steps 300

Muon steps the matrices of the blocks, AdamW embeddings, the head and norms; queries, keys and values are three matrices
in one tensor. It runs on CPUs in a minute, in one process or several, and a checkpoint can be resumed by another number
of them. In a checkout: pip install '.[torch]'
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from layerwise.schedules import Cosine
from layerwise.torch import Mixed, param_groups, scheduler

CONTEXT, WIDTH, HEADS, LAYERS = 64, 128, 4, 3
LR, WARM_UP = 0.02, 20
EVERY = 25  # steps, after which losses are printed


# ---- the text, of which the last tenth is held out


@cache
def text() -> tuple[Tensor, Tensor, int]:
    """The characters of both parts by number, and how many different ones there are."""
    pages = "".join(page for _, page in sorted(topics.items()))
    known = {c: i for i, c in enumerate(sorted({*pages}))}
    found = torch.tensor([known[c] for c in pages])
    return found[: len(found) * 9 // 10], found[len(found) * 9 // 10 :], len(known)


def batch(part: Tensor, number: int, size: int) -> tuple[Tensor, Tensor]:
    """This process's share of a batch, which is the same for any number of processes."""
    draw = torch.Generator().manual_seed(number)
    starts = torch.randint(len(part) - CONTEXT - 1, (size,), generator=draw)[dist.get_rank() :: dist.get_world_size()]
    lines = torch.stack([part[at : at + CONTEXT + 1] for at in starts.tolist()])
    return lines[:, :-1], lines[:, 1:]


# ---- the model


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).flatten(2))
        moved: Tensor = x + self.down(gelu(self.up(self.norm2(x))))
        return moved


class GPT(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """The mean loss of every character's successor."""
        logits = self.head(self.norm(self.blocks(self.embed(tokens) + self.places.weight)))
        return cross_entropy(logits.flatten(0, 1), following.flatten())


def sharded_model() -> GPT:
    torch.manual_seed(0)
    model, mesh = GPT(text()[2]), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


# ---- training


def training(model: nn.Module, steps: int) -> tuple[Any, Any]:
    """The optimizer, of both rules, and the schedule of their rates: warm-up, and half a cosine."""
    groups = param_groups(model, rule="muon", lr=LR, weight_decay=0.01)
    opt = Mixed(groups, max_grad_norm=1.0, blocks={"*.qkv.weight": 3})
    return opt, scheduler(opt, Cosine(LR, total=steps, warmup=WARM_UP))


def train(model: nn.Module, opt: Any, schedule: Any, steps: range, size: int) -> Iterator[tuple[int, float]]:
    """Take these steps, each giving its number and the loss before it, of all processes together."""
    for step in steps:
        loss = model(*batch(text()[0], step, size))
        loss.backward()
        opt.step()
        schedule.step()
        opt.zero_grad()
        yield step + 1, overall(loss)


def overall(loss: Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


# ---- checkpoints


def save(folder: Path, model: nn.Module, opt: Any, schedule: Any) -> None:
    weights, state = get_state_dict(model, opt)
    dcp.save({"model": weights, "optim": state, "schedule": schedule.state_dict()}, checkpoint_id=folder)


def resume(folder: Path, model: nn.Module, opt: Any, schedule: Any) -> int:
    """Return how many steps have been taken."""
    weights, state = get_state_dict(model, opt)
    kept = schedule.state_dict()
    dcp.load({"model": weights, "optim": state, "schedule": kept}, checkpoint_id=folder)
    set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state)
    schedule.load_state_dict(kept)
    return int(kept["last_epoch"])


# ---- the command


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="in all, with those before a checkpoint")
    parser.add_argument("--batch", type=int, default=24, help="lines of text a step, of all processes together")
    parser.add_argument("--schedule", type=int, default=300, help="steps after which the rate has fallen")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write a checkpoint there in the end")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on from the checkpoint there")
    found = parser.parse_args(given)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if found.batch < 1 or found.batch % world:
        parser.error(f"--batch must be a multiple of the {world} processes, but is {found.batch}")
    return found


def work(given: argparse.Namespace) -> None:
    model, began = sharded_model(), time.monotonic()
    opt, schedule = training(model, given.schedule)
    start = resume(given.resume, model, opt, schedule) if given.resume else 0
    first = dist.get_rank() == 0
    for step, loss in train(model, opt, schedule, range(start, given.steps), given.batch):
        if first and (step % EVERY == 0 or step == given.steps):
            print(f"step {step:4}  loss {loss:.6f}", flush=True)
    if given.save:
        save(given.save, model, opt, schedule)
    with torch.no_grad():
        held_out = overall(model(*batch(text()[1], 0, 10 * given.batch)))
    if first:
        seconds = time.monotonic() - began
        print(f"held out: loss {held_out:.4f}; {dist.get_world_size()} processes, {seconds:.0f} s")


def main(given: Sequence[str] | None = None) -> None:
    found = arguments(given)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    try:
        work(found)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
