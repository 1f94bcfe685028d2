"""The report: one HTML file with everything in it, that opens without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any

from demo import figures
from demo.claims import beware, caption, conclusions, limits
from demo.result import Result, Row
from demo.settings import Act

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>layerwise demo</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>layerwise demo: LARS, LAMB and Adafactor on real data</h1>
"""
END = """
<p class=when>All figures, curves and trust ratios are in this file as JSON, in its element <code>#figures</code>.</p>
</main>
<script type="application/json" id="figures">
{figures}
</script>
</body>
</html>
"""
SETTINGS = ("act", "optimizer", "options", "batch", "steps", "warm-up steps", "learning rate", "which is")
TEXTS = ("act", "optimizer", "options", "which is")  # and not numbers, which stand to the right


def page(result: Result) -> str:
    known = result.as_json()
    raw = json.dumps(known, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")  # which would end its element
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return HEAD.format(style=style) + "\n".join(_parts(result, known)) + END.format(figures=raw)


def _parts(result: Result, known: dict[str, Any]) -> Iterator[str]:
    """Yield the page from top to bottom: what follows, tables, pictures, settings, and what does not follow."""
    yield _text("p class=when", _when(result))
    yield from (_text("p class=warning", warning) for warning in beware(result))
    yield from (_text("p class=conclusion", text) for text in conclusions(result))
    for act in result.acts:
        yield _text("h2", act.heading)
        yield _text("p", f"{act.task.figure.capitalize()}:")
        yield _table(result.table(act))
        if rows := [row for row in result.rows(act) if row.outcomes]:
            yield f"<div class=grid>{''.join(_pictures(result, act, rows))}</div>"
    yield _text("p class=when", caption(result))
    yield "<h2>Every setting</h2>"
    yield _table([SETTINGS, *_settings(known)], TEXTS)
    yield "<h2>What this does and does not show</h2>"
    yield _text("p", limits(result))
    versions = [f"{name} {number}" for name, number in known["versions"].items()]
    yield _text("p class=when", ", ".join([*versions, known["machine"]]))


def _text(element: str, text: str) -> str:
    return f"<{element}>{escape(text)}</{element.partition(' ')[0]}>"


def _when(result: Result) -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    first, last = result.seeds[0], result.seeds[-1]
    which = f"seed {first}" if first == last else f"seeds {first} to {last}"
    done = f"{len(result.outcomes)} of {len(result.runs())} runs in {result.seconds:.0f} s"
    return f"{now}; {'quick run, ' * result.quick}{which}; {done}"


def _pictures(result: Result, act: Act, rows: Sequence[Row]) -> Iterator[str]:
    task, what = act.task, f"Test {act.task.metric}"
    if act.grows:
        drawing = figures.with_kinds(figures.dots(rows, act))
        title = f"{what} at batch {task.small:,} and {task.large:,}"
        yield _framed(act, "dots", title, drawing, 1.5 + 0.75 * len(act.contenders))
    else:
        yield _framed(act, "memory", f"{what} against memory", figures.against_memory(rows, act), 3.3)
    yield _framed(act, "curves", "Training loss, first seed", figures.curves(result, act), 3.6)
    for i, row in enumerate(rows):
        layers = len(row.outcomes[0].ratios[-1][1])
        if layers and (row.case.retuned or not act.grows):
            title = f"Trust ratios of {row.case.name}, by layer"
            yield _framed(act, f"ratios{i}", title, figures.ratios(row.outcomes[0]), max(2.9, 0.9 + 0.16 * layers))


def _framed(act: Act, name: str, title: str, draw: figures.Draw, height: float) -> str:
    picture = figures.svg(f"act{act.number}-{name}", title, draw, height)
    return f"<figure><figcaption>{title}</figcaption>{picture}</figure>"


def _settings(known: dict[str, Any]) -> Iterator[list[str]]:
    for act in known["acts"]:
        for case in act["cases"]:
            options = ", ".join(f"{name}={value!r}" for name, value in case["options"].items())
            numbers = (f"{case['batch']:,}", f"{case['steps']:,}", str(case["warmup_steps"]), f"{case['lr']:.4g}")
            yield [str(act["number"]), case["optimizer"], options, *numbers, case["lr_is"]]


def _table(rows: Sequence[Sequence[str]], texts: Sequence[str] = ("optimizer",)) -> str:
    """Return a table of headings and rows."""
    headings, *others = rows
    kinds = ["text" if heading in texts else "number" for heading in headings]

    def line(element: str, cells: Sequence[str]) -> str:
        shown = (_text(f"{element} class={kind}", cell) for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(shown)}</tr>"

    body = "\n".join(line("td", row) for row in others)
    return f"<div class=wide><table><thead>{line('th', headings)}</thead><tbody>\n{body}\n</tbody></table></div>"
