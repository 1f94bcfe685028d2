"""Codecs of pytorch_optimizer, which counts steps in groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from layerwise.errors import StateError
from layerwise.torch.checkpoints.foreign._adafactor import T5Adafactor, means_of
from layerwise.torch.checkpoints.foreign._codec import Codec, TargetParameter, key_set
from layerwise.torch.checkpoints.foreign._moments import ADAM, SGD, AdamCodec, MomentumCodec
from layerwise.torch.groups._members import Group, State

DECAY = key_set("lr betas weight_decay weight_decouple")
FACTORED = DECAY | key_set("fixed_decay ams_bound eps1 eps2")


def _check_bound(theirs: State) -> None:
    if "exp_avg_sq_hat" in theirs:
        raise StateError(
            "the checkpoint was made with ams_bound, whose maximum no layerwise optimizer keeps, and cannot be "
            "converted."
        )


def _check_unbound(group: Group) -> None:
    if group.get("ams_bound"):
        raise StateError(
            "the target has ams_bound=True, but layerwise keeps no such maximum. Create it with ams_bound=False."
        )


class BetasAdafactorCodec(T5Adafactor):
    """Adafactor, whose momentum is the first of betas."""

    def averages(self, group: Group) -> bool:
        return group["betas"][0] is not None

    def read(self, theirs: State, group: Group) -> State:
        _check_bound(theirs)
        return super().read(theirs, group)

    def write(self, ours: State, place: TargetParameter) -> State:
        _check_unbound(place.group)
        return super().write(ours, place)

    def read_options(self, theirs: Group) -> State:
        return {name: x for name, x in super().read_options(theirs).items() if name != "betas"}  # beta1, beta2_cap


class CameCodec(T5Adafactor):
    """CAME, with means of the squares of two quantities, for factored tensors."""

    pairs: ClassVar = ("exp_avg_sq", "exp_avg_res")

    def read(self, theirs: State, group: Group) -> State:
        _check_bound(theirs)
        found = {"step": self.steps(theirs, group), "exp_avg": theirs["exp_avg"]}
        if "exp_avg_sq" in theirs:
            return {**found, "exp_avg_sq": theirs["exp_avg_sq"]}
        for name in self.pairs:
            row, col = self.read_means(theirs[f"{name}_row"], theirs[f"{name}_col"], group)
            found |= {f"{name}_row": row, f"{name}_col": col}
        return found

    def write(self, ours: State, place: TargetParameter) -> State:
        _check_unbound(place.group)
        found: State = {**self.beside, "exp_avg": ours["exp_avg"]}
        dims = self.dims(tuple(place.p.shape), place.group)
        if dims is None:
            return {**found, "exp_avg_sq": ours["exp_avg_sq"]}
        for name in self.pairs:
            row, col = self.write_means(*means_of(ours, place, dims, name), dims)
            found |= {f"{name}_row": row, f"{name}_col": col}
        return found

    def read_options(self, theirs: Group) -> State:
        rates = Codec.read_options(self, theirs)
        return {**rates, "betas": theirs["betas"][:2]}

    def write_options(self, ours: Group, theirs: Group) -> State:
        rates = Codec.write_options(self, ours, theirs)
        return {**rates, "betas": (*ours["betas"], *theirs["betas"][2:])}


class LarsCodec(MomentumCodec):
    """A momentum of gradients, which theirs scales and decays only for matrices."""

    def checkpoint_warnings(self, saved: Group) -> Iterable[str]:
        for number, group in enumerate(saved["param_groups"]):
            buffers = [saved["state"].get(key, {}).get("momentum_buffer") for key in group["params"]]
            if group["weight_decay"] and any(x is not None and x.ndim < 2 for x in buffers):
                yield (
                    f"group {number} contains vectors and has weight_decay={group['weight_decay']}, but the other "
                    "optimizer steps vectors by plain SGD without decay. In both optimizers, put vectors into a "
                    "group with weight_decay=0, and set adapt=False for it here."
                )


class StableAdamWCodec(AdamCodec):
    """Two moments, and the remainders of 16-bit weights, which theirs may keep with them."""

    def write(self, ours: State, place: TargetParameter) -> State:
        low = place.group["kahan_sum"] and place.p.dtype in (torch.float16, torch.bfloat16)
        lacking: Tensor | None = torch.zeros_like(place.p) if low else None
        return {**super().write(ours, place), "kahan_comp": lacking}


CODECS: dict[str, Codec] = {
    "pytorch_optimizer.AdaFactor": BetasAdafactorCodec(
        "Adafactor", FACTORED | key_set("scale_parameter relative_step warmup_init"), count=int, in_group=True
    ),
    "pytorch_optimizer.CAME": CameCodec("Came", FACTORED, count=int, in_group=True),
    "pytorch_optimizer.LARS": LarsCodec("Lars", SGD | key_set("nesterov trust_coefficient"), count=None),
    "pytorch_optimizer.Lamb": AdamCodec(
        "Lamb", DECAY | key_set("eps rectify grad_averaging max_grad_norm adam"), count=int, in_group=True
    ),
    "pytorch_optimizer.StableAdamW": StableAdamWCodec(
        "StableAdamW", ADAM | key_set("kahan_sum"), count=int, in_group=True
    ),
}
