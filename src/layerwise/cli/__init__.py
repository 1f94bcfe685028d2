"""The command line. Its packages are an extra, so that the library itself needs NumPy and nothing else."""

from __future__ import annotations

import sys

NEEDED = ("rich", "sklearn", "typer")


def main() -> None:
    """Entry point of `layerwise` and of `python -m layerwise`."""
    try:
        from layerwise.cli.app import run

        run()
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in NEEDED:
            raise
        print(f"the command line needs {missing.name}: pip install 'layerwise[demo]'", file=sys.stderr)
        sys.exit(1)
