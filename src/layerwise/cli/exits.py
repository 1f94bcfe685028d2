"""The ends of a command that are not its results: its codes, mistakes, and an output that nobody reads."""

from __future__ import annotations

import os
import sys

from layerwise.errors import LayerwiseError

WRONG = 2
TRACEBACK = "LAYERWISE_TRACEBACK"  # set to see where an error happened
INTERRUPTED = 130  # what a shell calls a program that Ctrl-C has ended


class Mistake(LayerwiseError):
    """Something the user can put right; the message is all that is shown."""


def forget_output() -> None:
    """Redirect the output to nowhere: at its exit Python would try again to write what cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
