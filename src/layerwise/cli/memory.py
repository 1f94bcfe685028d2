"""Memory needed to train a model, computed on the meta device: the model need not fit this machine."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from layerwise.catalog.registry import ENTRIES
from layerwise.cli.usage import matching_name, number_parser, one_of
from layerwise.options.checks import integer
from layerwise.storage.options import OPTIONS, requested_storage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from layerwise.core.storage_plan import StoragePlan
    from layerwise.options.settings import Hyper

UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
DTYPES, STATES = ("float32", "bfloat16", "float16"), ("float32", "bfloat16", "int8")
MASTERS: Mapping[str, bool | str] = {"copy": True, "split": "split", "split24": "split24"}
OTHER_RULE = "adamw"  # the rule for embeddings, norms and biases, next to a rule for matrices
NOT_COUNTED = "Not counted: activations, and temporary memory of a step and of communication."


class Footprint(NamedTuple):
    """Bytes on one device that holds its part of every tensor."""

    weights: int
    gradients: int
    state: int
    largest_gradient: int

    @property
    def peak(self) -> int:
        """At the end of a backward pass, without activations."""
        return self.weights + self.gradients + self.state

    @property
    def released(self) -> int:
        """The same if each gradient is freed as soon as its parameter has been stepped."""
        return self.weights + self.largest_gradient + self.state

    def by_purpose(self) -> dict[str, int]:
        whole = {"weights": self.weights, "gradients": self.gradients, "state": self.state}
        return {**whole, "peak": self.peak, "peak, gradients freed": self.released}


def footprint(
    model: nn.Module, optimizer: str, options: Mapping[str, Any] | None = None, devices: int = 1, **storage: object
) -> Footprint:
    """Return the memory needed to train a model, for each of the devices among which every tensor is divided by rows.

    Args:
        model: A `torch.nn.Module`, usually one on the meta device.
        optimizer: The optimizer's name. With Muon, AdamW steps embeddings, the head, norms and biases.
        options: Options of its rule, such as {"betas": (0.9, 0.99)}.
        devices: The number of devices.
        **storage: `master_weights`, `rounding` and `state_dtype`.
    """
    from layerwise.torch.step._checks import check_kind

    for name, p in model.named_parameters():
        check_kind(name, p)
    own = ENTRIES[optimizer].hyper(**options or {})
    weights = state = 0
    for p, name, rule in _ruled(model, optimizer):
        h = own if rule == optimizer else ENTRIES[rule].hyper()
        of_p = _storing(p, name, rule, h, storage).bytes(devices)
        weights, state = weights + of_p.weights, state + of_p.state
    weights += sum(_part(p, devices) for p in model.parameters() if not p.requires_grad)
    gradients = [_part(p, devices) for p in model.parameters() if p.requires_grad]
    return Footprint(weights, sum(gradients), state, max(gradients))


def _ruled(model: nn.Module, optimizer: str) -> Iterator[tuple[nn.Parameter, str, str]]:
    """Yield each trainable parameter with its name and the name of its rule."""
    from layerwise.torch import param_groups

    if not ENTRIES[optimizer].hyper().of_matrices:
        yield from ((p, name, optimizer) for name, p in model.named_parameters() if p.requires_grad)
        return
    for group in param_groups(model, rule=optimizer, others={"rule": OTHER_RULE}):
        rule = matching_name("optimizer", str(group["rule"]), [*ENTRIES])
        yield from ((p, name, rule) for name, p in group["params"])


def _storing(p: Tensor, name: str, rule: str, h: Hyper, storage: Mapping[str, object]) -> StoragePlan:
    from layerwise.torch.step._plan import plan_of

    module = ENTRIES[rule].rule
    given = {"master_weights": False, "rounding": None, "state_dtype": None, "seed": 0, **storage}
    plan = plan_of(module, p, h, name, lambda _: None)
    return plan.storage_plan(p, requested_storage({key: given[key] for key in OPTIONS}, module))


def _part(p: Tensor, devices: int) -> int:
    """Return the bytes of the largest part of a tensor."""
    rows = p.shape[0] if p.ndim else 1
    return int(p.nbytes) * -(-rows // devices) // max(rows, 1)


def _option(given: str, optimizer: str) -> tuple[str, object]:
    """Return the name and value in `--option name=value`."""
    name, equals, text = given.partition("=")
    if not equals:
        raise typer.BadParameter(f"--option must be name=value, but is {given!r}.")
    name = matching_name(f"option of {optimizer}", name, [one.name for one in fields(ENTRIES[optimizer].hyper)])
    try:
        return name, literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text


def command(
    model: Annotated[str, typer.Argument(help="package.module:callable, or a published shape such as qwen3-8b.")],
    optimizer: Annotated[str, typer.Option(help="Such as lamb.", **one_of("optimizer", lambda: ENTRIES))] = "Lamb",
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the weights; default: as built.", **one_of("dtype", lambda: DTYPES))
    ] = None,
    master_weights: Annotated[
        str | None, typer.Option(help="copy, split or split24.", **one_of("form of master weights", lambda: MASTERS))
    ] = None,
    state_dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or int8.", **one_of("dtype of state", lambda: STATES))
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Option of the optimizer, such as betas=0.9,0.99.")] = None,
    devices: Annotated[
        int, typer.Option(**number_parser(int, integer(1)), help="Number of shards of every tensor.")
    ] = 1,
    as_text: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Weights, gradients and state of a model in training, built on the meta device: any size fits."""
    options = dict(_option(one, optimizer) for one in option or ())
    import torch

    from layerwise.cli.models import on_meta

    made = on_meta(model)
    made = made if dtype is None else made.to(getattr(torch, dtype))
    if master_weights and not any(p.dtype.itemsize < 4 for p in made.parameters()):
        typer.echo(
            f"note: --master-weights {master_weights} is for weights of 16 bits. Add --dtype bfloat16.", err=True
        )
    storage = {"master_weights": MASTERS.get(master_weights or "", False), "state_dtype": state_dtype}
    counts = sorted({1, devices})
    found = [footprint(made, optimizer, options, n, **storage) for n in counts]
    n = sum(p.numel() for p in made.parameters())
    print(as_json(n, counts, found) if as_text else "\n".join(lines(f"{optimizer} on {model}", n, counts, found)))


def lines(title: str, n: int, counts: Sequence[int], found: Sequence[Footprint]) -> Iterator[str]:
    """Yield a table: bytes per parameter, and GiB in total and per device."""
    unit = next((one for one, size in UNITS.items() if found[-1].weights >= size / 10), "KiB")
    each = [f"{unit}, each of {count}" if count > 1 else f"{unit}, whole" for count in counts]
    yield f"{title}: {n:,} parameters"
    yield "".join(f"{one:>20}" for one in ("", "bytes a parameter", *each)).rstrip()
    for name, whole in found[0].by_purpose().items():
        cells = [f"{whole / n:.2f}", *(f"{one.by_purpose()[name] / UNITS[unit]:,.2f}" for one in found)]
        yield f"{name:<21}{cells[0]:>19}" + "".join(f"{cell:>20}" for cell in cells[1:])
    yield NOT_COUNTED


def as_json(n: int, counts: Sequence[int], found: Sequence[Footprint]) -> str:
    each = [{"devices": count, **one.by_purpose()} for count, one in zip(counts, found, strict=True)]
    return json.dumps({"parameters": n, "bytes": each}, indent=2)
