"""Checkpoints of other packages' optimizers: a codec for each, which reads them and writes them.

`_convert.py` has the two functions that users call, and `_codec.py` what a codec is. The other files have the codecs.
"""

from __future__ import annotations

from collections.abc import Mapping

from layerwise.torch.checkpoints import _groups
from layerwise.torch.checkpoints.foreign import _adafactor, _eight_bits, _moments, _pytorch_optimizer
from layerwise.torch.checkpoints.foreign._codec import Codec

CODECS: Mapping[str, Codec] = {
    **_moments.CODECS,
    **_eight_bits.CODECS,
    **_adafactor.CODECS,
    **_pytorch_optimizer.CODECS,
}
"""All codecs, by the names of their optimizers."""
_groups.CODECS.update(CODECS)
