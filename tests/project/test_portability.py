"""The extension's sources: what systems and compilers do differently stays in the files that are for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
pytestmark = pytest.mark.skipif(not CSRC.is_dir(), reason="the sources are not here")
SYSTEM = r"#include <(unistd|pthread|sched|windows|dlfcn|sys/\w+)\.h>|\bsigaction\(|\bgetenv\(|/proc/|/sys/"
SPELLING = r"__attribute__|__declspec|__forceinline|#pragma (?!once)|_Pragma|__builtin_(?!bit_cast)|__GNUC__|_MSC_VER"
PROCESSOR = r"\b_mm_pause|__cpuid|xgetbv|asm volatile"


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (SYSTEM, {"system.cpp"}),
        (SPELLING, {"compiler.hpp", "processor.hpp"}),
        (PROCESSOR, {"processor.hpp"}),
    ],
)
def test_a_difference_stays_in_its_file(pattern, allowed):
    found = {path.name for path in CSRC.rglob("*.[ch]pp") if re.search(pattern, path.read_text("utf-8"))}
    assert found == allowed


def test_vector_loops_are_announced_by_the_macro_alone():
    assert "LAYERWISE_SIMD(reduction" in (CSRC / "kernels" / "passes.hpp").read_text("utf-8")
    assert not [path.name for path in CSRC.rglob("*.[ch]pp") if "#pragma omp" in path.read_text("utf-8")]
