"""Codecs of 8-bit state.

bitsandbytes has codes of a table, in blocks that share the largest magnitude (arXiv 2110.02861). FlashOptim has groups
of 32 with a float16 scale: the softsign of m, and the root of v.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from layerwise.errors import StateError
from layerwise.torch.checkpoints.foreign._codec import Codec, TargetParameter
from layerwise.torch.checkpoints.foreign._moments import ADAM, SGD, AdamCodec, MomentumCodec
from layerwise.torch.groups._members import Group, State

WRAPPED = "__bnb_optimizer_quant_state__"  # where version 0.50 stores them in a checkpoint
BLOCK, OLD_BLOCK = 256, 2048
TABLES = {"state1": "dynamic", "state2": "udynamic"}
GROUP = 32


def _config(place: TargetParameter) -> Any:
    return place.optimizer.get_config(place.number, place.i, place.group)


def _unwrapped(theirs: State) -> State:
    return {**theirs, **theirs.get(WRAPPED, {})}


def nearest_codes(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of these numbers, and the largest magnitude of each block."""
    largest = _in_blocks(x.abs().float()).amax(1)
    parts = _in_blocks(x.float()) / largest.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    codes = torch.bucketize(parts, ((table[1:] + table[:-1]) / 2).to(x.device))
    return codes.flatten()[: x.numel()].view(x.shape).to(torch.uint8), largest


def _in_blocks(x: Tensor) -> Tensor:
    flat = x.flatten()
    return torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)


def by_element(scales: Tensor, numel: int, *sizes: int) -> Tensor:
    """Return the scales of this many codes, in blocks of the first of these sizes for which there are enough scales."""
    found = next((size for size in sizes if -(-numel // size) == scales.numel()), None)
    if found is None:
        raise StateError(
            f"{numel} codes with {scales.numel()} scales are not blocks of {' or '.join(map(str, sizes))}."
        )
    return scales.repeat_interleave(found)[:numel]


class EightBitCodec(Codec):
    """Common code: 8-bit numbers, or plain ones for parameters where theirs has those; and the norm of an update if
    theirs bounds it.
    """

    def numbers(self, theirs: State, key: str) -> Tensor:
        state, number = _unwrapped(theirs), key[-1]
        x: Tensor = state[key]
        if x.dtype is not torch.uint8:
            return x
        if f"absmax{number}" not in state:
            raise StateError(
                "the checkpoint has 8-bit state with one scale per tensor (block_wise=False), which bitsandbytes no "
                "longer writes. Only block-wise state can be converted."
            )
        table, largest = state[f"qmap{number}"].float(), state[f"absmax{number}"].float()
        if table.numel() != 256:
            raise StateError(f"an 8-bit table must have 256 entries, but the checkpoint's has {table.numel()}.")
        found: Tensor = table[x.flatten().long()] * by_element(largest, x.numel(), BLOCK, OLD_BLOCK)
        return found.view(x.shape)

    def stored(self, x: Tensor, key: str, place: TargetParameter) -> State:
        theirs, config, number = place.optimizer, _config(place), key[-1]
        if config["optim_bits"] != 8 or place.p.numel() < config["min_8bit_size"]:
            return {key: x.float()}
        if "dynamic" not in theirs.name2qmap:
            theirs.fill_qmap()
        table = theirs.name2qmap[TABLES[key]].to(place.p.device)
        codes, largest = nearest_codes(x, table)
        return {key: codes, f"qmap{number}": table, f"absmax{number}": largest}

    def write(self, ours: State, place: TargetParameter) -> State:
        bound = {"unorm_vec": torch.zeros(1, device=place.p.device)} if _config(place)["max_unorm"] > 0 else {}
        return {**super().write(ours, place), **bound}


class BitsAdam(EightBitCodec, AdamCodec):
    """Two moments; AdEMAMix has a pair in the place of the first."""

    fields: ClassVar = {"exp_avg": "state1", "exp_avg_sq": "state2"}

    def read(self, theirs: State, group: Group) -> State:
        found = super().read(theirs, group)
        if found["exp_avg"].shape != found["exp_avg_sq"].shape:
            raise StateError("the checkpoint is of AdEMAMix, which has two momenta, and cannot be converted.")
        return found


class BitsSGD(EightBitCodec, MomentumCodec):
    """A momentum, the first of betas; Lion, RMSprop and Adagrad keep other state under its name."""

    fields: ClassVar = {"momentum_buffer": "state1"}

    def read(self, theirs: State, group: Group) -> State:
        momentum, second = group["betas"][:2]
        if second or not momentum or group["eps"]:
            raise StateError(
                f"betas={tuple(group['betas'])} and eps={group['eps']} are not those of bitsandbytes' SGD or LARS. "
                "Its Lion, RMSprop and Adagrad cannot be converted."
            )
        return super().read(theirs, group)

    def read_options(self, theirs: Group) -> State:
        rates = super().read_options(theirs)
        rates["momentum"] = rates.pop("betas")[0]
        return rates

    def write_options(self, ours: Group, theirs: Group) -> State:
        return {**super().write_options(ours, theirs), "betas": (ours["momentum"], *theirs["betas"][1:])}


class Bounded(EightBitCodec):
    """LAMB and LARS: theirs bounds only the steps of tensors without 8-bit state."""

    options: ClassVar[str]  # our options with the same steps

    def checkpoint_warnings(self, saved: Group) -> Iterable[str]:
        yield from super().checkpoint_warnings(saved)
        states = [_unwrapped(one)["state1"] for one in saved["state"].values()]
        if bounded := sum(x.dtype is not torch.uint8 for x in states):
            yield (
                f"{bounded} of {len(states)} tensors have float32 state. bitsandbytes bounds the steps of these by "
                f"max_unorm·‖p‖, and does not bound the others. {self.options}"
            )


class BitsLamb(Bounded, BitsAdam):
    """Two moments, of Adam with bounded steps."""

    options: ClassVar = (
        'Put them into a group with trust_clip=(None, 1.0), zero_norm_ratio=0.0 and bias_correction="lr", and set '
        "adapt=False in the other groups."
    )


class BitsLars(Bounded, BitsSGD):
    """A momentum, of SGD with bounded steps."""

    options: ClassVar = (
        "Lars has no such bound: put them into a group with a smaller lr, and set adapt=False in the other groups."
    )


class Flash(Codec):
    """Common code: 8-bit numbers, or plain ones in their saved dtype; and an initial_lr even without a schedule. It
    quantizes when it loads, so numbers are converted back.
    """

    def numbers(self, theirs: State, key: str) -> Tensor:
        if key in theirs:
            kept: Tensor = theirs[key]
            return kept
        codes, scales = theirs[f"{key}::quantized"], theirs[f"{key}::scales"]
        if codes.dtype not in (torch.int8, torch.uint8) or not scales.is_floating_point():
            found = f"{codes.dtype} and {scales.dtype}"
            raise StateError(f"{key!r} must have 8-bit codes and float16 scales, but has {found}.")
        # For bfloat16 parameters, the bytes of float16 scales are saved as if they were bfloat16.
        scales = scales.view(torch.float16).float() if scales.element_size() == 2 else scales.float()
        signed = key != "exp_avg_sq"
        y = codes.flatten().float() / (127 if signed else 255)
        x: Tensor = (y / (2 - y.abs()) if signed else y) * by_element(scales, codes.numel(), GROUP)
        return (x if signed else x * x).view(codes.shape)

    def read_options(self, theirs: Group) -> State:
        found = super().read_options(theirs)
        return {name: x for name, x in found.items() if name != "initial_lr" or x != theirs["lr"]}


class FlashAdam(Flash, AdamCodec):
    """Two moments."""


class FlashSGD(Flash, MomentumCodec):
    """A momentum."""


FLASH_ADAM = FlashAdam("AdamW", ADAM | {"master_bytewidth"}, count=torch.tensor)
CODECS: dict[str, Codec] = {
    "bitsandbytes.Adam": BitsAdam("AdamW", ADAM, count=int),
    "bitsandbytes.LAMB": BitsLamb("Lamb", ADAM, count=int),
    "bitsandbytes.LARS": BitsLars("Lars", ADAM, count=int),
    "bitsandbytes.SGD": BitsSGD("SGD", ADAM, count=int),
    **dict.fromkeys(("flashoptim.FlashAdamW", "flashoptim.FlashAdam"), FLASH_ADAM),
    "flashoptim.FlashSGD": FlashSGD("SGD", SGD | {"master_bytewidth"}, count=None),
}
