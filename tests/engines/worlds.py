"""Jobs for engines as NumPy arrays or as PyTorch tensors, in all ways in which arrays lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from layerwise import engines
from layerwise.engines import compiled
from layerwise.engines.assignment import prepare
from layerwise.engines.rule import RuleEngine
from layerwise.numpy import _arrays
from layerwise.rules.requests import Now
from layerwise.torch.arrays._library import Tensors

needed = pytest.mark.skipif(compiled._native is None, reason="the extension is not built")
NAMES = ("float32", "float64", "bfloat16", "float16")
NUMPY_DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in NAMES}
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LAYOUTS = ("plain", "odd", "transposed", "spread", "backwards")


def in_memory(values: np.ndarray, dtype: str, layout: str) -> np.ndarray:
    """An array of these numbers that lies in memory in one way or another, between bytes that are not its own."""
    dt, shape = NUMPY_DTYPES[dtype] if dtype in NUMPY_DTYPES else np.dtype(dtype), values.shape
    spread = 2 if layout == "spread" and shape else 1
    ahead = 64 + (layout == "odd")  # of an odd address, which its dtype does not divide
    room = np.full(ahead + values.size * dt.itemsize * spread + 64, 0xA5, np.uint8)
    array = room[ahead : len(room) - 64].view(dt)
    if spread == 2:
        array = array.reshape(*shape[:-1], 2 * shape[-1])[..., ::2]
    elif layout == "transposed":
        array = array.reshape(shape[::-1]).T
    else:
        array = array.reshape(shape)
        array = array[::-1] if layout == "backwards" and shape else array
    with np.errstate(over="ignore"):
        array[...] = values
    return array


def surroundings(array: np.ndarray) -> bytes:
    """The bytes around an array of `in_memory`, and between its elements."""
    room = array
    while room.base is not None:
        room = room.base
    kept = array.copy()
    array[...] = 0
    found = room.tobytes()
    array[...] = kept
    return found


def as_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor in the array's memory."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def on_host(array: Any) -> np.ndarray:
    """A copy as an array, in the same dtype."""
    if not isinstance(array, torch.Tensor):
        return array.copy()
    here = array.detach().cpu().clone()
    return here.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if here.dtype == torch.bfloat16 else here.numpy()


@dataclass(frozen=True)
class Job:
    """A job together with what it is given for one step."""

    rule: Any
    h: Any
    now: Now
    p: Any
    g: Any
    state: Any
    block_dims: tuple[int, ...] = ()
    skip: Any = None
    storage: Any = None


class Stepping:
    """A table of engines that prepares every step, with what was laid out for the last one."""

    def __init__(self, *engines: Any) -> None:
        self._engines, self._layouts = engines, None

    def prepare(self, jobs: Any) -> Any:
        given = [engines.Job(j.rule, j.h, j.p, j.state, j.block_dims, storage=j.storage) for j in jobs]
        return prepare(self._engines, given, self._layouts)

    def step(self, jobs: Any) -> Any:
        prepared = self.prepare(jobs)
        skip = next((j.skip for j in jobs if j.skip is not None), None)
        prepared.step([j.g for j in jobs], [j.now for j in jobs], skip)
        self._layouts = prepared.layouts
        return prepared.stats()


@dataclass(frozen=True)
class World:
    """An array library: how arrays get into it, its rule engine, and what it can hold."""

    name: str
    engine_of_rule: Any
    array: Callable[[np.ndarray], Any]
    copy: Callable[[Any], Any]
    layouts: tuple[str, ...]

    @property
    def rule(self) -> Any:
        return Stepping(self.engine_of_rule)

    def engine(self, required: bool = True) -> Any:
        return Stepping(compiled.CompiledEngine(), *([] if required else [self.engine_of_rule]))


WORLDS = [
    World("numpy", RuleEngine(_arrays.Arrays()), lambda a: a, lambda a: a.copy(), LAYOUTS),
    World("torch", RuleEngine(Tensors(), None, 1 << 12), as_torch, lambda a: a.clone(), LAYOUTS[:4]),
]
worlds = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


def make_job(
    case: Any,
    h: Any,
    shape: tuple[int, ...],
    block_dims: tuple[int, ...],
    seed: int,
    dtypes: tuple[str, str, str] = ("float32",) * 3,
    layout: str = "plain",
) -> Job:
    """A job of NumPy arrays. The dtypes are the parameter's, the gradient's, and the state's."""
    draw = np.random.default_rng(seed)
    fitted = h.fit(shape, block_dims, EPS[dtypes[0]])
    p = in_memory(draw.normal(size=shape), dtypes[0], layout)
    shapes = case.rule.shapes(fitted, shape)
    state = type(shapes)(*(None if s is None else in_memory(np.zeros(s), dtypes[2], layout) for s in shapes))
    return Job(case.rule, fitted, now_of(h, 1), p, new_gradient(p, seed, dtypes[1], layout), state, block_dims)


def new_gradient(p: Any, seed: int, dtype: str, layout: str = "plain") -> np.ndarray:
    draw = np.random.default_rng(seed + 10**6)
    return in_memory(draw.normal(size=p.shape) * 10.0 ** draw.uniform(-2, 1), dtype, layout)


def now_of(h: Any, t: int, g_scale: float = 1.0) -> Now:
    return Now(t, h.lr, h.weight_decay, g_scale, h.beta2_of(t))


def mapped(job: Job, change: Callable[[Any], Any]) -> Job:
    """The job with every array changed."""
    state, storage = type(job.state)(*(None if s is None else change(s) for s in job.state)), job.storage
    if storage is not None:
        formats = [f and f._replace(beside=None if f.beside is None else change(f.beside)) for f in storage.formats]
        storage = replace(storage, formats=tuple(formats))
    return replace(job, p=change(job.p), g=change(job.g), state=state, storage=storage)


def copied(job: Job) -> Job:
    return mapped(job, lambda a: a.copy())


def stored(job: Job) -> list[Any]:
    return [job.p, *(s for s in job.state if s is not None)]


def numbers(array: Any) -> np.ndarray:
    """A copy of anything that holds numbers, wherever it is."""
    return np.array(array.double().cpu().numpy() if isinstance(array, torch.Tensor) else array, np.float64)


def bits(jobs: Any) -> list[bytes]:
    """What two lists of jobs must share to be the same bit for bit."""
    arrays = [a for job in jobs for a in stored(job)]
    return [np.ascontiguousarray(a.cpu() if isinstance(a, torch.Tensor) else a).tobytes() for a in arrays]


def agree(job: Any, other: Any, before: Any, dtypes: Any) -> None:
    for array, wanted, old in zip(stored(job), stored(other), before, strict=True):
        mine, its = numbers(array), numbers(wanted)
        size = max(float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x))) for x in (its, old))
        np.testing.assert_allclose(mine, its, rtol=0, atol=tolerance(dtypes, array) * size, err_msg=f"{job.h}")


def tolerance(dtypes: Any, array: Any) -> float:
    """A few roundings of the arithmetic, and one of the dtype in which the numbers are kept."""
    name = str(array.dtype).removeprefix("torch.")
    own = 1e-12 if dtypes[0] == "float64" else 2e-5 if "float16" in "".join(dtypes) else 4e-6
    return max(own, 0 if name in ("float32", "float64") else 1.01 * EPS[name])
