"""Rules for hidden matrices by name: each group of a trainer is split, and AdamW steps the other parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor, nn

from layerwise.catalog.hidden_matrices import is_embedding_or_head
from layerwise.errors import warn
from layerwise.options.misspellings import check_keywords
from layerwise.torch import Mixed
from layerwise.torch.groups._arguments import listed
from layerwise.torch.groups._members import Group, GroupDict
from layerwise.torch.groups._rules import RULE
from layerwise.torch.sharding._cuts import whole_shape
from layerwise.torch.tools._param_groups import NO_MATRICES, chosen, kept_by_rest, split_options

STATE = ("state_dtype", dict)  # by names of state, which belong to one rule
FALLBACK = "use_fallback"  # the key of timm's groups that are not for Muon


def splitting_class(optimizer: type[Any]) -> type[Any]:
    """Return what creates an optimizer from a trainer's groups: its class, or one that creates `Mixed` with hidden
    matrices.

    The latter takes two more arguments: `others`, as in `param_groups`, and `of_model`, the model if it is available.
    """
    if not optimizer._hyper().of_matrices:
        return optimizer
    known, shared = ([name for name in signature(one).parameters if name != "params"] for one in (optimizer, Mixed))

    def new(cls: type[Any], params: object, *, of_model: Any = None, others: object = None, **options: Any) -> Mixed:
        check_keywords(optimizer.__name__, [name for name in options if name not in known], [*known, "others"])
        of_all = {name: x for name, x in options.items() if name in shared and (name, type(x)) != STATE}
        of_groups = {name: x for name, x in options.items() if name not in of_all}
        split = GroupSplit(optimizer, others, of_groups, ModelParameters.of(of_model))
        groups = [one for group in _groups(params) for one in split.of(group)]
        _warn_of_odd(optimizer.__name__, groups)
        return Mixed(groups, **of_all)

    # Trainers ask for a class. The object that it creates is not its instance, so its __init__ is not called.
    return type(optimizer.__name__, (Mixed,), {"__new__": new, "__doc__": optimizer.__doc__})


class ModelParameters(NamedTuple):
    """Knowledge about a model's parameters, by their ids."""

    names: Mapping[int, str]
    others: frozenset[int]  # parameters that are not hidden matrices

    @classmethod
    def of(cls, model: nn.Module | None) -> ModelParameters:
        """Return the knowledge about a model, if there is one."""
        if model is None:
            return cls({}, frozenset())
        names = {id(p): name for name, p in model.named_parameters()}
        return cls(names, frozenset(map(id, chosen(model, NO_MATRICES))))


class GroupSplit(NamedTuple):
    """The rule for hidden matrices, the rule for the others, options, and knowledge about parameters."""

    rule: type[Any]
    others: object
    options: Group
    known: ModelParameters

    def of(self, group: Group) -> Iterator[GroupDict]:
        """Yield the groups that replace one. They keep its other settings; AdamW's rate stays in proportion to its
        rate.
        """
        own = {key: x for key, x in group.items() if key not in ("params", "param_names")}
        first, rest = split_options(self.rule, self.others, {**self.options, **own})
        members = list(self._members(group))
        is_rest = [rest is not None and (bool(own.get(FALLBACK)) or self._is_other(*one)) for one in members]
        for options, wanted in ((first, False), (kept_by_rest(self.rule, own, rest), True)):
            found = [(name, p) for (name, p), left in zip(members, is_rest, strict=True) if left == wanted]
            if found:
                named = all(name for name, _ in members)
                yield {**options, "params": [(name, p) if named else p for name, p in found]}

    def _members(self, group: Group) -> Iterator[tuple[str | None, Tensor]]:
        names = group.get("param_names", ())
        for i, one in enumerate(group["params"]):
            name, p = one if isinstance(one, tuple) else (None, one)
            yield name or self.known.names.get(id(p)) or (names[i] if i < len(names) else None), p

    def _is_other(self, name: str | None, p: Tensor) -> bool:
        return id(p) in self.known.others or len(whole_shape(p)) < 2 or bool(name and is_embedding_or_head(name))


def _groups(params: Any) -> list[Group]:
    given = list(params)
    if given and not isinstance(given[0], Mapping):
        return [{"params": given}]
    return [{**one, "params": listed(one["params"])} for one in given]


def _warn_of_odd(name: str, groups: Sequence[Group]) -> None:
    """Warn if a rule has nothing to step, or has parameters that cannot be told from hidden matrices."""
    own, rest = ([group for group in groups if (group[RULE] == name) is wanted] for wanted in (True, False))
    if not own and rest:
        other = rest[0][RULE]
        warn(f"{name} got no hidden matrices, so {other} steps everything. Use {other} by its name.")
    if rest and any(isinstance(p, Tensor) for group in own for p in group["params"]):
        warn(
            f"{name} got parameters without names or their model, so it cannot tell embeddings and the head from "
            "hidden matrices. Pass the model, or groups of param_groups to Mixed."
        )
