"""NumPy's arrays, and what steps them: ours, those of JAX on copies, PyTorch's on the very memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from layerwise.cli.bench.memory import available, bytes_in
from layerwise.cli.bench.peers import DECAY, LR, OTHERS, PEERS, Peer, Running, Work, load
from layerwise.cli.bench.request import Request
from layerwise.cli.bench.shapes import SETS, Shapes, parameters
from layerwise.cli.bench.timing import Clock, Step, wall
from layerwise.cli.exits import Mistake
from layerwise.threads import available_processors, wanted_threads

Arrays = dict[str, np.ndarray[Any, Any]]
WEIGHT, GRADIENT = 0.02, 1e-3  # as large as they are where models train
DTYPES = ("float32", "float64", "float16")
OF_TORCH = ("torch.optim.Adafactor, foreach", "transformers.Adafactor")
KEPT = ("exp_avg", "exp_avg_sq", "momentum_buffer", "exp_avg_sq_row", "exp_avg_sq_col")


def random_arrays(shapes: Shapes, scale: float, seed: int, dtype: Any = np.float32) -> Arrays:
    rng = np.random.default_rng(seed)
    drawn = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return {name: (a * np.float32(scale)).astype(dtype, copy=False) for name, a in drawn.items()}


@dataclass(frozen=True)
class Held:
    """Weights and gradients."""

    shapes: Shapes
    weights: Arrays
    grads: Arrays

    on_cuda = False
    device = "cpu"

    @property
    def clock(self) -> Clock:
        return wall

    @property
    def dtype(self) -> str:
        return str(next(iter(self.weights.values())).dtype)

    @property
    def bytes(self) -> int:
        return bytes_in([self.weights, self.grads])

    @cached_property
    def params(self) -> list[Any]:
        """The same memory as PyTorch's parameters, for as many threads as ours take."""
        import torch

        torch.set_num_threads(wanted_threads())
        params = [torch.nn.Parameter(torch.from_numpy(a)) for a in self.weights.values()]
        for p, g in zip(params, self.grads.values(), strict=True):
            p.grad = torch.from_numpy(g)
        return params

    def like(self, shapes: Shapes) -> Held:
        return held(shapes, self.dtype)


def held(shapes: Shapes, dtype: Any = np.float32) -> Held:
    return Held(shapes, random_arrays(shapes, WEIGHT, 0, dtype), random_arrays(shapes, GRADIENT, 1, dtype))


def works(request: Request) -> Iterator[tuple[str, Held]]:
    dtype = request.dtype or DTYPES[0]
    if dtype not in DTYPES:
        raise Mistake(f"--dtype must be {', '.join(DTYPES)} for NumPy's and JAX's arrays, but is {dtype}.")
    if request.device != "cpu":
        raise Mistake(f"--device must be cpu for NumPy's and JAX's arrays, but is {request.device}.")
    if request.front == "jax" and dtype == "float64" and not _keeps_float64():
        raise Mistake("--dtype float64 does not reach JAX, which makes it float32 unless JAX_ENABLE_X64=1 is set.")
    if request.model is not None:
        from layerwise.cli.bench.model import shapes_of

        yield request.model, held(shapes_of(request.model), dtype)
        return
    sets = {name: SETS[name]() for name in request.shapes}
    for name, shapes in sets.items():
        request.check_room(name, 2 * np.dtype(dtype).itemsize * parameters(shapes), available())
    for name, shapes in sets.items():
        yield name, held(shapes, dtype)


class NumpyPeer(Peer):
    def start(self, work: Held) -> Running:
        return SteppingArrays(self.label, load(self.target)(LR, weight_decay=DECAY, **self.options), work)


class SteppingArrays:
    """One of our optimizers of named arrays."""

    def __init__(self, label: str, optimizer: Any, work: Held) -> None:
        self.label, self._optimizer = label, optimizer
        self.step: Step = lambda: optimizer.step_all(work.weights, work.grads)
        self.step()
        self.copied = self.state_bytes  # while it is looked at

    @property
    def state_bytes(self) -> int:
        return sum(a.nbytes for name, a in self._optimizer.state_dict().items() if name.endswith(KEPT))

    def peak(self) -> int:
        tracemalloc.start()
        try:
            self.step()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@dataclass(frozen=True)
class JaxPeer(Peer):
    """A transformation, jitted with its parameters and state donated, so that they are updated in place as ours are."""

    @property
    def decay(self) -> str:
        return "weight_decay_rate" if self.target.endswith(":adafactor") else "weight_decay"

    def start(self, work: Held) -> Running:
        transform = load(self.target)(LR, **{self.decay: DECAY}, **self.options)
        return Jitted(self.label, transform, work.weights, work.grads)


class JaxPeerOfNumpy(JaxPeer):
    """Beside others it is left out where it would do something else."""

    def why_not(self, work: Work, threads: int) -> str | None:
        if (why := super().why_not(work, threads)) is not None:
            return why
        if work.dtype == "float64" and not _keeps_float64():
            return "JAX makes float64 float32 unless JAX_ENABLE_X64=1 is set"
        if threads != available_processors():
            return "--threads does not reach JAX, which takes the processors it may run on"
        return None


def _keeps_float64() -> bool:
    import jax

    return bool(jax.numpy.zeros(0).dtype == np.float64)


class Jitted:
    """A compiled step that holds its parameters and state."""

    def __init__(self, label: str, transform: Any, weights: Arrays, grads: Arrays) -> None:
        import jax

        # Copies, because jax may share memory with an array, and donating would then not be possible.
        params = jax.tree.map(lambda a: jax.numpy.array(a, copy=True), weights)
        self.label, self.copied = label, bytes_in(params)
        self._transform = transform
        self._held = (params, transform.init(params))
        self._grads = jax.tree.map(jax.numpy.asarray, grads)
        self._compiled = self.compile()
        self.step()

    def compile(self) -> Any:
        import jax
        import optax

        def update(params: Any, state: Any, grads: Any) -> Any:
            updates, state = self._transform.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        jax.clear_caches()
        return jax.jit(update, donate_argnums=(0, 1)).lower(*self._held, self._grads).compile()

    def step(self) -> None:
        import jax

        self._held = jax.block_until_ready(self._compiled(*self._held, self._grads))

    @property
    def state_bytes(self) -> int:
        import jax

        return bytes_in(jax.tree.leaves(self._held[1]))

    def peak(self) -> int:
        return int(self._compiled.memory_analysis().temp_size_in_bytes)


def _numpy_peers(name: str) -> tuple[Peer, ...]:
    """Return ours, optax's, what PyTorch has of the same, and last its AdamW: 28 bytes a parameter, moved once."""
    ours = f"layerwise.numpy.{name}", f"layerwise.numpy:{name}"
    others = [peer for peer in PEERS[name] if peer.label in OF_TORCH]
    optax = [JaxPeerOfNumpy(f"optax.{name.lower()}, jitted", f"optax:{name.lower()}")] if name in OTHERS else []
    adamw = Peer("torch.optim.AdamW, fused", "torch.optim:AdamW", {"fused": True})
    return NumpyPeer(*ours), NumpyPeer(f"{ours[0]}, by the rule", ours[1], {"engine": "rule"}), *optax, *others, adamw


def _jax_peers(name: str) -> tuple[Peer, ...]:
    """Return ours, optax's of the same, and last optax's AdamW."""
    optax = [f"optax.{name.lower()}"] if name in OTHERS else []
    labels = f"layerwise.jax.{name.lower()}", *optax, "optax.adamw"
    return tuple(JaxPeer(label, ":".join(label.rsplit(".", 1))) for label in labels)


NUMPY_PEERS = {name: _numpy_peers(name) for name in PEERS}
JAX_PEERS = {name: _jax_peers(name) for name in PEERS}
