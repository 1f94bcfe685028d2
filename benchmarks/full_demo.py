"""Run the demo, and a longer act beside it; keep a row for each run, and read them for pictures and pages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import checkout  # noqa: F401
from demo.claims import story
from demo.pool import carry_out
from demo.result import Outcome, Result
from demo.settings import ACTS, LONGER, SEEDS, Run
from demo.terminal import line_of
from rows import RESULTS, append, provenance
from rows import read as table

TABLE = RESULTS / "demo.csv"
PLACE = ("data", "optimizer", "batch", "seed")


def rows_of(result: Result) -> Iterator[dict[str, object]]:
    """Yield a row for each run that was finished."""
    for run, o in result.outcomes.items():
        yield {
            **place_of(run),
            "lr": f"{run.case.lr:.4g}",
            "warmup": run.case.recipe.warmup_steps,
            "options": " ".join(f"{k}={v}" for k, v in run.case.options.items()).replace(", ", ","),
            "accuracy": "" if o.accuracy is None else f"{o.accuracy:.6f}",
            "loss": "" if o.loss is None else f"{o.loss:.8f}",
            "steps": o.losses[-1][0],
            "parameters": o.parameters,
            "weight_bytes": o.weight_bytes,
            "state_bytes": o.state_bytes,
            "noise_scale": "",  # which earlier runs measured
        }


def place_of(run: Run) -> dict[str, str]:
    """Return what tells a run from all others."""
    case = run.case
    return dict(zip(PLACE, (case.task.data, case.name, str(case.batch), str(run.seed)), strict=True))


def demo() -> Result:
    return Result(ACTS, range(SEEDS), 2)


def longer() -> Result:
    return Result((LONGER,), range(LONGER.task.seeds), 2)


def read(result: Result, path: Path = TABLE) -> tuple[Result, Mapping[str, str]]:
    """Fill a result with the last row of each of its runs; also return the row that says where the last was made."""
    rows = table(path)
    found = {tuple(row[key] for key in PLACE): row for row in rows}
    for run in result.runs():
        if row := found.get(tuple(place_of(run).values())):
            result.outcomes[run] = _outcome(row)
    return result, rows[-1]


def _outcome(row: Mapping[str, str]) -> Outcome:
    steps = int(row["steps"])
    return Outcome(
        accuracy=float(row["accuracy"]) if row["accuracy"] else None,
        loss=float(row["loss"]) if row["loss"] else None,
        parameters=int(row["parameters"]),
        weight_bytes=int(row["weight_bytes"]),
        state_bytes=int(row["state_bytes"]),
        losses=[(steps, float(row["loss"] or "nan"))],
    )


def markdown(result: Result) -> str:
    """Return the figures as the tables of demo/README.md, and what the demo says of them."""
    tables = []
    for act in result.acts:
        headings = [f"act {act.number}", *(f"batch {batch:,}" for batch in act.batches), "bytes a parameter"]
        each = zip(*(result.rows(act, batch) for batch in act.batches), strict=True)
        cells = [[rows[0].case.name, *map(str, rows), rows[0].bytes_shown] for rows in each]
        head, *lines = (f"| {' | '.join(row)} |" for row in [headings, *cells])
        tables.append("\n".join([head, "|---" * len(headings) + "|", *lines]))
    found = [f"- {headline}. {clear}" for _, headline, clear in story(result)]
    return "\n\n".join(filter(None, [*tables, "\n".join(found)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="runs at the same time")
    parser.add_argument("--missing", action="store_true", help="train what the table lacks alone")
    parser.add_argument("--show", action="store_true", help="only print the tables of the rows that are there")
    given = parser.parse_args()
    for result in (demo(), longer()):
        if given.show:
            print(markdown(read(result)[0]), end="\n\n")
            continue
        there = set(read(result)[0].outcomes) if given.missing else set()
        result.outcomes.clear()
        wanted = [run for run in result.runs() if run not in there]
        for run, outcome in carry_out(wanted, given.threads) if wanted else ():
            result.outcomes = {run: outcome}
            append(TABLE, [{**row, **provenance()} for row in rows_of(result)])
            print(line_of(run, outcome), flush=True)


if __name__ == "__main__":
    main()
