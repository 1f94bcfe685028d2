"""The order of copies and steps that the page's picture shows is what happens on the device that stands in for one."""

from __future__ import annotations

import csv

from offload.calls import TABLE, calls


def test_the_page_shows_what_happens(late):
    with TABLE.open(newline="", encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == calls(), "run `PYTHONPATH=tests python -m offload.calls`, and draw again"
