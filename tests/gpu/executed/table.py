"""The table of distances: how far the weights of executed steps are from the rule's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cases import KERNELED
from gpu.executed.cases import DTYPES, PROGRAMS, WAYS
from gpu.storing import FORMS

Results = dict[tuple[Any, ...], Any]

HEAD = """# Distances

How far steps whose launches were executed as compiled are from the rule's: the largest difference of a weight, in the
largest weight of its tensor. Steps start where the rule's start: two of each (three with replays, one by parts), of
tensors of several chunks, of one chunk, and of one number, and of blocks. Weights that are stored in 16 bits are the
rule's, or next to them. Written by

    LAYERWISE_DISTANCES=tests/gpu/executed/distances.md make test-all PYTEST_ARGS="tests/gpu/executed -n 0"\
"""


def text_of(found: Results) -> str:
    return "\n".join([HEAD, *_programs(found), *_planes(found), *_ways(found), *_formats(found), ""])


def _programs(found: Results) -> Iterator[str]:
    yield "\n## Programs, by the dtype of weights, gradients and state\n"
    launches = lambda name: sum(found["program", name, "float32"].launches.values()) // 2  # noqa: E731  (two steps)
    done = [name for name in PROGRAMS if ("program", name, "float32") in found]
    head = ["program", "launches a step", *DTYPES]
    yield from _rows(head, done, lambda name: [launches(name), *(_far(found, "program", name, d) for d in DTYPES)])


def _planes(found: Results) -> Iterator[str]:
    yield "\n## Small matrices, of one number, several, and high ones\n"
    names = [name for name, one in PROGRAMS.items() if one.planes]
    yield from _rows(["program", *DTYPES], names, lambda name: [_far(found, "planes", name, d) for d in DTYPES])


def _ways(found: Results) -> Iterator[str]:
    yield "\n## Other steps, in float32\n"
    yield from (f"- `{way}`: {what}" for way, what in WAYS.items())
    yield ""
    yield from _rows(["program", *WAYS], PROGRAMS, lambda name: [_far(found, way, name) for way in WAYS])


def _formats(found: Results) -> Iterator[str]:
    yield "\n## Storage formats: the dtype and form of weights, and the dtype of state\n"
    names = [case.name for case in KERNELED]
    yield from _rows(
        ["optimizer", *map(str, FORMS)], names, lambda name: [_far(found, "form", name, i) for i in range(len(FORMS))]
    )


def _rows(head: Sequence[str], names: Iterable[str], cells: Callable[[str], Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for name in names:
        yield f"| {' | '.join(map(str, [name, *cells(name)]))} |"


def _far(found: Results, *case: Any) -> str:
    return f"{found[case].distance:.0e}".replace("0e+00", "0") if case in found else ""
