"""Count and time what the compiled engine does for each parameter in each storage format, in the cache of one core.

For the kernels of one set of instructions: nanoseconds of each pass, the least of many rounds, so that other load does
not matter much; instructions for eight parameters, as Valgrind counts them where it knows the instructions (not those
of AVX-512); and the cycles that llvm-mca predicts for the loop that makes the codes of both states. `--csrc` takes the
sources of another checkout.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path

from rows import show

ROOT = Path(__file__).parents[1]
COMMON = ["-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"]
COMMON += ["--param", "max-completely-peel-times=4"]
AVX512 = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma"
SETS = {  # as in CMakeLists.txt: flags for all kernels, and for those of bfloat16 where it lies
    "avx2": ("avx2_any", "avx2_low", "-mavx2 -mfma", "-mavx2 -mfma", "znver3"),
    "avx512": (
        "avx512_narrow",
        "avx512_low",
        f"{AVX512} -mprefer-vector-width=256 -DLAYERWISE_NARROW",
        f"{AVX512} -mprefer-vector-width=512",
        "icelake-server",
    ),
}
PARAMETERS = 1 << 14  # as in loops.cpp


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="avx2")
    parser.add_argument("--csrc", type=Path, default=ROOT / "csrc")
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--loop", action="store_true", help="only what llvm-mca says of the loop: nothing is run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(given.csrc, given.set, Path(folder), given.loop)
        if not given.loop:
            show(f"{given.set}, in the cache", list(rows(program, given.rounds, given.set == "avx2")))
        print(f"the loop of codes: {predicted(Path(folder) / 'shared_low.o', SETS[given.set][-1])}")


def compiled(csrc: Path, name: str, folder: Path, only_shared: bool) -> Path:
    """Compile the kernels of two rules, and what steps them."""
    any_set, low_set, any_flags, low_flags, _ = SETS[name]
    each = [(any_set, any_flags.split(), "any"), (low_set, [*low_flags.split(), "-DLAYERWISE_LOW"], "low")]
    for set_name, flags, kind in each:
        own = [*COMMON, *flags, f"-I{csrc}", f"-DLAYERWISE_SET={set_name}", "-c"]
        run("g++", *own, str(csrc / "kernels/shared.cpp"), "-o", str(folder / f"shared_{kind}.o"))
        for rule in () if only_shared else ("lamb", "adamw"):
            header = [f"-DLAYERWISE_RULE={rule}", f'-DLAYERWISE_HEADER="printed/{rule}.hpp"']
            run("g++", *own, *header, str(csrc / "kernels/rule.cpp"), "-o", str(folder / f"{rule}_{kind}.o"))
    program = folder / "loops"
    if not only_shared:
        sets = [f"-DLAYERWISE_ANY={any_set}", f"-DLAYERWISE_LOW_SET={low_set}"]
        sources = [str(ROOT / "benchmarks/loops.cpp"), str(csrc / "runs.cpp"), *map(str, folder.glob("*.o"))]
        run("g++", "-std=c++20", "-O2", f"-I{csrc}", *sets, *sources, "-o", str(program))
    return program


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rows(program: Path, rounds: int, counts: bool) -> Iterator[dict[str, object]]:
    for line in run(str(program), str(rounds), "").splitlines():
        name, measure, apply = line.rsplit(",", 2)
        both = float(measure) + float(apply)
        count = instructions(program, name) if counts else ""
        yield {"format": name, "measure_ns": measure, "apply_ns": apply, "ns": f"{both:.3f}", "instructions": count}


def instructions(program: Path, name: str) -> str:
    """Return how many eight parameters take: what more rounds take more."""
    few, many = (_counted(program, rounds, name) for rounds in (2, 6))
    return f"{(many - few) / 4 / PARAMETERS * 8:.0f}"


def _counted(program: Path, rounds: int, name: str) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(program), str(rounds), name]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    found = re.search(r"Collected : (\d+)", text)
    assert found, text
    return int(found[1])


def predicted(shared: Path, processor: str) -> str:
    """Return what llvm-mca says of the vector loop that makes codes, which has one product, of random bits."""
    loop = next((loop for loop in _loops(shared) if sum("vpmulld" in line for line in loop) == 1), None)
    if loop is None:
        return "the compiler has made no loop of it"
    text = "\n".join(loop[:-1])
    said = subprocess.run(
        ["llvm-mca", f"-mcpu={processor}", "-iterations=100"], input=text, check=True, capture_output=True, text=True
    ).stdout
    cycles = re.search(r"Block RThroughput: ([\d.]+)", said)
    assert cycles, said
    width = 16 if "zmm" in text else 8
    return f"{len(loop)} instructions for {width} parameters, {cycles[1]} cycles on {processor} if nothing waits"


def _loops(shared: Path) -> Iterator[list[str]]:
    """Return the innermost loops of what stores two states."""
    text = run("objdump", "-d", "--no-show-raw-insn", "-C", str(shared))
    body = next(part for part in text.split("\n\n") if re.search(r"::store_both\(.*>:\n", part) and "clone" not in part)
    lines = [(int(found[1], 16), found[2]) for found in re.finditer(r"^\s*([0-9a-f]+):\t(.*)$", body, re.M)]
    at = {address: i for i, (address, _) in enumerate(lines)}
    for i, (_, line) in enumerate(lines):
        found = re.match(r"j\w+\s+([0-9a-f]+) ", line)
        begin = at.get(int(found[1], 16), i) if found else i
        if begin < i and not any(re.match(r"j\w+ ", inner) for _, inner in lines[begin:i]):
            yield [re.sub(r"\s*[#<].*", "", inner) for _, inner in lines[begin : i + 1]]


if __name__ == "__main__":
    main()
