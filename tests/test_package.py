"""The installed package: what importing it costs, and what came with it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import requires, version
from importlib.resources import files
from pathlib import Path

import pytest

import layerwise
from layerwise.registry import ENTRIES

FRAMEWORKS = (
    "torch",
    "jax",
    "jaxlib",
    "tensorflow",
    "optax",
    "keras",
    "mlx",
    "paddle",
    "scipy",
    "ml_dtypes",
    "matplotlib",
)
MODULES = [
    "layerwise", "layerwise.numpy", "layerwise.hyper", "layerwise.rules", "layerwise.engines", "layerwise.presets",
    "layerwise.recipes", "layerwise.schedules",
    "layerwise._native",
]  # fmt: skip
RULES = sorted(Path(str(files("layerwise"))).glob("rules/*.py"))


def fresh(code: str) -> str:
    """What a new interpreter prints that knows nothing of this directory."""
    command = [sys.executable, "-I", "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", MODULES)
def test_imports_no_framework(module):
    assert fresh(f"import sys, {module}; print(*sys.modules.keys() & set({FRAMEWORKS!r}))") == ""


def test_a_step_imports_no_framework():
    code = "import sys, numpy as np; from layerwise.numpy import Lamb; Lamb().step('w', np.ones(2), np.ones(2)); "
    assert fresh(code + f"print(*sys.modules.keys() & set({FRAMEWORKS!r}))") == ""


def test_all_names_exist():
    assert [name for name in layerwise.__all__ if not hasattr(layerwise, name)] == []
    front = import_module("layerwise.numpy")
    assert {*front.__all__} == {"Mixed", *ENTRIES}
    for name, needs in (("layerwise.torch", "torch"), ("layerwise.jax", "optax"), ("layerwise.convert", "optax")):
        pytest.importorskip(needs)
        module = import_module(name)
        assert [one for one in module.__all__ if not hasattr(module, one)] == []


def test_extension_answers():
    assert fresh("from layerwise import _native; print(_native.compiler())").split()[0] in ("gcc", "clang", "msvc")


def test_version():
    assert layerwise.__version__ == version("layerwise") == fresh("import layerwise; print(layerwise.__version__)")


def test_only_numpy_is_required():
    assert [line for line in requires("layerwise") or () if "extra" not in line] == ["numpy>=2.0"]


@pytest.mark.parametrize("name", ["py.typed", "_native.pyi"])
def test_types_are_installed(name):
    assert (files("layerwise") / name).is_file()


def test_pages_of_rooms_are_not_installed():
    home = Path(str(files("layerwise"))).resolve()
    if (home.parents[1] / "csrc").is_dir():
        pytest.skip("these are the sources, and no installed package")
    assert [*home.rglob("README.md")] == []


def test_stub_names_what_the_extension_has():
    from layerwise import _native

    stub = ast.parse((files("layerwise") / "_native.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert declared == {name for name in dir(_native) if not name.startswith("_")}


def test_no_text_points_to_files_that_are_not_installed():
    """A reader of a docstring or an error may not have the repository."""
    outside = re.compile(r"(?<![\w./])(docs|examples|benchmarks|tests|tools)/\w")
    for path in Path(str(files("layerwise"))).rglob("*.py"):
        texts = (node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant))
        assert [text for text in texts if isinstance(text, str) and outside.search(text)] == [], path


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_import_nothing(path):
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            roots.add((node.module or "").split(".")[0])
    assert roots <= sys.stdlib_module_names | {"layerwise"}


def test_there_are_rules():
    assert {"lamb.py", "lars.py", "adafactor.py"} <= {path.name for path in RULES}
