"""Who is compared with ours on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.peers import DECAY, LR, PEERS, Peer, load
from on_gpu.compiled import CompiledRule, CompiledStep, StepOfLists, WholeStep, as_traced, by_inductor
from on_gpu.place import LISTS, RULE, Place

ADAMW, SGD = "torch.optim.AdamW, fused", "torch.optim.SGD, fused"
YARDSTICK = {"Lamb": ADAMW, "Lars": SGD, "Adafactor": ADAMW}
TAKEN = {
    "Lamb": ("timm.Lamb, foreach", "timm.Lamb, one by one", "apex.FusedLAMB", ADAMW),
    "Lars": ("timm.Lars, foreach", "timm.Lars, one by one", SGD),
    "Adafactor": ("torch.optim.Adafactor, foreach", "transformers.Adafactor", ADAMW),
}
# The paper's Adafactor, and torch's, which has no other: both measure the weights.
SCALED: dict[str, dict[str, Any]] = {"Lamb": {}, "Lars": {}, "Adafactor": {"scale_parameter": True}}
COMPILED = {
    "Lamb": (("timm.Lamb, compiled", "timm.optim.lamb:Lamb", {"max_grad_norm": None}),),
    "Lars": (("timm.Lars, compiled", "timm.optim.lars:Lars", {"momentum": 0.9}),),
    "Adafactor": (),
}


def ours(name: str, **options: Any) -> Peer:
    return Peer(f"layerwise.torch.{name}", f"layerwise.torch:{name}", {**SCALED[name], "fused": True, **options})


# Storage formats of bfloat16 weights, by the labels of their rows.
FORMATS: dict[str, dict[str, Any]] = {
    "rounded at random": {"rounding": "stochastic"},
    "split": {"master_weights": "split"},
    "split24 and 8 bits": {"master_weights": "split24", "state_dtype": "int8"},
}


def in_formats(name: str) -> list[Peer]:
    found = []
    for stored, options in FORMATS.items():
        peer = ours(name, **options)
        found.append(Peer(f"{peer.label}, {stored}", peer.target, peer.options))
    return found


class TwoGroups(Peer):
    """With a weight decay of its own for every second tensor, as people give it to biases."""

    def make(self, params: list[Any]) -> Any:
        groups = [{"params": params[::2]}, {"params": params[1::2], "weight_decay": 0.0}]
        return load(self.target)(groups, lr=LR, weight_decay=DECAY, **self.options)


def in_two_groups(name: str) -> Peer:
    return TwoGroups(two_groups(name), f"layerwise.torch:{name}", {**SCALED[name], "fused": True})


def two_groups(name: str) -> str:
    return f"layerwise.torch.{name}, two groups"


def by_the_rule(name: str) -> Peer:
    return Peer(f"layerwise.torch.{name}, by the rule", f"layerwise.torch:{name}", {**SCALED[name], **RULE})


def in_lists(name: str) -> Peer:
    return Peer(f"layerwise.torch.{name}, foreach", f"layerwise.torch:{name}", {**SCALED[name], **LISTS})


def eager(name: str) -> list[Peer]:
    """Ours, and what is not compiled."""
    return [
        ours(name),
        in_lists(name),
        by_the_rule(name),
        *(_scaled(peer) for peer in PEERS[name] if peer.label in TAKEN[name]),
    ]


def yardstick(name: str) -> Peer:
    [peer] = (peer for peer in PEERS[name] if peer.label == YARDSTICK[name])
    return peer


def rule_compiled(name: str) -> str:
    return f"layerwise.rules.{name.lower()}, compiled"


def lists_compiled(name: str) -> str:
    return f"layerwise.rules.{name.lower()} on lists, compiled"


def compiled(name: str, place: Place, seconds: Callable[[], float]) -> list[Peer]:
    """Ours, and what torch.compile makes of the rule and of others, in so many seconds at most."""
    how = {"compile": as_traced if place.interpreted else by_inductor, "seconds": seconds}
    ways = {rule_compiled(name): WholeStep, lists_compiled(name): StepOfLists}
    target = f"layerwise.torch:{name}"
    rules = [CompiledRule(label, target, {"of": SCALED[name], "whole": of, **how}) for label, of in ways.items()]
    backend = "eager" if place.interpreted else "inductor"
    others = [
        CompiledStep(label, target, {"of": options, "backend": backend, "seconds": seconds})
        for label, target, options in COMPILED[name]
    ]
    return [ours(name), *rules, *others]


def _scaled(peer: Peer) -> Peer:
    """With the weights measured, where that is an option of theirs."""
    if not peer.label.startswith("transformers"):
        return peer
    options: Mapping[str, Any] = {**peer.options, "scale_parameter": True}
    return Peer(peer.label, peer.target, options, peer.gpu)
