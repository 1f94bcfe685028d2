"""The installed package: what importing it costs, and what came with it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.metadata import requires, version
from importlib.resources import files
from pathlib import Path

import pytest

import layerwise
from layerwise.catalog.registry import ENTRIES

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
    "layerwise", "layerwise.numpy", "layerwise.options.settings", "layerwise.rules", "layerwise.engines",
    "layerwise.catalog.presets", "layerwise.recipes", "layerwise.schedules",
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


def test_the_package_alone_imports_not_even_numpy():
    assert fresh("import sys, layerwise, layerwise.cli; print('numpy' in sys.modules)") == "False"
    assert fresh("from layerwise import *; print(presets()[0].name, Blocks.__name__)") == "paper.Lamb Blocks"


def test_a_step_imports_no_framework():
    code = "import sys, numpy as np; from layerwise.numpy import Lamb; Lamb().step('w', np.ones(2), np.ones(2)); "
    assert fresh(code + f"print(*sys.modules.keys() & set({FRAMEWORKS!r}))") == ""


def test_all_names_exist():
    assert [name for name in layerwise.__all__ if not hasattr(layerwise, name)] == []
    front = import_module("layerwise.numpy")
    assert {*front.__all__} == {*ENTRIES}
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


def modules() -> dict[str, Path]:
    """The modules of the package, by name."""
    root = Path(str(files("layerwise")))
    each = {path: path.relative_to(root.parent).with_suffix("").parts for path in sorted(root.rglob("*.py"))}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in each.items()}


def imports(text: str, known: Collection[str]) -> set[str]:
    """The modules among these that a text imports: anywhere, so also in its functions and for type checkers alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "write imports in full"
            own = {one.name: f"{node.module}.{one.name}" for one in node.names if one.name != "_native"}
            found |= {full if full in known else str(node.module) for full in own.values()}
    return found & {*known}


def reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    """The modules that a module imports, directly or through others."""
    found, left = set[str](), [*graph[start]]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += graph[one]
    return found


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that all import one another."""
    beyond = {one: reached(one, graph) for one in graph}
    return {frozenset(other for other in beyond[one] if one in beyond[other]) for one in graph if one in beyond[one]}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(path.read_text(encoding="utf-8"), known) - {name} for name, path in known.items()}


def test_no_modules_import_one_another(graph):
    assert circles(graph) == set()


# Floors of PyTorch's API, the lowest first. What stands beside its folders is its optimizer; the pages' names stand
# above all.
FLOORS = ("groups", "sharding", "arrays", "step", "offload", "checkpoints", "the optimizer", "tools", "flat", "names")
SHOWN = ("layerwise.torch",)
# Floors of the package. An API takes what it needs from `core`, and knows no other API.
APIS = ("torch", "numpy", "jax", "keras", "paddle", "mlx")
LATER = r'import_module\("(layerwise[\w.]+)"'


def floor_of(name: str) -> int:
    folder = name.split(".")[2] if name.count(".") > 2 else name.rpartition(".")[2]
    floor = "names" if name in SHOWN else folder if folder in FLOORS else "the optimizer"
    return FLOORS.index(floor)


def test_folders_of_torch_import_downwards(graph):
    own = {name: found for name, found in graph.items() if name.startswith("layerwise.torch")}
    upwards = {(name, other) for name in own for other in own[name] & own.keys() if floor_of(other) > floor_of(name)}
    assert upwards == set()
    assert {floor_of(name) for name in own} == {*range(len(FLOORS))}


BELOW = ("options", "rules", "catalog", "layout", "storage", "drivers", "core", "engines")
ABOVE = (*APIS, "keras", "cli", "trainers", "recipes")


def test_no_part_below_the_apis_imports_one_and_no_api_another(graph):
    def folder(name: str) -> str:
        return f"{name}.".split(".")[1]

    pairs = {(folder(name), folder(other)) for name, found in graph.items() for other in found}
    assert {(one, other) for one, other in pairs if one in BELOW and other in ABOVE} == set()
    apis = {name: path for name, path in modules().items() if folder(name) in APIS}
    later = {name: re.findall(LATER, path.read_text(encoding="utf-8")) for name, path in apis.items()}
    pairs |= {(folder(name), folder(other)) for name, found in later.items() for other in found}
    assert {(one, other) for one, other in pairs if one in APIS and other in APIS and one != other} == set()
    assert {*BELOW, *ABOVE} <= {one for one, _ in pairs}
