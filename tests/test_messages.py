"""The listing has every sentence that the library can say, as it is, so that a change of one is seen."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "tools").exists(), reason="the tools are in the source alone")
# Habits that stop a reader, each seen in a message once.
RIDDLES = r"speaks of|to be had|so many|\bbeside\b|\banew\b|\btheirs\b|\bours\b|is meant\?|\b(said|told) (here|there)\b"


@pytest.fixture(scope="module")
def messages():
    sys.path.append(str(ROOT / "tools"))
    return import_module("messages")


@pytest.fixture(scope="module")
def found(messages):
    return messages.text().splitlines()


def test_the_listing_is_up_to_date(messages, found):
    listed = messages.LIST.read_text("utf-8").splitlines()
    gone, new = sorted({*listed} - {*found}), sorted({*found} - {*listed})
    assert (gone, new) == ([], []), "read what is new aloud, and then: make generate"


def test_the_listing_has_composed_and_plain_sentences(messages):
    listed = messages.LIST.read_text("utf-8")
    assert (
        "`momentum` must be a number in [0, 1), but is 1j. Pass a number such as momentum=0.9, or 0 for none." in listed
    )
    assert "the gradient of {name} is a nested tensor. Pass a dense tensor of the parameter's shape." in listed
    assert "an array of another kind" in listed  # the extension's


def test_an_f_string_is_listed_with_its_holes(messages, tmp_path):
    path = tmp_path / "said.py"
    path.write_text('"""A docstring of words."""\nraise E(f"{x!r} is {y:.2f}, and {{z}}. " + way_out)\n', "utf-8")
    assert messages.sentences(path) == {"{x!r} is {y:.2f}, and {{z}}. {way_out}"}


def test_no_message_is_a_riddle(found):
    holes = re.compile(r"\{.*?\}")
    assert [line for line in found if re.search(RIDDLES, holes.sub("", line))] == []
