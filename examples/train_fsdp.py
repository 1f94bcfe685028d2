"""Train a small character transformer whose parameters are sharded by FSDP2, on sums in words.

    torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py
    torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py --optimizer lars --save checkpoint
    torchrun --standalone --nproc-per-node 4 examples/train_fsdp.py --optimizer lars --resume checkpoint --steps 700

It runs on CPUs, in one process or several, from `torchrun` or from `python`. A batch is the same whatever the number
of processes, each taking its part of it, and so are the steps: norms are those of whole tensors. A checkpoint can be
resumed by another number of processes. In a checkout: pip install '.[torch,demo]'
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from layerwise.torch import Adafactor, Lamb, Lars, param_groups

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lamb": (Lamb, {"lr": 0.02, "weight_decay": 0.01}),
    "lars": (Lars, {"lr": 5.0, "weight_decay": 1e-4}),
    "adafactor": (Adafactor, {"lr": 0.02, "beta1": 0.9, "weight_decay": 0.01}),
}
COUNTED = """
zero one two three four five six seven eight nine ten
eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
"""
WORDS = COUNTED.split()
DIGITS = range(10)
CHARACTERS = "\n abcdefghijklmnopqrstuvwxyz"
CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
WARM_UP, FALL = 30, 100  # steps after which the rate is full, and begins to fall
ASKED = 7, 5
PATIENCE = 2.0  # seconds


# ---- the text


def question(a: int, b: int) -> str:
    return f"{WORDS[a]} plus {WORDS[b]} is "


def text(draw: torch.Generator, length: int) -> str:
    """Sums in words, one a line."""
    lines = "\n"
    while len(lines) <= length:
        a, b = torch.randint(len(DIGITS), (2,), generator=draw).tolist()
        lines += f"{question(a, b)}{WORDS[a + b]}\n"
    return lines[: length + 1]


def batch(number: int, size: int) -> Tensor:
    """The batch of this number, the same on every process."""
    draw = torch.Generator().manual_seed(number)
    return torch.tensor([encoded(text(draw, CONTEXT)) for _ in range(size)])


def encoded(line: str) -> list[int]:
    return [CHARACTERS.index(c) for c in line]


# ---- the model


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heads = scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        moved: Tensor = x + self.mlp(self.norm2(x))
        return moved


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(len(CHARACTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of every character's successor, one a row."""
        x = self.embed(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)).flatten(0, 1))
        return logits


def sharded_model() -> Transformer:
    """Each block by itself, so that only one is whole at a time."""
    torch.manual_seed(0)
    model, mesh = Transformer(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def make_optimizer(name: str, model: nn.Module) -> Any:
    cls, options = OPTIMIZERS[name]
    # Queries, keys and values are three layers in one tensor; each has norms of its own.
    return cls(param_groups(model), blocks={"*.qkv.*": 3}, **options)


# ---- training


def mean_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Of this process's part of the batch."""
    part = tokens[dist.get_rank() :: dist.get_world_size()]
    return cross_entropy(model(part[:, :-1]), part[:, 1:].flatten())


def rate(step: int) -> float:
    """It rises, and falls by the root of the steps: however many there will be, the first ones are the same."""
    return min(step / WARM_UP, 1.0, math.sqrt(FALL / step))


def train(model: nn.Module, opt: Any, steps: range, size: int) -> Iterator[float]:
    """Take these steps, each giving the loss before it, of all processes together."""
    for step in steps:
        for group in opt.param_groups:
            group["lr"] = opt.defaults["lr"] * rate(step + 1)
        loss = mean_loss(model, batch(step, size))
        loss.backward()
        opt.step()
        opt.zero_grad()
        yield overall(loss)


def overall(loss: Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


@torch.no_grad()
def answers(model: nn.Module) -> dict[tuple[int, int], str]:
    """What it makes of every sum. All processes take part, as each has a part of the model."""
    asked = [(a, b) for a in DIGITS for b in DIGITS]
    lines = [f"\n{question(a, b)}" for a, b in asked]
    for _ in range(max(map(len, WORDS)) + 1):
        tokens = torch.tensor([encoded(line.ljust(CONTEXT)) for line in lines])
        following = model(tokens).argmax(-1).view(tokens.shape).tolist()
        lines = [line + CHARACTERS[row[len(line) - 1]] for line, row in zip(lines, following, strict=True)]
    return {one: line.splitlines()[1] for one, line in zip(asked, lines, strict=True)}


# ---- checkpoints


def save(folder: Path, model: nn.Module, opt: Any, name: str, step: int) -> None:
    weights, state = get_state_dict(model, opt)
    dcp.save({"model": weights, "optim": state, "run": {"optimizer": name, "step": step}}, checkpoint_id=folder)


def resume(folder: Path, model: nn.Module, opt: Any) -> None:
    weights, state = get_state_dict(model, opt)
    dcp.load({"model": weights, "optim": state}, checkpoint_id=folder)
    set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state)


def run_of(folder: Path) -> dict[str, Any]:
    """Which optimizer wrote the checkpoint, after how many steps."""
    found = {"run": {"optimizer": "", "step": 0}}
    dcp.load(found, checkpoint_id=folder)
    return found["run"]


# ---- the command


class Parser(argparse.ArgumentParser):
    """Says what is wrong once, and not once a process."""

    def error(self, message: str) -> NoReturn:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(PATIENCE)  # torchrun ends all processes with the first that ends, which is to have said it
            sys.exit(2)
        super().error(message)


def arguments(parser: Parser, given: Sequence[str] | None) -> argparse.Namespace:
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="lamb")
    parser.add_argument("--steps", type=int, default=500, help="in all, with those before a checkpoint")
    parser.add_argument("--batch", type=int, default=32, help="lines of text a step, of all processes together")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write a checkpoint there in the end")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on from the checkpoint there")
    found = parser.parse_args(given)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if found.steps < 1:
        parser.error(f"--steps must be at least 1, but is {found.steps}")
    if found.batch < 1 or found.batch % world:
        parser.error(f"--batch must be a multiple of the {world} processes, but is {found.batch}")
    if found.resume and not (found.resume / ".metadata").is_file():
        parser.error(f"--resume: there is no checkpoint in {found.resume}")
    if found.save and found.save.exists() and not found.save.is_dir():
        parser.error(f"--save: {found.save} is not a folder")
    return found


def join() -> None:
    """The processes that torchrun has started, or this one alone."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def show(console: Console, losses: Iterator[float], steps: range) -> None:
    """A bar in a terminal, else a line now and then; on the first process alone."""
    first, every = dist.get_rank() == 0, max(1, steps.stop // 10)
    bar = BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"), TimeElapsedColumn()
    with Progress(*bar, console=console, disable=not (first and console.is_terminal)) as progress:
        task = progress.add_task("", total=steps.stop, completed=steps.start, loss="")
        for step, loss in zip(steps, losses, strict=True):
            progress.update(task, advance=1, loss=f"loss {loss:.3f}")
            if first and not console.is_terminal and ((step + 1) % every == 0 or step + 1 == steps.stop):
                print(f"step {step + 1:4}  loss {loss:.6f}", flush=True)


def work(parser: Parser, given: argparse.Namespace) -> None:
    model = sharded_model()
    opt, start = make_optimizer(given.optimizer, model), 0
    if given.resume:
        run = run_of(given.resume)
        if run["optimizer"] != given.optimizer:
            parser.error(f"--optimizer: the checkpoint in {given.resume} is of {run['optimizer']}")
        if (start := run["step"]) >= given.steps:
            parser.error(f"--steps must be more than the {start} of the checkpoint in {given.resume}")
        resume(given.resume, model, opt)
    began, steps = time.monotonic(), range(start, given.steps)
    show(Console(), train(model, opt, steps, given.batch), steps)
    if given.save:
        save(given.save, model, opt, given.optimizer, given.steps)
    said, seconds = answers(model), time.monotonic() - began
    if dist.get_rank() == 0:
        print(f"{given.optimizer}, {dist.get_world_size()} processes, {len(steps)} steps in {seconds:.0f} s")
        report(said, given)


def report(said: Mapping[tuple[int, int], str], given: argparse.Namespace) -> None:
    right = sum(line == question(a, b) + WORDS[a + b] for (a, b), line in said.items())
    if given.save:
        print(f"saved; any number of processes can go on: --resume {given.save} --steps {2 * given.steps}")
    print(f"it says: {said[ASKED]}; {right} of {len(said)} sums are right")


def main(given: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found = arguments(parser, given)
    join()
    try:
        work(parser, found)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
