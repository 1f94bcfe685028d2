"""Modules of benchmarks/, for tests of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HOME = Path(__file__).parents[1] / "benchmarks"


def load(name, file="", **more):
    """Load not by sys.path, on which a module of that folder would hide a folder of the tests that has its name."""
    spec = importlib.util.spec_from_file_location(name, HOME / (file or f"{name}.py"), **more)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


load("harness", "harness/__init__.py", submodule_search_locations=[str(HOME / "harness")])
