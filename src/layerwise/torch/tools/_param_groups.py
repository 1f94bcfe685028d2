"""Parameter groups by rule: parameters without weight decay, without adaptation, and a table of all groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from torch import Tensor, nn

from layerwise.catalog.hidden_matrices import ADAMW, adamw_rate_ratio, is_embedding_or_head
from layerwise.catalog.registry import ALL_OPTIONS, ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError, UnknownOptionError, sentence, shown, warn
from layerwise.options.by_name import check_matched, matches
from layerwise.options.checks import number
from layerwise.options.misspellings import NOT_HERE, guess
from layerwise.options.settings import Hyper
from layerwise.torch.groups._members import Group, GroupDict
from layerwise.torch.groups._options import CUTOFF, MAY_BE_NONE, NOT_OF_A_GROUP, OF_SCHEDULERS
from layerwise.torch.groups._rules import OF_ALL_RULES, RATES, RULE, SWITCHES, rule_name
from layerwise.torch.sharding._cuts import whole_shape

Test = Callable[[str, Tensor, nn.Module], bool]
Places = Sequence[tuple[str, nn.Module]]  # the names of a parameter, each with the module that has it
Matcher = str | int | type[nn.Module] | Test
"""A choice of parameters: "bias", "norm", "embedding" or "head", a pattern of names, a number of dimensions (parameters
with at most that many), a type of module, or a function of name, parameter and module.
"""


def is_named_embedding(name: str, p: Tensor, module: nn.Module) -> bool:
    """Return True if a parameter's name is that of an embedding or a head."""
    return is_embedding_or_head(name)


Options = dict[str, Any]
BLOCKS = "blocks"
SMALL = ("bias", "norm")  # exempt in the papers' recipes
OF_RATES = ("initial_lr", "max_lr", "min_lr")  # put into groups by schedulers
SHARED = (*OF_ALL_RULES, "weight_decay")  # options that the parameters left to AdamW take over
ARGUMENTS = ("no_decay", "no_adapt", RULE, "others", "other_params")
# Other keys of a group.
KEYS = {*ALL_OPTIONS, *SWITCHES, *MAY_BE_NONE, *OF_SCHEDULERS, *NOT_OF_A_GROUP, "lr_scale"}
NO_MATRICES = (1, *SMALL, "embedding", "head", is_named_embedding)  # left to others by rules for hidden matrices
# Norm at the end of a class's name, or before a suffix for variants: LlamaRMSNorm, LayerNorm2d, RMSNormGated. Classes
# such as LayerNormLinear and Conv2dWeightNorm have matrices.
NORM = re.compile("(?<!weight)(?<!spectral)(norm|normalization)(_?[0-9].*|act.*|gated|fp32)?$", re.IGNORECASE)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
BY_ROW = (nn.Linear, nn.MultiheadAttention, *EMBEDDINGS)  # modules whose axis 0 is the outputs, or the embedded items
MATRICES = (nn.Linear, nn.modules.conv._ConvNd, *EMBEDDINGS)  # with at most a norm besides, as in a ConvNorm


def _is_norm(module: nn.Module) -> bool:
    """Return True if a module's class is named as a normalization, and none of its submodules has a matrix."""
    return not isinstance(module, MATRICES) and any(NORM.search(one.__name__) for one in type(module).__mro__)


KINDS: dict[str, Test] = {
    # bias, in_proj_bias, bias_ih_l0
    "bias": lambda name, p, module: "bias" in name.rpartition(".")[2].split("_"),
    "norm": lambda name, p, module: _is_norm(module),
    "embedding": lambda name, p, module: isinstance(module, EMBEDDINGS),
}
WAY_OUT = (
    'Pass any of "bias", "norm", "embedding", "head", a pattern such as "head.*", a module type, a number of '
    "dimensions (for parameters with at most that many), or a callable of (name, parameter, module)."
)


class ParamGroups(list[GroupDict]):
    """A list of parameter groups for an optimizer. Print it to see the group of each parameter."""

    def __str__(self) -> str:
        named = any(RULE in group for group in self)
        cut = any(BLOCKS in group for group in self)
        rows = [["parameter", "shape", "weight decay", "trust ratio", *["rule"] * named, *[BLOCKS] * cut]]
        for group in self:
            decay = "none" if group.get("weight_decay") == 0 else "yes"
            adapt = "no" if group.get("adapt") is False or _has_no_ratio(group) else "yes"
            said = [decay, adapt, *([group[RULE]] if named else []), *([str(group.get(BLOCKS, "one"))] if cut else [])]
            rows += [[name, "×".join(map(str, whole_shape(p))) or "scalar", *said] for name, p in group["params"]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _has_no_ratio(group: Group) -> bool:
    """Return True if the rule of a group, with its options, measures no norm of its weights."""
    if RULE not in group:
        return False
    specs = ENTRIES[group[RULE]].hyper.__dataclass_fields__
    return group.get("adapt", specs["adapt"].default) is False if "adapt" in specs else "scale_parameter" not in specs


def param_groups(
    model: nn.Module,
    *,
    no_decay: Iterable[Matcher] = SMALL,
    no_adapt: Iterable[Matcher] | None = None,
    rule: str | type | None = None,
    others: str | type | Mapping[str, object] | Literal[False] | None = None,
    other_params: Iterable[Matcher] | None = None,
    **options: object,
) -> ParamGroups:
    """Return a model's trainable parameters in groups, in which biases and norms have neither decay nor a trust ratio.

    A parameter that several modules share is listed once, under its first name, and matches if any of them does.
    Matchers are "bias", "norm", "embedding" or "head", a pattern of names such as "head.*", a type of module, a number
    of dimensions (parameters of at most so many), or a function of name, parameter and module. A pattern that matches
    no parameter is an error, unless it is `layerwise.optional(pattern)`. "norm" goes by the names of classes, such as
    LayerNorm and LlamaRMSNorm; a warning names parameters that it leaves out although their names contain "norm".
    "head" is the last nn.Linear that the model has registered: print the groups to see which that is.

    Args:
        model: The model. Its parameters that require no gradient are left out.
        no_decay: Matchers of the parameters without weight decay.
        no_adapt: Matchers of the parameters without a trust ratio, where the rule has one. None is biases and norms;
            with rule="lars" these keep a ratio in which no norm counts as less than 0.1, because plain steps at LARS's
            rates tend to diverge.
        rule: The rule of the parameters, by its name or class: that of the optimizer, or for `Mixed` one of several.
            For Adam-mini, linear layers and embeddings get a block for each row, as their groups' `blocks`.
        others: For `Mixed`: another rule, for the parameters that match `other_params`. It is a name or class, or a
            mapping with the name and options, such as {"rule": "adamw", "lr": 3e-4}. Beside Muon, whose rule is for
            hidden matrices, None is AdamW, and a mapping such as {"lr": 3e-4} its options: lr is 0.05 times Muon's,
            or the same if `scale` makes steps as long as AdamW's, and weight decay and clipping are Muon's. False
            leaves all parameters to `rule`.
        other_params: Matchers of the parameters that `others` steps. None is biases, norms and embeddings; beside
            Muon all vectors, embeddings and the head, by their modules or names such as pos_embed and lm_head.
        **options: Options of every group, such as lr=0.01; with `others`, those of the first rule alone, as is
            `no_adapt`. What is no option stays in the groups as a key of your own, with a warning.
    """
    if not isinstance(model, nn.Module):
        raise HyperparameterError(
            f"`model` must be a torch.nn.Module, but is a {type(model).__name__}. Pass the model itself: the groups "
            "depend on its modules."
        )
    _check_options(options)
    first, second = split_options(rule, others, options)
    check_other_params(second, other_params)
    given = {"no_decay": no_decay, "no_adapt": SMALL if no_adapt is None else no_adapt}
    given["other_params"] = () if second is None else _usual(first) if other_params is None else other_params
    matchers = {argument: _listed(argument, one) for argument, one in given.items()}
    kinds = {**KINDS, "head": _head_of(model)}
    tests = [_test(argument, one, kinds) for argument, one in matchers.items()]
    places = _places(model)
    if not places:
        warn("no parameter of the model requires grad, so the groups are empty. Thaw it by model.requires_grad_().")
    names = [name for found in places.values() for name, _ in found]
    for argument, ours in matchers.items():
        check_matched(argument, [one for one in ours if isinstance(one, str) and one not in kinds], names)
    _warn_of_norms(places, [test for ours, test in zip(matchers.values(), tests, strict=True) if "norm" in ours])
    by_row = {other: _is_by_row(one) for other, one in ((False, first), (True, second))}
    groups: dict[tuple[bool, ...], list[tuple[str, Tensor]]] = {}
    for p, found in places.items():
        decays, adapts, other = (not test(p, found) for test in tests)
        rows = by_row[not other] and any(isinstance(module, BY_ROW) for _, module in found)
        key = (not other, not decays, not adapts and other, not rows)
        groups.setdefault(key, []).append((found[0][0], p))
    if second is not None and all(of_others for of_others, *_ in groups):
        warn(
            f"no parameter is left for {first[RULE]}: {second[RULE]} steps all of them. Pass others=False, or "
            "other_params=[…] with fewer."
        )
    unscaled_off = (_kept(first) if no_adapt is None else {}) or {"adapt": False}
    made = ParamGroups()
    for (of_others, fixed, unscaled, whole), members in sorted(groups.items()):
        off = {**({"weight_decay": 0.0} if fixed else {}), **(unscaled_off if unscaled else {})}
        off |= {} if whole else {BLOCKS: "each"}
        made.append({"params": members, **(second or {} if of_others else first), **off})
    return made


def chosen(model: nn.Module, matchers: Iterable[Matcher]) -> list[Tensor]:
    """Return the parameters that one of these chooses."""
    test = _test("matchers", list(matchers), {**KINDS, "head": _head_of(model)})
    return [p for p, found in _places(model).items() if test(p, found)]


def _check_options(given: Iterable[str]) -> None:
    """Raise for names similar to arguments or options, or for synonyms from other libraries; warn about names that
    nothing reads.
    """
    for name in [one for one in given if one not in KEYS]:
        hint = guess(name, ARGUMENTS) or guess(name, sorted(ALL_OPTIONS | {*SWITCHES}), CUTOFF)
        if hint or name in ("params", "param_names"):
            way_out = hint or "The model provides them."
            raise UnknownOptionError(
                f"param_groups has no argument {name!r}. {way_out} To add a key of your own, set it in the groups "
                "afterwards."
            )
        warn(
            f"param_groups puts {name!r} into each group, but nothing reads it: it is not an option, and not one of "
            f"the arguments {', '.join(ARGUMENTS)}. {NOT_HERE.get(name, 'Leave it out, or set it afterwards.')}"
        )


def _warn_of_norms(places: Mapping[Tensor, Places], tests: Sequence[Callable[[Tensor, Places], bool]]) -> None:
    """Warn about vectors that "norm" may be meant to match, by their names or their classes' names, but does not."""
    called = {name: f"{name} {type(module).__name__}".lower() for found in places.values() for name, module in found}
    left = [
        name
        for p, found in places.items()
        for name, _ in found[:1]
        if len(whole_shape(p)) < 2 and "norm" in called[name] and not all(test(p, found) for test in tests)
    ]
    if left:
        warn(
            f'"norm" does not match {", ".join(left[:5])}{", …" * (len(left) > 5)}: it matches modules whose class '
            'name ends in Norm. If you mean these parameters too, add a pattern such as "*norm*".'
        )


def _places(model: nn.Module) -> dict[Tensor, list[tuple[str, nn.Module]]]:
    """Return the names of each trainable parameter, each with the module that has it."""
    places: dict[Tensor, list[tuple[str, nn.Module]]] = {}
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(prefix=prefix, recurse=False):
            if p.requires_grad:
                places.setdefault(p, []).append((name, module))
    return places


def _kept(options: Group) -> GroupDict:
    """Return options for biases and norms, if the rule of these groups does not exempt them from the ratio."""
    own = ENTRIES[options[RULE]].hyper.of_small if RULE in options else {}
    return {name: options.get(name, value) for name, value in own.items()}


def _is_by_row(options: Group | None) -> bool:
    """Return True if the rule of these groups needs a block for each row, and their options set no other blocks."""
    given = options or {}
    return RULE in given and BLOCKS not in given and ENTRIES[given[RULE]].hyper.by_row


def _usual(options: Group) -> tuple[Matcher, ...]:
    """Return matchers of parameters that the rule of these groups usually leaves to others."""
    return NO_MATRICES if ENTRIES[options[RULE]].hyper().of_matrices else (*SMALL, "embedding")


def _head_of(model: nn.Module) -> Test:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)][-1:]
    return lambda name, p, module: module in layers


def _listed(argument: str, matchers: object) -> list[Matcher]:
    if isinstance(matchers, (str, type)) or not isinstance(matchers, Iterable):
        one = getattr(matchers, "__name__", None) or shown(matchers)
        raise HyperparameterError(sentence(argument, "a list", matchers, f"Pass {argument}=[{one}]."))
    return list(matchers)


def _test(argument: str, matchers: list[Matcher], kinds: Mapping[str, Test]) -> Callable[[Tensor, Places], bool]:
    """Return a test whether a parameter in these places matches one of the matchers."""
    tests = [_one(argument, matcher, kinds) for matcher in matchers]
    return lambda p, found: any(test(name, p, module) for name, module in found for test in tests)


def _one(argument: str, matcher: Any, kinds: Mapping[str, Test]) -> Test:
    if isinstance(matcher, str):
        return kinds.get(matcher) or (lambda name, p, module: matches(name, matcher))
    if isinstance(matcher, type) and issubclass(matcher, nn.Module):
        return lambda name, p, module: isinstance(module, matcher)
    if isinstance(matcher, int) and not isinstance(matcher, bool):
        return lambda name, p, module: len(whole_shape(p)) <= matcher
    if callable(matcher) and not isinstance(matcher, type):
        return matcher  # type: ignore[no-any-return]
    raise HyperparameterError(f"`{argument}` has {shown(matcher)}, which is no selector. {WAY_OUT}")


# ---- the rule for the rest: with rules for hidden matrices AdamW, at a rate in proportion to theirs


def split_options(rule: object, others: object, options: Group) -> tuple[Options, Options | None]:
    """Return the options of groups with the rule, and of those that it leaves to another; None if it leaves none."""
    first = {**({} if rule is None else {RULE: rule_name(rule)}), **options}
    hyper = None if rule is None else ENTRIES[first[RULE]].hyper
    usual = _usual_of_rest(hyper, options) if hyper is not None and hyper().of_matrices else {}
    if others is False or (others is None and not usual):
        return first, None
    if rule is None:
        raise HyperparameterError(
            sentence("rule", ("given when `others` is given"), None, 'Pass one such as rule="lamb".')
        )
    own = dict(others) if isinstance(others, Mapping) else {} if others is None else {RULE: others}
    own[RULE] = rule_name(own.get(RULE, usual.get(RULE)))
    return first, {**usual, **own} if own[RULE] == usual.get(RULE) else own


def _usual_of_rest(hyper: type[Hyper], options: Group) -> Options:
    """Return the rest's options that go with these options of a rule for hidden matrices."""
    own = {spec.name: spec.default for spec in fields(hyper)}
    ratio = adamw_rate_ratio(hyper(**{name: options[name] for name in ("scale",) if name in options}))
    # Keys that are not options also apply to the rest, except names of state that AdamW does not have.
    kept = {key: x for key, x in options.items() if key in SHARED or key not in own}
    if isinstance(kept.get("state_dtype"), Mapping):
        del kept["state_dtype"]
    rates = {name: options[name] for name in OF_RATES if name in options} | {"lr": options.get("lr", own["lr"])}
    rates = {
        name: ratio * (x if isinstance(x, Tensor) else number(0)(name, x, RATES["lr"])) for name, x in rates.items()
    }
    return {"weight_decay": own["weight_decay"], **kept, **rates, RULE: ADAMW.name}


def kept_by_rest(rule: type, own: Mapping[str, object], rest: Options | None) -> Options:
    """Return the rest's options in a trainer's group, which keeps its decay, if it has one, and keys that are not
    options.
    """
    mine = {spec.name for spec in fields(ENTRIES[rule_name(rule)].hyper)}
    kept = {key: x for key, x in own.items() if key in SHARED or key not in mine}
    undecayed = {"weight_decay": 0.0} if own.get("weight_decay") == 0 else {}
    return {**kept, **(rest or {}), **undecayed}


def check_other_params(rest: Options | None, given: object) -> None:
    """Raise if parameters are chosen for a rule that is not given."""
    if rest is None and given is not None:
        way_out = 'Pass the rule for them, such as others="adamw".'
        raise ContradictionError(sentence("other_params", "None without `others`", given, way_out))
