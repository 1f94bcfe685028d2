"""A step captured in a CUDA graph: whether replaying it is the same step, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from harness.peers import DECAY, LR, Peer
from harness.shapes import Shapes
from harness.tensors import stepping
from harness.timing import Running
from on_gpu.check import Outcome, attempt, bits, exact, same
from on_gpu.options import USUAL
from on_gpu.place import OPTIMIZERS, Place, ours, parameters, set_gradients
from on_gpu.rivals import SCALED, in_two_groups, yardstick
from on_gpu.rivals import ours as eager_peer
from on_gpu.tables import Results

RATES = (0.2, 0.1, 0.05, 0.2, 0.0)
WARMUP = 3
ROUNDS = 41
TENSORS = 200
NAME = f"{TENSORS} tensors"


def many(tensors: int = TENSORS) -> Shapes:
    """Matrices and vectors in turns."""
    return {f"t{i}": (256, 256) if i % 2 == 0 else (256,) for i in range(tensors)}


def captured(step: Any) -> torch.cuda.CUDAGraph:
    """The step as a graph, after some that are not captured, as PyTorch wants it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def outcomes(place: Place) -> Iterator[Outcome]:
    for optimizer in OPTIMIZERS:
        what = f"{optimizer}: a graph replayed {len(RATES)} times with other rates, against as many eager steps"
        yield attempt(what, partial(against_eager, what, place, optimizer), required=True)


def against_eager(what: str, place: Place, optimizer: str) -> Outcome:
    shapes = list(many(10).values())
    graphed, eager = (_capturable(place, optimizer, shapes) for _ in range(2))
    graph = captured(graphed.step)  # which is not a step taken
    for _ in range(WARMUP):
        eager.step()
    for seed, rate in enumerate(RATES):
        fresh = place.draw(seed, shapes, torch.float32)
        for opt in (graphed, eager):
            opt.param_groups[0]["lr"].fill_(rate)
            for p, g in zip(opt.param_groups[0]["params"], fresh, strict=True):
                p.grad.copy_(g)  # where the graph reads it
        graph.replay()
        eager.step()
    return exact(what, same(bits(graphed), bits(eager)))


def _capturable(place: Place, optimizer: str, shapes: list[tuple[int, ...]]) -> Any:
    params = parameters(place.draw(100, shapes, torch.float32))
    set_gradients(params, place.draw(101, shapes, torch.float32))
    rate = torch.tensor(RATES[0], device=place.device)
    return ours(optimizer, params, {**USUAL[optimizer], "capturable": True, "lr": rate})


class Graphed(Peer):
    """A step of ours that is replayed."""

    def start(self, work: Any) -> Running:
        lr = torch.tensor(LR, device=work.device)
        name = self.target.partition(":")[2]
        opt = ours(name, work.params, {**self.options, "lr": lr, "weight_decay": DECAY, "capturable": True})
        return stepping(self.label, work, captured(opt.step).replay, opt.state)


def label_of(optimizer: str) -> str:
    return f"layerwise.torch.{optimizer}, a graph"


def table(results: Results, place: Place, optimizer: str) -> None:
    peers = [eager_peer(optimizer), in_two_groups(optimizer), yardstick(optimizer)]
    if not place.interpreted:
        peers.insert(1, Graphed(label_of(optimizer), f"layerwise.torch:{optimizer}", SCALED[optimizer]))
    results.show(results.measure("graph", optimizer, NAME, place.work(many()), peers, ROUNDS))
