"""The engines that are available here, and the reasons why others are not. Needs only NumPy.

Frameworks are imported only to list their devices: that takes seconds, and versions are known without it.
"""

from __future__ import annotations

import importlib
import json as text
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Any

from layerwise.catalog.registry import ENTRIES
from layerwise.contrib._files import printable
from layerwise.engines.compiled import VARIABLE as ISA_VARIABLE
from layerwise.engines.compiled import read_environment, reason_missing
from layerwise.engines.gpu.installed import PROOF_VARIABLE
from layerwise.engines.gpu.installed import reason_missing as why_no_gpu
from layerwise.engines.printed_programs import RULES
from layerwise.engines.processor import VARIABLE as THREADS_VARIABLE
from layerwise.engines.processor import available_processors, fast_product_dtype_of_cpu, wanted_threads
from layerwise.storage.extension import extension

PACKAGES = ("numpy", "torch", "triton", "jax", "optax", "keras", "mlx", "paddlepaddle")
DTYPES = ("float32", "bfloat16")
TAKES = "PyTorch's tensors on GPUs, by Triton"
PROOF = "each kernel is compared with the reference before its first step on a device; use --devices to compare now"
WOULD = "no GPU on this machine; with a GPU, --devices compares each optimizer's kernels with the reference"
NOT_INSTALLED = "not installed"
LISTS = "PyTorch's tensors on accelerators, in lists, if no engine above takes them"
NO_LISTS = "torch is not installed"
BY_REFERENCE = "with the operations of its array library"
VARIABLES = (
    "LAYERWISE_ISA", "LAYERWISE_NUM_THREADS", "LAYERWISE_GPU_PROOF", "LAYERWISE_TRACEBACK",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_ENABLE_MPS_FALLBACK", "TRITON_INTERPRET",
    "JAX_PLATFORMS", "JAX_ENABLE_X64", "XLA_FLAGS", "PYTHON_GIL",
)  # fmt: skip
# Files that GPU drivers create: NVIDIA's, AMD's, Intel's, and those of a GPU that Windows shares with Linux.
DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128", "/dev/dxg")


def show(devices: bool = False, json: bool = False, report: bool = False) -> None:
    """Print the output of `layerwise info`."""
    found = facts(devices or report)
    if json:
        print(text.dumps(found, indent=2, ensure_ascii=False))
    else:
        print("\n".join(reported(found) if report else lines(found)))


Facts = dict[str, Any]  # by name, as JSON has them


def facts(devices: bool = False) -> Facts:
    compiled, on_gpu = _compiled(), _gpu()
    rest = "everything else" if compiled["available"] or on_gpu["available"] else "everything"
    found: Facts = {
        "layerwise": version_of("layerwise"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version_of(name) for name in PACKAGES},
        "processor": {
            "name": processor(),
            "available": available_processors(),
            "products": fast_product_dtype_of_cpu() or "float32",
        },
        "engines": {
            "compiled": compiled,
            "gpu": on_gpu,
            "foreach": {"available": True, "takes": LISTS} if has_torch() else {"available": False, "why": NO_LISTS},
            "reference": {"available": True, "takes": f"{rest}, {BY_REFERENCE}"},
        },
    }
    found["advice"] = advice(found)
    if not devices:
        return found
    if found["engines"]["gpu"]["available"]:
        found["engines"]["gpu"]["verdicts"] = kernel_verdicts()
    return found | {"devices": {"torch": _said(_torch_devices), "jax": _said(_jax_devices)}}


def lines(found: Facts) -> Iterator[str]:
    versions = (f"{name} {number}" for name, number in found["packages"].items() if number)
    engines, machine = found["engines"], found["processor"]
    yield f"layerwise {found['layerwise']}, Python {found['python']} on {found['system']}"
    yield from fill(", ".join(versions), 120, initial_indent="  with      ", subsequent_indent=" " * 12).splitlines()
    yield f"  machine   {machine['name']}, {_many(machine['available'], 'processor')} for this process"
    yield f"            Muon multiplies matrices in {machine['products']} (ns_dtype=None in PyTorch)"
    for name, listed in found.get("devices", {}).items():
        yield f"            {name}: {listed if isinstance(listed, str) else ', '.join(listed)}"
    yield "engines"
    yield from _compiled_lines(engines["compiled"], machine["available"])
    if engines["gpu"]["concerns"] or "devices" in found:
        yield from _gpu_lines(engines["gpu"])
    if engines["foreach"]["available"]:
        yield f"  foreach   {engines['foreach']['takes']}"
    yield f"  reference {engines['reference']['takes']}"
    yield f"advice      {found['advice']}"


def advice(found: Facts) -> str:
    """Return the most important advice for this machine."""
    engines, packages = found["engines"], found["packages"]
    if not any(packages[name] for name in ("torch", "jax", "mlx", "paddlepaddle")):
        return "only NumPy is installed; layerwise also steps parameters of PyTorch, JAX, MLX and Paddle"
    if engines["gpu"]["concerns"]:
        return "run `layerwise info --devices` once: it compares each optimizer's GPU kernels with the reference"
    if not engines["compiled"]["available"]:
        return "install with a C++20 compiler: steps on CPUs then take a third to two thirds of the time"
    return "nothing to set up; `layerwise bench` compares a step with PyTorch's"


def reported(found: Facts) -> Iterator[str]:
    """Yield these lines and the environment, as Markdown for a bug report, without names of home folders."""
    set_here = (f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", without the global interpreter lock"
    build = f"{platform.python_implementation()}, {platform.python_compiler()}{gil}, {platform.platform()}"
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.home() raises where there is none)
    yield "```text"
    for line in (*lines(found), f"platform    {build}", f"environment {', '.join(set_here) or 'none'}"):
        yield printable(line.replace(home, "~") if home.strip("\\/~") else line)
    yield "```"


def _compiled_lines(found: Facts, there: int) -> Iterator[str]:
    if not found["available"]:
        yield f"  compiled  not available: {found['why']}"
        return
    others = ", ".join(found["instruction_sets"])
    yield f"  compiled  {found['takes']}"
    yield f"            instructions {found['instructions']} (kernels for {others}){_set_by(ISA_VARIABLE)}"
    yield f"            threads {found['threads']} (of {_many(there, 'processor')}){_set_by(THREADS_VARIABLE)}"
    yield f"            compiled by {found['compiler']}"


def _gpu_lines(found: Facts) -> Iterator[str]:
    if not found["concerns"]:
        yield f"  gpu       {WOULD}"
        return
    yield f"  gpu       {found.get('takes') or 'not available: ' + found['why']}"
    if found["available"]:
        yield f"            {found['proof']}{_set_by(PROOF_VARIABLE)}"
    for device, verdicts in found.get("verdicts", {}).items():
        for what, verdict in verdicts.items():
            yield f"            {device}: {what}: {verdict}"


def kernel_verdicts(devices: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
    """Try the GPU engine's kernels on each device and return, by optimizer and dtype, "proven" or the problem."""
    try:
        torch = importlib.import_module("torch")
        fronts = importlib.import_module("layerwise.torch")
        names = [entry.name for entry in ENTRIES.values() if entry.rule.__name__ in RULES]
        if devices is None:
            devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    except Exception as problem:  # this command is used when something is wrong
        return {"torch": {"import": f"{type(problem).__name__}: {problem}"}}
    return {
        device: {
            f"{name}, {dtype}": _verdict(torch, getattr(fronts, name), dtype, device)
            for name in names
            for dtype in DTYPES
        }
        for device in devices
    }


def _verdict(torch: ModuleType, front: type, dtype: str, device: str) -> str:
    try:
        own = {"dtype": getattr(torch, dtype), "device": device}
        params = [torch.nn.Parameter(torch.ones(shape, **own)) for shape in ((64, 48), (48,))]
        for p in params:
            p.grad = torch.ones_like(p)
        front(params, fused=True).step()
    except Exception as problem:
        return f"{problem}"
    return "used without a proof" if os.environ.get(PROOF_VARIABLE) == "0" else "proven"


def _compiled() -> Facts:
    native = extension()
    if native is None:
        return {"available": False, "why": reason_missing()}
    read_environment()
    return {
        "available": True,
        "takes": "NumPy arrays and PyTorch's CPU tensors",
        "instructions": native.instruction_set(),
        "instruction_sets": list(native.instruction_sets()),
        "threads": wanted_threads(),
        "compiler": native.compiler(),
    }


def _gpu() -> Facts:
    """Return whether the GPU engine is available, and whether it matters: this machine may have no GPU."""
    concerns = has_torch() and (has_gpu() or os.environ.get("TRITON_INTERPRET") == "1")
    if why := why_no_gpu():
        return {"available": False, "concerns": concerns, "why": why}
    return {"available": concerns, "concerns": concerns, "takes": TAKES, "proof": PROOF} | (
        {} if concerns else {"why": "this machine has no GPU"}
    )


def has_torch() -> bool:
    return version_of("torch") is not None


def has_gpu() -> bool:
    """Return whether a driver reports a GPU for Triton, without importing a framework."""
    nvidia = Path(os.environ.get("SYSTEMROOT", "")) / "System32" / "nvcuda.dll"
    return any(Path(one).exists() for one in DRIVERS) or (platform.system() == "Windows" and nvidia.exists())


def _said(ask: Callable[[], list[str] | str]) -> list[str] | str:
    """Return the result, or the error as text: this command is used when something is wrong."""
    try:
        return ask()
    except ModuleNotFoundError:
        return NOT_INSTALLED
    except Exception as problem:
        return f"unknown ({type(problem).__name__}: {problem})"


def _torch_devices() -> list[str] | str:
    """Return torch's devices other than the CPU."""
    torch = importlib.import_module("torch")
    cuda = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    hip = torch.version.hip
    kind = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    size = {i: torch.cuda.get_device_properties(i).total_memory / 2**30 for i in cuda}
    found = [f"{kind}: {i} {torch.cuda.get_device_name(i)}, {size[i]:.0f} GiB" for i in cuda]
    return found + _others(torch) or "no device but the CPU"


def _others(torch: object) -> list[str]:
    """Return the other kinds of devices that the reference implementation steps on."""
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    xpu = getattr(torch, "xpu", None)
    return [*(["MPS"] if mps and mps.is_available() else []), *(["XPU"] if xpu and xpu.is_available() else [])]


def _jax_devices() -> list[str]:
    return [f"{one.platform} {one.id} {one.device_kind}" for one in importlib.import_module("jax").devices()]


def processor() -> str:
    """Return the processor's name, as the system has it."""
    try:
        rows = (line.partition(":") for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines())
        found = {key.strip(): value.strip() for key, _, value in rows}
    except (OSError, UnicodeDecodeError):
        found = {}
    if "model name" in found:
        return f"{found['model name']} (family {found.get('cpu family')} model {found.get('model')})"
    return platform.processor() or platform.machine()


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _set_by(variable: str) -> str:
    value = os.environ.get(variable)
    return f", {variable}={value}" if value else ""


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
