"""The implementations compared for each optimizer: ours first, those that do less last.

The others do what ours does where an option of theirs allows it: no clipping of all gradients together, no
momentum for Adafactor, and some decay, because some leave out the ratio without it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.timing import Running
from layerwise.catalog.registry import ENTRIES

LR, DECAY = 1e-3, 0.01
OURS = "layerwise"


@dataclass(frozen=True)
class Peer:
    """A class that is made with parameters, a learning rate, a decay and these options."""

    label: str
    target: str  # module:class
    options: Mapping[str, Any] = field(default_factory=dict)
    gpu: bool = False  # whether it needs one

    @property
    def package(self) -> str:
        return self.target.partition(":")[0].partition(".")[0]

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def reason_missing(self, work: Any) -> str | None:
        """Return the reason to leave it out untried, or None."""
        if self.gpu and not work.on_cuda:
            return "needs a GPU"
        return None if self.installed else "not installed"

    def make(self, params: list[Any]) -> Any:
        return load(self.target)(params, lr=LR, weight_decay=DECAY, **self.options)

    def start(self, work: Any) -> Running:
        from harness.tensors import stepping

        optimizer = self.make(work.params)
        return stepping(self.label, work, optimizer.step, optimizer.state)


def load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _both(label: str, target: str, **options: Any) -> tuple[Peer, Peer]:
    return (
        Peer(f"{label}, foreach", target, options | {"foreach": True}),
        Peer(f"{label}, one by one", target, options | {"foreach": False}),
    )


def _ours(name: str) -> tuple[Peer, Peer]:
    target = f"layerwise.torch:{name}"
    return (
        Peer(f"layerwise.torch.{name}", target),
        Peer(f"layerwise.torch.{name}, by the rule", target, {"fused": False}),
    )


_ADAM = (
    Peer("torch.optim.AdamW", "torch.optim:AdamW"),
    Peer("torch.optim.Adam, fused", "torch.optim:Adam", {"fused": True}),
    Peer("torch.optim.AdamW, fused", "torch.optim:AdamW", {"fused": True}),
)
# What others have of an optimizer, and what PyTorch has in its place.
OTHERS: dict[str, tuple[Peer, ...]] = {
    "Lamb": (
        *_both("pytorch_optimizer.Lamb", "pytorch_optimizer:Lamb"),
        *_both("timm.Lamb", "timm.optim.lamb:Lamb", max_grad_norm=None),
        Peer("apex.FusedLAMB", "apex.optimizers:FusedLAMB", gpu=True),
        Peer("deepspeed.FusedLamb", "deepspeed.ops.lamb:FusedLamb", gpu=True),
        Peer("bitsandbytes.LAMB", "bitsandbytes.optim:LAMB"),
        *_ADAM,
    ),
    "Lars": (
        *_both("pytorch_optimizer.Lars", "pytorch_optimizer:LARS"),
        *_both("timm.Lars", "timm.optim.lars:Lars", momentum=0.9),
        Peer("bitsandbytes.LARS", "bitsandbytes.optim:LARS", {"momentum": 0.9}),
        Peer("torch.optim.SGD", "torch.optim:SGD", {"momentum": 0.9}),
        Peer("torch.optim.AdamW, fused", "torch.optim:AdamW", {"fused": True}),
        Peer("torch.optim.SGD, fused", "torch.optim:SGD", {"momentum": 0.9, "fused": True}),
    ),
    "Adafactor": (
        *_both("torch.optim.Adafactor", "torch.optim:Adafactor"),
        Peer(
            "transformers.Adafactor",
            "transformers.optimization:Adafactor",
            {"scale_parameter": False, "relative_step": False},
        ),
        *_both(
            "pytorch_optimizer.AdaFactor",
            "pytorch_optimizer:AdaFactor",
            betas=(None, 0.999),
            scale_parameter=False,
            relative_step=False,
        ),
        Peer("timm.Adafactor", "timm.optim.adafactor:Adafactor", {"scale_parameter": False}),
        *_ADAM,
    ),
}
PEERS = {name: (*_ours(name), *OTHERS.get(name, _ADAM)) for name in ENTRIES}
