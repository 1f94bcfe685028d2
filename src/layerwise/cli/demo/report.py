"""The report: one HTML file with everything in it, that opens without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from html import escape
from importlib.resources import files

from layerwise.cli.demo import figures
from layerwise.cli.demo.cards import Card, cards
from layerwise.cli.demo.result import Result, Row, as_json, change, shown
from layerwise.cli.demo.settings import Act
from layerwise.cli.demo.words import beware, caption, paragraphs

HEADINGS = ("optimizer", "batch", "", "change", "learning rate", "kept, B/param")
SETTINGS = ("act", "optimizer", "options", "batch", "steps", "warm-up steps", "learning rate", "which is")
WRAPPED = ("options", "which is")  # texts that may take several lines


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
    """Yield the page from top to bottom: headlines, pictures, tables, and what does not follow."""
    yield "<h1>layerwise demo: LARS, LAMB and Adafactor on real data</h1>"
    yield f"<p class=when>{escape(_when(result))}</p>"
    for warning in beware(result):
        yield f"<p class=warning>{escape(warning)}</p>"
    yield from _cards(cards(result))
    for act in result.acts:
        yield from _pictures_of(result, act)
    yield "<h2>Figures and settings</h2>"
    for act in result.acts:
        yield f"<h3>{escape(act.heading)}</h3>"
        headings = [heading or figures.WORDS[act.task.metric] for heading in HEADINGS]
        yield _table(headings, [_cells(result, row) for row in result.rows(act)], numbers=range(1, len(headings)))
    yield f"<p class=when>{escape(caption(result))}</p>"
    yield "<h3>Every setting</h3>"
    yield _table(SETTINGS, list(_settings(result)), numbers=(3, 4, 5, 6))
    yield "<h2>What this does and does not show</h2>"
    said = set(beware(result))
    yield from (f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs(result) if paragraph not in said)
    yield f"<p class=when>{escape(_versions(result))}</p>"
    yield (
        "<p class=when>All figures, curves and trust ratios are in this file as JSON, in its element "
        "<code>#figures</code>.</p>"
    )


def _cards(found: Sequence[Card]) -> Iterator[str]:
    if found:
        yield "<div class=cards>"
        for card in found:
            yield (
                f"<section class=card><p class=about>{escape(card.about)}</p><p class=figure>{escape(card.figure)}</p>"
                f"<p>{escape(card.text)}</p><p class=verdict>{escape(card.verdict)}</p></section>"
            )
        yield "</div>"


def _when(result: Result) -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    kind = "quick run, " if result.quick else ""
    first, last = result.seeds[0], result.seeds[-1]
    which = f"seed {first}" if first == last else f"seeds {first} to {last}"
    return f"{now}; {kind}{which}; {len(result.outcomes)} of {len(result.runs())} runs in {result.seconds:.0f} s"


def _versions(result: Result) -> str:
    known = as_json(result)
    return ", ".join([*(f"{name} {number}" for name, number in known["versions"].items()), known["machine"]])


def _pictures_of(result: Result, act: Act) -> Iterator[str]:
    rows = [row for row in result.rows(act) if row.outcomes]
    if rows:
        yield f"<h2>{escape(act.heading)}</h2>"
        yield _grid(list(_pictures(result, act, rows)))


def _pictures(result: Result, act: Act, rows: Sequence[Row]) -> Iterator[str]:
    name, what = f"act{act.number}", figures.WORDS[act.task.metric].partition(",")[0].capitalize()
    if act.grows:
        title = f"{what} at batch {act.task.small:,} and {act.task.large:,}"
        drawing = figures.with_kinds(figures.dots(rows, act))
        yield figures.svg(f"{name}-dots", title, drawing, 1.5 + 0.75 * len(act.contenders))
    else:
        yield figures.svg(f"{name}-memory", f"{what} against memory", figures.against_memory(rows, act), 3.3)
        yield figures.svg(f"{name}-bytes", "Memory for weights and state", figures.bytes_kept(rows, act), 2.6)
    yield figures.svg(f"{name}-curves", "Training loss, first seed", figures.curves(result, act), 3.6)
    for i, row in enumerate(rows):
        if (row.case.retuned or not act.grows) and row.outcomes[0].ratios[-1][1]:
            layers = len(row.outcomes[0].ratios[-1][1])
            title = f"Trust ratios of {row.case.name}, by layer"
            yield figures.svg(
                f"{name}-ratios{i}", title, figures.ratios(row.outcomes[0]), max(2.9, 0.9 + 0.16 * layers)
            )


def _cells(result: Result, row: Row) -> list[str]:
    case, moved, kept = row.case, change(result, row), row.bytes_per_parameter
    digits = 1 if case.task.metric == "accuracy" else 3
    return [
        case.name,
        f"{case.batch:,}",
        shown(row),
        "" if moved is None else f"{moved:+.{digits}f}",
        f"{case.lr:.3g}",
        "" if kept is None else f"{kept:.2f}",
    ]


def _settings(result: Result) -> Iterator[list[str]]:
    for act in as_json(result)["acts"]:
        for case in act["cases"]:
            options = ", ".join(f"{name}={value!r}" for name, value in case["options"].items())
            numbers = (f"{case['batch']:,}", f"{case['steps']:,}", str(case["warmup_steps"]), f"{case['lr']:.4g}")
            yield [str(act["number"]), case["optimizer"], options, *numbers, case["lr_is"]]


def _grid(pictures: Sequence[str]) -> str:
    framed = (f"<figure><figcaption>{_title(picture)}</figcaption>{picture}</figure>" for picture in pictures)
    return f"<div class=grid>{''.join(framed)}</div>"


def _title(picture: str) -> str:
    return picture.partition('aria-label="')[2].partition('"')[0]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    kinds = [
        "class=number" if i in numbers else "class=text" if heading in WRAPPED else ""
        for i, heading in enumerate(headings)
    ]
    head = "".join(f"<th {kind}>{escape(text)}</th>" for kind, text in zip(kinds, headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{escape(x)}</td>" for kind, x in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"


def _raw(result: Result) -> str:
    """Return the figures as JSON in which no text ends the element around it."""
    return json.dumps(as_json(result), ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
