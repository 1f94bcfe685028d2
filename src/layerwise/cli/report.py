"""What `layerwise info --report` adds and leaves out, for a bug report: the environment, and folders of anybody's."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator

VARIABLES = (
    "LAYERWISE_ISA", "LAYERWISE_NUM_THREADS", "LAYERWISE_GPU_PROOF", "LAYERWISE_TRACEBACK",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_ENABLE_MPS_FALLBACK", "TRITON_INTERPRET",
    "JAX_PLATFORMS", "JAX_ENABLE_X64", "XLA_FLAGS", "PYTHON_GIL",
)  # fmt: skip
# An absolute path, of either kind of system: its folders, and the name that stays.
# It begins a word, follows a flag such as -I, or begins with the folder of all homes, whatever is before that.
PATH = re.compile(
    r"(?:(?<![\w.])|(?<=-[A-Z])|(?=[\\/]+(?:home|users)[\\/]))"
    r"(?P<folders>(?:[A-Za-z]:|~\w*)?(?:[\\/]+(?:[^\s\\/:;,'\"|()]| (?=[^\s\\/]*[\\/]))+)*[\\/]+)"
    r"(?P<name>[^\s\\/:;,'\"|()]+)",
    re.IGNORECASE,
)
HOMES = re.compile(r"[\\/](?:home|users)[\\/]+\Z", re.IGNORECASE)  # where names are those of people
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # some of it would end the line


def markdown(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a report around these facts."""
    set_here = (f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", without the global interpreter lock"
    build = f"{platform.python_implementation()}, {platform.python_compiler()}{gil}, {platform.platform()}"
    rows = (*lines, f"platform    {build}", f"environment {', '.join(set_here) or 'none'}")
    yield "```text"
    yield from (without_paths(UNPRINTABLE.sub(" ", row)) for row in rows)
    yield "```"


def without_paths(text: str) -> str:
    """Return a text in which files have their names and no folders, which may be those of a person.

    A folder that is somebody's home is shown as ~.
    """
    own = os.path.expanduser("~")  # noqa: PTH111 (Path.home() raises where there is none)
    if own.strip("\\/~"):
        text = re.sub(rf"{re.escape(own)}(?![^\s\\/:;,'\"|()])", "~", text)
    return PATH.sub(_without_folders, text)


def _without_folders(path: re.Match[str]) -> str:
    return "~" if HOMES.search(path["folders"]) else f"…/{path['name']}"
