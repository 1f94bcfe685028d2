"""Runs tests that other packages have of their own optimizers, on ours, from where those packages are installed."""

from __future__ import annotations

import importlib
import re
import unittest
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from others.expected import EXPECTED


def tried(run: Callable[[], Any], suite: str, name: str) -> None:
    """Run a test of theirs: it passes, or differs as expected, and if it is expected to it must."""
    difference = next((one for one in EXPECTED[suite] if re.fullmatch(one.tests, name)), None)
    try:
        run()
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))
    except Exception as error:
        if difference is None or not re.search(difference.says, f"{type(error).__name__}: {error}"):
            raise
        return
    assert difference is None, f"{name} passes. Take this out of what is expected: {difference}"


def check_expected(suite: str, cases: list[Any]) -> None:
    """Each difference is of a test that there is, and a page tells it."""
    for one in EXPECTED[suite]:
        assert any(re.fullmatch(one.tests, case.id) for case in cases), one
        assert one.is_told(), one


def module(name: str) -> Any:
    """Return a module of tests that comes with a package, or skip those of the file."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs {name}: {error}", allow_module_level=True)


def standing_in(of: Any, **ours: Any) -> SimpleNamespace:
    """Return what looks like a module of theirs, and has ours in places of some of its names."""
    return SimpleNamespace(**{**{name: getattr(of, name) for name in dir(of)}, **ours})


def cases(case: type[unittest.TestCase], wanted: str = "", but: str = "nothing") -> list[Any]:
    """Return parameters for the tests of a class whose arguments match, or that have none.

    The first of each test and first argument is no repeat.
    """
    found, known = [], set()
    for method, name, start in _cases(case, wanted):
        if not re.match(but, name):
            found.append(
                pytest.param(case, method, id=f"{case.__name__}-{name}", marks=[pytest.mark.repeats] * (start in known))
            )
            known.add(start)
    return found


def _cases(case: type[unittest.TestCase], wanted: str) -> Iterator[tuple[str, str, str]]:
    arguments = getattr(case, "_test_params_reprs", {})  # as absl's parameterized tests have them
    for method in sorted(unittest.TestLoader().getTestCaseNames(case), key=lambda name: (len(name), name)):
        given = arguments.get(method, "")
        if not given or re.search(wanted, given):
            values = re.findall(r"(?:[=(,] ?|: )(?:<function |<class ')?'?([\w.+-]+)(?=[', )}>])", given)
            base = re.sub(r"\d+$", "", method) if given else method
            yield method, "-".join([base, *values]), "-".join([base, *values[:1]])


class Raising(unittest.TestResult):
    """Lets errors and skips of a test through, for pytest to show."""

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        raise err[1]

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            raise err[1]

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        raise unittest.SkipTest(reason)


def run_case(case: type[unittest.TestCase], method: str, without: tuple[str, ...] = ()) -> None:
    """Run a test of a class, unless its marks, of which unittest knows nothing, say that it cannot run here."""
    for mark in getattr(getattr(case, method), "pytestmark", []):
        if mark.name in without or (mark.name == "skipif" and mark.args[0]):
            pytest.skip(mark.kwargs.get("reason", mark.name))
    case(method).run(Raising())
