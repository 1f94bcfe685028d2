"""Parameter groups in Paddle's form, and the settings of each parameter that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import paddle
from paddle.nn import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from paddle.nn.clip import GradientClipBase
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import L2Decay, WeightDecayRegularizer

from layerwise.errors import ContradictionError, HyperparameterError, ParameterError, sentence, with_article
from layerwise.options import checks
from layerwise.options.arguments import OF_PADDLE_GROUP
from layerwise.options.misspellings import check_keywords
from layerwise.options.settings import Hyper, with_values
from layerwise.options.values import Scalar
from layerwise.paddle._arrays import TENSORS, Tensor, Variable, check_apart, check_parameter
from layerwise.paddle._spelling import RATE, arguments_of, decay_argument, joined, options_of

BOUNDS = ("max_grad_norm", "max_grad_norm_per_tensor", "max_grad_value")
Settings = dict[str, Any]  # arguments of an optimizer, or of a group, by name
PLAIN = ""  # the key of parameters that are not in groups


class Group(NamedTuple):
    """Parameters with the same settings."""

    params: list[Tensor]
    h: Hyper
    excludes: Callable[[Tensor], object] | None
    clip: GradientClipBase | None
    given: Settings  # settings of the group itself, in Paddle's form


def of_program(hyper: type[Hyper], given: Mapping[str, object], lr: float) -> Group:
    """Return the group of all parameters of a program; it is empty until the program is known."""
    return _group(hyper, given, {PLAIN: []}, 0, lr)


def groups_of(hyper: type[Hyper], given: Mapping[str, object], lr: float) -> list[Group]:
    """Return the groups, if all arguments are valid; nothing of Paddle's is changed yet."""
    found = [_group(hyper, given, one, i, lr) for i, one in enumerate(_as_dicts(given["parameters"]))]
    found = [group for group in found if group.params]
    seen: dict[str, Tensor] = {}
    for p in (p for group in found for p in group.params):
        check_parameter(p)
        if p.name in seen:
            twice = (
                "is listed twice"
                if seen[p.name] is p
                else ("has the name of another parameter, and would share its state")
            )
            raise ParameterError(f"{p.name} {twice}. Pass each parameter once, in one group.")
        seen[p.name] = p
    check_apart(seen.values())
    if not seen:
        raise ParameterError("`parameters` must contain at least one parameter. Pass model.parameters().")
    return found


def tensors_to_numbers(given: Mapping[str, Any]) -> Settings:
    """Return arguments with numbers in place of tensors of one element, except for parameters."""
    one = {key for key, x in given.items() if isinstance(x, paddle.Tensor) and x.size == 1} - {"parameters"}
    return {key: x.item() if key in one else x for key, x in given.items()}


def _as_dicts(parameters: object) -> list[Settings]:
    if parameters is None:
        raise ParameterError("`parameters` is missing. Pass parameters=model.parameters().")
    if isinstance(parameters, (*TENSORS, Mapping, str)) or not isinstance(parameters, Iterable):
        one = "a single parameter" if isinstance(parameters, TENSORS) else with_article(type(parameters).__name__)
        raise ParameterError(
            f"`parameters` must be a list of parameters, or of dicts with 'params', but is {one}. Pass "
            "parameters=model.parameters()."
        )
    found = list(parameters)
    of_dicts = [isinstance(one, Mapping) for one in found]
    if any(of_dicts) and not all(of_dicts):
        raise ParameterError(
            "`parameters` must contain either parameters or groups, not both. Put the parameters into a group."
        )
    return [dict(one) for one in found] if any(of_dicts) else [{PLAIN: found}]


def _group(hyper: type[Hyper], given: Mapping[str, object], own: Settings, number: int, lr: float) -> Group:
    own, params = {key: checks.numpy_to_python(x) for key, x in own.items()}, own.get(PLAIN, own.get("params"))
    if PLAIN in own:
        own = {}
    known = dict.fromkeys([*OF_PADDLE_GROUP, *arguments_of(hyper)])
    check_keywords(f"group {number} of `parameters`", [key for key in own if key not in known], list(known))
    if params is None:
        raise ParameterError(f"group {number} of `parameters` has no 'params'. Put its parameters there.")
    check_scale(own.get("learning_rate", 1.0))
    settings = joined(given, {key: x for key, x in own.items() if key not in ("params", "learning_rate", "name")})
    if decay_argument(hyper) != "weight_decay":
        settings["weight_decay"] = as_regularizer(own.get("weight_decay"))
    elif settings["weight_decay"] is None:
        settings["weight_decay"] = given["weight_decay"]
    h = options_of(hyper, tensors_to_numbers({**settings, "learning_rate": lr}))
    excludes, clip = settings["exclude_from_weight_decay_fn"], settings["grad_clip"]
    if excludes is not None and not callable(excludes):
        way_out = "Pass a function that returns True for parameters without decay, or None."
        raise HyperparameterError(
            sentence("exclude_from_weight_decay_fn", "a function of a parameter", excludes, way_out)
        )
    check_clip(clip, h)
    members = _params(params, number)
    return Group(members, h, excludes, clip, {**own, "params": members} if own else own)


def _params(params: object, number: int) -> list[Tensor]:
    if isinstance(params, TENSORS):
        return [params]
    if isinstance(params, (set, str)) or not isinstance(params, Iterable) or checks.is_exhausted(params):
        shown = f"{'an exhausted' if checks.is_exhausted(params) else 'a'} {type(params).__name__}"
        raise ParameterError(f"'params' of group {number} must be parameters in order, but are {shown}. Pass a list.")
    return list(params)


def check_scale(scale: object) -> None:
    """Raise unless a group's learning rate is a factor on the optimizer's, or a tensor that holds the rate itself."""
    if isinstance(scale, LRScheduler):
        way_out = "Pass the scheduler as the optimizer's learning_rate, and the group's factor here."
        raise HyperparameterError(sentence("learning_rate", "a factor in a group", scale, way_out))
    if not isinstance(scale, Variable):
        RATE("learning_rate", scale, "In a group it is a factor on the optimizer's learning rate, such as 0.1.")


def register(group: Group, regularizes: bool) -> None:
    """Store a group's settings on its parameters, where Paddle's optimizers store them."""
    for p in group.params:
        if regularizes:
            p.regularizer = as_regularizer(group.given.get("weight_decay"))
        p.optimize_attr = {**getattr(p, "optimize_attr", {}), "learning_rate": group.given.get("learning_rate", 1.0)}


def rate_of(p: Tensor, lr: Scalar) -> Scalar:
    """Return the learning rate of a parameter: its own factor times the optimizer's rate, or a variable's value."""
    scale = (getattr(p, "optimize_attr", None) or {}).get("learning_rate", 1.0)
    if isinstance(scale, Variable):
        return scale
    if scale == 1.0 and not isinstance(scale, paddle.Tensor):
        return lr
    check_scale(scale)
    # A tensor holds the rate itself, as in Paddle.
    return float(scale) if isinstance(scale, paddle.Tensor) else lr * float(scale)


def rates_of(params: Sequence[Tensor], lr: Scalar) -> list[Scalar]:
    """Return the learning rate of each parameter: in a program, one variable for each factor."""
    keys = list(map(_factor_key, params))
    found = {key: rate_of(p, lr) for key, p in dict(zip(keys, params, strict=True)).items()}
    return list(map(found.__getitem__, keys))


def _factor_key(p: Tensor) -> float:
    scale = (getattr(p, "optimize_attr", None) or {}).get("learning_rate", 1.0)
    return scale if isinstance(scale, (int, float)) else id(scale)


def settings_of(groups: Sequence[Group]) -> tuple[dict[str, Hyper], list[Group]]:
    """Return the settings of each parameter by its name, and the groups whose gradients Paddle has to prepare."""
    found, prepared = {}, []
    # A rule clips by the norm of all gradients, Paddle by the norm of those in a group that are clipped.
    by_all = len(groups) == 1 and all(map(_is_clipped, groups[0].params))
    for group in groups:
        hs = [_with_clip(group, p, by_all) for p in group.params]
        if any(h is None for h in hs):
            hs = [group.h] * len(hs)
            prepared.append(group)
        for p, h in zip(group.params, hs, strict=True):
            excluded = group.excludes is not None and bool(group.excludes(p))
            found[p.name] = with_values(h, weight_decay=0.0) if excluded else h
    return found, prepared


def _is_clipped(p: Tensor) -> bool:
    return getattr(p, "need_clip", True) is not False


def _with_clip(group: Group, p: Tensor, by_all: bool) -> Any:
    """Return the settings with a parameter's clipping and penalty, or None if no option does the same."""
    h = with_clip_and_regularizer(group.h, group.clip if _is_clipped(p) else None, getattr(p, "regularizer", None))
    by_others = h is not None and group.clip is not None and h.model_bound and not by_all
    return None if by_others else h


def prepared_by_paddle(
    optimizer: paddle.optimizer.Optimizer, group: Group, pairs: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """Return gradients as Paddle clips and penalizes them, in copies."""
    made = list(pairs) if group.clip is None else _clipped(group.clip, list(pairs))
    found = [g for _, g in optimizer.append_regularization_ops(made, None)]
    # Paddle turns a scalar into a vector of one number.
    return [paddle.reshape(g, old.shape) if old.ndim == 0 else g for g, (_, old) in zip(found, pairs, strict=True)]


def _clipped(clip: GradientClipBase, pairs: list[tuple[Tensor, Tensor]]) -> Any:
    try:
        return clip(pairs)
    except NotImplementedError:  # in the static graph, where the dynamic graph's operations give the same
        return clip._dygraph_clip(pairs)


# ---- Paddle's clips and regularizers, as options of a rule that have the same effect on a gradient


def check_clip(clip: object, h: Hyper) -> None:
    """Raise unless this is one of Paddle's clips, or None, and no other bound contradicts it."""
    if clip is None:
        return
    if not isinstance(clip, GradientClipBase):
        way_out = "Pass a clip such as paddle.nn.ClipGradByGlobalNorm(1.0), or None."
        raise HyperparameterError(sentence("grad_clip", "a gradient clip of Paddle", clip, way_out))
    for option in BOUNDS:
        if (value := getattr(h, option, None)) is not None:
            raise ContradictionError(sentence(option, "None if grad_clip is given", value, "Drop one of them."))


def with_clip_and_regularizer(h: Any, clip: object, regularizer: Any) -> Any:
    """Return the settings with a clip and a regularizer, or None if no options do the same."""
    found, own = bounds_of_clip(clip), h.__dataclass_fields__
    if found is None or not found.keys() <= own.keys():
        return None
    if regularizer is not None:
        if type(regularizer) is not L2Decay or "l2" not in own:
            return None
        found["l2"] = h.l2 + regularizer._coeff
    try:
        return with_values(h, **{option: type(h).check(option, value) for option, value in found.items()})
    except HyperparameterError:  # for numbers that only Paddle accepts, such as a bound below 0
        return None


def bounds_of_clip(clip: Any) -> dict[str, Any] | None:
    """Return a clip as options, or None if no options do the same."""
    kind = type(clip)
    if clip is None:
        return {}
    if kind is ClipGradByGlobalNorm and clip.clip_norm and not clip.should_comm_on_shard_dim:
        return {"max_grad_norm": clip.clip_norm}
    if kind is ClipGradByNorm and clip.clip_norm:
        return {"max_grad_norm_per_tensor": clip.clip_norm}
    return {"max_grad_value": (clip.min, clip.max)} if kind is ClipGradByValue else None


def as_regularizer(value: object) -> WeightDecayRegularizer | None:
    """Return the `weight_decay` of a group in the meaning of Paddle's optimizers: a penalty on the gradient."""
    if value is None or isinstance(value, WeightDecayRegularizer):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        way_out = "Pass a number such as 1e-4 or a regularizer, or None; lamb_weight_decay is the decay of LAMB."
        raise HyperparameterError(sentence("weight_decay", "a number or a regularizer of Paddle", value, way_out))
    return L2Decay(float(value))
