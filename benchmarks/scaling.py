"""Whether a learning rate that was tuned once serves other batches and other widths: AdamW, LAMB, AdamH, Lion, Muon.

The model is the demo's transformer on text. Each optimizer is tuned at the smallest batch and the smallest width by the
search of tune_demo.py: 36 runs each, over learning rate, warm-up, betas (of Muon, momentum), and weight decay (for
AdamH, which has none, the learning rate of embeddings, norms and biases beside it), with seeds that the maps do not
use. Then the learning rate alone moves, by factors of 2 around the tuned one. Everything else stays, the warm-up as a
share of the run.

- `batch`: 8 to 128 sequences at width 64, 8,192 sequences in all, as in the demo.
- `width`: 64 to 512 at a batch of 4, 1,024 sequences in all; tuned at width 64 for that length. Without Lion and Muon.

AdamH is LAMB with `keep_norm` for linear layers, and AdamW without decay for the rest. Muon is in Moonlight's scale,
for linear layers but the head, and AdamW at the same rate for the rest. The figure is the loss on data that was not
trained on. Runs that the table has are not repeated, so an interrupted map goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, NamedTuple

import checkout  # noqa: F401
from demo.settings import ADAMW, LAMB, MUON, TEXT, Act, Case, Contender, Run, Tuned
from rows import RESULTS, append, provenance, read, supersede
from tune_demo import OPTIONS, WARMUPS, Search, outcome, tune

FOUND = RESULTS / "scaling.csv"
COLUMNS = ("map", "optimizer", "width", "batch", "lr", "warmup", "options", "seed", "loss")
SEEDS = (0, 1, 2)
SHORT = replace(TEXT, examples=1024, epochs=1, small=4)
TASKS = {"batch": TEXT, "width": SHORT}
PLACES = {"batch": (8, 32, 128), "width": (64, 128, 256, 512)}
FACTORS = {"batch": [2.0**k for k in range(-3, 3)], "width": [2.0**k for k in range(-4, 2)]}

LINEAR = {"rule": "lamb", "others": "adamw"}  # linear layers, and embeddings, norms and biases
ADAMH = Contender("AdamH", "scaling.adamh", "Lamb", Tuned(0.02, 100), groups=LINEAR)
LION = Contender("Lion", "layerwise.torch.Lion", "Lamb", Tuned(0.002, 100))
CONTENDERS = (ADAMW, LAMB, ADAMH, LION, replace(MUON, name="Muon"))
OF_MAP = {"batch": CONTENDERS, "width": CONTENDERS[:3]}
OPTIONS["Lion"] = {"betas": ((0.9, 0.99), (0.95, 0.98), (0.9, 0.999)), "weight_decay": (0.1, 0.0, 1.0)}
OPTIONS["Muon"] = OPTIONS[MUON.name]
OPTIONS["AdamH"] = {"betas": OPTIONS["LAMB"]["betas"], "others_lr": (0.25, 0.0625, 1.0)}
WARMUPS["text", SHORT.small] = (3, 12, 25, 50)
TUNED: Mapping[tuple[str, str], Tuned] = {  # at the smallest batch and width; those of batches are the demo's
    ("batch", "AdamW"): ADAMW.small,
    ("batch", "LAMB"): LAMB.small,
    ("batch", "AdamH"): Tuned(0.04, 50, {"betas": (0.9, 0.999), "others_lr": 1.0}),
    ("batch", "Lion"): Tuned(0.001, 50, {"betas": (0.9, 0.999), "weight_decay": 0.1}),
    ("width", "AdamW"): Tuned(0.002, 50, {"betas": (0.9, 0.999), "weight_decay": 0.0}),
    ("width", "LAMB"): Tuned(0.02, 3, {"betas": (0.9, 0.95), "weight_decay": 0.01}),
    ("width", "AdamH"): Tuned(0.04, 3, {"betas": (0.9, 0.999), "others_lr": 1.0}),
    ("batch", "Muon"): MUON.small,
}
MIDDLES = {  # of the learning rates that are searched
    ("width", "AdamW"): 0.002,
    ("width", "LAMB"): 0.02,
    ("width", "AdamH"): 0.02,
    ("batch", "AdamH"): 0.02,
    ("batch", "Lion"): 0.002,
    ("batch", "Muon"): 0.016,
}


def adamh(groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], others_lr: float) -> Any:
    """Return the optimizer of linear layers by LAMB that keeps norms, and of the rest by AdamW with lr·others_lr."""
    from layerwise.torch import Mixed

    for group in groups:
        linear = group["rule"] == "Lamb"
        own = {"keep_norm": True, "eps": 1e-8} if linear else {"weight_decay": 0.0}
        group.update(own, lr=lr if linear else lr * others_lr, betas=betas)
    return Mixed(groups)


class Point(NamedTuple):
    """One training of a map."""

    map: str
    contender: Contender
    width: int
    batch: int
    tuned: Tuned
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that say which training it is."""
        options = " ".join(f"{k}={v}" for k, v in self.tuned.options.items()).replace(", ", ",")
        place = (self.map, self.contender.name, str(self.width), str(self.batch))
        return (*place, f"{self.tuned.lr:.4g}", str(self.tuned.warmup), options, str(self.seed))

    def run(self) -> Run:
        task = replace(TASKS[self.map], width=self.width)
        contender = replace(self.contender, small=self.tuned, large=self.tuned)
        return Run(Case(task, contender, self.batch, retuned=True), self.seed)


def points(name: str, contenders: Sequence[Contender]) -> Iterator[Point]:
    """Yield the trainings of a map, seed by seed, the cheap ones first."""
    task = TASKS[name]
    places = [(task.width, x) if name == "batch" else (x, task.small) for x in PLACES[name]]
    for seed in SEEDS:
        for width, batch in places:
            for contender in contenders:
                found = TUNED[name, contender.name]
                warmup = max(1, round(found.warmup * task.small / batch))
                for lr in (found.lr * factor for factor in FACTORS[name]):
                    yield Point(name, contender, width, batch, replace(found, lr=lr, warmup=warmup), seed)


def loss(point: Point) -> float:
    found = outcome(point.run()).loss
    return math.inf if found is None else found


def tune_all(name: str, contenders: Sequence[Contender], workers: ProcessPoolExecutor) -> None:
    """Print what the search finds for each; the winners belong into `TUNED`."""
    task = TASKS[name]
    for contender in (c for c in contenders if (name, c.name) in MIDDLES):
        middle = replace(contender, small=replace(contender.small, lr=MIDDLES[name, contender.name]))
        search = Search(Act(0, name, task, (middle,)), middle, task.small)
        tune(search, workers)
        rows = [{**row, "map": f"{name}, tuning", "width": task.width} for row in search.rows()]
        supersede(FOUND, [{**{c: row[c] for c in COLUMNS}, **provenance()} for row in rows], "map", "optimizer")


def fill(name: str, contenders: Sequence[Contender], workers: ProcessPoolExecutor) -> None:
    """Train what the table lacks of a map."""
    there = {tuple(row[c] for c in COLUMNS[:-1]) for row in read(FOUND)}
    wanted = [point for point in points(name, contenders) if point.key not in there]
    for point, found in zip(wanted, workers.map(loss, wanted), strict=True):
        row = dict(zip(COLUMNS, (*point.key, f"{found:.4f}"), strict=True))
        append(FOUND, [{**row, **provenance()}])
        print(*point.key, f"{found:.4f}", flush=True)


def losses(name: str) -> dict[str, dict[int, dict[float, float]]]:
    """Return the mean loss over seeds of a map, by optimizer, batch or width, and learning rate."""
    found: dict[str, dict[int, dict[float, list[float]]]] = {c.name: {} for c in OF_MAP[name]}
    for row in read(FOUND, map=name):
        by_lr = found[row["optimizer"]].setdefault(int(row[name]), {})
        by_lr.setdefault(float(row["lr"]), []).append(float(row["loss"]))
    return {
        optimizer: {
            place: {lr: statistics.fmean(each) for lr, each in sorted(by_lr.items())}
            for place, by_lr in sorted(places.items())
        }
        for optimizer, places in found.items()
    }


def markdown(name: str) -> str:
    """Return the best learning rate of each batch or width, its loss, and in brackets what the tuned one loses."""
    found = losses(name)
    lines = [["", *(f"{name} {place}" for place in next(iter(found.values())))], ["---"] * (1 + len(found["LAMB"]))]
    for optimizer, places in found.items():
        kept = float(f"{TUNED[name, optimizer].lr:.4g}")
        lines.append([optimizer])
        for by_lr in places.values():
            best = min(by_lr, key=lambda lr: by_lr[lr])
            lines[-1].append(f"{best:g}: {by_lr[best]:.2f} (+{by_lr[kept] - by_lr[best]:.2f})")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", choices=TASKS, action="append", help="only this; may be repeated")
    parser.add_argument("--optimizer", choices=[c.name for c in CONTENDERS], action="append", help="likewise")
    parser.add_argument("--tune", action="store_true", help="search the settings instead")
    parser.add_argument("--table", action="store_true", help="print the tables of README.md instead")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.table:
        print("\n\n".join(map(markdown, given.map or TASKS)))
        return
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as workers:
        for name in given.map or TASKS:
            contenders = [c for c in OF_MAP[name] if c.name in (given.optimizer or [c.name])]
            (tune_all if given.tune else fill)(name, contenders, workers)


if __name__ == "__main__":
    main()
