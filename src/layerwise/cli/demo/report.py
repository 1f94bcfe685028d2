"""The report: one HTML file with everything in it, that opens without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from html import escape
from importlib.resources import files

from layerwise.cli.demo import figures
from layerwise.cli.demo.result import Result, Row, as_json, begun
from layerwise.cli.demo.settings import Act
from layerwise.cli.demo.table import HEADINGS, texts
from layerwise.cli.demo.words import caption, paragraphs

SETTINGS = ("act", "optimizer", "options", "batch", "steps", "warm-up steps", "learning rate", "which is")


def page(result: Result) -> str:
    style = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>layerwise demo</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(_parts(result))
        + f'\n</main>\n<script type="application/json" id="figures">\n{_raw(result)}\n</script>\n</body>\n</html>\n'
    )


def _parts(result: Result) -> Iterator[str]:
    partial = " <em>partial: it was interrupted</em>" if result.partial else ""
    yield f"<h1>layerwise demo{partial}</h1>"
    yield f"<p class=when>{escape(_when(result))}</p>"
    yield "<h2>What this does and does not show</h2>"
    for paragraph in paragraphs(result):
        yield f"<p>{escape(paragraph)}</p>"
    for act in result.acts:
        yield from _act(result, act)
    rows = begun(result)
    if rows:
        yield "<h2>Step time</h2>"
        yield (
            f"<p>Of training, and of the optimizer in it; one thread each, {result.threads} runs at a time: "
            "these are hints.</p>"
        )
        yield _grid([figures.svg("times", "Step time", figures.times(rows), height=0.8 + 0.24 * len(rows))])
    yield "<h2>Every setting</h2>"
    yield _table(SETTINGS, list(_settings(result)), numbers=(3, 4, 5, 6))
    yield f"<p class=when>{escape(_versions(result))}</p>"
    yield "<p>All figures, curves and trust ratios are in this file as JSON, in its element <code>#figures</code>.</p>"


def _when(result: Result) -> str:
    now = datetime.now(timezone.utc).isoformat(sep=" ", timespec="seconds")
    kind = "quick run, " if result.quick else ""
    first, last = result.seeds[0], result.seeds[-1]
    which = f"seed {first}" if first == last else f"seeds {first} to {last}"
    return f"{now}; {kind}{which}; {len(result.outcomes)} of {len(result.runs())} runs in {result.seconds:.0f} s"


def _versions(result: Result) -> str:
    known = as_json(result)
    return ", ".join([*(f"{name} {number}" for name, number in known["versions"].items()), known["machine"]])


def _act(result: Result, act: Act) -> Iterator[str]:
    yield f"<h2>Act {act.number}. {escape(act.title)}</h2>"
    headings = [" ".join(heading.split()) or figures.WORDS[act.task.metric] for heading in HEADINGS]
    yield _table(headings, [texts(result, row) for row in result.rows(act)], numbers=range(1, len(headings)))
    yield f"<p class=when>{escape(caption(result))}</p>"
    rows = [row for row in result.rows(act) if row.outcomes]
    if rows:
        yield _grid(list(_pictures(result, act, rows)))


def _pictures(result: Result, act: Act, rows: Sequence[Row]) -> Iterator[str]:
    name = f"act{act.number}"
    if act.grows:
        for metric in sorted(figures.WORDS, key=lambda m: m != act.task.metric):
            title = f"{figures.WORDS[metric].partition(',')[0].capitalize()} against batch size"
            yield figures.svg(f"{name}-{metric}", title, figures.against_batch(result, act, metric))
    else:
        what = figures.WORDS[act.task.metric].partition(",")[0].capitalize()
        yield figures.svg(f"{name}-memory", f"{what} against memory", figures.against_memory(act, rows))
    yield figures.svg(f"{name}-curves", "Training loss, first seed", figures.curves(result, act))
    for i, row in enumerate(rows):
        if row.case.batch == act.batches[-1] and row.outcomes[0].ratios[-1][1]:
            layers = len(row.outcomes[0].ratios[-1][1])
            title = f"Trust ratio of each layer by step: {row.case}, first seed"
            yield figures.svg(
                f"{name}-ratios{i}", title, figures.ratios(row.outcomes[0]), max(2.9, 0.9 + 0.16 * layers)
            )


def _settings(result: Result) -> Iterator[list[str]]:
    for act in as_json(result)["acts"]:
        for case in act["cases"]:
            options = ", ".join(f"{name}={value!r}" for name, value in case["options"].items())
            numbers = (f"{case['batch']:,}", f"{case['steps']:,}", str(case["warmup_steps"]), f"{case['lr']:.4g}")
            yield [str(act["number"]), case["optimizer"], options, *numbers, case["lr_is"]]


def _grid(pictures: Sequence[str]) -> str:
    framed = (f"<figure>{picture}<figcaption>{_title(picture)}</figcaption></figure>" for picture in pictures)
    return f"<div class=grid>{''.join(framed)}</div>"


def _title(picture: str) -> str:
    return picture.partition('aria-label="')[2].partition('"')[0]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    kinds = ["class=number" if i in numbers else "" for i in range(len(headings))]
    head = "".join(f"<th {kind}>{escape(text)}</th>" for kind, text in zip(kinds, headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{escape(x)}</td>" for kind, x in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"


def _raw(result: Result) -> str:
    """Return the figures as JSON in which no text ends the element around it."""
    return json.dumps(as_json(result), ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
