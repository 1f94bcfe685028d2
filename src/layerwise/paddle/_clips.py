"""Paddle's clips and regularizers, as options of a rule where these do the same to a gradient."""

from __future__ import annotations

from typing import Any

from paddle.nn import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from paddle.nn.clip import GradientClipBase
from paddle.regularizer import L2Decay, WeightDecayRegularizer

from layerwise.errors import ContradictionError, HyperparameterError, sentence
from layerwise.hyper import Hyper, settled

BOUNDS = ("max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value")


def check_clip(clip: Any, h: Hyper) -> None:
    """Raise unless this is a clip of Paddle's, or None, and no other bound contradicts it."""
    if clip is None:
        return
    if not isinstance(clip, GradientClipBase):
        way_out = "Pass one such as paddle.nn.ClipGradByGlobalNorm(1.0), or None."
        raise HyperparameterError(sentence("grad_clip", "a gradient clip of Paddle", clip, way_out))
    for option in BOUNDS:
        if (value := getattr(h, option, None)) is not None:
            raise ContradictionError(sentence(option, "None beside grad_clip", value, "Drop one of them."))


def with_both(h: Any, clip: Any, regularizer: Any) -> Any:
    """Return the settings with what a clip and a regularizer do, or None where no options do the same."""
    found, own = _bounds(clip), h.__dataclass_fields__
    if found is None or not found.keys() <= own.keys():
        return None
    if regularizer is not None:
        if type(regularizer) is not L2Decay or "l2" not in own:
            return None
        found["l2"] = h.l2 + regularizer._coeff
    try:
        return settled(h, **{option: type(h).check(option, value) for option, value in found.items()})
    except HyperparameterError:  # for numbers that only Paddle takes, such as a bound below 0
        return None


def _bounds(clip: Any) -> dict[str, Any] | None:
    kind = type(clip)
    if clip is None:
        return {}
    if kind is ClipGradByGlobalNorm and clip.clip_norm and not clip.should_comm_on_shard_dim:
        return {"max_grad_norm": clip.clip_norm}
    if kind is ClipGradByNorm and clip.clip_norm:
        return {"max_grad_norm_per_tensor": clip.clip_norm}
    return {"max_grad_value": (clip.min, clip.max)} if kind is ClipGradByValue else None


def as_regularizer(value: Any) -> Any:
    """Return the `weight_decay` of a group as Paddle's optimizers understand it: a penalty on the gradient."""
    if value is None or isinstance(value, WeightDecayRegularizer):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        way_out = "Pass a number such as 1e-4 or a regularizer, or None; lamb_weight_decay is the decay of LAMB."
        raise HyperparameterError(sentence("weight_decay", "a number or a regularizer of Paddle", value, way_out))
    return L2Decay(float(value))
