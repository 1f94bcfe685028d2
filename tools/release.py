"""What a release must be, checked here and by the workflow that a tag starts. RELEASING.md says what a person does.

python tools/release.py tag v0.1.0            fail if that tag must not be released yet, with a sentence for each reason
python tools/release.py try build/dist ...    try each archive in these folders in an empty environment
python tools/release.py left                  print what a person must still do, in order
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

import sbom
from requirements import settings

ROOT = Path(__file__).parents[1]
LINKS = ("Source", "Issues", "Changelog")
UNRELEASED = "ot on PyPI yet"


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


# ---- the tag


def unready(tag: str) -> Iterator[str]:
    """Yield why this tag must not be released yet."""
    project = settings(text("pyproject.toml"))["project"]
    version = project["version"]
    if tag != f"v{version}":
        yield f"The tag is {tag}, but the version in pyproject.toml is {version}: tag v{version}, or change it."
    for name in LINKS:
        if not project.get("urls", {}).get(name, "").startswith("https://"):
            yield f"[project.urls] in pyproject.toml has no {name}: write its address there."
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text("CHANGELOG.md"), re.MULTILINE):
        yield f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD': give Unreleased its version and date."
    if not re.search(rf"^version: {re.escape(version)}$", text("CITATION.cff"), re.MULTILINE):
        yield f"CITATION.cff has another version than {version}."
    for page in ("README.md", "docs/start.md"):
        if UNRELEASED in text(page):
            yield f"{page} says that the library is not on PyPI yet: write how to install it from there."


# ---- archives


def run(*command: object, **more: Any) -> None:
    """Run a program, of which only what fails is shown."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))[:200]}\n{done.stdout}{done.stderr}")


def apart_from_tree(sdist: Path) -> Iterator[str]:
    """Yield the files that the sources have and the archive has not, and those that nobody has committed."""
    excluded = settings(text("pyproject.toml"))["tool"]["scikit-build"]["sdist"]["exclude"]
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()  # noqa: S607
    sources = {name for name in listed if name.partition("/")[0] not in excluded}
    with tarfile.open(sdist) as archive:
        packed = {one.name.partition("/")[2] for one in archive if one.isfile()} - {"PKG-INFO"}
    yield from (f"{sdist.name} lacks {name}" for name in sorted(sources - packed))
    yield from (f"{sdist.name} has {name}, which is not in git" for name in sorted(packed - sources))


def unlisted(wheel: Path) -> Iterator[str]:
    """Yield what a wheel has of others that its own list does not name."""
    files = sbom.read(wheel)
    listed = b"".join(content for name, content in files.items() if sbom.LIST.fullmatch(name)).decode()
    if any("/_native." in name and not name.endswith(".pyi") for name in files) and '"nanobind"' not in listed:
        yield f"{wheel.name} does not list nanobind, which is compiled in"
    brought = [Path(name).name for name in files if sbom.BROUGHT.fullmatch(name)]
    yield from (f"{wheel.name} does not list {name}" for name in brought if f'"{name}"' not in listed)


def examples() -> str:
    """Return the README's Python, and that it ran with what was installed here."""
    shown = "".join(re.findall(r"^```python\n(.*?)^```", text("README.md"), re.DOTALL | re.MULTILINE))
    return f"{shown}\nimport os, layerwise\nassert layerwise.__file__.startswith(os.getcwd()), layerwise.__file__\n"


def try_wheel(wheel: Path, home: Path) -> None:
    """Install a wheel where nothing is, run its command, and the README's lines with this environment's PyTorch."""
    rmtree(home, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", home)
    run(sys.executable, "-m", "pip", "--python", home / "bin/python", "install", "-q", wheel)
    run(home / "bin/layerwise", "info", cwd=home)
    site = next(home.glob("lib/*/site-packages"))
    run(sys.executable, "-c", examples(), cwd=home, env={"PYTHONPATH": str(site), "PATH": ""})


def try_archives(folders: list[Path]) -> None:
    """Try what is in these folders, and say of each archive that it is right, or of the first what is wrong."""
    wheels = [wheel for folder in folders for wheel in sorted(folder.glob("*.whl"))]
    sdists = [sdist for folder in folders for sdist in sorted(folder.glob("*.tar.gz"))]
    if not wheels or not sdists:
        sys.exit("There must be a wheel and an sdist: make release-check builds them.")
    run(sys.executable, "-m", "twine", "check", "--strict", *wheels, *sdists)
    run(sys.executable, "-m", "check_wheel_contents", *wheels)
    if wrong := [*chain(*map(apart_from_tree, sdists), *map(unlisted, wheels))]:
        sys.exit("\n".join(wrong))
    for number, wheel in enumerate(wheels):
        try_wheel(wheel, ROOT / "build" / "release" / str(number))
    print(*(f"tried: {one.name}" for one in (*sdists, *wheels)), sep="\n")


# ---- the person


def left() -> None:
    """Print the steps of RELEASING.md, and which of them are known not to be done."""
    steps = re.findall(r"^\d+\. .*(?:\n   .*)*", text("RELEASING.md"), re.MULTILINE)
    print("A person must still:", *steps, sep="\n")
    version = settings(text("pyproject.toml"))["project"]["version"]
    if missing := [*unready(f"v{version}")]:
        print("", "Not done yet:", *(f"- {why}" for why in missing), sep="\n")


def main(command: str, *arguments: str) -> None:
    if command == "tag":
        sys.exit("\n".join(unready(*arguments)) or None)
    elif command == "try":
        try_archives([Path(one).resolve() for one in arguments])
    else:
        left()


if __name__ == "__main__":
    main(*sys.argv[1:])
