"""What the documentation says is true: its code runs, its tables match the code, its links lead somewhere."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import subprocess
import sys
import warnings
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, KERNELED, Case

import layerwise
from layerwise import presets

ROOT = Path(__file__).parents[2]
LISTS = {
    "CHANGELOG.md": "name it under Optimizers.",
    "docs/choosing.md": 'add a row to the table under "Which one".',
    "docs/sharding.md": 'add it to the table under "What a step sends".',
    "csrc/README.md": 'say under "Printed programs" how many it has.',
}
ROOMS = (f"{room}/**/README.md" for room in ("benchmarks", "csrc", "demo", "src", "tests"))
PAGES = sorted(page for where in ("*.md", "docs/**/*.md", "tests/*.md", *ROOMS) for page in ROOT.glob(where))
# Packages of the parity tests, without which a page is skipped; each takes seconds to import.
PARITY = ("accelerate", "keras", "lightning", "paddle", "pytorch_optimizer", "transformers")
# Packages that no environment of ours has: code that needs one is shown and not run, and says so.
ABSENT = (
    "apex",
    "axolotl",
    "bitsandbytes",
    "came_pytorch",
    "deepspeed",
    "flashoptim",
    "megatron",
    "mem_eff_pt",
    "optimi",
    "timm",
    "torchao",
    "torchtitan",
)
NOT_RUN = 'title="not run here: needs {}"'
# Pages whose sections are programs of their own, and so is what follows `import os`, by which Keras is told its backend
# before it is first imported, for good.
OF_PROGRAMS = ("coming-from.md", "numpy.md", "trainers.md")
PROGRAM = re.compile(r"^(?=## )|^(?=```python\nimport os$)", re.MULTILINE)


def imports(*packages: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:import|from) ({'|'.join(packages)})\b", re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    """What a text says of each block of Python, and the block."""
    return re.findall(r"^```python *([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def programs() -> list[Any]:
    """Return what pages have to run: the blocks of a page, or of a part of it, one after the other."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for number, part in enumerate(PROGRAM.split(text) if page.name in OF_PROGRAMS else [text]):
            if run := [code for said, code in blocks(part) if not said.startswith("title=")]:
                slow = any(imports(*PARITY, "jax").search(code) for code in run)  # which compiles for long
                where = f"{page.relative_to(ROOT)}-{number}"
                found.append(pytest.param(page, run, id=where, marks=pytest.mark.slow if slow else ()))
    return found


each_page = pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])


def skip_without(*packages: str) -> None:
    if missing := [package for package in packages if find_spec(package) is None]:
        pytest.skip(f"needs {', '.join(missing)}")


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a package warns of while it is imported is not ours
        return import_module(name)


@pytest.mark.parametrize(("page", "run"), programs())
def test_code_blocks_run(page: Path, run: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    needed = sorted({found[1] for code in run for found in imports(*PARITY).finditer(code)})
    skip_without(*needed)
    if run[0].startswith("import os\n"):
        subprocess.run([sys.executable, "-c", "".join(run)], check=True)
        return
    for package in needed:
        imported(package)
    namespace: dict[str, Any] = {}
    for code in run:
        exec(compile(code, str(page), "exec"), namespace)  # noqa: S102


@each_page
def test_what_is_not_run_cannot_be(page: Path) -> None:
    pinned = (ROOT / "constraints.txt").read_text("utf-8")
    for said, code in blocks(page.read_text("utf-8")):
        if said:
            needed = {found[1] for found in imports(*ABSENT).finditer(code)}
            assert said in {NOT_RUN.format(package) for package in needed}, said
            assert not any(re.search(rf"^{package}==", pinned, re.MULTILINE) for package in needed)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@each_page
def test_headings_and_lists_stand_alone(page: Path) -> None:
    """Without an empty line before it, a list is text of the paragraph above."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^[^\n]+\n#+ .*$", text, re.MULTILINE) == []
    assert re.findall(r"^(?![-*|> ]|\d+\.)[^\n]+\n- .*$", text, re.MULTILINE) == []


@pytest.mark.parametrize("folder", ["src/layerwise", "docs", "examples", "demo"])
def test_nothing_is_installed_by_a_name_that_the_index_does_not_have(folder: str) -> None:
    files = [one for one in (ROOT / folder).rglob("*") if one.suffix in (".py", ".md", ".yaml")]
    assert [one.name for one in files if re.search(r"pip install '?layerwise", one.read_text("utf-8"))] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 450


MOST_READ = ["start", "choosing", "pytorch", "jax", "trainers", "sharding", "small-memory", "offload", "performance"]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in MOST_READ)])
def test_a_page_answers_first_and_then_shows_code(page: str) -> None:
    answer = (ROOT / page).read_text("utf-8").partition("\n```")[0].partition("\n")[2]
    assert 20 <= len(answer.split()) <= 60


RATE = re.compile(
    r"AdamW\(model\.parameters\(\), lr=([\d.e-]+)\).*?Lamb\((?:groups|param_groups\(model\)), lr=([\d.e-]+)", re.DOTALL
)


def test_pages_follow_their_own_rule_for_lamb_s_rate() -> None:
    """Three to ten times AdamW's, and AdamW's weight decay."""
    start = (ROOT / "docs" / "start.md").read_text("utf-8")
    said = [int(n) for n in re.search(r"\| (\d+) to (\d+) times your AdamW rate", start).groups()]  # type: ignore[union-attr]
    assert said == [3, 10]
    pairs = [RATE.search(text).groups() for text in (start, (ROOT / "README.md").read_text("utf-8"))]  # type: ignore[union-attr]
    adamw, *lambs = map(
        float, re.search(r"AdamW at ([\d.e-]+), try LAMB at ([\d.e-]+), ([\d.e-]+) and ([\d.e-]+)\.", start).groups()
    )  # type: ignore[union-attr]
    for theirs, ours in [*pairs, *((adamw, one) for one in lambs)]:
        assert 3 <= round(float(ours) / float(theirs), 6) <= 10
    for text in (start, (ROOT / "README.md").read_text("utf-8")):
        assert re.search(r"Lamb\(.*weight_decay=0\.01\)", text)


def with_examples() -> list[Any]:
    """Return the modules of the installed library that show examples."""
    home = Path(layerwise.__file__).parent
    files = sorted(path.relative_to(home.parent) for path in home.rglob("*.py") if ">>> " in path.read_text("utf-8"))
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files]
    return [pytest.param(name, marks=pytest.mark.slow if name.split(".")[1:2] == ["paddle"] else ()) for name in names]


@pytest.mark.parametrize("module", with_examples())
def test_examples_in_docstrings(module: str) -> None:
    if module.startswith("layerwise.paddle"):
        skip_without("paddle")
    failed, tried = doctest.testmod(imported(module))
    assert tried
    assert not failed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pages_list_every_option_with_its_default(case: Case) -> None:
    page = ROOT / "docs" / "optimizers" / f"{case.name.lower()}.md"
    assert page.exists(), f"{case.name} has no page: write docs/optimizers/{page.name}, as lamb.md is"
    (listed,) = re.findall(rf"^```text\n({case.name}\(.*?\))\n```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    made = ast.parse(listed, mode="eval").body
    assert isinstance(made, ast.Call)
    assert {one.arg: ast.literal_eval(one.value) for one in made.keywords} == {
        spec.name: spec.default for spec in fields(case.hyper)
    }


COMING_FROM = [ROOT / "docs" / name for name in ("coming-from.md", "numpy.md", "paddle.md")]
PEERS = re.compile(r"^\| `([\w.]+)` \| default \| `(layerwise[\w.]+)` \|\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
MIGRATIONS = [
    pytest.param(
        *found.groups(),
        id=f"{found[1]}-{found[2]}",
        marks=pytest.mark.slow if found[1].startswith(PARITY) else (),
    )
    for page in COMING_FROM
    for found in PEERS.finditer(page.read_text("utf-8"))
]


def arguments(name: str) -> dict[str, Any]:
    module, _, attribute = name.rpartition(".")
    skip_without(module.split(".")[0])
    given = inspect.signature(getattr(imported(module), attribute)).parameters.values()
    return {one.name: one.default for one in given if one.kind is not one.VAR_KEYWORD}


def said_of(default: Any) -> Any:
    return "required" if default is inspect.Parameter.empty else getattr(default, "__name__", str(default))


@pytest.mark.parametrize(("theirs", "ours", "rows"), MIGRATIONS)
def test_migration_tables_are_complete_and_name_what_there_is(
    theirs: str, ours: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs with their defaults, where the package is installed; the others are ours; and only arguments of ours."""
    monkeypatch.setenv("KERAS_BACKEND", "numpy")  # as the parity tests have it
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]
    known = arguments(ours)
    for here in (row[2] for row in cells):
        assert set(re.findall(r"`([a-z]\w*)(?:=[^`]*)?`", here)) <= known.keys(), here
    if theirs.split(".")[0] not in ABSENT:
        stated = {name: row[1].strip("`") for row in cells for name in re.findall(r"`(\w+)`", row[0])}
        there = arguments(theirs)
        assert stated.items() <= {name: said_of(default) for name, default in there.items()}.items()
        assert {name: default for name, default in there.items() if name not in stated}.items() <= known.items()


PUBLIC = ["layerwise", "layerwise.torch", "layerwise.jax", "layerwise.numpy"]


@pytest.mark.parametrize("module", [*PUBLIC, pytest.param("layerwise.paddle", marks=pytest.mark.slow)])
def test_the_reference_has_all_that_is_public(module: str) -> None:
    if module == "layerwise.paddle":
        skip_without("paddle")
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    named = {name.split(".")[-1] for name in re.findall(rf"^::: {module}\.([\w.]+)$", pages, re.MULTILINE)}
    assert named >= {name for name in imported(module).__all__ if name != "__version__"}


EXEMPTING = re.compile(r"no_(?:decay|adapt)=\[\"bias\", \"norm\"\]")


def test_pages_have_one_recipe() -> None:
    """`param_groups(model)` exempts biases and normalization from decay and from the ratio; none spells half of it."""
    spelt = [page for page in [*PAGES, *(ROOT / "examples").glob("*.py")] if EXEMPTING.search(page.read_text("utf-8"))]
    assert spelt == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", LISTS)
def test_pages_that_list_optimizers_list_all(name: str, case: Case) -> None:
    if name == "csrc/README.md" and case not in KERNELED:
        pytest.skip("it lists those with kernels")
    page = ROOT / "docs" / "optimizers" / f"{case.name.lower()}.md"
    title = page.read_text("utf-8").splitlines()[0].removeprefix("# ")
    text = (ROOT / name).read_text("utf-8")
    assert re.search(rf"\b{title}\b", text), f"{name} lists all optimizers, and {title} is missing: {LISTS[name]}"


def test_every_preset_is_named_where_people_come_from() -> None:
    pages = "".join(page.read_text("utf-8") for page in COMING_FROM)
    elsewhere = [one.name for one in presets() if not one.name.startswith(("paper.", "optax."))]
    assert [name for name in elsewhere if f"`{name}`" not in pages] == []


def test_coverage_names_tests_that_exist() -> None:
    text = (ROOT / "tests" / "coverage.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 100
    for file, test in named:
        assert re.search(rf"^def {test}", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{file}::{test}"
