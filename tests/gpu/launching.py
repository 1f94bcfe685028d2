"""Launches steps for a GPU that need not be here, and prints what its driver would have been given: JSON, a line each.

It is a program because Triton decides when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from cases import case_of
from engines.worlds import WORLDS, make_job, mapped, now_of
from gpu.compiling import TARGETS, Elsewhere
from triton.runtime import driver, jit

from layerwise import engines
from layerwise.engines.gpu import engine, launch

GIVEN: list[list[Any]] = []
SEARCHED: list[str] = []
RUN = jit.JITFunction.run


class Utilities:
    """A driver's calls, with a device on which any kernel fits."""

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return 1, 2, 32, 0, 1024

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 20}


class Noting(Elsewhere):
    """A driver that launches nothing and notes with what it was asked to."""

    utils = Utilities()

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        return lambda *args: GIVEN.append([metadata.name, *map(plain, args)])


def plain(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    return type(x).__name__ if type(x).__name__ == "LazyDict" else str(x)  # of hooks, for each launch


def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
    SEARCHED.append(self.__name__)
    return RUN(self, *args, **kwargs)


def main() -> None:
    driver.set_active(Noting(TARGETS["sm_90"]))
    engine.DEVICES = ("cpu",)
    jit.JITFunction.run = launch.RUN = noted
    case, torches = case_of(sys.argv[1]), WORLDS[1]
    jobs = [
        mapped(make_job(case, case.hyper(), shape, (), i), torches.array) for i, shape in enumerate([(30, 20), (7,)])
    ]
    ready = engine.GpuEngine(None).prepare([engines.Job(j.rule, j.h, j.p, j.state) for j in jobs])
    skips = torch.zeros(32, dtype=torch.bool)
    for skip in (None, skips[0], skips[1]):  # one of the two is aligned
        for _ in range(2):
            GIVEN.clear()
            SEARCHED.clear()
            ready.step([j.g for j in jobs], [now_of(jobs[0].h, 1)] * 2, skip)
            print(json.dumps({"launches": len(GIVEN), "searched": len(SEARCHED), "given": GIVEN}))


if __name__ == "__main__":
    main()
