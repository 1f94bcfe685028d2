"""The report: one HTML file with everything in it, that opens without a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any

from demo import figures
from demo.claims import beware, caption, caveats, story, verdict
from demo.result import Result
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
<h1>Larger batches, fewer bytes: three small trainings</h1>
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
TABLE = ("act", "optimizer", "batch", "test accuracy, or loss", "bytes a parameter", "every seed says")
TEXTS = ("act", "optimizer", "options", "which is")  # and not numbers, which stand to the right


def page(result: Result) -> str:
    known = result.as_json()
    raw = json.dumps(known, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")  # which would end its element
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return HEAD.format(style=style) + "\n".join(_parts(result, known)) + END.format(figures=raw)


def _parts(result: Result, known: dict[str, Any]) -> Iterator[str]:
    """Yield the page from top to bottom: headlines over pictures, one table, what does not follow, folded details."""
    yield from (_text("p class=warning", warning) for warning in beware(result))
    yield f"<div class=grid>{''.join(_act(result, act) for act in result.acts)}</div>"
    yield _table([TABLE, *_rows(result)], ("act", "optimizer", "every seed says"))
    yield _text("p class=when", caption(result))
    yield _text("p", caveats(result))
    yield from _folded("Training curves", (_curves(result, act) for act in result.acts))
    yield from _folded("Trust ratios by layer, first seed", _all_ratios(result))
    yield f"<details><summary>Every setting</summary>{_table([SETTINGS, *_settings(known)], TEXTS)}</details>"
    versions = [f"{name} {number}" for name, number in known["versions"].items()]
    yield _text("p class=when", f"{_when(result)}; {', '.join([*versions, known['machine']])}")


def _act(result: Result, act: Act) -> str:
    """Return an act's picture, under what it says."""
    said = {one: (headline, clear) for one, headline, clear in story(result)}
    headline, clear = said.get(act, (act.heading, ""))
    draw, height = figures.of_act(result, act)
    picture = figures.svg(f"act{act.number}", act.heading, draw, height)
    return f"<figure>{_text('h2', headline)}{picture}{_text('figcaption', f'{act.title}. {clear}')}</figure>"


def _rows(result: Result) -> Iterator[list[str]]:
    for act in result.acts:
        for batch in act.batches:
            rows = result.rows(act, batch)
            for row in rows:
                name, said = row.case.name, "" if result.quick else verdict(row, rows)
                yield [str(act.number), name, f"{batch:,}", str(row), row.bytes_shown, said]


def _folded(title: str, pictures: Iterable[str]) -> Iterator[str]:
    if shown := "".join(pictures):
        yield f"<details><summary>{title}</summary><div class=grid>{shown}</div></details>"


def _text(element: str, text: str) -> str:
    return f"<{element}>{escape(text)}</{element.partition(' ')[0]}>"


def _when(result: Result) -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    first, last = result.seeds[0], result.seeds[-1]
    which = f"seed {first}" if first == last else f"seeds {first} to {last}"
    done = f"{len(result.outcomes)} of {len(result.runs())} runs in {result.seconds:.0f} s"
    return f"{now}; {'quick run, ' * result.quick}{which}; {done}"


def _curves(result: Result, act: Act) -> str:
    return _framed(act, "curves", f"Act {act.number}, training loss, first seed", figures.curves(result, act), 3.6)


def _all_ratios(result: Result) -> Iterator[str]:
    """Yield a picture of each row that has ratios, which Muon and AdamW have not: theirs are 1."""
    for act in result.acts:
        for i, row in enumerate(row for row in result.last(act) if row.outcomes):
            seen = row.outcomes[0].ratios
            if any(x != 1 for _, ratios in seen for x in ratios.values()):
                height = max(2.9, 0.9 + 0.16 * len(seen[-1][1]))
                yield _framed(act, f"ratios{i}", f"{row.case}", figures.ratios(row.outcomes[0]), height)


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
