"""Hooks of MkDocs: pages outside of this folder, links to sources and other packages, generated tables, formulas."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

import pages  # noqa: E402

from layerwise import presets  # noqa: E402  # the checkout's own, as mkdocstrings reads it
from layerwise.catalog.registry import ENTRIES  # noqa: E402
from layerwise.recipes import CURVES  # noqa: E402
from layerwise.recipes.advice import format_number  # noqa: E402

# Pages outside of this folder, and their names on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.txt",
    "demo/README.md": "demo.md",
    "benchmarks/README.md": "measurements.md",
    "benchmarks/on_gpu/README.md": "gpu-benchmark.md",
    "tests/coverage.md": "coverage.md",
    "tests/sharding/README.md": "tested-layouts.md",
    "tests/gpu/executed/distances.md": "gpu-distances.md",
    "csrc/README.md": "compiled-engine.md",
    "src/layerwise/engines/gpu/README.md": "gpu-engine.md",
    "src/layerwise/torch/sharding/README.md": "sharded-steps.md",
}
REPOSITORY = {uri: source for source, uri in OUTSIDE.items()}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
PAGE = re.compile(r"\b(the\s+page\s+)(?:\"|&quot;|&#34;)([^\"&]+)(?:\"|&quot;|&#34;)")
PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>')
TABLE = re.compile(r"^<!-- table: (\w+) (\w+) -->$", re.MULTILINE)
OPTIONS = re.compile(r"<!-- generated: options (\w+) -->.*?<!-- end -->", re.DOTALL)
# Types of other packages in signatures, which link to their documentation. Nothing is fetched to build the site.
STDTYPES, TYPING = "https://docs.python.org/3/library/stdtypes.html", "https://docs.python.org/3/library/typing.html"
FUNCTIONS = "https://docs.python.org/3/library/functions.html"
ABC = "https://docs.python.org/3/library/collections.abc.html"
TORCH, JAX = "https://docs.pytorch.org/docs/stable", "https://docs.jax.dev/en/latest/_autosummary"
OPTAX = "https://optax.readthedocs.io/en/latest"
ELSEWHERE = {
    **{name: f"{FUNCTIONS}#{name}" for name in ("float", "int", "bool", "type")},
    **{name: f"{STDTYPES}#{name}" for name in ("str", "bytes", "tuple", "list", "dict", "set")},
    **{f"typing.{name}": f"{TYPING}#typing.{name}" for name in ("Any", "Literal", "NamedTuple")},
    **{
        f"collections.abc.{name}": f"{ABC}#collections.abc.{name}"
        for name in ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")
    },
    "pathlib.Path": "https://docs.python.org/3/library/pathlib.html#pathlib.Path",
    "torch.Tensor": f"{TORCH}/tensors.html#torch.Tensor",
    "torch.nn.Module": f"{TORCH}/generated/torch.nn.Module.html#torch.nn.Module",
    "torch.nn.Parameter": f"{TORCH}/generated/torch.nn.parameter.Parameter.html#torch.nn.parameter.Parameter",
    "torch.optim.Optimizer": f"{TORCH}/optim.html#torch.optim.Optimizer",
    "torch.optim.lr_scheduler.LambdaLR": f"{TORCH}/generated/torch.optim.lr_scheduler.LambdaLR.html",
    "torch.distributed.ProcessGroup": f"{TORCH}/distributed.html#groups",
    "numpy.ndarray": "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html#numpy.ndarray",
    "jax.Array": f"{JAX}/jax.Array.html#jax.Array",
    "matplotlib.figure.Figure": "https://matplotlib.org/stable/api/figure_api.html#matplotlib.figure.Figure",
    "os.PathLike": "https://docs.python.org/3/library/os.html#os.PathLike",
    # Base classes, whose methods the reference shows with Lamb.
    "layerwise.torch._optimizer.Optimizer": "torch.html#layerwise.torch.Lamb",
    "layerwise.numpy._optimizer.Optimizer": "numpy.html#layerwise.numpy.Lamb",
    "optax.GradientTransformationExtraArgs": (
        f"{OPTAX}/api/transformations.html#optax.GradientTransformationExtraArgs"
    ),
}


def on_config(config: Any) -> Any:
    fence = {"name": "math", "class": "math", "format": formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    optimizers = [f"optimizers/{entry.rule.__name__.rpartition('.')[2]}.md" for entry in ENTRIES.values()]
    for section in config.nav:
        if "Optimizers" in section:
            section["Optimizers"] = optimizers
    told = (ROOT / "pyproject.toml").read_text("utf-8")
    config.site_name += f" {_value(told, 'version')}"
    if repository := _value(told, "Repository"):
        config.repo_url, config.edit_uri = repository, "edit/main/docs/"
        config.theme["features"].append("content.action.edit")
    return config


def _value(toml: str, name: str) -> str | None:
    """Return a string of pyproject.toml. (Python 3.10 has no parser of TOML.)"""
    found = re.search(rf'^{name}\s*=\s*"(.*)"$', toml, re.MULTILINE)
    return found and found[1]


def on_nav(nav: Any, config: Any, **_: Any) -> None:
    for name, url in ELSEWHERE.items():
        config.plugins["autorefs"].register_url(name, url)


def on_files(files: Files, config: Any) -> Files:
    for source, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    uri = page.file.src_uri
    if uri == "changelog.md":
        page.meta["search"] = {"boost": 0.2}  # it has every word
    if config.repo_url:
        page.edit_url = f"{config.repo_url.rstrip('/')}/edit/main/{_source(uri)}"
    text = TABLE.sub(made_of_code, linked(PICTURE.sub(_by_theme, markdown), uri))
    return OPTIONS.sub(lambda found: f'<div class="options" markdown>\n\n{pages.options(found[1])}\n\n</div>', text)


def _source(uri: str) -> str:
    """Return the file of the repository that a page is made of."""
    return REPOSITORY.get(uri, f"docs/{uri}")


def _by_theme(found: re.Match[str]) -> str:
    """Return both images of a picture, of which the site shows that of its theme: a reader may switch it."""
    dark, alt, light = found.groups()
    return f"![{alt}]({light}#only-light)\n![{alt}]({dark}#only-dark)"


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Link the pages that docstrings name by their titles, by which they are found wherever the package is."""

    def link(found: re.Match[str]) -> str:
        title = " ".join(found[2].split())
        there = files.get_file_from_path(titles().get(title, ""))
        if there is None:
            raise PluginError(f"a docstring names the page {title!r}, which does not exist.")
        return f'{found[1]}<a href="{there.url_relative_to(page.file)}">{title}</a>'

    uri = page.file.src_uri
    content = PAGE.sub(link, html) if uri.startswith("reference/") else html
    return f"{content}\n<p class=source>Source of this page: <code>{_source(uri)}</code></p>"


@cache
def titles() -> dict[str, str]:
    """Return the pages of the documentation by their titles."""
    texts = {page: page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")}
    firsts = {page: text.partition("\n")[0] for page, text in texts.items()}
    return {
        line.removeprefix("# "): page.relative_to(ROOT / "docs").as_posix()
        for page, line in firsts.items()
        if line.startswith("# ")
    }


def linked(markdown: str, uri: str) -> str:
    """Return the page with links as the site has them; they are written for files of the repository."""
    here = posixpath.dirname(_source(uri))

    def target(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, found[1]))
        there = OUTSIDE.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(there, posixpath.dirname(uri) or ".")

    return LINK.sub(target, markdown)


def formula(source: str, *_: Any, **__: Any) -> str:
    """Return TeX as MathML, which browsers draw by themselves."""
    return f'<div class="formula">{convert(source, display="block")}</div>'


# ---- tables


def made_of_code(found: re.Match[str]) -> str:
    kind, of = found.groups()
    if kind not in TABLES:
        raise PluginError(f"no table is called {kind!r}; there are {', '.join(TABLES)}.")
    return TABLES[kind](of)


def presets_of(optimizer: str) -> str:
    rows = ["| preset | options | how it differs from our defaults | not reproduced |", "|---|---|---|---|"]
    for one in presets():
        if one.optimizer == optimizer:
            options = "<br>".join(f"`{name}={value!r}`" for name, value in one.options.items()) or "none"
            rows.append(f"| `{one.name}` | {options} | {one.differs} | {one.not_reproduced} |")
    return "\n".join(rows)


def points_of(optimizer: str) -> str:
    rows = [
        "| series | batch | lr | warm-up, % of the run | betas, or momentum | weight decay | to the target |",
        "|---|---|---|---|---|---|---|",
    ]
    for curve in CURVES:
        for point in curve.points if curve.optimizer == optimizer else ():
            averages = "/".join(f"{one:g}" for one in point.betas or [point.momentum or 0] if one)
            decay = "" if point.weight_decay is None else format_number(point.weight_decay, 6)
            cost = "" if point.cost is None else f"{point.cost:g} {curve.unit}"
            warmup = "" if point.warmup is None else f"{100 * point.warmup:.3g}"
            cells = (curve.name, f"{point.batch:,}", f"{point.lr:.4g}", warmup, averages, decay, cost)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


TABLES: dict[str, Callable[[str], str]] = {"presets": presets_of, "points": points_of}
