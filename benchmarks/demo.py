"""Run `layerwise demo` in full and keep its figures, a row for each run; read them again for pictures and pages."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from layerwise.cli.demo.lines import Lines
from layerwise.cli.demo.outcome import Noise, Outcome
from layerwise.cli.demo.result import Result, shown
from layerwise.cli.demo.run import check_packages, new_result, train
from layerwise.cli.demo.settings import Act, Case, Run
from rows import RESULTS, append, provenance

TABLE = RESULTS / "demo.csv"


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
            "noise_scale": "" if o.noise is None else f"{o.noise.scale:.3f}",
        }


def place_of(run: Run) -> dict[str, str]:
    """Return what tells a run from all others."""
    case = run.case
    return {"data": case.task.data, "optimizer": case.name, "batch": str(case.batch), "seed": str(run.seed)}


def read(path: Path = TABLE) -> tuple[Result, Mapping[str, str]]:
    """Return the last run of the demo, and the row that says where it was made."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    last = rows[-1]
    result = new_result((), False, 0, 1)
    key = tuple(place_of(result.runs()[0]))
    found = {tuple(row[k] for k in key): row for row in rows if row["date"] == last["date"]}
    for run in result.runs():
        result.outcomes[run] = _outcome(found[tuple(place_of(run).values())])
    return result, last


def _outcome(row: Mapping[str, str]) -> Outcome:
    steps = int(row["steps"])
    return Outcome(
        accuracy=float(row["accuracy"]) if row["accuracy"] else None,
        loss=float(row["loss"]) if row["loss"] else None,
        parameters=int(row["parameters"]),
        weight_bytes=int(row["weight_bytes"]),
        state_bytes=int(row["state_bytes"]),
        losses=[(steps, float(row["loss"] or "nan"))],
        noise=Noise(float(row["noise_scale"]), 2, steps) if row["noise_scale"] else None,
    )


def markdown(result: Result) -> str:
    """Return the figures as the tables of docs/demo.md."""
    return "\n\n".join("\n".join(_table(result, act)) for act in result.acts)


def _table(result: Result, act: Act) -> Iterator[str]:
    batches = [f"batch {act.task.small:,}"]
    if act.grows:
        batches += [f"batch {act.task.large:,}, scaled", f"batch {act.task.large:,}, re-tuned"]
    yield f"| act {act.number} | {' | '.join(batches)} | bytes a parameter |"
    yield "|---" * (len(batches) + 2) + "|"
    for contender in act.contenders:
        rows = [result.row(Case(act.task, contender, act.task.small))]
        if act.grows:
            rows += [result.row(Case(act.task, contender, act.task.large, retuned=again)) for again in (False, True)]
        yield f"| {contender.name} | {' | '.join(map(shown, rows))} | {rows[0].bytes_per_parameter or 0.0:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="runs at the same time")
    parser.add_argument("--report", type=Path, help="also write the report to this file")
    parser.add_argument("--no-write", action="store_true", help=f"do not append to {RESULTS.name}/{TABLE.name}")
    parser.add_argument("--show", action="store_true", help="only print the tables of the rows that are there")
    given = parser.parse_args()
    if given.show:
        print(markdown(read()[0]))
        return
    check_packages()
    where, result = provenance(), new_result((), False, 0, given.threads)
    train(result, Lines(result))
    if not given.no_write:
        append(TABLE, [{**row, **where} for row in rows_of(result)])
    if given.report is not None:
        from layerwise.cli.demo.report import page

        given.report.write_text(page(result), "utf-8")


if __name__ == "__main__":
    main()
