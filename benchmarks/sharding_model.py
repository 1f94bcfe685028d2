"""Predict what a sharded step sends on clusters that nobody here has, and print the tables of benchmarks/README.md.

The lengths of all messages follow from the model's shapes and from how they are cut; `tests/sharding/test_predicted.py`
compares them with what real steps send, on 2, 3 and 4 processes and on a simulated mesh of 1,024. Times follow from two
figures of the network, which are assumptions: pass your own.

An all-reduce among n processes is taken to cost 2·⌈log₂ n⌉ hops, down and up a tree, and to send 2·(n − 1)/n of its
bytes from each process. Bandwidth is that of one process, in both directions at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from math import ceil, log2, prod
from typing import NamedTuple

Shape = tuple[int, ...]
HEADER = 12  # numbers by which processes agree, ahead of a step's first sums
NUMBER, BFLOAT16 = 8, 2  # bytes
HOP = 10.0  # microseconds
BANDWIDTH = 50.0  # gigabytes a second from each GPU: a network card of 400 Gbit/s each
GPUS = 8, 64, 512, 4096
OPTIMIZERS = "Lamb", "Lars", "Adafactor"


class Model(NamedTuple):
    """A decoder with grouped queries and gated feed-forward layers, as the Llama models are."""

    name: str
    width: int
    layers: int
    keys: int  # and values: heads of their own times the size of a head
    inner: int
    tokens: int


# Touvron et al. 2023 (arXiv:2307.09288), Grattafiori et al. 2024 (arXiv:2407.21783, table 3), and the models' configs.
MODELS = (
    Model("7 B (Llama 2)", 4096, 32, 4096, 11008, 32000),
    Model("70 B (Llama 2)", 8192, 80, 1024, 28672, 32000),
    Model("405 B (Llama 3.1)", 16384, 126, 1024, 53248, 128256),
)


class Tensor(NamedTuple):
    """A parameter, and the dimension along which each axis of the mesh cuts it."""

    shape: Shape
    cuts: tuple[int | None, ...]
    hidden: bool = True  # a matrix between hidden layers, which Muon steps

    def local(self, dim: int, axes: Sequence[int]) -> int:
        """How many entries the first process holds along a dimension."""
        n = self.shape[dim]
        for ranks, cut in zip(axes, self.cuts, strict=True):
            n = -(-n // ranks) if cut == dim else n
        return n


def tensors(model: Model, tensor_parallel: bool = False) -> Iterator[Tensor]:
    """All parameters, by rows over the first axis; with a second one, by columns and rows in turns over that."""

    def matrix(rows: int, columns: int, cut: int, hidden: bool = True) -> Tensor:
        return Tensor((rows, columns), (0, cut) if tensor_parallel else (0,), hidden)

    def vector() -> Tensor:
        return Tensor((width,), (0, None) if tensor_parallel else (0,), False)

    width, inner, keys = model.width, model.inner, model.keys
    for _ in range(model.layers):
        yield from (matrix(rows, width, 0) for rows in (width, keys, keys))  # queries, keys, values
        yield matrix(width, width, 1)
        yield from (matrix(inner, width, 0) for _ in range(2))
        yield matrix(width, inner, 1)
        yield from (vector() for _ in range(2))
    yield from (matrix(model.tokens, width, 0, hidden=False) for _ in range(2))  # embedding and head
    yield vector()


class Request(NamedTuple):
    """A sum: over which dimensions of a tensor it runs, and along which it is kept."""

    over: Shape
    kept: Shape = ()


def requests(optimizer: str, shape: Shape) -> list[list[Request]]:
    """What a rule with its default options requests of a tensor, round by round."""
    whole = Request(tuple(range(len(shape))))
    if optimizer != "Adafactor":
        return [[whole] * 2]  # of the weights, and of the update or the gradient
    if len(shape) == 1:
        return [[whole]]
    rows, columns, of_rows = Request((1,), (0,)), Request((0,), (1,)), Request((0,))
    return [[rows, columns, whole, of_rows], [whole]]


def messages(optimizer: str, parameters: Sequence[Tensor], axes: Sequence[int]) -> list[tuple[int, int]]:
    """The messages that the first process sends in a step: over which axis, and how many numbers."""
    rounds = max(len(requests(optimizer, one.shape)) for one in parameters)
    found = []
    for number in range(rounds):
        for axis in range(len(axes)):
            length = HEADER if number == 0 else 0
            for one in parameters:
                for request in requests(optimizer, one.shape)[number : number + 1]:
                    length += sum(prod(one.local(d, axes) for d in x.kept) for x in request if one.cuts[axis] in x.over)
            if length:
                found.append((axis, length))
    return found


class Cost(NamedTuple):
    """What each process sends in a step."""

    rounds: int
    sent: float  # bytes
    latency: float  # seconds
    transfer: float

    @property
    def seconds(self) -> float:
        return self.latency + self.transfer


def cost(found: Sequence[tuple[int, int]], axes: Sequence[int], hop: float, bandwidth: float) -> Cost:
    """What these messages cost, given microseconds a hop and gigabytes a second."""
    latency = sum(2 * ceil(log2(axes[axis])) for axis, _ in found) * hop / 1e6
    sent = sum(2 * (axes[axis] - 1) / axes[axis] * NUMBER * length for axis, length in found)
    return Cost(len(found), sent, latency, sent / bandwidth / 1e9)


def of_hidden(parameters: Sequence[Tensor]) -> int:
    return sum(prod(one.shape) for one in parameters if one.hidden)


def gathered(parameters: Sequence[Tensor], n: int) -> float:
    """Bytes that each process sends where all of them gather every hidden matrix whole, in bfloat16."""
    return (n - 1) / n * BFLOAT16 * of_hidden(parameters)


def owned(parameters: Sequence[Tensor], n: int) -> float:
    """The same where each matrix is gathered by one process, which sends its update back."""
    return (n - 1) / n * 2 * BFLOAT16 * of_hidden(parameters) / n


def of_training(parameters: Sequence[Tensor], n: int) -> float:
    """The same of FSDP itself, whatever the optimizer: weights gathered twice and gradients scattered, in bfloat16."""
    return (n - 1) / n * 3 * BFLOAT16 * sum(prod(one.shape) for one in parameters)


def size(x: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB"):
        if x < 999.5:
            return f"{x:.3g} {unit}"
        x /= 1e3
    return f"{x:,.3g} GB" if x < 999.5 else f"{x:,.0f} GB"


def milliseconds(x: float) -> str:
    return f"{1e3 * x:,.3g}" if x < 0.9995 else f"{1e3 * x:,.0f}"


def row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(hop: float, bandwidth: float) -> Iterator[str]:
    """FSDP over all GPUs: a row for each model and number of GPUs."""
    yield row(["model", "GPUs", *chain(*((f"{name}: sent", "ms") for name in ("LAMB, LARS", "Adafactor"))),
               "Muon, gathered by all: sent", "ms", "by one: sent", "ms", "FSDP itself: sent"])  # fmt: skip
    yield "|---" * 11 + "|"
    for model in MODELS:
        parameters = list(tensors(model))
        for n in GPUS:
            found = [cost(messages(name, parameters, (n,)), (n,), hop, bandwidth) for name in ("Lamb", "Adafactor")]
            muon = gathered(parameters, n), owned(parameters, n)
            cells = [*chain(*((size(one.sent), milliseconds(one.seconds)) for one in found))]
            cells += chain(*((size(sent), milliseconds(sent / bandwidth / 1e9)) for sent in muon))
            yield row([model.name, f"{n:,}", *cells, size(of_training(parameters, n))])


def tensor_parallel_table(hop: float, bandwidth: float) -> Iterator[str]:
    """Tensor parallel on 8 GPUs, FSDP over the rest."""
    yield row(["model", "GPUs", *chain(*((f"{name}: all-reduces", "sent", "ms, of which latency")
               for name in ("LAMB, LARS", "Adafactor")))])  # fmt: skip
    yield "|---" * 8 + "|"
    for model in MODELS[1:]:
        parameters = list(tensors(model, tensor_parallel=True))
        for n in GPUS[1:]:
            axes, cells = (n // 8, 8), []
            for name in ("Lamb", "Adafactor"):
                one = cost(messages(name, parameters, axes), axes, hop, bandwidth)
                cells += [one.rounds, size(one.sent), f"{milliseconds(one.seconds)}, {milliseconds(one.latency)}"]
            yield row([model.name, f"{n:,}", *cells])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hop", type=float, default=HOP, help="microseconds from one node of the tree to the next")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="gigabytes a second that each GPU sends")
    given = parser.parse_args()
    both = table(given.hop, given.bandwidth), tensor_parallel_table(given.hop, given.bandwidth)
    print(*both[0], "", *both[1], sep="\n")


if __name__ == "__main__":
    main()
