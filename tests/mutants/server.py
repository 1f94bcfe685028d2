"""A process that has imported what takes long, and becomes pytest again and again.

It reads a line of JSON for each run, forks, and answers how the child ended, or null where it had to be ended, and how
long processors worked for it. The package itself is imported by the child alone, so that each finds its own copy.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from time import monotonic, sleep
from typing import Any

HEAVY = ("hypothesis", "pytest", "numpy", "torch", "jax.numpy", "optax", "triton")


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    answers, sys.stdout = sys.stdout, sys.stderr
    for name in HEAVY:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), file=answers, flush=True)


def _run(asked: dict[str, Any]) -> tuple[int | None, float]:
    child = os.fork()
    if not child:
        _become(asked)
    end, ended = monotonic() + asked["limit"], False
    try:
        while True:
            pid, status, used = os.wait4(child, os.WNOHANG)
            if pid:
                code = None if ended else os.waitstatus_to_exitcode(status)
                return code, used.ru_utime + used.ru_stime
            if not ended and monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                ended = True
            sleep(0.02)
    except KeyboardInterrupt:
        os.killpg(child, signal.SIGKILL)
        raise


def _become(asked: dict[str, Any]) -> None:
    """Be pytest, in a session of its own that can be ended as a whole."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.stdout = sys.__stdout__
    os.environ.update(asked["environment"])
    sys.path[:0] = asked["environment"]["PYTHONPATH"].split(os.pathsep)
    sys.argv[1:] = asked["arguments"]
    code = 3  # an internal error, as pytest counts
    try:
        code = int(import_module("pytest").main(asked["arguments"]))
    finally:
        os._exit(code)  # what the parent has to do at its end is not the child's


if __name__ == "__main__":
    main()
