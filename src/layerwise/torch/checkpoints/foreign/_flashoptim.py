"""Codecs of FlashOptim: groups of 32 with a float16 scale; softsign of m, and the root of v."""

from __future__ import annotations

import torch
from torch import Tensor

from layerwise.errors import StateError
from layerwise.torch.checkpoints.foreign._bitsandbytes import by_element
from layerwise.torch.checkpoints.foreign._codec import Codec, Group, State, keys
from layerwise.torch.checkpoints.foreign._moments import ADAM, SGD, Adam, Momentum

GROUP = 32
ANY_FLASH = keys("initial_lr quantize")


class Flash(Codec):
    """What both have: numbers in 8 bits, or what they were saved as without them; and an initial_lr also where no
    schedule began. It quantizes what it loads, so numbers go back.
    """

    def numbers(self, theirs: State, key: str) -> Tensor:
        if key in theirs:
            kept: Tensor = theirs[key]
            return kept
        codes, scales = theirs[f"{key}::quantized"], theirs[f"{key}::scales"]
        if codes.dtype not in (torch.int8, torch.uint8) or not scales.is_floating_point():
            found = f"{codes.dtype} and {scales.dtype}"
            raise StateError(f"{key!r} must have 8-bit codes and float16 scales, but has {found}.")
        # Beside bfloat16 parameters the bytes of float16 scales are saved as if they were bfloat16.
        scales = scales.view(torch.float16).float() if scales.element_size() == 2 else scales.float()
        signed = key != "exp_avg_sq"
        y = codes.flatten().float() / (127 if signed else 255)
        x: Tensor = (y / (2 - y.abs()) if signed else y) * by_element(scales, codes.numel(), GROUP)
        return (x if signed else x * x).view(codes.shape)

    def read_options(self, theirs: Group) -> State:
        found = super().read_options(theirs)
        return {name: x for name, x in found.items() if name != "initial_lr" or x != theirs["lr"]}


class FlashAdam(Flash, Adam):
    """Two moments."""


class FlashSGD(Flash, Momentum):
    """A momentum."""


FLASH_ADAM = FlashAdam("AdamW", ADAM | {"master_bytewidth"}, ANY_FLASH, count=torch.tensor)
CODECS: dict[str, Codec] = {
    **dict.fromkeys(("flashoptim.FlashAdamW", "flashoptim.FlashAdam"), FLASH_ADAM),
    "flashoptim.FlashSGD": FlashSGD("SGD", SGD | {"master_bytewidth"}, ANY_FLASH | {"nesterov"}, count=None),
}
