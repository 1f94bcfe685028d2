"""PyTorch as the rules and their engine use it: functions by their names, merged passes, reading and writing."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import copysign, inf
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from layerwise.core.slot import NamedState
from layerwise.engines import compiled
from layerwise.engines.processor import fast_product_dtype_of_cpu
from layerwise.rules.products import worth_halving
from layerwise.rules.requests import Functions, Scalar, T
from layerwise.storage.bit_views import BitFunctions
from layerwise.storage.bits import WORD
from layerwise.storage.index import Index
from layerwise.torch.sharding._dtensors import like, local

LOW = (torch.float16, torch.bfloat16)
FLOATING = (*LOW, torch.float32, torch.float64)
compiled.register_torch(torch)


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the arithmetic and of the state: at least float32."""
    return torch.float32 if dtype in LOW else dtype


PLAIN = [
    "sqrt",
    "sum",
    "where",
    "clip",
    "ones_like",
    "expm1",
    "asarray",
    "concat",
    "reshape",
    "moveaxis",
    "stack",
    "float64",
    "eye",
]


def in_range_of(a: T, dtype: torch.dtype) -> T | float:
    """Return a number as a dtype holds it: infinite beyond the largest number, for which PyTorch raises an error."""
    return copysign(inf, a) if isinstance(a, float) and abs(a) > torch.finfo(dtype).max else a


def add_scaled(x: Scalar, a: Scalar, y: Tensor) -> Tensor:
    x = x if isinstance(x, Tensor) else torch.scalar_tensor(in_range_of(x, y.dtype), dtype=y.dtype, device=y.device)
    return torch.addcmul(x, y, a) if isinstance(a, Tensor) else torch.add(x, y, alpha=in_range_of(a, y.dtype))


def where(condition: Tensor, yes: Scalar, no: Scalar) -> Tensor:
    yes, no = (in_range_of(x, y.dtype) if isinstance(y, Tensor) else x for x, y in ((yes, no), (no, yes)))
    return torch.where(condition, yes, no)


def squares(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return Σx² in float64: the square of a smaller dtype's number neither overflows nor vanishes there."""
    if not dims:
        return _wide(x).square()
    if len(dims) == x.ndim and x.is_contiguous() and x.device.type == "cpu":
        flat = _wide(x).view(-1)
        return torch.dot(flat, flat).view((1,) * x.ndim)
    norm: Tensor = torch.linalg.vector_norm(x, 2, dims, True, dtype=wide_dtype(x.device))  # without a tensor of squares
    return norm.square()


def followed_squares(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the same for autograd: a norm has no derivative at 0."""
    return torch.sum(_wide(x).square(), dims, keepdim=True) if dims else _wide(x).square()


def _wide(x: Tensor) -> Tensor:
    return x.to(wide_dtype(x.device))


def wide_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def as_number(x: Tensor) -> float | Tensor:
    return x.item() if x.device.type == "cpu" else x  # on other devices this would wait


def beside(x: Scalar, like: Scalar) -> Scalar:
    if not isinstance(x, Tensor):
        return x
    return x.to(like.device) if isinstance(like, Tensor) else x.item()


def add_overwriting(x: Tensor, a: Scalar, y: Tensor) -> Tensor:
    return x.addcmul_(y, a) if isinstance(a, Tensor) else x.add_(y, alpha=in_range_of(a, x.dtype))


def mix(b: Scalar, x: Tensor, y: Tensor) -> Tensor:
    return add_overwriting(x.mul_(b), 1 - b, y)  # `lerp_` would subtract inf from inf


def mixed(b: Scalar, x: Tensor, y: Tensor) -> Tensor:
    """Return the same, bit for bit, without changing x."""
    return add_overwriting(x * b, 1 - b, y)


def asarray(x: Scalar, dtype: torch.dtype) -> Tensor:
    """Return an array of this dtype that autograd tracks as before."""
    return x.to(dtype) if isinstance(x, Tensor) else torch.asarray(x, dtype=dtype)


def clip(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """Return the numbers clipped to bounds. Bounds beyond the dtype's largest number become infinite for PyTorch."""
    return torch.clip(x, in_range_of(low, x.dtype), in_range_of(high, x.dtype))


def weighted(G: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return a + b·G + c·G² of matrices, summed before rounding."""
    found = torch.baddbmm(G, G, G, beta=b, alpha=c)
    found.diagonal(dim1=-2, dim2=-1).add_(a)
    return found


# Dtypes with hardware units, by device type. For CUDA, which includes AMD: from this instruction version on.
ON = {"cuda": "float16", "xpu": "float16", "mps": "float16", "xla": "bfloat16", "hpu": "bfloat16"}
SINCE = (7, 0)


def fast_product_dtype(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the dtype in which a device multiplies faster than in float32, or None."""
    return None if dtype == torch.float64 else _quick(device)


@cache
def _quick(device: torch.device) -> str | None:
    if device.type == "cpu":
        return fast_product_dtype_of_cpu()
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < SINCE:
        return None
    return ON.get(device.type)


@cache
def multiplies(device: torch.device, dtype: str) -> torch.dtype | None:
    """Return a 16-bit dtype if the device has products of it; on a processor, only if they are fast."""
    return getattr(torch, dtype) if device.type != "cpu" or dtype == _quick(device) else None


PURE = {name: getattr(torch, name) for name in PLAIN} | {
    "halves": lambda x: x.device.type == "cpu" and worth_halving(x.shape[-2], torch.get_num_threads()),
    "multiplies": lambda x, dtype: None if x.is_complex() else multiplies(x.device, dtype),
    "weighted": weighted,
    "asarray": asarray,
    "clip": clip,
    "where": where,
    "add_scaled": add_scaled,
    "squares": squares,
    "as_number": as_number,
    "beside": beside,
}


def _indices(index: Index, like: Tensor) -> tuple[Tensor, Tensor]:
    asarray = partial(torch.asarray, dtype=torch.int64, device=like.device)
    numbers = asarray(index.numbers(partial(torch.arange, device=like.device), asarray))
    return numbers & WORD, numbers >> 32


class ExactRoots:
    """torch, except for roots: on CPUs, PyTorch's are wrong in their last digit for one of six float32 numbers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def sqrt(x: Tensor) -> Tensor:
        return x.double().sqrt().to(x.dtype) if x.device.type == "cpu" else torch.sqrt(x)


@cache
def named(dtype: torch.dtype) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


BITS = SimpleNamespace(
    xp=ExactRoots(),
    word=lambda x: x & WORD,
    integers=lambda x: x.to(torch.int64),
    as_floats=lambda x: x.to(torch.float32),
    bits=lambda x: x.view(torch.int32).to(torch.int64) & WORD,
    floats=lambda u: u.to(torch.int32).view(torch.float32),
    shifted=lambda x, by: x << by,
    where=torch.where,
    dtype=lambda array: named(array.dtype),
    indices=_indices,
    step=lambda t: (t.to(torch.int64) & WORD, t.to(torch.int64) >> 32),
    empty=lambda x: torch.empty(x.shape, dtype=torch.float32, device=x.device),
    written=increment_version,
)


PIECE = 1 << 18  # elements that are converted at once: integers on the way take many times their memory


class Tensors:
    """Tensors as the rule engine reads and writes them, and as the core creates them."""

    bits: BitFunctions = BITS

    def dtype(self, x: Tensor) -> str:
        return named(x.dtype) if isinstance(x, Tensor) else ""

    local_part = staticmethod(local)

    def like(self, x: Tensor, here: Tensor) -> Tensor:
        return like(x, here)

    def zeros(self, shape: tuple[int, ...], dtype: str, beside: Tensor) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=beside.device)

    def zeros_like(self, x: Tensor, dtype: str) -> Tensor:
        kept = torch.preserve_format
        return torch.zeros_like(local(x), dtype=getattr(torch, dtype), memory_format=kept, requires_grad=False)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return x.detach().to(getattr(torch, dtype), copy=True)

    def row_chunks(self, *arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
        first = arrays[0]
        most = max(1, PIECE // max(1, first[:1].numel())) if first.ndim else 1
        return zip(*(torch.split(x, most) if x.ndim else (x,) for x in arrays), strict=True)

    pure: Functions = SimpleNamespace(**PURE, mix=mixed)
    xp: Functions = SimpleNamespace(**PURE, mix=mix, add_overwriting=add_overwriting)

    def read(self, array: Tensor, like: Tensor) -> Tensor:
        return array.to(like.device, arithmetic_dtype(like.dtype))

    def copy(self, array: Tensor) -> Tensor:
        return array.clone()

    def write(self, stored: Tensor, new: Tensor) -> None:
        stored.copy_(new)

    def kind(self, array: Tensor) -> Hashable:
        return array.shape, array.dtype, array.device

    def stack(self, arrays: Sequence[Tensor]) -> Tensor:
        # Each stays in one piece: that is the fastest way to read and write it.
        return torch.stack(tuple(arrays)).movedim(0, -1)

    def write_stack(self, stored: Sequence[Tensor], new: Tensor) -> None:
        torch._foreach_copy_(list(stored), list(new.unbind(-1)))


class DifferentiableTensors(Tensors):
    """The same for autograd: arrays that it keeps must not be overwritten, and it does not track Python numbers."""

    pure: Functions = SimpleNamespace(
        **{key: PURE[key] for key in (*PLAIN, "multiplies", "weighted")}, squares=followed_squares
    )
    xp = pure

    def read(self, array: Tensor, like: Tensor) -> Tensor:
        return array.to(like.device, arithmetic_dtype(like.dtype), copy=True)


LIBRARY = Tensors()


def named_state(state: Mapping[str, object]) -> NamedState:
    """Return a parameter's state with the meaning of its names."""
    return NamedState(LIBRARY, state)
