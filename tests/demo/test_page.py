"""The report, of results made by hand."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from demo_results import USUAL, result

from demo.page import page

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
    changed = {("AdamW", 128): [3.0, math.inf], ("8-bit Muon + AdamW", 128): [math.inf] * 2, ("LAMB", 128): None}
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

    def test_headlines_over_pictures_then_a_table_then_caveats_and_the_rest_folded(self, usual):
        parts = ("<h2>Accuracy at batch", "<svg", "<table", "nothing follows", "<details", "Every setting", "<script")
        places = [usual.index(part) for part in parts]
        assert places == sorted(places)
        labels = re.findall(r'aria-label="([^"]*)"', usual)
        acts = ["Act 1. A small network", "Act 2. A transformer", "Act 3. The same transformer"]
        curves = [f"Act {number}, training loss" for number in (1, 2, 3)]
        ratios = ["LARS, batch", "LAMB, batch"]
        assert len(labels) == Page(usual).tags["svg"] == len(acts + curves + ratios)
        assert all(label.startswith(said) for label, said in zip(labels, acts + curves + ratios, strict=True))
        assert "better than SGD</td>" in usual

    def test_what_diverged_says_so_in_its_plot_and_what_is_missing_that_the_run_was_interrupted(self, broken):
        first, second, memory = (
            re.search(rf'aria-label="Act {number}\..*?</svg>', broken, re.DOTALL).group() for number in (1, 2, 3)
        )
        assert "✕ diverged" in first
        assert "✕ 1 of 2 diverged" in second
        assert "✕ diverged: AdamW, 8-bit Muon + AdamW" in memory
        curves = re.findall(r'aria-label="Act ., training loss.*?</svg>', broken, re.DOTALL)
        assert ["diverged" in curve for curve in curves] == [True, False, True]
        assert "This run was interrupted" in broken
        assert json.loads(Page(broken).text["script"])["partial"] is True

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
        assert found == {one: figures[: 1 if one[1] == 32 else None] for one, figures in USUAL.items()}
        settings = ("layerwise.torch.Lamb", "weight_decay=0.01", "tuned at batch 128", "momentum=0.9")
        assert all(words in usual for words in settings)
        cell = re.search(r"<td ([^>]*)>[^<]*master_weights=[^<]*</td>", usual).group(1)
        assert cell == "class=text"  # and wraps
        assert re.search(r"\.text {[^}]*white-space: normal", usual)
