"""Run the demo in full and keep its figures, a row for each run; read them again for pictures and pages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import checkout  # noqa: F401
from demo.claims import conclusions
from demo.result import Noise, Outcome, Result
from demo.run import new_result, train
from demo.settings import Run
from demo.terminal import Watch, new_console
from rows import RESULTS, append, provenance
from rows import read as table

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
    rows = table(path)
    last = rows[-1]
    result = new_result()
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
    """Return the figures as the tables of demo/README.md, and what the demo's report concludes from them."""
    tables = []
    for act in result.acts:
        (_, *headings), *cells = result.table(act)
        head, *rows = (f"| {' | '.join(row)} |" for row in [[f"act {act.number}", *headings], *cells])
        tables.append("\n".join([head, "|---" * len(cells[0]) + "|", *rows]))
    found = [f"- {text}" for text in conclusions(result) if text.startswith("Act ")]
    return "\n\n".join([*tables, "\n".join(found)])


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
    where, result = provenance(), new_result(threads=given.threads)
    train(result, Watch(new_console(), result))
    if not given.no_write:
        append(TABLE, [{**row, **where} for row in rows_of(result)])
    if given.report is not None:
        from demo.page import page

        given.report.write_text(page(result), "utf-8")


if __name__ == "__main__":
    main()
