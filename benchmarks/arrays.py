"""What steps NumPy's arrays, on the very memory of the tensors, and JAX's, on copies."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

from harness.memory import bytes_in
from harness.peers import DECAY, LR, OTHERS, PEERS, Peer, load
from harness.timing import Running, Step

OF_TORCH = ("torch.optim.Adafactor, foreach", "transformers.Adafactor")


def arrays_of(work: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights and the gradients of tensors, which share their memory."""
    named = dict(zip(work.shapes, work.params, strict=True))
    return {name: p.detach().numpy() for name, p in named.items()}, {name: p.grad.numpy() for name, p in named.items()}


class NumpyPeer(Peer):
    def start(self, work: Any) -> Running:
        optimizer = load(self.target)(LR, weight_decay=DECAY, **self.options)
        step = partial(optimizer.step_all, *arrays_of(work))
        step()

        def state() -> int:
            kept = optimizer.state_dict().items()
            return sum(x.nbytes for name, x in kept if "/" in name and not name.endswith(("/step", "/shape")))

        return Running(self.label, step, state, partial(_peak, step))


def _peak(step: Step) -> int:
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class JaxPeer(Peer):
    """A transformation, jitted with its parameters and state donated, so that they are updated in place as ours are."""

    def start(self, work: Any) -> Running:
        decay = "weight_decay_rate" if self.target.endswith(":adafactor") else "weight_decay"
        return Jitted(self.label, load(self.target)(LR, **{decay: DECAY}, **self.options), work)


class Jitted(Running):
    """A compiled step that holds its parameters and state."""

    def __init__(self, label: str, transform: Any, work: Any) -> None:
        import jax

        weights, grads = arrays_of(work)
        # Copies, because jax may share memory with an array, and donating would then not be possible.
        params = jax.tree.map(lambda a: jax.numpy.array(a, copy=True), weights)
        self._transform, self._held = transform, (params, transform.init(params))
        self._grads = jax.tree.map(jax.numpy.asarray, grads)
        self._compiled = self.compile()
        super().__init__(label, self._step, self._state, self._temporary)
        self._step()

    def compile(self) -> Any:
        import jax
        import optax

        def update(params: Any, state: Any, grads: Any) -> Any:
            updates, state = self._transform.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        jax.clear_caches()
        return jax.jit(update, donate_argnums=(0, 1)).lower(*self._held, self._grads).compile()

    def _step(self) -> None:
        import jax

        self._held = jax.block_until_ready(self._compiled(*self._held, self._grads))

    def _state(self) -> int:
        import jax

        return bytes_in(jax.tree.leaves(self._held[1]))

    def _temporary(self) -> int:
        return int(self._compiled.memory_analysis().temp_size_in_bytes)


def _numpy_peers(name: str) -> tuple[Peer, ...]:
    """Return ours, optax's, what PyTorch has of the same, and last its AdamW: 28 bytes a parameter, moved once."""
    ours = f"layerwise.numpy.{name}", f"layerwise.numpy:{name}"
    others = [peer for peer in PEERS[name] if peer.label in OF_TORCH]
    optax = [JaxPeer(f"optax.{name.lower()}, jitted", f"optax:{name.lower()}")] if name in OTHERS else []
    adamw = Peer("torch.optim.AdamW, fused", "torch.optim:AdamW", {"fused": True})
    return NumpyPeer(*ours), NumpyPeer(f"{ours[0]}, by the rule", ours[1], {"engine": "rule"}), *optax, *others, adamw


def _jax_peers(name: str) -> tuple[Peer, ...]:
    """Return ours, optax's of the same, and last optax's AdamW."""
    optax = [f"optax.{name.lower()}"] if name in OTHERS else []
    labels = f"layerwise.jax.{name.lower()}", *optax, "optax.adamw"
    return tuple(JaxPeer(label, ":".join(label.rsplit(".", 1))) for label in labels)


NUMPY_PEERS = {name: _numpy_peers(name) for name in PEERS}
JAX_PEERS = {name: _jax_peers(name) for name in PEERS}
