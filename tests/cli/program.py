"""The command line, run as its users run it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from unittest.mock import patch

COMMAND = (sys.executable, "-m", "layerwise")
# A terminal's colours and width come from the environment, and none of it should come from whoever runs the tests.
PLAIN = {key: value for key, value in os.environ.items() if not re.search("COLOR|GITHUB|TERM|COLUMNS|LINES", key)}


def run(*arguments, code=0, **environment):
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**PLAIN, **environment}
    )
    assert done.returncode == code, done.stderr
    return done


def here(capsys, *arguments, code=0, **environment):
    """What the command prints and says in this process, where how a process starts and ends is not what is tested."""
    from layerwise import cli

    with patch.dict(os.environ, {**PLAIN, **environment}, clear=True):
        assert cli._guarded(arguments) == code
    return capsys.readouterr()


def on_a_terminal(*arguments, program=COMMAND, interrupt_at=None, **environment):
    """What a terminal receives, and the exit code; Ctrl-C as soon as `interrupt_at` matches."""
    terminal, its_side = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), its_side)
    environment = {**PLAIN, "TERM": "xterm", "COLUMNS": "100", **environment}
    # A shell that runs the tests in its background has them ignore Ctrl-C, and so what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen([*program, *arguments], **streams, env=environment, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    os.close(its_side)
    seen = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            received = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other side is closed
            break
        if not received:
            break
        seen += received
        if interrupt_at and re.search(interrupt_at, seen):
            child.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(terminal)
    return seen.decode(), child.wait(timeout=60)
