"""The arguments of each optimizer in each API, in their order: the rule's options as the API calls them, then its own.

Where an API has an optimizer of that name itself, its arguments come first, with its names and defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import cache

from layerwise.catalog.presets import find_preset
from layerwise.catalog.registry import Entry
from layerwise.options import arguments
from layerwise.options.arguments import REQUIRED, Argument
from layerwise.options.names import KERAS, OF_KERAS, OPTAX, PADDLE, PADDLE_PRESETS, ApiNames, is_pair
from layerwise.options.settings import ClippedByNorm, Hyper, options_in_order

RATES = ("lr", "weight_decay")  # options that may change from step to step
OF_STEP = " It may be a function of the step."


def options_of(h: type[Hyper], rate: str = "Scheduled", means: str = "") -> list[Argument]:
    """Return the options of a rule, in their order, with the type of rates, and what there is to say of them."""
    found = []
    for name in options_in_order(h):
        spec, is_rate = h.__dataclass_fields__[name], name in RATES
        type_ = str(spec.type).replace("'", '"').replace("Scheduled", rate if is_rate else "Scheduled")
        said = spec.metadata["means"] + (means if is_rate else "")
        found.append(Argument(name, type_, spec.default, said, bool(spec.kw_only)))
    return found


def of_api(declared: Sequence[Argument], h: type[Hyper]) -> list[Argument]:
    """Return the arguments of an API that an optimizer takes."""
    known = h.__dataclass_fields__
    return [one for one in declared if one.unless not in known and (not one.only_with or one.only_with in known)]


def in_api(api: ApiNames, h: type[Hyper], one: Argument, of_pair: str) -> list[Argument]:
    """Return the argument of an option as an API calls it, or the two of a pair, which are of the type `of_pair`."""
    names, said = api.renamed_options(h).get(one.name, (one.name,)), api.in_messages(h)
    means = _words(tuple(said)).sub(lambda found: said[found[0]], one.means) if said else one.means
    if not is_pair(names):
        return [one._replace(name=names[0], means=means)]
    means = f"{means[0].lower()}{means[1:]}"
    each = zip(names, ("first", "second"), one.default, strict=True)
    return [Argument(name, of_pair, x, f"The {i} of the two: {means}", one.keyword) for name, i, x in each]


@cache
def _words(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds these names in a sentence, but not where they are values in quotes."""
    return re.compile(rf"(?<!\")\b({'|'.join(names)})\b")


def ordered_by_names(names: str, known: Mapping[str, Argument]) -> list[Argument]:
    """Return the arguments of these names first, by place up to a star, and then the others by name."""
    by_place, _, by_name = (part.split() for part in names.partition("*"))
    rest = [*by_name, *(name for name in known if name not in (*by_place, *by_name))]
    return [
        *(known[name]._replace(keyword=False) for name in by_place),
        *(known[name]._replace(keyword=True) for name in rest),
    ]


def by_name(each: Iterable[Argument]) -> dict[str, Argument]:
    return {one.name: one for one in each}


def of_torch(entry: Entry) -> list[Argument]:
    return [arguments.PARAMS, *options_of(entry.hyper, "Rate"), *of_api(arguments.TORCH, entry.hyper)]


def of_mixed() -> list[Argument]:
    """Return the arguments of the optimizer whose groups name their rules: those that mean the same in every rule."""
    groups = 'Parameter groups, each with its "rule" (the name of an optimizer such as "lamb", in any case, or its '
    params = arguments.PARAMS._replace(means=f"{groups}class) and the options of that rule.")
    known = by_name([params, *options_of(ClippedByNorm), *of_api(arguments.TORCH, ClippedByNorm)])
    stored = known["state_dtype"]  # whose names differ from rule to rule
    means = stored.means.replace(
        ", or a mapping from its names; None", "; a mapping from its names goes in a group. None"
    )
    return [*(known | {"state_dtype": stored._replace(type="StateDtype | None", means=means)}).values()]


def of_numpy(entry: Entry) -> list[Argument]:
    options = [
        one._replace(type=arguments.BY_NAME.get(one.name, "{type}").format(type=one.type))
        for one in options_of(entry.hyper, means=OF_STEP)
    ]
    return [*options, *of_api(arguments.NUMPY, entry.hyper)]


def of_mlx(entry: Entry) -> list[Argument]:
    known = by_name(options_of(entry.hyper, "Rate", OF_STEP))
    return [known.pop("lr")._replace(name="learning_rate"), *known.values()]


def of_keras(entry: Entry) -> list[Argument]:
    h = entry.hyper
    # A config can hold no function of the step.
    known = by_name(one._replace(type=one.type.replace("Scheduled", "float")) for one in options_of(h))
    lr = known["lr"]
    means = f"{lr.means.rstrip('.')}. It may be a schedule of Keras, or a function without arguments."
    first = lr._replace(name="learning_rate", type=lr.type.replace("float", "Rate"), means=means)
    known["weight_decay"] = known["weight_decay"]._replace(type="float | None")
    theirs = [
        Argument(name, "float | None", None, f"Keras's name for {_share(option, names, name)}.")
        for option, names in KERAS.renamed_options(h).items()
        for name in names
    ]
    beside = arguments.KERAS_REST if h().of_matrices else ()
    rest = [one for one in known.values() if one.name not in OF_KERAS.renamed_options(h)]
    return [first, *rest, *theirs, *beside, *arguments.KERAS]


def _share(option: str, names: Sequence[str], name: str) -> str:
    return f"the {('first', 'second')[names.index(name)]} of `{option}`" if is_pair(names) else f"`{option}`"


def of_paddle(entry: Entry) -> list[Argument]:
    h = entry.hyper
    theirs = find_preset(PADDLE_PRESETS[entry.name]).options if entry.name in PADDLE_PRESETS else {}
    known = by_name(there for one in options_of(h, "float") for there in _in_paddle(h, one, theirs))
    if theirs:
        known["always_adapt"] = arguments.ALWAYS_ADAPT
    first = arguments.PADDLE_ORDER.get(entry.name, "learning_rate")
    return ordered_by_names(first, known | by_name(of_api(arguments.PADDLE, h)))


def _in_paddle(h: type[Hyper], one: Argument, theirs: Mapping[str, object]) -> list[Argument]:
    """Return the argument of an option, or the two of a pair, with the default of Paddle's own optimizer."""
    if one.name == "lr":
        one = one._replace(type=one.type.replace("float", "float | LRScheduler"))
    if one.name == "adapt" and one.name in theirs:
        means = f"{one.means} None is as always_adapt says."
        one = one._replace(type=f"{one.type} | None", default=None, means=means)
    elif one.name in theirs:
        one = one._replace(default=theirs[one.name])
    return in_api(PADDLE, h, one, "float")


def of_jax(entry: Entry) -> list[Argument]:
    h = entry.hyper
    options = options_of(h, means=OF_STEP)
    known = by_name(there for one in options for there in _in_optax(h, one))
    by_place = " ".join(name for name, one in known.items() if not one.keyword)
    order = arguments.OPTAX_ORDER.get(entry.name, by_place)
    mask = "weight_decay_mask" if "weight_decay_mask" in order.split() else "mask"
    known["learning_rate"] = known["learning_rate"]._replace(default=REQUIRED)
    known = {mask: arguments.MASK._replace(name=mask), **known, **by_name(of_api(arguments.JAX, h))}
    return ordered_by_names(order, known | by_name(arguments.OWN_FORM.get(entry.name, ())))


def _in_optax(h: type[Hyper], one: Argument) -> list[Argument]:
    """Return the argument of an option, or the two of a pair, with optax's default."""
    theirs = h.__dataclass_fields__[one.name].metadata["optax_default"]
    type_ = re.sub(r"\bfloat\b", "Number", one.type).replace("Scheduled", "Rate")
    own = one._replace(type=type_, default=one.default if theirs is MISSING else theirs)
    return in_api(OPTAX, h, own, "Number")


APIS: dict[str, Callable[[Entry], list[Argument]]] = {
    "torch": of_torch,
    "jax": of_jax,
    "numpy": of_numpy,
    "keras": of_keras,
    "mlx": of_mlx,
    "paddle": of_paddle,
}
