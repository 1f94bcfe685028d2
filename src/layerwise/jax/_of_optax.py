"""The state of optax's optimizers, and the corresponding fields of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from layerwise.errors import StateError, warn
from layerwise.jax import optimizers
from layerwise.jax._state_conversion import RULES, companions_of, like_theirs, own_of, state_with_trees
from layerwise.jax._storage import Grouped, MasterState
from layerwise.jax._trees import Leaves, of_state, parameters
from layerwise.jax._types import Array, Tree
from layerwise.jax.optimizers import AdafactorState, LambState, LarsState, NovoGradState


def is_ours(x: Tree) -> bool:
    return type(x) in RULES or isinstance(x, MasterState)


def is_injected(x: Tree) -> bool:
    return hasattr(x, "hyperparams") and hasattr(x, "inner_state")


def masked_like(state: Tree, params: Tree) -> Tree:
    """Return the parameters of one of our states: masked like its own trees."""
    tree = next((one for one in own_of(state)[1:-1] if one is not None), None)
    tree = tree.codes if isinstance(tree, Grouped) else tree
    if tree is None:
        return params
    return jax.tree.map(
        lambda x, p: x if _is_masked(x) else p, tree, params, is_leaf=lambda x: x is None or _is_masked(x)
    )


def _is_masked(x: Tree) -> bool:
    return isinstance(x, optax.MaskedNode)


def from_optax_states(whole: Tree, state: Tree, params: Tree, used: list[int]) -> Tree:
    """Return our state, converted from optax's state for these parameters."""
    ours, leaves = own_of(whole), parameters(params)
    if type(ours) not in OF_OPTAX:
        raise StateError(f"no optax optimizer has state that a {type(ours).__name__} could be converted to.")
    trees: dict[str, Tree] = {}
    counts = []
    for name in OF_OPTAX[type(ours)]:
        parts, turned = KINDS[name]
        if any(getattr(ours, part) is not None for part in parts):
            one = _only(state, name, leaves)
            used.append(id(one))
            trees |= dict(zip(parts, turned(one, ours, leaves), strict=True))
            counts += [one.count] if "count" in one._fields else []
    # Without a count: optax counts the steps of a momentum only for schedules.
    counting = [*found_in(state, is_one_of(*COUNTED)), *found_in(state, is_injected)]
    counts += [*(one.count for one in counting), jnp.ones((), jnp.int32)]
    return state_with_trees(whole, leaves, counts[0], trees, companions_of(whole, leaves))


def to_optax_state(one: Tree, ours: Sequence[Tree], params: Tree) -> Tree:
    """Return a part of optax's state with the values of one of our states for the same parameters."""
    name = type(one).__name__
    parts, turned = KINDS.get(name, ((), lambda *_: ()))
    if parts and not _arrays(one, parts):
        return one._replace(count=ours[0].count) if "count" in one._fields else one
    for state in ours:
        if all(hasattr(state, part) for part in parts):
            leaves = parameters(masked_like(state, params))
            if len(ours) == 1 or not parts or _is_of(getattr(one, parts[0]), leaves):
                break
    else:
        missing = [part for part in parts if not any(hasattr(state, part) for state in ours)]
        lacking = f"has no {' or '.join(missing)}" if missing else "is of other parameters"
        raise StateError(f"the optax state has a {name}, but {type(ours[0]).__name__} {lacking}.")
    if name not in COUNTED and all(getattr(state, part) is None for part in parts):
        return one
    trees = zip(parts, turned(state, one, leaves), strict=True)
    found = {part: jax.tree.map(like_theirs, getattr(one, part), tree) for part, tree in trees}
    return one._replace(**found, **({"count": state.count} if "count" in one._fields else {}))


def with_injected_numbers(one: Tree, state: Tree) -> Tree:
    """Return a state of injected hyperparameters with the numbers injected in another state, if it is the only one."""
    others = found_in(state, is_injected)
    if len(others) != 1:
        return one
    kept = {"count": others[0].count}
    for field in ("hyperparams", "hyperparams_states"):
        own, found = (getattr(injected, field, {}) for injected in (one, others[0]))
        kept |= {field: {**own, **{name: x for name, x in found.items() if name in own}}} if own else {}
    return one._replace(**kept)


def _arrays(one: Tree, parts: Iterable[str]) -> list[Array]:
    return [x for part in parts for x in jax.tree.leaves(getattr(one, part))]


def say_what_is_lost(state: Tree, used: Sequence[int], injected: bool) -> None:
    """Warn about arrays of optax's state that are neither converted nor counts."""
    paths, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_one_of(*COUNTED, *KINDS))
    lost = []
    for path, one in paths:
        where, kind = jax.tree_util.keystr(path), type(one).__name__
        known = id(one) in used or kind in COUNTED or where.endswith(".count") or (injected and ".hyperparams" in where)
        if not known and (kind not in KINDS or _arrays(one, KINDS[kind][0])):
            lost.append(f"{kind} at {where}" if kind in KINDS else where)
    if lost:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        warn(f"not converted, because this optimizer has no such state: {', '.join(lost[:5])}{more}.")


def _moments(given: Tree, wanted: Tree, leaves: Leaves) -> Iterable[Tree]:
    return given.mu, jax.tree.map(_shaped, wanted.nu, jax.tree.map(jnp.real, given.nu))


def _shaped(like: Tree, x: Array) -> Array:
    """Return a single number with the dimensions that other APIs give it."""
    return jnp.reshape(x, jnp.shape(like)) if jnp.size(x) == jnp.size(like) == 1 else x


def _trace(given: Tree, wanted: Tree, leaves: Leaves) -> Iterable[Tree]:
    added = isinstance(given, LarsState) or isinstance(wanted, LarsState)  # in optax, it is the mean of added values
    return [jax.tree.map(jnp.negative, given.trace) if added else given.trace]


def _factored(given: Tree, wanted: Tree, leaves: Leaves) -> Iterable[Tree]:
    to_ours = isinstance(wanted, AdafactorState)
    columns = [of_state(leaves, part, getattr(one, part)) for one in (wanted, given) for part in FACTORED]
    shapes = [tuple(p.shape) for p in leaves.arrays]
    rows = [_turned_means(shape, row[:3], row[3:], to_ours) for shape, *row in zip(shapes, *columns, strict=True)]
    return [leaves.like(column) for column in zip(*rows, strict=True)]


def _turned_means(
    shape: Sequence[int], wanted: Sequence[Array], given: Sequence[Array], to_ours: bool
) -> tuple[Array, ...]:
    """Convert between optax's v_row, v_col and v, which lack the averaged dimension, and ours."""
    if (wanted if to_ours else given)[0] is None:
        return (*wanted[:2], given[2])
    second, largest = map(int, np.argsort(shape)[-2:])  # optax's v_row is the mean over the latter
    order = slice(None) if largest > second else slice(None, None, -1)
    if to_ours:
        means = jnp.expand_dims(given[0], largest), jnp.expand_dims(given[1], second)
        return (*means[order], wanted[2])
    over_largest, over_second = given[:2][order]
    return jnp.squeeze(over_largest, largest), jnp.squeeze(over_second, second), wanted[2]


ADAM, NOVOGRAD, TRACE = "ScaleByAdamState", "ScaleByNovogradState", "TraceState"
LION, MUON = "ScaleByLionState", "MuonState"
COUNTED = ("ScaleByScheduleState", "WeightDecaySchedule")
FACTORED = ("v_row", "v_col", "v")
# For each kind of optax's state: its fields, which have the same names in ours, and the conversions both ways.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Tree, Tree, Leaves], Iterable[Tree]]]] = {
    **dict.fromkeys((ADAM, NOVOGRAD), (("mu", "nu"), _moments)),
    TRACE: (("trace",), _trace),
    **dict.fromkeys((LION, MUON), (("mu",), lambda given, wanted, leaves: [given.mu])),
    "EmaState": (("ema",), lambda given, wanted, leaves: [given.ema]),
    "FactoredState": (FACTORED, _factored),
}
OF_OPTAX: dict[type, tuple[str, ...]] = {
    LambState: (ADAM,),
    optimizers.AdamWState: (ADAM,),
    NovoGradState: (NOVOGRAD,),
    LarsState: (TRACE,),
    optimizers.LionState: (LION,),
    optimizers.MuonState: (MUON,),
    optimizers.SGDState: (TRACE,),
    AdafactorState: ("FactoredState", "EmaState"),
}


def is_one_of(*kinds: str) -> Callable[[Tree], bool]:
    return lambda x: type(x).__name__ in kinds


def found_in(state: Tree, wanted: Callable[[Tree], bool]) -> list[Tree]:
    return [one for one in jax.tree.leaves(state, is_leaf=wanted) if wanted(one)]


def _is_of(tree: Tree, leaves: Leaves) -> bool:
    return jax.tree.structure(tree) in (leaves.tree, leaves.given)


def _only(state: Tree, kind: str, leaves: Leaves) -> Tree:
    """Return optax's state of this kind: the only one, or the only one for these parameters."""
    found = found_in(state, is_one_of(kind))
    if len(found) > 1:
        found = [one for one in found if _is_of(getattr(one, KINDS[kind][0][0]), leaves)]
    if len(found) != 1:
        raise StateError(f"the state must have one {kind}, but has {len(found)} for these parameters.")
    return found[0]
