"""`layerwise bench`: the time of a model's step, with one of these optimizers and with PyTorch's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import layerwise
from layerwise.catalog.registry import ENTRIES
from layerwise.cli.usage import number_parser, one_of
from layerwise.engines.processor import wanted_threads
from layerwise.errors import LayerwiseError
from layerwise.options.checks import integer
from layerwise.options.misspellings import did_you_mean, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

DTYPES = ("float32", "bfloat16", "float16", "float64")
DEVICES = ("cpu", "cuda")  # others are not measured yet
GPUS = ("gpu", "hip", "rocm")  # what PyTorch calls cuda
WARMUP = 3  # the first one creates the state
GRADIENT = 1e-3  # about as large as during training
# PyTorch's counterparts; for all other optimizers, its AdamW.
COUNTERPARTS = {"Adafactor": "Adafactor", "Lars": "SGD", "SGD": "SGD"}
MOMENTUM = {"SGD": {"momentum": 0.9}}


def command(
    model: Annotated[str, typer.Argument(help="package.module:callable that returns the model.")],
    optimizer: Annotated[str, typer.Option(help="Such as lamb.", **one_of("optimizer", lambda: ENTRIES))] = "Lamb",
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the weights; default: as built.", **one_of("dtype", lambda: DTYPES))
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(**number_parser(int, integer(1)), help=("Of layerwise's and PyTorch's optimizers."))
    ] = None,
    rounds: Annotated[
        int, typer.Option(**number_parser(int, integer(3)), help="Measured steps of each optimizer.")
    ] = 11,
) -> None:
    """Time a step of your model with one of our optimizers and with PyTorch's, in turns, on random gradients."""
    import torch

    layerwise.set_num_threads(threads or wanted_threads())
    torch.set_num_threads(wanted_threads())
    made = _with_gradients(model, device, dtype)
    params = [p for p in made.parameters() if p.requires_grad]
    steppers = dict(_steppers(made, params, optimizer))
    found = _in_turns(steppers, rounds, params[0].device)
    kind, n = str(params[0].dtype).removeprefix("torch."), sum(p.numel() for p in params)
    count = f"{wanted_threads()} thread{'s' * (wanted_threads() != 1)}"
    print(f"{optimizer} on {model}: {n:,} parameters in {len(params):,} tensors, {kind} on {device}, {count}")
    print(*_table(found, {label: _state_bytes(one) / n for label, one in steppers.items()}), sep="\n")


def _with_gradients(path: str, device: str, dtype: str | None) -> nn.Module:
    """Return the model on the device, with a gradient for each trainable parameter."""
    import torch

    from layerwise.cli.models import model_of

    made = model_of(path)
    if any(p.is_meta for p in made.parameters() if p.requires_grad):
        raise LayerwiseError(f"{path}: the model has parameters on the meta device, which have no values.")
    made = made.to(_device(device), None if dtype is None else getattr(torch, dtype))
    torch.manual_seed(0)
    for p in made.parameters():
        p.grad = torch.randn_like(p) * GRADIENT if p.requires_grad else None
    return made


def _device(name: str) -> torch.device:
    import torch

    if (kind := name.partition(":")[0]) not in DEVICES:
        meant = ["cuda"] if kind in GPUS else nearest(kind, DEVICES, 1)
        hint = did_you_mean(meant) or "Other devices are not measured yet."
        raise LayerwiseError(f"--device must be cpu or cuda, but is {name!r}. {hint}")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except Exception as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise LayerwiseError(
            f"--device {name!r} is unavailable: {reason}. 'layerwise info --devices' lists them."
        ) from None
    return device


def _steppers(model: nn.Module, params: Sequence[Tensor], optimizer: str) -> Iterator[tuple[str, Optimizer]]:
    """Yield the optimizers with their names, ours first. They share weights: the time of a step does not depend on
    them.

    AdamW steps the parameters that a rule for matrices leaves to it.
    """
    import torch

    import layerwise.torch

    name = COUNTERPARTS.get(optimizer, "AdamW")
    if ENTRIES[optimizer].hyper().of_matrices:
        yield (
            f"layerwise.torch.{optimizer}",
            layerwise.torch.Mixed(layerwise.torch.param_groups(model, rule=optimizer)),
        )
    else:
        yield f"layerwise.torch.{optimizer}", getattr(layerwise.torch, optimizer)(params)
    yield f"torch.optim.{name}", getattr(torch.optim, name)(params, **MOMENTUM.get(name, {}))
    yield "torch.optim.AdamW, fused", torch.optim.AdamW(params, fused=True)


def _in_turns(steppers: Mapping[str, Optimizer], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of each step. The optimizers take turns, so that other load on the machine affects them
    alike.
    """
    import torch

    wait = torch.cuda.synchronize if device.type == "cuda" else bool
    found: dict[str, list[float]] = {label: [] for label in steppers}
    for round_ in range(-WARMUP, rounds):
        for label, one in steppers.items():
            wait()
            start = time.perf_counter()
            one.step()
            wait()
            if round_ >= 0:
                found[label].append(time.perf_counter() - start)
    return found


def _state_bytes(optimizer: Optimizer) -> int:
    return sum(x.nbytes for state in optimizer.state.values() for x in state.values() if hasattr(x, "nbytes"))


def _table(found: Mapping[str, Sequence[float]], state: Mapping[str, float]) -> Iterator[str]:
    """Yield aligned lines: medians and quartiles in milliseconds, and bytes of state per parameter."""
    yield f"{'implementation':<28}{'step, ms':>10}{'quartiles':>18}{'state, B/param':>16}"
    for label, seconds in found.items():
        low, median, high = (_in_digits(1e3 * x) for x in statistics.quantiles(seconds, n=4, method="inclusive"))
        yield f"{label:<28}{median:>10}{f'{low}–{high}':>18}{state[label]:>16.2f}"


def _in_digits(x: float) -> str:
    """Return the number with three digits, or with all digits before the point."""
    return f"{x:,.{2 if x < 10 else 1 if x < 100 else 0}f}"
