"""The registry of timm, whose factory creates optimizers by name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from layerwise.catalog.presets import preset
from layerwise.errors import MissingPackageError
from layerwise.trainers import PREFIX, classes
from layerwise.trainers._split import splitting_class

# Options with which a run that was configured for timm's own optimizer continues unchanged.
PRESETS = {"Lamb": "timm.Lamb", "Lars": "timm.Lars", "Lion": "timm.Lion", "NovoGrad": "timm.NvNovoGrad"}


def register() -> list[str]:
    """Add the optimizers to timm's registry, and return their names there."""
    try:
        from timm.optim import OptimInfo
        from timm.optim._optim_factory import default_registry
    except ImportError as problem:
        way_out = "Registering names needs timm 1.0.12 or newer and torchvision. Without them, pass the class."
        raise MissingPackageError(
            f"timm's registry of optimizers cannot be imported: {problem}. {way_out}"
        ) from problem
    known, found = set(default_registry.list_optimizers()), classes()
    for name, optimizer in found.items():
        if name not in known:
            default_registry.register(_info(OptimInfo, name, optimizer))
    if not hasattr(default_registry.create_optimizer, "names_in_one_word"):
        names = {_in_one_word(name): name for name in found}
        split = {word for word, name in names.items() if found[name]._hyper().of_matrices}
        default_registry.create_optimizer = _by_names_in_one_word(default_registry.create_optimizer, split)
        info = default_registry.get_optimizer_info
        default_registry.get_optimizer_info = wraps(info)(lambda name: info(names.get(name.lower(), name)))
    return list(found)


def _info(make: Callable[..., Any], name: str, optimizer: type[Any]) -> Any:
    options = optimizer._hyper.__dataclass_fields__
    return make(
        name=name,
        opt_class=splitting_class(optimizer),
        description=f"layerwise.torch.{optimizer.__name__}",
        has_eps="eps" in options,
        has_betas="betas" in options,
        has_momentum="momentum" in options,
        defaults=_defaults(optimizer) or None,
    )


def _defaults(optimizer: type[Any]) -> dict[str, Any]:
    """Return timm's own defaults of the optimizer, without those that its factory passes itself."""
    name = PRESETS.get(optimizer.__name__)
    options = {} if name is None else preset(name)
    return {option: value for option, value in options.items() if option not in ("weight_decay", "momentum")}


def _in_one_word(name: str) -> str:
    return name.lower().replace(PREFIX, PREFIX.rstrip("_"))


def _by_names_in_one_word(create: Callable[..., Optimizer], split: Collection[str]) -> Callable[..., Optimizer]:
    """Return the factory, which also finds our names without the underscore.

    timm's factory takes the text after the last underscore as the name, because "lookahead_" may come before it:
    "layerwise_lamb" would be timm's "lamb". Names in `split`, of rules for hidden matrices, get the model in addition
    to its groups.
    """

    @wraps(create)
    def create_optimizer(model_or_params: object, opt: str, *args: object, **kwargs: object) -> Optimizer:
        word = _in_one_word(opt)
        if word.rpartition("_")[2] in split and isinstance(model_or_params, Module):
            kwargs["of_model"] = model_or_params
        return create(model_or_params, word, *args, **kwargs)

    create_optimizer.names_in_one_word = True  # type: ignore[attr-defined]
    return create_optimizer
