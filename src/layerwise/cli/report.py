"""The report of `layerwise info --report`: what a bug report needs, in Markdown, without paths of anybody's."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

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
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # some of it would end the row


def markdown(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report, from the facts with devices."""
    yield "| | |"
    yield "|---|---|"
    for name, value in _rows(found):
        yield f"| {name} | {without_paths(UNPRINTABLE.sub(' ', value)).replace('|', '/')} |"


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "layerwise", str(found["layerwise"])
    yield "Python", _python()
    yield "platform", f"{platform.platform()}, {platform.machine()}"
    yield "processor", f"{found['processor']['name']}; {found['processor']['available']} for this process"
    yield from _engines(found["engines"])
    for name, number in found["packages"].items():
        yield name, number or "not installed"
    for name, listed in found.get("devices", {}).items():
        yield f"devices of {name}", listed if isinstance(listed, str) else "; ".join(listed)
    yield "environment", ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "none"


def _engines(engines: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    compiled, gpu = engines["compiled"], engines["gpu"]
    yield "engines in use", ", ".join(name for name, one in engines.items() if one["available"])
    if compiled["available"]:
        sets = ", ".join(compiled["instruction_sets"])
        yield (
            "compiled",
            f"by {compiled['compiler']}; {compiled['instructions']} of {sets}; {compiled['threads']} threads",
        )
    else:
        yield "compiled", f"not available: {compiled['why']}"
    if not gpu["available"]:
        yield "gpu", f"not available: {gpu['why']}"


def _python() -> str:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    threads = "" if gil else ", without the global interpreter lock"
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}{threads}"


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
