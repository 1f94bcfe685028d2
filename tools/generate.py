"""Write what follows from the rules: the fronts' classes and functions, tables of the pages, and kernels.

python tools/generate.py           writes every generated file
python tools/generate.py --check   names those that are out of date, and fails if there are any
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import kernels
import optax_calls
import pages

import fronts
from layerwise.registry import ENTRIES

ROOT = Path(__file__).resolve().parent.parent


def formatted(source: str) -> str:
    """Return Python source as ruff lays it out."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-q", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout


def wanted() -> dict[Path, str]:
    """Return the text of every generated file."""
    sources = {ROOT / "src" / "layerwise" / path: formatted(text) for path, text in fronts.all_of_them().items()}
    headers, modules = kernels.all_of_them()
    printed = {ROOT / "csrc" / "printed" / name: text for name, text in headers.items()}
    folder = ROOT / "src" / "layerwise" / "engines"
    engines = {folder / name: formatted(text) for name, text in modules.items()}
    return {**sources, **printed, **engines, **pages.all_of_them(ROOT / "docs")}


def main() -> None:
    stale, texts = {}, wanted()
    for path, text in texts.items():
        there = path.read_text("utf-8") if path.exists() else ""
        if there != text:
            stale[path] = difflib.unified_diff(
                there.splitlines(), text.splitlines(), "as it is", "as it should be", n=1
            )
    if "--check" in sys.argv[1:]:
        for path, lines in stale.items():
            print(path.relative_to(ROOT), *lines, sep="\n")
        if stale:
            sys.exit(f"{len(stale)} generated files are out of date: make generate")
        return
    for path in stale:
        path.write_text(texts[path], "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    if any(path.parent.name == "jax" for path in stale):
        print(*filter(None, map(optax_calls.defaults, ENTRIES.values())), sep="\n")


if __name__ == "__main__":
    main()
