"""Check and time the fused engine on a GPU: everything about it that only a GPU can tell, in one call.

Is every option's step right, held against the rule in float64? How many launches, copies and waits does a step take?
Does it go into a CUDA graph? How long does it take beside what people use instead, and beside what the device's memory
allows? Parts come in order of importance, and what there was no time for is said at the end. The exit code is 1 where
something is wrong, and 2 where there is no GPU. With --interpret it all runs on a few small tensors through Triton's
interpreter, to try the script: those times say nothing, and are never written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rows import RESULTS, append, provenance

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
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = given(arguments)
    if asked.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # which Triton reads when it is imported
    from on_gpu.place import NoDeviceError, find

    try:
        place = find(asked.interpret)
    except NoDeviceError as problem:
        print(f"gpu.py: {problem}", file=sys.stderr)
        return 2
    return run(asked, place)


def run(asked: argparse.Namespace, place: Any) -> int:
    from rich.console import Console

    from on_gpu.aims import aims
    from on_gpu.plan import Deadline, Run
    from on_gpu.tables import Results, legend
    from on_gpu.traffic import measure_copy

    deadline = Deadline(asked.time_limit)
    console, origin = Console(), {**provenance(), **described(place)}
    copy = measure_copy(place)
    kept = not (asked.no_write or place.interpreted)
    doing = Run(console, place, Results(console, copy, deadline.passed), deadline, writer(origin) if kept else ignore)
    doing.say(f"{origin['gpu']}, engine {place.engine}, torch {origin['torch']}, triton {origin['triton']}")
    doing.say("An interpreter takes the steps: times say nothing." if place.interpreted else str(copy), "")
    doing.carry_out(doing.parts(asked.only, asked.models))
    for line in legend(copy, on_gpu=not place.interpreted):
        console.print(line, soft_wrap=True)
    if not place.interpreted:
        doing.say("", *(str(aim) for aim in aims(doing.results, asked.models)))
    doing.say(*(f"left out: {what}" for what in doing.left_out))
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


def writer(origin: Mapping[str, str]) -> Callable[[Rows], None]:
    def write(rows: Rows) -> None:
        if rows:
            append(RESULTS / TABLE, [{**row, **origin} for row in rows])

    return write


def ignore(rows: Rows) -> None:
    """What an interpreter took is nobody's figure."""


if __name__ == "__main__":
    sys.exit(main())
