"""The ends of a command that are not its results: its codes, and an output that nobody reads."""

from __future__ import annotations

import os
import sys

WRONG = 2
TRACEBACK = "LAYERWISE_TRACEBACK"  # set to see where an error happened
INTERRUPTED = 130  # what a shell calls a program that Ctrl-C has ended


def forget_output() -> None:
    """Redirect the output to nowhere: at its exit Python would try again to write what cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
