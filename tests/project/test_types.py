"""What mypy says does not depend on which packages happen to be installed."""

from __future__ import annotations

import ast
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tools.requirements import requirements

ROOT = Path(__file__).parents[2]


def imported_by(path):
    """The packages that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (name.partition(".")[0] for name in names)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="reads TOML")
def test_types_are_those_without_packages_that_make_check_does_not_install():
    """Else `make check` says something else where they happen to be installed."""
    read = import_module("tomllib").loads((ROOT / "pyproject.toml").read_text("utf-8"))
    skipped = {
        name.removesuffix(".*")
        for one in read["tool"]["mypy"]["overrides"]
        if one.get("follow_imports") == "skip"
        for name in one["module"]
    }
    needed = {re.match("[a-z_-]+", one)[0] for one in requirements(read["project"], ["dev"])}
    needed = {"sklearn" if name == "scikit-learn" else name for name in needed}
    own = {"layerwise", "demo", "typing_extensions", *sys.stdlib_module_names}
    files = [path for folder in ("src", "demo") for path in (ROOT / folder).rglob("*.py")]
    found = {name for path in files for name in imported_by(path)} - own - needed
    assert found == skipped
