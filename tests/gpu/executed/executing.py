"""Triton's launches, executed as they are compiled, without a GPU.

`Executor` stands for the driver of a GPU. Triton compiles each kernel for it up to TTIR, its own representation of the
program, and hands over all launches; ttsem executes them, one program after the other, on tensors in the machine's
memory. A launch fails if a program reads or writes outside of all tensors, if two programs race, or if an address or a
number is no multiple of what the compiler took it for. The bytes that it moves are counted.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu.compiling import TARGETS, Elsewhere
from triton import knobs
from triton.runtime import driver
from ttsem import mlir
from ttsem.interp import Interp
from ttsem.memory import Memory, MemoryFault
from ttsem.pidraces import find_race
from ttsem.values import cast_to

from layerwise.engines import Candidate
from layerwise.engines.gpu import GpuEngine, specialization
from layerwise.torch.step import _engines

Span = tuple[int, int]  # the first byte of a stretch of memory, and the one behind it


class ExecutionError(Exception):
    """A launch did what no launch may do."""


class Launch(NamedTuple):
    """A launch that was executed."""

    kernel: str
    programs: int
    constants: dict[str, str]
    read: int  # bytes, each once for a program that reads it again
    written: int


class Executor(Elsewhere):
    """Stands for a driver whose device executes TTIR."""

    def __init__(self, target: str) -> None:
        super().__init__(TARGETS[target])
        self.launches: list[Launch] = []
        self.recorded: list[Callable[[], None]] | None = None  # launches of a recording, to be executed later
        self._lock = threading.Lock()  # a device executes one launch after the other

    def begin(self) -> None:
        """Forget all launches. Tensors that are made from here on are all that launches may touch."""
        self.launches.clear()
        gc.collect()
        gc.freeze()

    def load_binary(self, name: str, binary: bytes, *_: Any) -> tuple[Any, ...]:
        return name, mlir.parse(binary.decode()), 32, 0, 1024

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        given = [kind != "constexpr" for kind in src.signature.values()]
        fn, names = src.fn, list(src.signature)
        constants = {names[place[0]]: named(x) for place, x in src.constants.items()}

        def launch(x: int, y: int, z: int, stream: Any, module: Any, packed: Any, *rest: Any) -> None:
            args = [arg for arg, is_given in zip(rest[3:], given, strict=True) if is_given]
            one = partial(self.execute, fn, constants, module, metadata.name, (x, y, z), args)
            one() if self.recorded is None else self.recorded.append(one)

        return launch

    def execute(
        self, fn: Any, constants: Any, module: Any, name: str, grid: Sequence[int], args: Sequence[Any]
    ) -> None:
        with self._lock:
            memory = executed(module, name, grid, args)
            kernel = f"{fn.__module__.rpartition('.')[-1]}.{fn.__name__}"
            self.launches.append(Launch(kernel, prod(grid), constants, *moved(memory.access_log)))


def named(x: Any) -> str:
    return getattr(x, "__name__", str(x))


class Program(Interp):
    """Executes programs, and compares what the compiler took for granted of numbers with what they are."""

    def bind_results(self, op: Any, results: list[Any]) -> None:
        if told := op.attrs.get("tt.divisibility"):
            check_multiple(results[0], told.value, op.text)
        super().bind_results(op, results)


def check_multiple(number: Any, of: int, what: str) -> None:
    """Raise if the first of these numbers is no multiple, which the compiler takes for granted."""
    if np.ravel(number)[0] % of:
        raise ExecutionError(f"not a multiple of {of}: {what}")


def executed(module: Any, name: str, grid: Sequence[int], args: Sequence[Any]) -> Memory:
    """Execute all programs of a launch, and return the memory with all accesses to it."""
    memory = memory_of(args)
    function = module.funcs[name]
    kinds = [kind for _, kind in function.regions[0].blocks[0].args]
    values = [
        cast_to(np.asarray(x.data_ptr() if isinstance(x, torch.Tensor) else x), kind)
        for x, kind in zip(args, kinds, strict=True)
    ]
    for i, (value, told) in enumerate(zip(values, function.attrs["arg_attrs"], strict=True)):
        check_multiple(value, told.get("tt.divisibility", 1), f"argument {i} of {name}")
    interpreter = Program(module, memory, tuple(grid))
    try:
        with np.errstate(all="ignore"):  # as on a GPU: inf and nan are numbers
            interpreter.run_grid(name, values)
    except MemoryFault as fault:
        where = " ".join([f"program {interpreter.program_id} of {name}", *getattr(fault, "__notes__", ())])
        raise ExecutionError(f"{where} {fault.kind}s {len(fault.addrs)} elements outside of all tensors") from fault
    if interpreter.unsupported or memory.access_overflow:
        raise ExecutionError(f"{name} was not executed whole: {interpreter.unsupported or 'too many accesses'}")
    if race := find_race(memory.access_log):
        raise ExecutionError(f"programs of {name} race ({race.kind}): {race.first} and {race.second}")
    return memory


def memory_of(args: Sequence[Any]) -> Memory:
    """Return the memory of all tensors that live."""
    memory = Memory()
    memory.trace()
    tensors = (x for x in chain(gc.get_objects(), args) if issubclass(type(x), torch.Tensor))
    for begin, end in joined(set(map(span_of, tensors))):
        memory.register(begin, np.frombuffer((ctypes.c_uint8 * (end - begin)).from_address(begin), np.uint8))
    return memory


def span_of(x: torch.Tensor) -> Span:
    if x.device.type != "cpu" or x.layout != torch.strided:
        return 0, 0
    storage = x.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def joined(spans: set[Span]) -> Iterator[Span]:
    """Join spans that overlap: views of the same arrays by other libraries."""
    begin = end = 0
    for a, b in sorted(spans):
        if a < end:
            end = max(end, b)
            continue
        if end > begin:
            yield begin, end
        begin, end = a, b
    if end > begin:
        yield begin, end


def moved(log: Any) -> tuple[int, int]:
    """Return the bytes read and written; what a program reads or writes again counts once."""
    return sum(bytes_of(log, "r")), sum(bytes_of(log, "ws"))


def bytes_of(log: Any, kinds: str) -> Iterator[int]:
    found: dict[Any, list[np.ndarray]] = {}
    for program, kind, _, addresses, size, _ in log:
        if kind in kinds:
            found.setdefault((program, size), []).append(addresses)
    for (_, size), each in found.items():
        yield size * len(np.unique(np.concatenate(each)))


def execute(target: str = "sm_90") -> Executor:
    """Let Triton compile and launch for an executor, for as long as this process lives."""
    mlir.enable_generic_printing()
    torch.use_deterministic_algorithms(True)  # then what `torch.empty` returns is nan, and shows if it is read
    executor = Executor(target)
    driver.set_active(executor)
    knobs.runtime.add_stages_inspection_hook = up_to_ttir
    return executor


def use(kernels: GpuEngine) -> None:
    """Let this engine step the tensors of PyTorch's optimizers, which are in the machine's memory."""
    row = Candidate("gpu", kernels, required=kernels)
    specialization.DEVICES = ("cpu",)
    _engines.ENGINES, _engines.KERNELS = (row, Candidate("rule", _engines.RULE)), {"cpu": row}


def up_to_ttir(backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str]:
    """Let TTIR be what is launched; Triton asks for a key of its caches by the same function, without arguments."""
    if stages is not None:

        def binary(module: Any, metadata: dict[str, Any]) -> bytes:
            metadata |= {"name": module.get_entry_func_name(), "shared": 0, "tmem_size": 0, "tensordesc_meta": None}
            metadata |= {f"{kind}_scratch_{what}": 0 for kind in ("global", "profile") for what in ("size", "align")}
            return str(module).encode()

        first = stages["ttir"]
        stages.clear()
        stages.update(ttir=first, **{backend.binary_ext: binary})
    return "executed", "executed"
