"""Write what follows from the rules: stubs of the APIs, tables of the pages, and kernels.

python tools/generate.py           writes every generated file
python tools/generate.py --check   names those that are out of date, and fails if there are any
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import fields
from pathlib import Path

import api_stubs
import kernels
import pages

from layerwise.catalog.registry import ENTRIES, Entry

ROOT = Path(__file__).resolve().parent.parent
PRINTED = "csrc/printed", "src/layerwise/engines/gpu/printed"


def check_declared(entries: Iterable[Entry]) -> None:
    """Exit if a rule has an option without a declaration."""
    for entry in entries:
        for spec in fields(entry.hyper):
            if "means" not in spec.metadata:
                sys.exit(
                    f"`{spec.name}` of {entry.name} has no declaration: its default is {spec.default!r}, and no more. "
                    f"In {entry.rule.__name__}, give it one of layerwise/options/fields.py, such as `flag` or "
                    "`option`: they say what is allowed, what it means, and the way out."
                )


def check_left_over(texts: Collection[Path]) -> None:
    """Exit if a printed file is there that nothing prints any more."""
    there = (file for folder in PRINTED for file in sorted((ROOT / folder).glob("[!_]*.[hp]*")))
    if left := [str(file.relative_to(ROOT)) for file in there if file not in texts]:
        sys.exit(
            f"No rule prints {' and '.join(left)} any more; a line above says why a rule has no kernels. Change the "
            f"rule so that they can be printed, or, if it is to have none: git rm {' '.join(left)}"
        )


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
    stubs = {ROOT / "src" / "layerwise" / path: text for path, text in api_stubs.all_of_them().items()}
    headers, modules = kernels.all_of_them()
    printed = {ROOT / "csrc" / "printed" / name: text for name, text in headers.items()}
    folder = ROOT / "src" / "layerwise" / "engines"
    engines = {folder / name: formatted(text) for name, text in modules.items()}
    return {**stubs, **printed, **engines, **pages.all_of_them(ROOT / "docs")}


def main() -> None:
    check_declared(ENTRIES.values())
    stale, texts = {}, wanted()
    check_left_over(texts)
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


if __name__ == "__main__":
    main()
