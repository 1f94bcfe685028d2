"""The bytes that a step has to move, and how fast this device copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from harness.tensors import on_cuda
from harness.timing import Timing, wall
from on_gpu.place import Place
from rows import alternately

COPIED = 1 << 28  # elements, larger than any cache
ROUNDS = 15


class Passes(NamedTuple):
    """How often a step moves each number of the parameter, of the gradient and of the state, read or written."""

    p: int
    g: int
    state: int  # of all buffers together


PASSES = {
    "Lamb": Passes(3, 1, 6),  # p, g, m, v read and m, v written; p, m, v read and p written
    "Lars": Passes(3, 2, 2),  # p, g read; p, g, b read and p, b written
    "Adafactor": Passes(3, 3, 0),  # p, g read; g read; p, g read and p written; the statistics are small
    "Lans": Passes(3, 3, 6),  # g read; p, g, m, v read and m, v written; p, g, m, v read and p written
    "StableAdamW": Passes(2, 1, 6),  # g, m, v read and m, v written; p, m, v read and p written
    "Adafactor with momentum": Passes(3, 3, 2),  # as Adafactor; e read and written
    "AdamMini": Passes(2, 2, 2),  # g read; p, g, m read and p, m written; v is a number
    "NovoGrad": Passes(2, 2, 2),  # as AdamMini
    "AdamW": Passes(2, 1, 4),  # p, g, m, v read and p, m, v written
    "Lion": Passes(2, 1, 2),  # p, g, m read and p, m written
    "SGD": Passes(2, 1, 2),  # p, g, b read and p, b written
}
# The same where state is stored only when weights are, which those must that keep rounded state before their sums.
LATE = {
    "Lamb": Passes(3, 2, 6),  # p, g, m, v read; p, g, m, v read and p, m, v written
    "StableAdamW": Passes(2, 2, 5),  # g, v read; p, g, m, v read and p, m, v written
}
OF_TORCH = {"torch.optim.AdamW": "AdamW", "torch.optim.SGD": "SGD"}


class Stored(NamedTuple):
    """The bytes of numbers in a storage format."""

    beside: float = 0  # of each weight
    state: float = 4  # of each number of the state
    late: bool = False  # rounded, and stored when weights are


GROUPED = 1 + 4 / 64  # a code, and its part of a scale
FORMATS = {"split": Stored(2), "split24 and 8 bits": Stored(1, GROUPED, late=True)}


def stored_as(label: str) -> Stored:
    """The format that a label ends with."""
    return FORMATS.get(label.partition(", ")[2], Stored())


def kind_of(label: str, optimizer: str) -> str:
    """Whose bytes are counted: the optimizer's that is compared, or those of what does less."""
    return next((kind for start, kind in OF_TORCH.items() if label.startswith(start)), optimizer)


def bytes_each(kind: str, dtype: str, stored: Stored | None = None) -> float:
    """Bytes for each parameter, whose gradient has its dtype."""
    size, stored = int(getattr(torch, dtype).itemsize), stored or Stored()
    late = LATE.get(kind, PASSES[kind])
    each = [late] if stored.late else [PASSES[kind], late]
    return min(x.p * (size + stored.beside) + x.g * size + x.state * stored.state for x in each)


@dataclass(frozen=True)
class Copy:
    """Copying within the device's memory, counted as its reads and its writes."""

    bytes: int
    timing: Timing

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.timing.median

    def seconds(self, moved: float) -> float:
        """What so many bytes would take."""
        return moved / self.rate

    def __str__(self) -> str:
        low, high = (f"{self.bytes / seconds / 1e9:,.0f}" for seconds in reversed(self.timing.quartiles))
        return f"copying {self.bytes / 2**20:g} MiB, read and written: {self.rate / 1e9:,.0f} GB/s ({low}–{high})"


def measure_copy(place: Place) -> Copy:
    n = 1 << 16 if place.interpreted else COPIED
    source = torch.randn(n, device=place.device)
    to = torch.zeros_like(source)
    clock = wall if place.interpreted else on_cuda
    found = alternately({"copy": lambda: to.copy_(source)}, ROUNDS, clock=clock)
    return Copy(2 * source.nbytes, found["copy"])
