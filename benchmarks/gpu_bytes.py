"""Count the bytes that the GPU engine's launches move for each parameter, without a GPU.

Steps of one matrix of 256×512 are compiled for an H100 (sm_90), and executed in TTIR (`tests/gpu/executed`, which needs
ttsem). A byte counts once for each program that reads or writes it, as if caches kept it for as long as the program
runs. Beside the count stand the least that the method can move (`on_gpu/traffic.py`); what the counted bytes of a
billion parameters take at 3.35 TB/s, the rate of an H100's memory, which no step can undercut; and the processor's time
on this machine for a step of ten matrices whose launches do nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from on_gpu.traffic import GROUPED, Stored, bytes_each
from rows import RESULTS, append, parser_of, provenance, show

TABLE = "gpu_bytes.csv"
TESTS = Path(__file__).parents[1] / "tests"
RATE = 3.35e12  # bytes a second
EXPLAINED = 0.05  # beyond which the table says why
STORED = {
    "float32": Stored(),
    "float32, 8-bit state": Stored(0, GROUPED, late=True),
    "bfloat16": Stored(),
    "bfloat16 and state, drawn": Stored(0, 2, late=True),
    "split": Stored(2),
    "split, 8-bit state": Stored(2, GROUPED, late=True),
    "split24, 8-bit state": Stored(1, GROUPED, late=True),
}


def counts(optimizers: list[str]) -> Iterator[dict[str, Any]]:
    """Count in a process that compiles kernels."""
    env = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join([str(TESTS), env.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "gpu.executed.counting", *optimizers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=TESTS) as counting:
        assert counting.stdout is not None
        yield from map(json.loads, counting.stdout)
    if counting.returncode:
        raise SystemExit(counting.returncode)


def least_of(name: str, label: str) -> float:
    return bytes_each(name, "float32" if label.startswith("float32") else "bfloat16", STORED[label])


def row_of(count: dict[str, Any]) -> dict[str, Any]:
    name, label = count["optimizer"], count["format"]
    least = least_of(name, label)
    moved = count["read"] + count["written"]
    return {
        "optimizer": name,
        "format": label,
        "launches": count["launches"],
        "read": round(count["read"], 2),
        "written": round(count["written"], 2),
        "moved": round(moved, 2),
        "least": round(least, 2),
        "ratio": round(moved / least, 3),
        "ms_at_best": round(1e3 * 1e9 * moved / RATE, 2),
        "host_us": round(count["host_us"]),
    }


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("optimizers", nargs="*", help="only these")
    parser.add_argument("--launches", action="store_true", help="show what each launch moves where it is not the least")
    given = parser.parse_args()
    found = []
    for count in counts(given.optimizers):
        found.append(row_of(count))
        if given.launches and abs(found[-1]["ratio"] - 1) > EXPLAINED:
            show(f"{count['optimizer']}, {count['format']}", [launches_of(count)])
    show("bytes of each parameter", found)
    if not given.no_write:
        origin = provenance()
        append(RESULTS / TABLE, [{**row, **origin} for row in found])


def launches_of(count: dict[str, Any]) -> dict[str, str]:
    return {name: f"{read:.2f} + {written:.2f}" for name, (read, written) in count["each"].items()}


if __name__ == "__main__":
    main()
