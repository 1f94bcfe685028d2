"""`python -m demo`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("layerwise", "matplotlib", "rich", "sklearn", "torch")

if __name__ == "__main__":  # and not in worker processes, which import this too
    if missing := next((package for package in NEEDED if find_spec(package) is None), None):
        sys.exit(f"The demo needs {missing}: `make demo` installs it, and so does pip install '.[demo]'.")
    from demo.run import main

    sys.exit(main())
