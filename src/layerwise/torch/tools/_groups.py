"""Parameter groups by rule: parameters without weight decay, without adaptation, and a table of all groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from layerwise.errors import HyperparameterError, sentence
from layerwise.names import check_matched, matches

Matcher = str | int | type[nn.Module] | Callable[[str, Tensor, nn.Module], bool]

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.modules.batchnorm._NormBase)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
KINDS: dict[str, Callable[[str, Tensor, nn.Module], bool]] = {
    # bias, in_proj_bias, bias_ih_l0
    "bias": lambda name, p, module: "bias" in name.rpartition(".")[2].split("_"),
    "norm": lambda name, p, module: isinstance(module, NORMS),
    "embedding": lambda name, p, module: isinstance(module, EMBEDDINGS),
}
WAY_OUT = (
    'Pass any of "bias", "norm", "embedding", a pattern such as "head.*", a module type, '
    "a number of dimensions (parameters of at most so many), or a callable of (name, parameter, module)."
)


class ParamGroups(list[dict[str, Any]]):
    """Parameter groups for an optimizer; print them to see the group of each parameter."""

    def __str__(self) -> str:
        rows = [("parameter", "shape", "weight decay", "trust ratio")]
        for group in self:
            decay = "none" if group.get("weight_decay") == 0 else "yes"
            adapt = "no" if group.get("adapt") is False else "yes"
            members = group["params"]
            rows += [(name, "×".join(map(str, p.shape)) or "scalar", decay, adapt) for name, p in members]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def param_groups(
    model: nn.Module,
    *,
    no_decay: Iterable[Matcher] = ("bias", "norm"),
    no_adapt: Iterable[Matcher] = (),
    **options: Any,
) -> ParamGroups:
    """Return the model's trainable parameters in groups: those that match `no_decay` without weight decay, and so on.

    A parameter that several modules share is there once, under its first name, and matches if any of them does.
    `options` are set in every group, such as lr=0.01. A pattern that matches no parameter is an error, unless it is
    `layerwise.optional(pattern)`.
    """
    if not isinstance(model, nn.Module):
        raise HyperparameterError(
            f"`model` must be a torch.nn.Module, but is a {type(model).__name__}. Pass the model itself, of whose "
            "modules the rules speak."
        )
    no_decay, no_adapt = _listed("no_decay", no_decay), _listed("no_adapt", no_adapt)
    tests = [_test("no_decay", no_decay), _test("no_adapt", no_adapt)]
    places: dict[Tensor, list[tuple[str, nn.Module]]] = {}
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(prefix=prefix, recurse=False):
            if p.requires_grad:
                places.setdefault(p, []).append((name, module))
    names = [name for found in places.values() for name, _ in found]
    for argument, matchers in (("no_decay", no_decay), ("no_adapt", no_adapt)):
        check_matched(argument, [one for one in matchers if isinstance(one, str) and one not in KINDS], names)
    groups: dict[tuple[bool, ...], list[tuple[str, Tensor]]] = {}
    for p, found in places.items():
        key = tuple(any(test(name, p, module) for name, module in found) for test in tests)
        groups.setdefault(key, []).append((found[0][0], p))
    off: tuple[dict[str, Any], ...] = ({"weight_decay": 0.0}, {"adapt": False})
    return ParamGroups(
        {
            "params": members,
            **options,
            **{k: v for says, one in zip(key, off, strict=True) if says for k, v in one.items()},
        }
        for key, members in sorted(groups.items())
    )


def _listed(argument: str, matchers: Iterable[Matcher]) -> list[Matcher]:
    if isinstance(matchers, (str, type)) or not isinstance(matchers, Iterable):
        raise HyperparameterError(sentence(argument, "a list of rules", matchers, WAY_OUT))
    return list(matchers)


def _test(argument: str, matchers: list[Matcher]) -> Callable[[str, Tensor, nn.Module], bool]:
    tests = [_one(argument, matcher) for matcher in matchers]
    return lambda name, p, module: any(test(name, p, module) for test in tests)


def _one(argument: str, matcher: Any) -> Callable[[str, Tensor, nn.Module], bool]:
    if isinstance(matcher, str):
        return KINDS.get(matcher) or (lambda name, p, module: matches(name, matcher))
    if isinstance(matcher, type) and issubclass(matcher, nn.Module):
        return lambda name, p, module: isinstance(module, matcher)
    if isinstance(matcher, int) and not isinstance(matcher, bool):
        return lambda name, p, module: p.ndim <= matcher
    if callable(matcher) and not isinstance(matcher, type):
        return matcher  # type: ignore[no-any-return]
    raise HyperparameterError(sentence(argument, "a list of rules", matcher, WAY_OUT))
