"""The report and the live screen, of results made by hand."""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from html.parser import HTMLParser
from threading import Thread

import pytest
from cli.demo_results import USUAL, outcome, result
from rich.console import Console

from layerwise.cli.demo.events import Finished, Moved, Started
from layerwise.cli.demo.outcome import Progress
from layerwise.cli.demo.report import page
from layerwise.cli.demo.result import Result, shown
from layerwise.cli.demo.screen import Screen, axis, bar, decades, line_of, log_mark
from layerwise.cli.demo.settings import ACTS

EMPTY = ("meta", "path", "use", "rect", "image", "br", "img", "link")


class Page(HTMLParser):
    """Elements, ids, text by element, and what the page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.fetched, self.used, self.text = [], Counter(), [], set(), {}
        self.tags = Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        if tag not in EMPTY:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids[value] += 1
            elif name in ("src", "href", "xlink:href", "data", "poster"):
                (self.used.add(value[1:]) if value.startswith("#") else self.fetched.append(value))
            self.used |= set(re.findall(r"url\(#([^)]*)\)", value or ""))

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data


@pytest.fixture(scope="module")
def usual():
    return page(result())


@pytest.fixture(scope="module")
def broken():
    """Some of it diverged, some was not finished."""
    changed = {("AdamW", 128): [3.0, math.inf, 3.1], ("LAMB 24+8", 8): [math.inf] * 2, ("LAMB", 128): None}
    return page(result({("SGD", 1024): [math.inf] * 3, **changed}))


class TestReport:
    def test_it_is_whole_and_alone_and_every_colour_comes_from_the_page(self, usual):
        seen = Page(usual)
        assert seen.open == []
        assert max(seen.ids.values()) == 1
        assert seen.used <= set(seen.ids)
        assert [ref[:22] for ref in seen.fetched] == ["data:image/png;base64,"] * len(seen.fetched)
        assert not re.search(r"@import|url\((?!#)", seen.text["style"])
        assert not re.search(r"#(0[1-9])\1\1", usual)
        assert set(re.findall(r"var\((--\w+)\)", usual)) <= set(re.findall(r"(--\w+):", usual))
        assert "prefers-color-scheme: dark" in usual

    def test_headlines_then_pictures_then_tables_then_caveats(self, usual):
        parts = ("class=cards", "<svg", "<table", "What this does not show.", "<script")
        places = [usual.index(part) for part in parts]
        assert places == sorted(places)
        assert "Step time" not in usual
        labels = re.findall(r'aria-label="([^"]*)"', usual)
        for part in (
            "Test accuracy at batch 32 and 1,024",
            "Test loss at batch 8 and 128",
            "Test loss against memory",
            "Memory for weights and state",
            "Training loss",
        ):
            assert any(label.startswith(part) for label in labels), part
        ratios = [label for label in labels if label.startswith("Trust ratios of ")]
        assert len(ratios) == 5  # LARS and LAMB re-tuned, and all of ours in act 3
        assert Page(usual).tags["svg"] == len(labels)

    def test_what_diverged_says_so_in_its_plot_and_what_is_missing_that_the_run_was_interrupted(self, broken):
        first, second, memory = (
            re.search(rf'aria-label="{title}.*?</svg>', broken, re.DOTALL).group()
            for title in ("Test accuracy at", "Test loss at", "Test loss against memory")
        )
        assert "✕ diverged" in first
        assert "✕ 1 of 3 diverged" in second
        assert "✕ diverged: LAMB 24+8" in memory
        curves = re.findall(r'aria-label="Training loss.*?</svg>', broken, re.DOTALL)
        assert ["diverged" in curve for curve in curves] == [True, False, True]
        assert "This run was interrupted" in broken
        assert json.loads(Page(broken).text["script"])["partial"] is True

    def test_no_better_than_guessing(self):
        pages = [page(result({("SGD", 1024): [x, x, x]}, acts=(1,))) for x in (9, 30)]
        assert [one.count("no better than guessing") for one in pages] == [1, 0]

    def test_every_figure_and_every_setting_is_in_it(self, usual):
        seen = json.loads(Page(usual).text["script"])
        assert set(seen["versions"]) >= {"python", "torch", "layerwise", "numpy", "scikit-learn", "matplotlib"}
        assert not seen["partial"]
        found = {}
        for act in seen["acts"]:
            for case in act["cases"]:
                found[case["name"], case["batch"]] = [run[act["metric"]] for run in case["runs"]]
                assert case["lr"] > 0
                assert case["steps"] * case["batch"] == act["task"]["epochs"] * act["task"]["examples"]
        assert found == USUAL
        settings = ("layerwise.torch.Lamb", "weight_decay=0.01", "0.02, tuned at batch 8, times √16", "scale_parameter")
        assert all(words in usual for words in settings)
        cell = re.search(r"<td ([^>]*)>[^<]*master_weights=[^<]*</td>", usual).group(1)
        assert cell == "class=text"  # and wraps
        assert re.search(r"\.text {[^}]*white-space: normal", usual)

    def test_a_quick_run_draws_no_conclusion(self):
        seen = page(result(is_quick=True, acts=(2,)))
        assert "no conclusion is drawn from it" in seen
        assert "class=card" not in seen
        assert "did better" not in seen

    def test_nothing_at_all_is_a_page_without_pictures(self):
        seen = Page(page(Result(ACTS, range(3), 2, partial=True)))
        assert (seen.open, seen.tags["svg"]) == ([], 0)

    @pytest.mark.slow
    def test_it_is_reproducible(self, usual):
        when = re.compile(r"<p class=when>[^<]*</p>")
        assert when.sub("", page(result())) == when.sub("", usual)


class TestScreen:
    def events(self, made):
        first, second, third, *_ = made.runs()
        yield Started(first)
        yield Started(second)
        yield Moved(second, Progress(10, 2.5, {"a.layer": 0.03, "zero": 0.0, "b": 30.0}))
        yield Finished(first, outcome(first, 97.0))
        yield Started(third)

    @pytest.mark.parametrize(("width", "height"), [(60, 20), (200, 50), (100, 30), (40, 20), (20, 5), (7, 2)])
    def test_it_fits_any_terminal(self, width, height):
        made = result(dict.fromkeys(USUAL))
        console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="standard")
        screen = Screen(console, made)
        for event in self.events(made):
            screen.see(event)
            lines = console.render_lines(screen, console.options.update(width=width, height=height))
            assert all(sum(part.cell_length for part in line) == width for line in lines)
            assert len(lines) <= max(height, 6)
            assert any(part.style and part.style.color for line in lines for part in line) or width < 60
        text = "\n".join("".join(part.text for part in line) for line in lines)
        if width >= 60:
            assert "1 of 44 runs done" in text
            assert "loss 2.500" in text
            assert "a.layer" in text
            assert "getting ready" in text
        if width >= 40:
            assert "Act 1. LARS" in text
            assert "AdamW, batch 32, seed" in text

    def test_what_happens_while_it_is_drawn_waits(self):
        made = result(dict.fromkeys(USUAL))
        console = Console(file=io.StringIO(), width=100, height=30)
        screen = Screen(console, made)
        *events, last, _ = self.events(made)
        for event in events:
            screen.see(event)
        other = Thread(target=screen.see, args=(last,))

        class Slow(dict):
            def items(self):
                for item in super().items():
                    yield item
                    if other.ident is None:
                        other.start()
                        other.join(0.2)

        screen.under_way = Slow(screen.under_way)
        drawn = [line.plain for line in screen.__rich_console__(console, console.options)]
        other.join()
        assert "0 of 44 runs done" in drawn[0]
        assert "1 of 44 runs done" in next(screen.__rich_console__(console, console.options)).plain
        assert made.outcomes == {}

    @pytest.mark.parametrize("width", [40, 80])
    def test_a_finished_row_has_its_figure_on_any_terminal(self, width):
        made = result()
        for act in made.acts:
            for row in made.rows(act):
                line = line_of(row, width)
                assert len(line) <= width
                assert shown(row).removesuffix(" %") in line

    def test_bars(self):
        assert bar(0.5, 4) == "━━──"
        assert bar(7.0, 2) == "━━"
        assert decades(0.02, 3.0) == (0.01, 10.0)
        assert decades(0.1, 0.1) == (0.1, 1.0)
        assert log_mark(0.1, 0.01, 1.0, 9) == "    ●    "
        assert log_mark(9.0, 0.01, 1.0, 3) == "  ●"
        assert log_mark(0.0, 0.01, 1.0, 4) == "    "
        assert axis(0.01, 1.0, 20) == "0.01      0.1       1"
