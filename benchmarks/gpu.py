"""Check and time the fused engine on a GPU: everything about it that only a GPU can tell, in one call.

Is every option's step right, compared with the rule in float64? How many launches, copies and waits does a step take?
Does it go into a CUDA graph? How long does it take beside what people use instead, and beside what the device's memory
allows? Parts come in order of importance, and what there was no time for is said at the end. The exit code is 1 where
something is wrong, and 2 where there is no GPU. It needs torch, triton and this checkout, whose package it takes where
none is installed; no network, and no folder to write to but --out. With --interpret it all runs on a few small tensors
through Triton's interpreter, to try the script: those times say nothing, and are never written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
if find_spec("layerwise") is None:
    sys.path.insert(0, str(ROOT / "src"))

from rows import RESULTS, append, provenance  # noqa: E402

PARTS = ("check", "profile", "graph", "table", "sweep")
MODELS = ("gpt-1b", "bert-base", "resnet50", "tiny-1000")
TABLE = "gpu.csv"
LIMIT = 540
Rows = list[dict[str, object]]


def names(known: Sequence[str], text: str) -> list[str]:
    """Those named, in the order of those known."""
    wanted = text.split(",")
    if unknown := [name for name in wanted if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} must be of {', '.join(known)}")
    return [name for name in known if name in wanted]


def given(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda x: names(PARTS, x), default=PARTS, help=f"of {','.join(PARTS)}")
    parser.add_argument("--models", type=lambda x: names(MODELS, x), default=MODELS, help=f"of {','.join(MODELS)}")
    parser.add_argument("--time-limit", type=float, default=LIMIT, metavar="SECONDS", help=f"at first {LIMIT}")
    parser.add_argument("--interpret", action="store_true", help="without a GPU, through Triton's interpreter")
    parser.add_argument("--no-write", action="store_true", help=f"do not append to {RESULTS.name}/{TABLE}")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the report, the rows and all caches there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = given(arguments)
    if asked.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # which Triton reads when it is imported
    if asked.out is not None:
        keep_within(asked.out)
    from on_gpu.place import NoDeviceError, find

    try:
        place = find(asked.interpret)
    except NoDeviceError as problem:
        print(f"gpu.py: {problem}", file=sys.stderr)
        return 2
    return run(asked, place)


def keep_within(out: Path) -> None:
    """Let everything that is written on the way go to this folder: homes and installations may be read-only."""
    out.mkdir(parents=True, exist_ok=True)
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ.setdefault(variable, str(out.resolve() / "cache" / variable.partition("_")[0].lower()))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # of programs that this one starts
    sys.dont_write_bytecode = True


class Both:
    """Standard output, and a file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(text)
        return sys.stdout.write(text)

    def flush(self) -> None:
        self._file.flush()
        sys.stdout.flush()


def run(asked: argparse.Namespace, place: Any) -> int:
    if asked.out is None:
        return report(asked, place, None)
    with (asked.out / "report.txt").open("w", encoding="utf-8") as file:
        return report(asked, place, Both(file))


def report(asked: argparse.Namespace, place: Any, to: Any) -> int:
    import layerwise
    from on_gpu.aims import aims
    from on_gpu.plan import Deadline, Run
    from on_gpu.tables import Results, legend
    from on_gpu.traffic import measure_copy

    deadline = Deadline(asked.time_limit)
    origin = {**provenance(), **described(place)}
    copy = measure_copy(place)
    kept = not (asked.no_write or place.interpreted)
    write = writer(origin, asked.out or RESULTS) if kept else ignore
    results = Results(to or sys.stdout, copy, deadline.passed)
    doing, say = Run(place, results, deadline, write), results.say
    say(f"layerwise {layerwise.__version__} of {Path(layerwise.__file__).parent}")
    say(f"{origin['gpu']}, engine {place.engine}, torch {origin['torch']}, triton {origin['triton']}")
    say("An interpreter takes the steps: times say nothing." if place.interpreted else str(copy), "")
    doing.carry_out(doing.parts(asked.only, asked.models))
    say(*legend(copy, on_gpu=not place.interpreted))
    if not place.interpreted:
        say("", *(str(aim) for aim in aims(results, asked.models)))
    say(*(f"left out: {what}" for what in doing.left_out))
    return int(doing.wrong > 0)


def described(place: Any) -> dict[str, str]:
    """The device and what drives it, beside what every benchmark says of the machine."""
    import torch

    from layerwise.cli.info import version_of

    versions = {name: version_of(name) or "" for name in ("triton", "timm", "apex")}
    if place.interpreted:
        return {"gpu": "no GPU", "cuda": "", **versions}
    gpu = torch.cuda.get_device_properties(place.device)
    return {
        "gpu": f"{gpu.name}, {gpu.total_memory >> 30} GiB",
        "cuda": torch.version.cuda or torch.version.hip or "",
        **versions,
    }


def writer(origin: Mapping[str, str], folder: Path) -> Callable[[Rows], None]:
    def write(rows: Rows) -> None:
        if rows:
            append(folder / TABLE, [{**row, **origin} for row in rows])

    return write


def ignore(rows: Rows) -> None:
    """What an interpreter took is nobody's figure."""


if __name__ == "__main__":
    sys.exit(main())
