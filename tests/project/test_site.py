"""The site: its configuration, and what hooks make of pages. `make site` checks all links."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import layerwise
from layerwise.recipes import CURVES

DOCS = Path(__file__).parents[2] / "docs"
MKDOCS = (DOCS.parent / "mkdocs.yml").read_text("utf-8")


@pytest.fixture
def hooks():
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration(hooks, tmp_path, monkeypatch, project):
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    config = SimpleNamespace(
        site_name="layerwise", repo_url=None, edit_uri=None, theme={"features": []}, mdx_configs={}, nav=[]
    )
    return hooks.on_config(config)


def test_the_site_needs_no_network():
    assert "\n  - offline\n" in MKDOCS
    assert "font: false" in MKDOCS
    [polyfill] = re.findall(r"polyfills: \[(.*iframe-worker.*)\]", MKDOCS)
    assert (DOCS / polyfill).exists()
    assert "://" not in MKDOCS.partition("nav:")[0]


def test_every_page_has_a_place():
    named = set(re.findall(r"[\w/-]+\.md", MKDOCS.partition("nav:")[2]))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "optimizers"}
    assert pages <= named


def test_the_version_is_the_package_s(hooks, tmp_path, monkeypatch):
    found = configuration(hooks, tmp_path, monkeypatch, (DOCS.parent / "pyproject.toml").read_text("utf-8"))
    assert found.site_name == f"layerwise {layerwise.__version__}"


@pytest.mark.parametrize(("uri", "source"), [("pytorch.md", "docs/pytorch.md"), ("index.md", "README.md")])
def test_pages_can_be_edited_where_the_project_has_a_repository(hooks, tmp_path, monkeypatch, uri, source):
    project = 'version = "1.2"\n[project.urls]\nRepository = "https://example.org/layerwise"\n'
    config = configuration(hooks, tmp_path, monkeypatch, project)
    assert config.repo_url == "https://example.org/layerwise"
    assert config.theme["features"] == ["content.action.edit"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={}, edit_url=None)
    hooks.on_page_markdown("# Page", page, config)
    assert page.edit_url == f"https://example.org/layerwise/edit/main/{source}"
    assert f"<code>{source}</code>" in hooks.on_page_content("", page, None)


def test_a_picture_follows_the_theme_of_the_site(hooks):
    config = SimpleNamespace(repo_url=None)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"), meta={})
    source = 'srcset="docs/assets/a-dark.svg">\n  <img alt="A" src="docs/assets/a-light.svg">\n</picture>'
    text = hooks.on_page_markdown(f'<picture>\n  <source media="(…: dark)" {source}', page, config)
    assert text == "![A](assets/a-light.svg#only-light)\n![A](assets/a-dark.svg#only-dark)"


def test_the_site_says_what_each_option_means(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="optimizers/lion.md"), meta={})
    text = hooks.on_page_markdown(
        (DOCS / "optimizers/lion.md").read_text("utf-8"), page, SimpleNamespace(repo_url=None)
    )
    assert "| `betas` | (0.9, 0.99) | two values" in text
    assert "help(Lion)" not in text


def test_published_runs_are_a_table_of_the_site(hooks):
    rows = hooks.points_of("Lamb").splitlines()
    assert "| mlperf-bert | 12,288 | 0.0031 | 60 | 0.8/0.925 | 0.0166629 | 4.47 million samples |" in rows
    assert "| nus-resnet | 32,768 | 32 | 15.6 |  | 0.0001 |  |" in hooks.points_of("Lars").splitlines()
    assert len(rows) == 2 + sum(len(curve.points) for curve in CURVES if curve.optimizer == "Lamb")


@pytest.mark.parametrize(("api", "name"), [("keras", "Lamb"), ("jax", "lamb"), ("jax", "LambState")])
def test_the_reference_has_each_argument_of_what_describes_few(api, name):
    griffe = pytest.importorskip("griffe")
    reading = griffe.load_extensions(DOCS / "reading.py")
    module = griffe.load(f"layerwise.{api}.optimizers", search_paths=[DOCS.parent / "src"], extensions=reading)
    one = module[name]
    sections = one.docstring.parse("google")
    kind = "attributes" if name.endswith("State") else "parameters"
    described = next(one.value for one in sections if one.kind.value == kind)
    known = [*one.attributes] if name.endswith("State") else [p.name for p in one.parameters if p.name != "self"]
    assert [one.name for one in described] == known
    assert all(one.description for one in described)
