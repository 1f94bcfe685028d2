"""Exit codes of a command, and the case that nobody reads its output."""

from __future__ import annotations

import os
import sys

WRONG = 2
TRACEBACK = "LAYERWISE_TRACEBACK"  # set to see where an error happened
INTERRUPTED = 130  # the shell's code for a program that Ctrl-C has ended


def forget_output() -> None:
    """Redirect the output to the null device: at exit, Python would try again to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
