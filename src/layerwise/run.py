"""Run a script or a module, unchanged, with the optimizers registered by name.

python -m layerwise.run train.py --opt layerwise_lamb
python -m layerwise.run -m some.module --optim layerwise_lamb
torchrun --nproc-per-node=2 -m layerwise.run train.py --opt layerwise_lamb
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from layerwise.trainers import register

USAGE = "python -m layerwise.run [-m] SCRIPT_OR_MODULE [ARGUMENTS]"


def main() -> None:
    """Register the optimizers, and run the script or module of the command line."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    arguments = arguments[1:] if as_module else arguments
    if not arguments or arguments[0].startswith("-"):
        sys.exit(f"usage: {USAGE}")
    register()
    sys.argv = arguments
    if as_module:
        sys.path[0] = ""
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
