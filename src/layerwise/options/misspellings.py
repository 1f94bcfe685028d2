"""Advice about unknown keywords: the option that was probably meant, from other libraries' names or misspellings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from layerwise.errors import ArgumentError, ContradictionError, UnknownOptionError, shown, warn
from layerwise.options.arguments import OF_APIS, REQUIRED, Argument
from layerwise.options.checks import alternatives
from layerwise.options.names import OF_PAIR, synonyms

F = TypeVar("F", bound=Callable[..., object])

CUTOFF = 0.7  # the similarity of a name that may be meant
# Options of other libraries that no optimizer here has, with the way out.
NOT_HERE = {
    **dict.fromkeys(("amsgrad", "ams_bound"), "AMSGrad, which keeps the maximum of second moments, is not supported."),
    **dict.fromkeys(
        ("warmup", "warmup_steps", "num_training_steps", "lr_schedule", "lr_decay"),
        "For changing learning rates, use layerwise.schedules, which include a warm-up.",
    ),
    **dict.fromkeys(
        [
            "exclude_bias_n_norm",
            "exclude_from_weight_decay",
            "exclude_from_layer_adaptation",
            "no_decay",
            "no_adapt",
            "skip_list",
            "mask",
            "weight_decay_mask",
            "trust_ratio_mask",
        ],
        "To choose which parameters have decay or a trust ratio, use groups (layerwise.torch.param_groups), "
        "`decay` and `adapt` by name (layerwise.numpy), or masks (layerwise.jax).",
    ),
    **dict.fromkeys(
        ("percentile_clipping", "min_8bit_size", "is_paged", "cpu_offload", "set_grad_none"),
        "layerwise has no such option. Leave it out.",
    ),
    "reproducible": "Every step gives the same bits from run to run, with any number of threads. Leave it out.",
}


def argument_binder(
    of: str, declared: Sequence[Argument], way_out: str = "", of_groups: Collection[str] = ()
) -> Callable[[Sequence[object], Mapping[str, object]], dict[str, Any]]:
    """Return what gives the arguments of a call by their names, and refuses unknown, missing and repeated ones.

    `way_out` says how such a call is made; options `of_groups` are given in groups alone.
    """
    usual = {one.name: one.default for one in declared}
    placed = [one.name for one in declared if not one.keyword]
    required = [one.name for one in declared if one.default is REQUIRED]

    def bound(args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
        if here := [name for name in kwargs if name not in usual and name in of_groups]:
            given = f'param_groups(model, rule="lamb", {here[0]}={shown(kwargs[here[0]])})'
            raise UnknownOptionError(f"{of} has no option {here[0]!r}, which belongs in the groups: {given}.")
        if not kwargs.keys() <= usual.keys():
            check_keywords(of, [name for name in kwargs if name not in usual], [*usual])
        if len(args) > len(placed):
            taken = f"{len(placed)} arguments by position ({', '.join(placed)}), but got {len(args)}."
            raise ArgumentError(f"{of} takes at most {taken} Pass the others by name.")
        by_place = dict(zip(placed, args, strict=False))
        if twice := [name for name in by_place if name in kwargs]:
            kind = type(by_place[twice[0]]).__name__
            problem = f"{of} got `{twice[0]}` twice: by name, and a {kind} by position."
            raise ArgumentError(f"{problem} {way_out}".rstrip())
        found = {**usual, **by_place, **kwargs}
        if lacking := [name for name in required if found[name] is REQUIRED]:
            raise ArgumentError(f"{of} is missing `{lacking[0]}`. {way_out}".rstrip())
        return found

    return bound


def explaining_missing(way_out: str) -> Callable[[F], F]:
    """Return a decorator for a method that explains how to call it if arguments are missing."""

    def done(method: F) -> F:
        _, *names = inspect.signature(method).parameters

        @wraps(method)
        def called(self: object, *args: object, **kwargs: object) -> object:
            if len(args) + len(kwargs) < len(names):
                lacking = [f"`{name}`" for name in names[len(args) :] if name not in kwargs]
                raise ArgumentError(f"{method.__name__}() is missing {' and '.join(lacking)}. {way_out}")
            return method(self, *args, **kwargs)

        return called  # type: ignore[return-value]

    return done


def check_keywords(of: str, unknown: Collection[str], known: Collection[str]) -> None:
    for name in unknown:
        raise UnknownOptionError(f"{of} has no option {name!r}. {advice(name, known)}")


def check_settable(optimizer: object, name: str, fixed: Collection[str], known: Collection[str]) -> None:
    """Raise if an attribute is set that is a fixed option of an optimizer; warn if its name is nearly a known one."""
    made = type(optimizer).__name__
    if name in fixed:
        raise ContradictionError(f"`{name}` of {made} is fixed when it is made. Make another: {made}(…, {name}=…).")
    if not name.startswith("_") and not hasattr(optimizer, name) and (hint := guess(name, known, 0.8)):
        warn(f"{made} has no attribute {name!r}, so nothing reads it. {hint}")


def lacking(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module lacks, with a similar one."""
    hint = did_you_mean(nearest(name, known, 1))
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint and f'. {hint}'}", name=name)


def advice(name: str, known: Collection[str]) -> str:
    """Return advice about an unknown keyword: its probable meaning, the APIs that have it, or all known options."""
    if found := _synonym(name, known) or NOT_HERE.get(name) or _elsewhere(name):
        return found
    return did_you_mean(nearest(name, known, cutoff=CUTOFF)) or f"Its options are {', '.join(known)}."


def guess(name: str, known: Collection[str], cutoff: float = CUTOFF) -> str:
    """Return "Did you mean …?" with a known keyword, or an empty string if none is similar."""
    return _synonym(name, known) or did_you_mean(nearest(name, known, cutoff=cutoff))


def _synonym(name: str, known: Collection[str]) -> str:
    rows = [(names, remark) for names, remark in synonyms() if name in names and not {*names}.isdisjoint(known)]
    if not rows:
        return ""
    names, remark = next((row for row in rows if row[0][0] in known), rows[0])
    meant = next(one for one in names if one in known)
    if remark in OF_PAIR and meant != names[0]:
        remark = remark.replace("a pair", f"`{name}`")
    return did_you_mean([meant], remark)


def _elsewhere(name: str) -> str:
    """Return the APIs that have an argument of this name, in a sentence, or an empty string if none has."""
    apis = [f"layerwise.{api}" for api, own in OF_APIS.items() if any(one.name == name for one in own)]
    return f"Only {alternatives(apis, 'and')} {'have' if apis[1:] else 'has'} it." if apis else ""


def nearest(name: object, known: Iterable[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return up to `n` similar names, ignoring case."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in get_close_matches(str(name).lower(), by_lower, n, cutoff)]


def did_you_mean(names: Iterable[str], remark: str = "") -> str:
    """Return "Did you mean …?" with these names, or an empty string if there are none."""
    close = " or ".join(f"`{name}`" for name in names)
    return f"Did you mean {close}{f' ({remark})' if remark else ''}?" if close else ""
