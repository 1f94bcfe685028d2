"""The command line. Its packages are extras: the library itself needs only NumPy."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from layerwise.cli.exit_codes import INTERRUPTED, TRACEBACK, WRONG, forget_output
from layerwise.contrib._files import printable
from layerwise.errors import LayerwiseError

NEEDED = ("torch", "typer")


def main() -> None:
    """Entry point of `layerwise` and of `python -m layerwise`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # standard streams may be missing, or replaced by a program
            stream.reconfigure(errors="replace")  # some terminals have no ± and ×
    sys.exit(_guarded(sys.argv[1:]))


def _guarded(arguments: Sequence[str]) -> int:
    """Return the exit code. Problems outside the program, such as a full disk, are one line without a traceback."""
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # flushed here, where a full disk can still be reported
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except LayerwiseError as problem:
        print(printable(f"layerwise: {problem}"), file=sys.stderr)
        return WRONG
    except BrokenPipeError:  # the reader has closed the pipe
        forget_output()
        return 1
    except ImportError as problem:
        if os.environ.get(TRACEBACK):
            raise
        print(_what_to_install(problem, arguments), file=sys.stderr)
        return 1
    except OSError as problem:
        if problem.filename is not None or problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        print(f"layerwise: cannot write the output: {problem.strerror}", file=sys.stderr)
        forget_output()
        return 1


def _run(arguments: Sequence[str]) -> int:
    # `info` must work where packages are missing.
    if list(arguments[:1]) == ["info"] and {"--json", "--devices", "--report"}.issuperset(arguments[1:]):
        from layerwise.cli.info import show

        show(**{option[2:]: True for option in arguments[1:]})
        return 0
    from layerwise.cli.app import run

    return run(arguments)


def _what_to_install(problem: ImportError, arguments: Sequence[str]) -> str:
    """Return what a command lacks, or why a package cannot be imported."""
    package = (problem.name or "").partition(".")[0]
    if package not in NEEDED or not isinstance(problem, ModuleNotFoundError):
        said = " ".join(str(problem).split()).rstrip(".")
        return f"layerwise: cannot import {problem.name or 'a package'}: {said}. Set {TRACEBACK}=1 to see where."
    command = next((word for word in arguments if not word.startswith("-")), "")
    name = f"layerwise {command}" if command else "the command line"
    return f"{name} needs {package}: pip install {package}"
