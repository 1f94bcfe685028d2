"""Count what Muon's step of a 7 B model sends on 8 to 1,024 processes, and predict its time.

The library plans the step for process groups of PyTorch's backend "fake", which have one process that exists: who works
on which matrix, and when it travels, is the same on all. From that plan follow the bytes of every process.
`tests/sharding/test_predicted.py` compares them with those of real steps.

Times follow from assumptions: pass your own. Each process sends and receives at `--bandwidth` at once, each message
waits for `--hop`, and an accelerator takes `--rate` multiplications a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import layerwise.torch
import rows
from layerwise.drivers import GatherRequest
from layerwise.rules import muon
from layerwise.rules.newton_schulz import multiplications
from layerwise.rules.requests import WholeMatrices
from layerwise.torch.sharding._cuts import Cut, axis_of
from layerwise.torch.sharding._routes import Owners, Route, hops_of, waves_of
from layerwise.torch.step._plan import plan_of
from sharding_model import BANDWIDTH, HOP, MODELS, Tensor, milliseconds, row, size, tensors

TABLE = "muon_messages.csv"
RATE = 200.0  # million million multiplications a second, 40 % of what an H100's data sheet says of 16 bits
DIRECTLY = 1 << 20  # more processes than there are


class Layout(NamedTuple):
    """How the matrices of a model lie: the sizes of a mesh's dimensions, of which some replicate."""

    name: str
    axes: tuple[int, ...]
    replicas: int = 0  # how many of the first dimensions
    peers: int = 512  # among how many processes matrices are exchanged directly


LAYOUTS = (
    *(Layout("FSDP2", (n,)) for n in (8, 64)),
    Layout("FSDP2, directly", (1024,), peers=DIRECTLY),
    Layout("FSDP2, in two hops", (1024,)),
    Layout("HSDP, 16 replicas", (16, 64), 1),
    *(Layout("FSDP2 × TP on 8", (n, 8)) for n in (8, 128)),
    *(Layout("DDP", (n,), 1) for n in (8, 64)),
)


class Wave(NamedTuple):
    """What matrices that travel together take of each process, by its places along the axes."""

    there: tuple[np.ndarray, np.ndarray]  # bytes that it sends, and that it receives
    multiplied: np.ndarray
    back: tuple[np.ndarray, np.ndarray]


class Counted(NamedTuple):
    """A step on a layout."""

    messages: int  # all-to-alls
    peers: int  # processes that one exchanges matrices with
    waves: list[Wave]

    @property
    def sent(self) -> np.ndarray:
        """The bytes that each process sends."""
        found: np.ndarray = sum(wave.there[0] + wave.back[0] for wave in self.waves)
        return found


@contextmanager
def simulated(world: int) -> Iterator[None]:
    """Be the first of so many processes, none of the others of which exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def counted(parameters: Sequence[Tensor], layout: Layout, dtype: str) -> Counted:
    """Count a step on these matrices."""
    layerwise.torch.set_most_peers(layout.peers)
    with simulated(prod(layout.axes)):
        mesh = init_device_mesh("cpu", layout.axes, mesh_dim_names=tuple(f"d{i}" for i in range(len(layout.axes))))
        axes = [axis_of(mesh.get_group(i)) for i in range(len(layout.axes))]
        wholes, helds = [], []
        for one in parameters:
            cuts = (*(None for _ in range(layout.replicas)), *one.cuts)[: len(axes)]
            placements = tuple(Replicate() if d is None else Shard(d) for d in cuts)
            own = tuple((axis, d) for axis, d in zip(axes, cuts, strict=True) if d is not None)
            cut = Cut(mesh, placements, own, tuple(axes[: layout.replicas]))
            h, p = muon.Muon(ns_dtype=dtype), torch.empty(one.shape, device="meta")
            [held] = plan_of(muon, p, h, "p", lambda name: None, cut).held
            here = [len(cut.local_indices(d, n)) for d, n in enumerate(one.shape)]
            sides = held.piece.h.dims
            assert sides.whole, "its sums are added up, which is not counted here"
            terms = torch.empty(here, device="meta")
            wholes.append(GatherRequest(len(helds), WholeMatrices(terms, sides.kept, sides.summed, abs)))
            helds.append(held)
        routes = Owners(axes).routes(wholes, helds)
        waves = waves_of(routes, axes)
        found = [
            _wave([*wave.tensors.values()], torch.empty(0, dtype=getattr(torch, dtype)).itemsize) for wave in waves
        ]
        messages = sum(len(wave.there) + len(wave.back) for wave in waves)
        peers = sum(len(hop.ranks) - 1 for axis in axes for hop in hops_of(axis))
    return Counted(messages, peers, found)


def _wave(routes: Sequence[Route], itemsize: int) -> Wave:
    """Add up what travels along all axes, one after the other."""
    shape = [len(axis.ranks) for axis in routes[0].axes]
    there, back, multiplied = (np.zeros(shape), np.zeros(shape)), (np.zeros(shape), np.zeros(shape)), np.zeros(shape)
    for one in routes:
        before, owner = len(one.replicas), one.owner
        for k in range(before, len(one.axes)):
            parts = itemsize * one.sizes.sum(axis=tuple(range(k - before)))
            comes = parts.sum(axis=0) - parts[owner[k]]
            goes = parts.copy()
            goes[owner[k]] = 0
            for (out, come), of_owner in ((there, 1), (back, 0)):
                (come if of_owner else out)[owner[: k + 1]] += comes
                (out if of_owner else come)[owner[:k]] += goes
        for k in range(before):
            own = itemsize * one.sizes
            back[0][owner[: k + 1]] += np.broadcast_to((shape[k] - 1) * own, shape[k + 1 :])
            come = np.broadcast_to(own, shape[k:]).copy()
            come[owner[k]] = 0
            back[1][owner[:k]] += come
        h, whole = one.held.piece.h, one.held.piece.shape
        kept, summed = (prod(whole[d] for d in dims) for dims in (h.dims.kept, h.dims.summed))
        multiplied[owner] += multiplications(kept, summed, h.ns_coefficients)
    return Wave(there, multiplied, back)


class Times(NamedTuple):
    """Seconds of the busiest process."""

    network: float
    work: float
    overlapped: float


def predicted(found: Counted, hop: float, bandwidth: float, rate: float) -> Times:
    """Predict the time if a wave is worked on while the next is on its way and the last on its way back."""
    waits = hop / 1e6 * found.messages / (2 * len(found.waves))

    def network(ways: tuple[np.ndarray, np.ndarray]) -> float:
        return waits + float(max(x.max() for x in ways)) / bandwidth / 1e9

    there, back = [network(one.there) for one in found.waves], [network(one.back) for one in found.waves]
    work = [float(one.multiplied.max()) / rate / 1e12 for one in found.waves]
    turns = zip([*there, 0.0, 0.0], [0.0, *work, 0.0], [0.0, 0.0, *back], strict=True)
    return Times(sum(there) + sum(back), sum(work), sum(max(x + z, y) for x, y, z in turns))


def figures(layout: Layout, dtype: str) -> dict[str, Any]:
    """The row of a layout: what is counted."""
    parallel = len(layout.axes) - layout.replicas > 1
    hidden = [one for one in tensors(MODELS[0], tensor_parallel=parallel) if one.hidden]
    found = counted(hidden, layout, dtype)
    times = predicted(found, HOP, BANDWIDTH, RATE)
    load = sum(one.multiplied for one in found.waves)
    return {
        "model": MODELS[0].name,
        "layout": layout.name,
        "processes": prod(layout.axes),
        "dtype": dtype,
        "all_to_alls": found.messages,
        "peers": found.peers,
        "sent_mean": round(float(found.sent.mean())),
        "sent_most": round(float(found.sent.max())),
        "multiplied_mean": round(float(load.mean())),
        "multiplied_most": round(float(load.max())),
        "network_ms": round(1e3 * times.network, 3),
        "work_ms": round(1e3 * times.work, 3),
        "overlapped_ms": round(1e3 * times.overlapped, 3),
    }


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rows as the page has them."""
    yield row(["7 B (Llama 2), float16", "GPUs", "all-to-alls", "peers", "sent: average", "most",
               "multiplications: average", "most", "ms: network", "work", "both, overlapped"])  # fmt: skip
    yield "|---" * 11 + "|"
    for one in found:
        sent, work = ([float(one[f"{what}_{key}"]) for key in ("mean", "most")] for what in ("sent", "multiplied"))
        times = (milliseconds(float(one[f"{key}_ms"]) / 1e3) for key in ("network", "work", "overlapped"))
        counts = (f"{int(one[key]):,}" for key in ("processes", "all_to_alls", "peers"))
        yield row([one["layout"], *counts, *map(size, sent), *(f"{x:.2g}" for x in work), *times])


def main() -> None:
    parser = rows.parser_of(__doc__, TABLE)
    parser.add_argument("--hop", type=float, default=HOP, help="microseconds that a message waits")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="gigabytes a second of each process")
    parser.add_argument("--rate", type=float, default=RATE, help="million million multiplications a second")
    given = parser.parse_args()
    globals().update(HOP=given.hop, BANDWIDTH=given.bandwidth, RATE=given.rate)
    found = [figures(layout, "float16") for layout in LAYOUTS]
    print(*table(found), sep="\n")
    if not given.no_write:
        rows.supersede(rows.RESULTS / TABLE, found, "model", "layout", "processes", "dtype")


if __name__ == "__main__":
    main()
