"""What MkDocs is told beyond mkdocs.yml: pages of the repository's root, tables made of the code, formulas."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from layerwise import presets  # noqa: E402  # the checkout's own, as mkdocstrings reads it
from layerwise.registry import ENTRIES  # noqa: E402

# Pages that live where people look for them in a repository, and what they are called here.
OF_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.txt",
}
REPOSITORY = {uri: source for source, uri in OF_ROOT.items()}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
PAGE = re.compile(r"\bdocs/([\w/-]+\.md)")
TABLE = re.compile(r"^<!-- table: (\w+) (\w+) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    fence = {"name": "math", "class": "math", "format": formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    pages = [f"optimizers/{entry.rule.__name__.rpartition('.')[2]}.md" for entry in ENTRIES.values()]
    for section in config.nav:
        if "Optimizers" in section:
            section["Optimizers"] = pages
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, uri in OF_ROOT.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return TABLE.sub(made_of_code, linked(markdown, page.file.src_uri))


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Docstrings name the pages as files of the repository, which is what they are to whoever reads the source."""

    def link(found: re.Match[str]) -> str:
        there = files.get_file_from_path(found[1])
        if there is None:
            raise PluginError(f"a docstring names docs/{found[1]}, which there is not.")
        return f'<a href="{there.url_relative_to(page.file)}">{found[0]}</a>'

    return PAGE.sub(link, html) if page.file.src_uri.startswith("reference/") else html


def linked(markdown: str, uri: str) -> str:
    """The page with links as they are on the site, where they were written for files in the repository."""
    here = posixpath.dirname(REPOSITORY.get(uri, f"docs/{uri}"))

    def target(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, found[1]))
        there = OF_ROOT.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(there, posixpath.dirname(uri) or ".")

    return LINK.sub(target, markdown)


def formula(source: str, *_: Any, **__: Any) -> str:
    """TeX as MathML, which browsers draw by themselves."""
    return f'<div class="formula">{convert(source, display="block")}</div>'


# ---- tables


def made_of_code(found: re.Match[str]) -> str:
    kind, of = found.groups()
    if kind not in TABLES:
        raise PluginError(f"no table is called {kind!r}. Known are {', '.join(TABLES)}.")
    return TABLES[kind](of)


def presets_of(optimizer: str) -> str:
    rows = ["| preset | options | how it differs from our defaults | not reproduced |", "|---|---|---|---|"]
    for one in presets():
        if one.optimizer == optimizer:
            options = "<br>".join(f"`{name}={value!r}`" for name, value in one.options.items()) or "none"
            rows.append(f"| `{one.name}` | {options} | {one.differs} | {one.not_reproduced} |")
    return "\n".join(rows)


TABLES: dict[str, Callable[[str], str]] = {"presets": presets_of}
