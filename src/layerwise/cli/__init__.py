"""The command line. Its packages are an extra, so that the library itself needs NumPy and nothing else."""

from __future__ import annotations

import sys

NEEDED = ("matplotlib", "rich", "sklearn", "torch", "typer")


def main() -> None:
    """Entry point of `layerwise` and of `python -m layerwise`."""
    if sys.argv[1:] == ["info"]:  # which has to answer where things are missing
        from layerwise.cli.info import info

        print("\n".join(info()))
        return
    try:
        from layerwise.cli.app import run

        run()
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        print(f"the command line needs {package}: pip install 'layerwise[demo]'", file=sys.stderr)
        sys.exit(1)
