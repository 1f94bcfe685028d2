"""What the fused engine is meant to reach, and whether it did in this run. Nothing is claimed of what was not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.measure import Row
from harness.report import in_digits
from harness.timing import Timing
from on_gpu import graph
from on_gpu.place import OPTIMIZERS
from on_gpu.rivals import ADAMW, lists_compiled, rule_compiled, two_groups
from on_gpu.tables import Results
from on_gpu.traffic import bytes_each

LARGEST = "gpt-1b"
TIMES_ADAMW = 1.5  # of 40 bytes beside 28
SHARE = 0.8  # of the rate of copying
WITHOUT_KERNELS = 1.15
HOST = 300e-6
HOST_OF_GRAPH = HOST / 10  # what is about nothing beside that


@dataclass(frozen=True)
class Aim:
    text: str
    found: float | None  # None where it was not timed
    bound: float
    at_least: bool = False
    unit: str = ""
    scale: float = 1

    @property
    def met(self) -> bool | None:
        if self.found is None:
            return None
        return self.found >= self.bound if self.at_least else self.found <= self.bound

    def __str__(self) -> str:
        bound = f"{'at least' if self.at_least else 'at most'} {self.scale * self.bound:g}{self.unit}"
        if self.found is None:
            return f"not timed: {self.text}, {bound}"
        said = "met" if self.met else "NOT MET"
        return f"{said}: {self.text}: {in_digits(self.scale * self.found)}{self.unit}, {bound}"


def aims(results: Results, models: Sequence[str]) -> Iterator[Aim]:
    adamw = results.find("Lamb", LARGEST, ADAMW)
    yield Aim(f"LAMB beside {ADAMW}, on {LARGEST}, times as long", _turned(adamw), TIMES_ADAMW)
    for name in OPTIMIZERS:
        row = results.find(name, LARGEST, _ours(name))
        text = f"{name}'s share of the rate of copying, {bytes_each(name, 'float32')} bytes a parameter, on {LARGEST}"
        yield Aim(text, _of(row, lambda row, name=name: _share(results, name, row)), SHARE, at_least=True)
    for name in OPTIMIZERS:
        for label, bound in (
            (_ours(name), HOST),
            (two_groups(name), HOST),
            (graph.label_of(name), HOST_OF_GRAPH),
        ):
            row = results.find(name, graph.NAME, label)
            text = f"host time of {graph.NAME}, {label}"
            yield Aim(text, _of(row, lambda row: row.host.median), bound, unit=" µs", scale=1e6)
    for model in models:
        for name in OPTIMIZERS:
            text = f"{name} beside torch.compile of its rule, on {model}, times as long"
            yield Aim(text, _turned(results.find(name, model, rule_compiled(name))), 1.0)
            # If this is met, kernels could be left to PyTorch's compiler.
            row = results.find(name, model, lists_compiled(name))
            text = f"torch.compile of {name}'s rule on lists beside its kernels, on {model}, times as long"
            yield Aim(text, _of(row, lambda row: Timing(row.ratio.rounds).median), WITHOUT_KERNELS)


def _ours(name: str) -> str:
    return f"layerwise.torch.{name}"


def _of(row: Row | None, figure: Callable[[Row], float]) -> float | None:
    return None if row is None else figure(row)


def _turned(row: Row | None) -> float | None:
    """How many times as long as this one ours took, in the same round."""
    if row is None or not row.ratio.rounds:
        return None
    return Timing([1 / ratio for ratio in row.ratio.rounds]).median


def _share(results: Results, name: str, row: Row) -> float:
    parameters = next(table.parameters for _, table in results.tables if table.name == LARGEST)
    return results.copy.seconds(parameters * bytes_each(name, "float32")) / row.timing.median
