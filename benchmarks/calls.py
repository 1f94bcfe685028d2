"""Count the calls of PyTorch's operations that a step takes, and the memory of what it makes on the way, on any device.

Steps are taken on the meta device, where tensors have shapes and no memory: nothing is timed. A call is one that
PyTorch dispatches, views among them. Where `torch._foreach_` meets tensors that do not lie alike, or one number of each
tensor, it calls a kernel for each tensor on every device: "by_tensor" is how many tensors such calls had. The memory is
the most that was alive at once of what the step made, in bytes for each parameter; it is not counted of others that
read a number from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.peers import load
from harness.shapes import SETS
from layerwise.catalog.registry import ENTRIES
from layerwise.cli.models import Decoder
from layerwise.engines import Engine, Job
from layerwise.rules.requests import Now
from layerwise.rules.states import is_signed
from layerwise.storage import Format, JobFormats, quantized_groups
from layerwise.storage.bits import Key
from layerwise.storage.index import index_of
from layerwise.storage.state_dtypes import scales_of
from layerwise.torch.step._engines import RULE, ForeachEngine
from rows import RESULTS, parser_of, provenance, show, supersede

TABLE = "calls.csv"
LLAMA = "llama-7b"
MODELS = ("bert-base", "resnet50", LLAMA)
SMALLER = 64  # times along each dimension, where tensors need memory
RATES = {"lr": 0.01, "weight_decay": 0.01}
OPTIONS = {"Lars": {"momentum": 0.9}, "SGD": {"momentum": 0.9}}
FORMS_OF = "bert-base"
FORMS: Mapping[str, Mapping[str, str]] = {
    "bfloat16 at random": {"weights": "bfloat16"},
    "split": {"weights": "split"},
    "split24": {"weights": "split24"},
    "bfloat16 state": {"kept": "bfloat16"},
    "int8 state": {"kept": "int8"},
    "split24, int8 state": {"weights": "split24", "kept": "int8"},
}
OTHERS = {
    "PyTorch's AdamW, foreach": ("torch.optim:AdamW", {"foreach": True}),
    "PyTorch's AdamW, one by one": ("torch.optim:AdamW", {"foreach": False}),
    "PyTorch's Adafactor, foreach": ("torch.optim:Adafactor", {"foreach": True}),
    "timm's LAMB, foreach": ("timm.optim.lamb:Lamb", {"foreach": True, "max_grad_norm": None}),
    "timm's LARS, foreach": ("timm.optim.lars:Lars", {"foreach": True, "momentum": 0.9}),
}


class Counted(TorchDispatchMode):
    """What is called while this is entered, and the memory that it makes if that is asked for, which takes long."""

    def __init__(self, measures: bool) -> None:
        super().__init__()
        self._measures = measures
        self.calls = self.by_tensor = self.peak = 0
        self._made: dict[int, list[ref[Tensor]]] = {}  # tensors by the storage that they share

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        self.by_tensor += in_pieces(func, args)
        if not self._measures:
            return func(*args, **(kwargs or {}))
        given = {storage_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, Tensor) and (storage_of(x) in self._made or storage_of(x) not in given):
                self._made.setdefault(storage_of(x), []).append(ref(x))
        self.peak = max(self.peak, self._alive())
        return found

    def _alive(self) -> int:
        total = 0
        for key, tensors in [*self._made.items()]:
            one = next((x for x in (tensor() for tensor in tensors) if x is not None), None)
            if one is None:
                del self._made[key]
            else:
                total += one.untyped_storage().nbytes()
        return total


def storage_of(x: Tensor) -> int:
    found: int = x.untyped_storage()._cdata
    return found


def in_pieces(func: Any, args: Sequence[Any]) -> int:
    """Return how many tensors a call has if PyTorch calls a kernel for each of them on a device, and else 0."""
    if not func.__name__.startswith("_foreach_"):
        return 0
    lists = [x for x in args if isinstance(x, (list, tuple)) and x and isinstance(x[0], Tensor)]
    alike = all(len({(x.dtype, x.device) for x in one}) == 1 for one in lists)
    lie_alike = all(len({(x.shape, x.stride()) for x in row}) == 1 for row in zip(*lists, strict=True))
    return 0 if alike and lie_alike and all(map(is_dense, lists[0])) else len(lists[0])


def is_dense(x: Tensor) -> bool:
    """Return True if no memory lies between a tensor's numbers."""
    expected = 1
    for stride, n in sorted((stride, n) for stride, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != expected:
            return not x.numel()
        expected *= n
    return True


def shapes_of(model: str) -> list[tuple[int, ...]]:
    if model == LLAMA:
        with torch.device("meta"):
            return [tuple(p.shape) for p in Decoder(32000, 4096, 32, 32, 32, 11008).model().parameters()]
    return list(SETS[model]().values())


def in_form(rule: Any, p: Tensor, state: Any, key: Key, weights: str = "", kept: str = "") -> tuple[Any, Any, Any]:
    """Return weights and state in these formats, of which large arrays alone are, and their storage."""
    forms: list[Format | None] = [Format(None, key)] if weights == "bfloat16" else [None]
    if weights.startswith("split"):
        rest = torch.int8 if weights == "split24" else torch.int16
        forms = [Format(torch.empty_like(p, dtype=rest), key if weights == "split24" else None)]
    found = []
    for field, x in zip(state._fields, state, strict=True):
        large = kept and x is not None and x.shape == p.shape and p.numel() >= quantized_groups.LEAST
        if large and kept == "int8":
            coded = getattr(torch, quantized_groups.EIGHT.dtype(is_signed(rule, field)))
            scales = torch.empty(scales_of(tuple(p.shape)), device=p.device)
            forms.append(Format(scales, key, quantized_groups.EIGHT))
        else:
            coded = torch.bfloat16 if large else None
            forms.append(Format(None, key) if large else None)
        found.append(x if coded is None else x.to(coded))
    given = JobFormats(tuple(forms), index_of(p.shape), int(p.ndim > 1)) if any(forms) else None
    return p.to(torch.bfloat16) if weights else p, type(state)(*found), given


def ours(
    name: str, shapes: Sequence[tuple[int, ...]], engine: Engine, form: Mapping[str, str] = MappingProxyType({})
) -> Callable[[], None]:
    """Return the step of an optimizer of ours by an engine."""
    entry = next(entry for entry in ENTRIES.values() if entry.name == name)
    rule, h = entry.rule, entry.hyper(**{**RATES, **OPTIONS.get(name, {})})
    jobs, grads = [], []
    for i, shape in enumerate(shapes):
        fitted = h.fit(shape, (), 2.0**-23)
        kept = rule.shapes(fitted, shape)
        state = type(kept)(*(None if own is None else torch.empty(own, device="meta") for own in kept))
        p, state, storage = in_form(rule, torch.empty(shape, device="meta"), state, Key(i, i), **form)
        jobs.append(Job(rule, fitted, p, state, storage=storage))
        grads.append(torch.empty_like(p))
    prepared, nows = engine.prepare(jobs), [Now(9, h.lr, h.weight_decay, 1.0, h.beta2_of(9))] * len(jobs)
    return lambda: prepared.step(grads, nows)


def theirs(
    target: str, options: Mapping[str, Any], shapes: Sequence[tuple[int, ...]], device: str = "meta"
) -> Callable[[], None]:
    """Return the step of an optimizer of others."""
    params = [torch.nn.Parameter(torch.ones(shape, device=device)) for shape in shapes]
    for p in params:
        p.grad = torch.ones_like(p)
    step: Callable[[], None] = load(target)(params, **RATES, **options).step
    return step


def of_others(target: str, options: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Counted:
    """Count a step after the first, which makes the state: of small tensors on the host, if it reads a number there."""
    try:
        step = theirs(target, options, shapes)
        step()
        return counted(step, measures=True)
    except RuntimeError:
        step = theirs(target, options, [tuple(max(1, n // SMALLER) for n in shape) for shape in shapes], "cpu")
        step()
        return counted(step)


def counted(step: Callable[[], None], measures: bool = False) -> Counted:
    """Count a step."""
    with Counted(measures) as found:
        step()
    return found


def rows_of(model: str, names: Sequence[str], one_by_one: bool) -> Iterator[dict[str, Any]]:
    shapes = shapes_of(model)
    if model == FORMS_OF and not one_by_one:
        for name, (who, form) in product(names, FORMS.items()):
            step = ours(name, shapes, ForeachEngine(anywhere=True), form)
            first = counted(step, measures=True)
            yield row_of(name, model, f"layerwise, foreach, {who}", shapes, counted(step), first.peak)
    for name in names:
        step = ours(name, shapes, RULE if one_by_one else ForeachEngine(anywhere=True))
        first = counted(step, measures=not one_by_one)  # in which buffers are made
        who = f"layerwise, {'one by one' if one_by_one else 'foreach'}"
        yield row_of(name, model, who, shapes, counted(step), "" if one_by_one else first.peak)
    for who, (target, options) in {} if one_by_one else OTHERS.items():
        try:
            found = of_others(target, options, shapes)
        except ImportError:
            print(f"left out: {who}: not installed")
            continue
        yield row_of(target.rpartition(":")[2], model, who, shapes, found, found.peak)


def row_of(
    name: str, model: str, who: str, shapes: Sequence[tuple[int, ...]], found: Counted, peak: Any
) -> dict[str, Any]:
    n = sum(map(prod, shapes))
    return {
        "optimizer": name,
        "shapes": model,
        "tensors": len(shapes),
        "parameters": n,
        "implementation": who,
        "calls": found.calls,
        "by_tensor": found.by_tensor,
        "bytes_a_parameter": round(peak / n, 2) if peak else "",
    }


def main() -> None:
    parser = parser_of(__doc__, TABLE)
    parser.add_argument("optimizers", nargs="*", help="of ours, only these")
    parser.add_argument("--one-by-one", action="store_true", help="ours, as without lists; takes long")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    given = parser.parse_args()
    names = given.optimizers or [entry.name for entry in ENTRIES.values()]
    for model in given.models:
        rows = [*rows_of(model, names, given.one_by_one)]
        show(model, rows, ("optimizer", "implementation", "calls", "by_tensor", "bytes_a_parameter"))
        if not given.no_write:
            origin = provenance()
            supersede(RESULTS / TABLE, [{**row, **origin} for row in rows], "optimizer", "shapes", "implementation")


if __name__ == "__main__":
    main()
