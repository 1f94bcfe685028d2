"""The precision ladder: what weights, state and Muon's products in fewer bytes do to the loss.

Two networks of the demo, the transformer on text and the convolutional one on digits, are trained with each
way to store weights and state. A seed gives the same initial weights and batches to all of them, so losses are paired.
Everything is computed in float32, the passes as well: weights stored in bfloat16 are widened for them, and their
gradients are stored in bfloat16. So storage alone differs. The figure is the loss on data that was not trained on, with
the weights that the model shows (without what split weights hold beside them).

Small batches make many small steps, which is where weights in bfloat16 stall. On text, learning rates are those tuned
for the demo's small batch, scaled to this one by the square-root rule. Those of digits (LARS from the demo; for LAMB
and Adafactor the best of three a factor of 2 apart) are divided by 4 for LARS and by 2 for the others: at the rates
themselves, a longer calibration found no loss by rounding to nearest that stands out of the noise, and a ladder without
that shows nothing. LARS trains digits alone: on text it ended at 2.81 and 3.00 with rates of 2.5 and 10, where LAMB
ends at 2.71, and none is tuned. Muon trains text alone, with AdamW beside it, and has ways of its own, all with float32
weights.

`MARGINS` was fixed before the runs, from `--calibrate`, which has seeds of its own. Two one-sided t-tests at 5 % each
say whether a way is within the margin of float32: it is where the interval of 90 % of the mean difference lies inside.
Rounding to nearest must not be; where it is, or is not worse, its row says that it shows nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, NamedTuple

import checkout  # noqa: F401
from demo.result import Outcome
from demo.settings import DIGITS, LAMB, LARS, MUON, TEXT, WITH_MOMENTUM, Case, Contender, Run, Task
from rows import RESULTS, parser_of, provenance, read, supersede

FOUND = RESULTS / "precision.csv"
REFERENCE, CONTROL = "float32", "bf16 nearest"
LEVEL = 0.05  # of each of both tests
STATE = {"state_dtype": "int8"}
WEIGHTS = {"master_weights": "split24"}
STORAGE: dict[str, dict[str, Any]] = {  # the options of each way, and the dtype of the weights
    REFERENCE: {"dtype": "float32"},
    CONTROL: {"dtype": "bfloat16"},
    "bf16 stochastic": {"dtype": "bfloat16", "rounding": "stochastic"},
    "split24": {"dtype": "bfloat16", **WEIGHTS},
    "split": {"dtype": "bfloat16", "master_weights": "split"},
    "bf16 state": {"dtype": "float32", "state_dtype": "bfloat16"},
    "int8 state": {"dtype": "float32", **STATE},
    "split24 and int8 state": {"dtype": "bfloat16", **WEIGHTS, **STATE},
}
OF_MUON: dict[str, dict[str, Any]] = {  # and its products
    REFERENCE: {"dtype": "float32", "ns_dtype": "float32"},
    "float16 products": {"dtype": "float32", "ns_dtype": "float16"},
    "bfloat16 products": {"dtype": "float32", "ns_dtype": "bfloat16"},
}
WAYS = {MUON.name: OF_MUON}  # of others, those of STORAGE
MANY_TEXTS = replace(TEXT, epochs=0.625, share=0.625)
MANY_DIGITS = replace(DIGITS, epochs=2.5, share=1 / 12)
BATCH = {"text": 2, "digits": 8}  # 640 and 320 steps


def at(contender: Contender, lr: float) -> Contender:
    return replace(contender, small=replace(contender.small, lr=lr))


TRIED: tuple[tuple[Task, Contender], ...] = (
    (MANY_TEXTS, LAMB),
    (MANY_TEXTS, WITH_MOMENTUM),
    (MANY_TEXTS, MUON),
    (MANY_DIGITS, at(LARS, LARS.small.lr / 4)),
    (MANY_DIGITS, at(LAMB, 0.02 / 2)),
    (MANY_DIGITS, at(WITH_MOMENTUM, 0.04 / 2)),
)
Row = Mapping[str, object]
# Of the seeds 100 to 103, the smaller of two: the spread of float32 over seeds, because less than another seed does
# nobody can tell; and half of what rounding to nearest loses, because more would be much of the harm to be avoided.
MARGINS: dict[tuple[str, str], float] = {
    ("text", "LAMB"): 0.0012,  # the spread; nearest loses 0.0067
    ("text", "Adafactor+momentum"): 0.0025,  # the spread; nearest loses 0.0074
    ("text", "Muon + AdamW"): 0.0084,  # the spread; nearest was not tried
    ("digits", "LARS"): 0.0235,  # the spread; nearest loses 0.1197
    ("digits", "LAMB"): 0.0242,  # the spread; nearest loses 0.1547
    ("digits", "Adafactor+momentum"): 0.0491,  # the spread; nearest loses 0.3894
}


class Work(NamedTuple):
    """One training."""

    task: Task
    contender: Contender
    storage: str
    seed: int

    def run(self) -> Run:
        options = dict({**STORAGE, **ways_of(self.contender.name)}[self.storage])
        dtype = options.pop("dtype")
        stored = replace(self.contender, dtype=dtype, options={**self.contender.options, **options})
        return Run(Case(self.task, stored, BATCH[self.task.data]), self.seed)


def ways_of(name: str) -> Mapping[str, dict[str, Any]]:
    return WAYS.get(name, STORAGE)


def outcome(work: Work) -> Outcome:
    """Train in a worker, with one thread."""
    import torch

    import layerwise
    from demo.data import Split, load
    from demo.train import train

    torch.set_num_threads(1)
    layerwise.set_num_threads(1)
    data = load(work.task)
    if work.task.data == "digits":  # images are few, and nothing is tuned here
        data = data._replace(test=Split(*(torch.cat(parts) for parts in zip(data.tuning, data.test, strict=True))))
    return train(work.run(), data=data)


class Tested(NamedTuple):
    """Differences beside a margin: their mean, its interval of 90 %, and the larger p of both one-sided tests."""

    mean: float
    low: float
    high: float
    p: float


def tost(differences: Sequence[float], margin: float) -> Tested:
    """Test whether the mean of paired differences is inside ±margin, by Student's t."""
    from scipy.stats import t

    n, mean = len(differences), statistics.fmean(differences)
    error = math.sqrt(sum((x - mean) ** 2 for x in differences) / (n - 1) / n)
    half = t.ppf(1 - LEVEL, n - 1) * error
    nearer = margin - abs(mean)  # the test at the other side has a smaller p
    p = float(t.sf(nearer / error, n - 1)) if error else float(nearer <= 0)
    return Tested(mean, mean - half, mean + half, p)


def verdict(storage: str, tested: Tested) -> str:
    within, worse = tested.p < LEVEL, tested.low > 0
    if storage == CONTROL:
        return "worse, as it has to be" if worse and not within else "shows nothing"
    return "within" if within else "FAILS: worse" if worse else "FAILS: not shown"


def calibrate(tried: Sequence[tuple[Task, Contender]], seeds: Sequence[int], workers: int) -> None:
    """Print how far seeds, and rounding to nearest, move the loss of each."""
    for task, contender in tried:
        found = {
            storage: [o.loss or math.nan for o in map_runs([Work(task, contender, storage, s) for s in seeds], workers)]
            for storage in (REFERENCE, CONTROL)
        }
        spread = statistics.stdev(found[REFERENCE])
        moved = [b - a for a, b in zip(*found.values(), strict=True)]
        print(f"{task.data} {contender.name}: float32 {statistics.fmean(found[REFERENCE]):.4f}, spread {spread:.4f};")
        print(f"  nearest {statistics.fmean(moved):+.4f}, spread {statistics.stdev(moved):.4f}", flush=True)


def ladder(tried: Sequence[tuple[Task, Contender]], seeds: Sequence[int], workers: int) -> Iterator[list[Row]]:
    """Train every way to store with every seed, and yield the rows of one network and optimizer after the other."""
    for task, contender in tried:
        works = [Work(task, contender, storage, seed) for seed in seeds for storage in ways_of(contender.name)]
        yield [row(work, found) for work, found in zip(works, map_runs(works, workers), strict=True)]


def map_runs(works: Sequence[Work], workers: int) -> Iterator[Outcome]:
    if workers == 0:
        yield from map(outcome, works)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(outcome, works)


def row(work: Work, found: Outcome) -> Row:
    case = work.run().case
    return {
        "data": work.task.data,
        "optimizer": work.contender.name,
        "storage": work.storage,
        "seed": work.seed,
        "batch": case.batch,
        "steps": case.steps,
        "lr": f"{case.lr:.5g}",
        "bytes": f"{(found.weight_bytes + found.state_bytes) / found.parameters:.3f}",
        "loss": math.nan if found.loss is None else f"{found.loss:.6f}",
        "accuracy": math.nan if found.accuracy is None else f"{found.accuracy:.3f}",
    }


class Line(NamedTuple):
    """One way to store, of one network and optimizer."""

    data: str
    optimizer: str
    storage: str
    bytes: float
    losses: list[float]
    tested: Tested | None  # none of the reference

    def cells(self) -> list[str]:
        figure = f"{statistics.fmean(self.losses):.4f}"
        named = [self.data, self.optimizer, self.storage, f"{self.bytes:.2f}", figure]
        if self.tested is None:
            return [*named, f"spread {statistics.stdev(self.losses):.4f}", "", ""]
        difference = f"{self.tested.mean:+.4f} ({self.tested.low:+.4f} to {self.tested.high:+.4f})"
        margin = MARGINS[self.data, self.optimizer]
        return [*named, difference, f"±{margin:.4f}", verdict(self.storage, self.tested)]


HEADINGS = ("network", "optimizer", "stored as", "bytes", "loss", "difference (90 %)", "margin", "verdict")


def lines(rows: Sequence[Row]) -> list[Line]:
    """Return the table's lines, in the order of the rows; seeds that diverged leave a loss that is not a number."""
    losses: dict[tuple[str, str, str], dict[str, float]] = {}
    sizes = {}
    for found in rows:
        key = (str(found["data"]), str(found["optimizer"]), str(found["storage"]))
        losses.setdefault(key, {})[str(found["seed"])] = float(str(found["loss"]))
        sizes[key] = float(str(found["bytes"]))
    return [
        Line(*key, sizes[key], list(of.values()), _tested(key, of, losses[(*key[:2], REFERENCE)]))
        for key, of in losses.items()
    ]


def _tested(key: tuple[str, str, str], of: Mapping[str, float], reference: Mapping[str, float]) -> Tested | None:
    if key[2] == REFERENCE:
        return None
    return tost([loss - reference[seed] for seed, loss in of.items()], MARGINS[key[:2]])


def markdown(rows: Sequence[Row]) -> str:
    body = [HEADINGS, ["---"] * len(HEADINGS), *(line.cells() for line in lines(rows))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in body)


def main() -> None:
    parser = parser_of(__doc__, FOUND.name)
    parser.add_argument("--calibrate", action="store_true", help="print what the margins are made from")
    parser.add_argument("--table", action="store_true", help=f"only print the table of {FOUND.name}")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="processes; 0 is this one")
    parser.add_argument("--data", choices=BATCH, help="only this network")
    parser.add_argument("--optimizer", help="only this one")
    given = parser.parse_args()
    tried = [
        (task, contender)
        for task, contender in TRIED
        if given.data in (None, task.data) and given.optimizer in (None, contender.name)
    ]
    if given.calibrate:
        return calibrate(tried, range(100, 104), given.workers)
    if not given.table:
        measure(tried, range(given.seeds), given.workers, not given.no_write)
    return None if given.no_write else print(markdown(read(FOUND)))


def measure(tried: Sequence[tuple[Task, Contender]], seeds: Sequence[int], workers: int, written: bool) -> None:
    """Run the ladder, and write what is done as soon as it is."""
    where = provenance()
    for found in ladder(tried, seeds, workers):
        print(markdown(found), flush=True)
        if written:
            supersede(FOUND, [{**one, **where} for one in found], "data", "optimizer")


if __name__ == "__main__":
    main()
