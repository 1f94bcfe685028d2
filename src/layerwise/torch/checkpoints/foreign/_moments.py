"""Codecs of optimizers with Adam's two moments, or with a momentum of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from layerwise.errors import StateError
from layerwise.torch.checkpoints._loading import momentum_lr
from layerwise.torch.checkpoints.foreign._codec import Codec, TargetParameter, key_set
from layerwise.torch.groups._members import Group, State

ADAM = key_set("lr betas eps weight_decay")
SGD = key_set("lr momentum dampening weight_decay")
LION = key_set("lr betas weight_decay")
MUON = key_set("lr weight_decay momentum nesterov ns_coefficients eps ns_steps adjust_lr_fn")
LAMB = ADAM | key_set("bias_correction grad_averaging max_grad_norm")


class AdamCodec(Codec):
    """Two moments, where the first is a mean or, in LAMB without grad_averaging, a sum."""

    fields: ClassVar = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}

    def read(self, theirs: State, group: Group) -> State:
        if "max_exp_avg_sq" in theirs:
            raise StateError(
                "the checkpoint was made with amsgrad, whose maximum no layerwise optimizer keeps. Continue with its "
                "own optimizer, or start without state."
            )
        return super().read(theirs, group)

    def write(self, ours: State, place: TargetParameter) -> State:
        place.check("grad_averaging", bool(place.group.get("grad_averaging", True)))
        if place.group.get("amsgrad"):
            raise StateError(
                "the target has amsgrad=True, but layerwise keeps no such maximum. Create it with amsgrad=False."
            )
        return super().write(ours, place)

    def read_options(self, theirs: Group) -> State:
        return {**super().read_options(theirs), "grad_averaging": bool(theirs.get("grad_averaging", True))}


@dataclass(frozen=True)
class TorchAdam(AdamCodec):
    """PyTorch's Adam and AdamW, whose groups say which of the two they are of."""

    decoupled: bool = False

    def group_warning(self, theirs: Group, ours: Group | None = None) -> str | None:
        found = bool(theirs.get("decoupled_weight_decay", self.decoupled))
        wanted = self.decoupled if ours is None else ours.get("decay") == "decoupled"
        if found == wanted or not (theirs if ours is None else ours).get("weight_decay"):
            return None
        names = {False: "torch.Adam", True: "torch.AdamW"}
        if ours is None:
            return (
                f"the checkpoint is of {names[found]} (decoupled_weight_decay={found}), not of {names[wanted]}. "
                f"Their steps differ when weight_decay > 0. Create the optimizer with AdamW.like({names[found]!r}, "
                "…)."
            )
        return (
            f"the state comes from steps of {names[wanted]}, but the target takes steps of {names[found]}, which "
            f"differ when weight_decay > 0. Pass an optimizer of {names[wanted]}."
        )


class MomentumCodec(Codec):
    """A momentum of gradients, without lr."""

    fields: ClassVar = {"momentum_buffer": "momentum_buffer"}
    says: ClassVar = {"lr_in_momentum": False}

    def read(self, theirs: State, group: Group) -> State:
        found = super().read(theirs, group)
        return {} if found["momentum_buffer"] is None else found

    def write(self, ours: State, place: TargetParameter) -> State:
        if ours.keys() == {"step"}:  # as without momentum, for which theirs keeps nothing either
            return {}
        buffer = ours["momentum_buffer"]
        if place.ours.get("lr_in_momentum", False):
            buffer = buffer / momentum_lr("the checkpoint", place.ours["lr"], False)
        return super().write({**ours, "momentum_buffer": buffer}, place)


class LionCodec(Codec):
    """Lion's mean of gradients."""

    fields: ClassVar = {"exp_avg": "exp_avg"}

    def read(self, theirs: State, group: Group) -> State:
        if others := theirs.keys() - {"exp_avg", "step"}:
            raise StateError(
                f"Lion has only exp_avg, but the checkpoint also has {sorted(others)}. Name the optimizer that saved "
                "it."
            )
        return super().read(theirs, group)


class MuonCodec(Codec):
    """Muon's mean of gradients."""

    fields: ClassVar = {"momentum_buffer": "momentum_buffer"}


class TorchaoCodec(AdamCodec):
    """Two moments in few bits."""

    def stored(self, x: Tensor, key: str, place: TargetParameter) -> State:
        # Their buffers quantize what is copied into them.
        return {key: place.optimizer._new_buffer(place.p, key == "exp_avg").copy_(x)}


CODECS: dict[str, Codec] = {
    "apex.FusedLAMB": AdamCodec("Lamb", LAMB, count=int, in_group=True),
    "timm.Lamb": AdamCodec("Lamb", LAMB | {"trust_clip", "always_adapt"}, in_group=True),
    "timm.Lars": MomentumCodec("Lars", SGD | key_set("nesterov trust_coeff trust_clip always_adapt eps"), count=None),
    "timm.Lion": LionCodec("Lion", LION, count=None),
    "lion_pytorch.Lion": LionCodec("Lion", LION, count=None),
    "torch.Adam": TorchAdam("AdamW", ADAM | {"amsgrad"}),
    "torch.AdamW": TorchAdam("AdamW", ADAM | {"amsgrad"}, decoupled=True),
    "torch.Muon": MuonCodec("Muon", MUON, count=None),
    "torch.SGD": MomentumCodec("SGD", SGD | {"nesterov"}, count=None),
    **dict.fromkeys(
        ("torchao.AdamW8bit", "torchao.AdamW4bit", "torchao.AdamWFp8"), TorchaoCodec("AdamW", ADAM | {"amsgrad"})
    ),
}
