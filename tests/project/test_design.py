"""The map of the code is true: what it names exists, and every room is on it; pages of rooms stay short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "src" / "layerwise"
MAP = ROOT / "docs" / "design.md"
OF_ROOMS = sorted([*(ROOT / "csrc").glob("*.md"), *LIBRARY.rglob("README.md")])
PAGES = [MAP, *OF_ROOMS]
TREE = re.search(r"^```\n(src/layerwise/\n.*?)^```", MAP.read_text("utf-8"), re.DOTALL | re.MULTILINE)
FILE = r"[\w/]+\.(?:py|cpp|hpp)"


def title(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_files_and_functions_that_a_page_names_exist(page):
    named = re.findall(rf"`({FILE})(?::([\w.]+))?`", page.read_text("utf-8"))
    assert named
    assert {":".join(filter(None, one)) for one in named if not is_there(page, *one)} == set()


def is_there(page: Path, path: str, name: str) -> bool:
    """Return True if a file is where this page's files are, and defines each part of the name."""
    found = next((one / path for one in (page.parent, ROOT, LIBRARY) if (one / path).is_file()), None)
    source = "" if found is None else found.read_text("utf-8")
    parts = filter(None, name.split("."))
    return found is not None and all(re.search(rf"^ *(?:def|class) {one}\b", source, re.MULTILINE) for one in parts)


def test_files_that_a_room_names_exist():
    """`__init__.py` may say what each file of a room is for: in its docstring, or in a comment below it."""
    said = {
        at: re.split("^(?:from|import) ", at.read_text("utf-8"), flags=re.MULTILINE)[0]
        for at in LIBRARY.rglob("__init__.py")
    }
    named = [(at, one) for at, text in said.items() for one in re.findall(FILE, text)]
    assert len(named) > 50
    assert [(title(at), one) for at, one in named if not is_there(at, one, "")] == []


def rooms() -> Iterator[tuple[Path, str]]:
    """Yield the folders and files of the map, with what is said of each."""
    folders: dict[int, Path] = {}
    for line in (TREE or "")[1].splitlines():
        indent = len(line) - len(line.lstrip())
        if indent < 16:
            first, _, text = line.strip().partition(" ")
            at = next((folders[i] for i in range(indent - 2, -1, -2) if i in folders), ROOT) / first
            folders = {i: one for i, one in folders.items() if i < indent} | ({indent: at} if first[-1] == "/" else {})
        else:
            text = line
        yield at, text


def test_everything_on_the_map_exists():
    missing = []
    for at, text in rooms():
        home = at if at.is_dir() else at.parent
        files = re.findall(r"[\w/]+\.py\b", text)
        missing += [one for one in files if not ((home / one).is_file() or (LIBRARY / one).is_file())]
        missing += [] if at.exists() else [title(at)]
    assert missing == []


def test_every_room_is_on_the_map():
    shown = {at for at, _ in rooms()}
    folders = {path.parent for path in LIBRARY.rglob("*.py")}
    assert folders - shown - {LIBRARY / "engines/gpu/kernels", LIBRARY / "engines/gpu/printed"} == set()
    files = {at.name for at in shown} | {one for _, text in rooms() for one in re.findall(r"\w+\.py\b", text)}
    assert {path.name for path in LIBRARY.glob("[!_]*.py")} <= files


FLOORS = ["errors", "options", "schedules", "rules", "catalog", "layout", "storage", "drivers", "engines", "core"]
APIS = "numpy paddle torch jax keras mlx"


def rooms_imported(path: Path) -> Iterator[str]:
    """Yield the rooms from which a file imports, wherever in it, but for names that only type checkers see."""
    tree = ast.parse(path.read_text("utf-8"))
    typed = {id(one) for found in ast.walk(tree) if _is_for_checkers(found) for one in ast.walk(found)}
    for found in ast.walk(tree):
        if (
            isinstance(found, ast.ImportFrom)
            and (found.module or "").startswith("layerwise")
            and id(found) not in typed
        ):
            yield from {f"{found.module}.{alias.name}".split(".")[1] for alias in found.names}


def _is_for_checkers(found: ast.AST) -> bool:
    return isinstance(found, ast.If) and ast.unparse(found.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("room", [*FLOORS, *APIS.split()])
def test_imports_go_down(room):
    found = [LIBRARY / f"{room}.py"] if (LIBRARY / f"{room}.py").exists() else [*(LIBRARY / room).rglob("*.py")]
    below = {room, "_native", "__version__", *FLOORS[: FLOORS.index(room) if room in FLOORS else None]}
    assert found
    assert {one.name: wrong for one in found if (wrong := {*rooms_imported(one)} - below)} == {}


def test_flat_buffers_are_behind_one_door():
    """None below their folder knows it: what they mean for a step is asked of a parameter's `Division`."""
    inside, public = LIBRARY / "torch/flat", LIBRARY / "torch/__init__.py"
    others = [one for one in LIBRARY.rglob("*.py") if inside not in one.parents and one != public]
    assert [title(one) for one in others if re.search(r"torch\.flat\b.* import", one.read_text("utf-8"))] == []


@pytest.mark.parametrize(("page", "most"), [(MAP, 235), *((page, 150) for page in OF_ROOMS)])
def test_maps_stay_short(page, most):
    assert len(page.read_text("utf-8").splitlines()) <= most, "move what only one room needs to its page, or drop it"
