"""Copies of the installed package, each with an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from mutants.errors import ROOT

BIN = Path(sys.executable).parent


def installed() -> Path:
    """Return the folder of the installed package."""
    spec = find_spec("layerwise")
    assert spec is not None, "layerwise is not installed: make .venv/.package"
    return Path(str(spec.origin)).parent


class Copies:
    """The folder in which copies are made, and the build folder of extensions with an error."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._native = folder, Native(folder / "native")
        self._package = installed()

    def made(self, error: Any) -> Path:
        """Return a folder in which the package is with this error."""
        into = self._folder / error.mark
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(self._package, into / "layerwise", copy_function=_linked)
        if error.file.startswith("csrc/"):
            built = self._native.built(error)
            _replaced(into / "layerwise" / built.name)
            shutil.copy(built, into / "layerwise")
            return into
        file = into / Path(error.file).relative_to("src")
        own = self._package.parent / Path(error.file).relative_to("src")
        assert own.read_bytes() == (ROOT / error.file).read_bytes(), (
            f"{error.file} is not installed: make .venv/.package"
        )
        _replaced(file)
        file.write_text(error.broken(), encoding="utf-8")
        return into


class Native:
    """The extension, compiled from a copy of its sources, of which one has an error."""

    def __init__(self, folder: Path) -> None:
        self._source, self._build = folder / "source", folder / "build"
        self._lock = Lock()

    def built(self, error: Any) -> Path:
        with self._lock:
            for file in (ROOT / "CMakeLists.txt", *filter(Path.is_file, (ROOT / "csrc").rglob("*"))):
                name = str(file.relative_to(ROOT))
                text = error.broken() if name == error.file else file.read_text(encoding="utf-8")
                _write_if_other(self._source / name, text)
            if not (self._build / "build.ninja").exists():
                self._configure()
            _run(str(BIN / "cmake"), "--build", str(self._build), "--target", "_native")
            [found] = self._build.glob("_native*.so")
            return found

    def _configure(self) -> None:
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        _run(
            *(str(BIN / "cmake"), "-S", str(self._source), "-B", str(self._build), "-G", "Ninja", *launcher),
            *(f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}"),
        )


def _linked(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:  # another file system
        shutil.copy2(source, to)


def _replaced(file: Path) -> None:
    """Take a file's link away, so that what is written there is written nowhere else."""
    assert file.exists(), f"{file.name} is not in the installed package"
    file.unlink()


def _write_if_other(file: Path, text: str) -> None:
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
