"""Conversion of states between the JAX API, optax and the PyTorch API.

Train in one, continue in the other. Carry the parameters over yourself; these functions convert the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from layerwise.errors import StateError, warn
from layerwise.jax import AdafactorState, Grouped, LambState, LarsState, MasterState, NovoGradState, optimizers
from layerwise.jax._bits import rounded
from layerwise.jax._storage import numbers, stored
from layerwise.jax._trees import Leaves, of_state, parameters
from layerwise.names import check_matched
from layerwise.registry import ENTRIES
from layerwise.storage.coded import coded_of
from layerwise.storage.weights import BESIDE

__all__ = ["from_optax", "from_torch", "stored_as", "to_optax", "to_torch"]

Names = Mapping[str, str] | Callable[[str], str] | None
"""Names in PyTorch by leaf: a mapping, or a function of the leaf's path."""
Axes = Mapping[str, Sequence[int]] | Callable[[str], Sequence[int] | None] | None
"""Orders of dimensions by leaf: a mapping, or a function of the leaf's path; None leaves the order as it is."""


def from_optax(state: Any, transform: Any, params: Any) -> Any:
    """Return a state of our `transform` that continues where the optax optimizer of the same name left off.

    Either may be inside chains, partitions, masks and injected hyperparameters. A warning names what is not converted.

    Args:
        state: The state of optax's optimizer.
        transform: The transformation of `layerwise.jax`, or one of optax with such inside.
        params: The parameters.
    """
    whole, used = transform.init(params), list[int]()
    if not _found(whole, _is_ours):
        raise StateError(f"the optimizer must be one of layerwise.jax, but its state is a {type(whole).__name__}.")

    def fill(one: Any) -> Any:
        if _is_ours(one):
            return _from_kinds(one, state, _masked_like(one, params), used)
        if _is_injected(one):
            return _with_numbers(one, state)._replace(inner_state=filled(one.inner_state))
        return one

    def filled(tree: Any) -> Any:
        return jax.tree.map(fill, tree, is_leaf=lambda x: _is_ours(x) or _is_injected(x))

    made = filled(whole)
    _say_what_is_lost(state, used, bool(_found(whole, _is_injected)))
    return made


def to_optax(state: Any, transform: Any, params: Any) -> Any:
    """Return a state of optax's `transform` that continues where ours left off with `state`.

    Args:
        state: The state of an optimizer of `layerwise.jax`, or one of optax with such inside.
        transform: The transformation of optax.
        params: The parameters.
    """
    ours = [_in_numbers(_inner(one), parameters(_masked_like(one, params))) for one in _found(state, _is_ours)]
    if not ours:
        _parts(state)  # which raises

    def fill(one: Any) -> Any:
        if _is_injected(one):
            return _with_numbers(one, state)._replace(inner_state=filled(one.inner_state))
        return _to_kind(one, ours, params) if is_kind(one) else one

    def filled(tree: Any) -> Any:
        return jax.tree.map(fill, tree, is_leaf=lambda x: is_kind(x) or _is_injected(x))

    is_kind = _is_one_of(*COUNTED, *KINDS)
    return filled(transform.init(params))


def to_torch(state: Any, params: Any, optimizer: Any, *, names: Names = None, axes: Axes = None) -> dict[str, Any]:
    """Return a state_dict with which an optimizer of `layerwise.torch` continues.

    Args:
        state: The state of an optimizer of `layerwise.jax`.
        params: The parameters.
        optimizer: The optimizer, made of named parameters.
        names: The name in PyTorch of each leaf, such as "dense/kernel"; None is "dense.kernel".
        axes: The order of its dimensions in PyTorch, as numpy.transpose takes it.
    """
    import torch

    from layerwise.torch.step._bytes import saved as in_bytes

    leaves, saved = parameters(params), optimizer.state_dict()
    own, held = _inner(state), _held(state, leaves)
    columns = {part: of_state(leaves, name, getattr(own, name)) for part, name in _parts(own).items()}
    made: dict[Any, Any] = {}
    for i, (leaf, name, key, order) in enumerate(_places(leaves, saved["param_groups"], names, axes)):
        if key is None:
            raise StateError(f"{leaf} is {name} there, which the optimizer does not have. Pass names=…")
        turned = _for_torch({part: column[i] for part, column in columns.items()}, held[i], order)
        arrays = {part: torch.from_numpy(np.array(value)) for part, value in turned.items()}
        made[key] = {"step": torch.tensor(int(own.count)), **in_bytes(arrays)}
    return {**saved, "state": made}


def from_torch(
    state_dict: Mapping[str, Any], transform: Any, params: Any, *, names: Names = None, axes: Axes = None
) -> Any:
    """Return a state of our `transform` that continues from a state_dict of an optimizer of `layerwise.torch`.

    Args:
        state_dict: The state_dict.
        transform: The transformation of `layerwise.jax`.
        params: The parameters.
        names: The name in PyTorch of each leaf, as in `to_torch`.
        axes: The order of its dimensions in PyTorch, as in `to_torch`.
    """
    from layerwise.torch.step._bytes import restored

    whole, leaves = _begun(transform, params), parameters(params)
    found, counts = [], set()
    places = _places(leaves, state_dict["param_groups"], names, axes)
    for p, (leaf, name, key, order) in zip(leaves.arrays, places, strict=True):
        one = state_dict["state"].get(key)
        if one is None:
            raise StateError(f"the state_dict has no {name}, the name of {leaf} there. Pass names=…")
        counts.add(int(one["step"]))
        there = tuple(p.shape if order is None else (p.shape[d] for d in order))
        back = None if order is None else np.argsort(np.asarray(order))
        found.append(_read_torch(restored(one, there), back))
    if len(counts) > 1:
        raise StateError(f"its parameters have taken different numbers of steps, {sorted(counts)}; here all take one.")
    kept = _parts(_inner(whole)).items()
    trees = {name: leaves.part_of_state([one.get(part) for one, _ in found]) for part, name in kept}
    return _filled(whole, leaves, max(counts, default=0), trees, [held for _, held in found])


# ---- forms of storage


def stored_as(state: Any, transform: Any, params: Any) -> Any:
    """Return a state of our `transform` with the contents of `state`, of the same optimizer, in other storage formats.

    Fields with the same format in both are copied bit by bit.

    Args:
        state: The state.
        transform: The transformation of `layerwise.jax` whose formats the result has.
        params: The parameters of `state`.
    """
    whole, leaves, inner = _begun(transform, params), parameters(params), _inner(state)
    if type(inner) is not type(_inner(whole)):
        raise StateError(f"the state must be a {type(_inner(whole)).__name__}, but is a {type(inner).__name__}.")
    trees = {name: getattr(inner, name) for name in _parts(inner).values()}
    return _filled(whole, leaves, inner.count, trees, _held(state, leaves))


def _in_numbers(state: Any, leaves: Leaves) -> Any:
    """Return a state with numbers where it has groups of 8 bits."""
    trees = {part: getattr(state, part) for part in _parts(state).values()}
    grouped = {part: of_state(leaves, part, tree) for part, tree in trees.items() if isinstance(tree, Grouped)}
    return state._replace(**{part: leaves.like([*map(numbers, each)]) for part, each in grouped.items()})


def _shape(x: Any) -> Any:
    return None if x is None else tuple(np.shape(x.codes if isinstance(x, Grouped) else x))


def _placed(given: Any, like: Any) -> Any:
    return jax.device_put(jnp.asarray(given, like.dtype), like.sharding)


def _in_form(given: Any, like: Any) -> Any:
    """Return an array, or codes with their scales, in the form of `like`."""
    if not isinstance(like, Grouped):
        return _placed(numbers(given), like)
    if not isinstance(given, Grouped) or given.codes.dtype != like.codes.dtype:
        given = Grouped(*stored(like.codes, like.scale).encode(jnp.asarray(numbers(given), jnp.float32), 0))
    return Grouped(*map(_placed, given, like))


def _weights_in_form(p: Any, wanted: Any, held: Any) -> Any:
    """Return the companions of weights in the wanted form."""
    if wanted is None or held is None:
        return wanted
    held = jnp.asarray(held)
    if held.dtype == wanted.dtype:
        return _placed(held, wanted)
    full = held if jnp.issubdtype(held.dtype, jnp.floating) else stored(p, held).read()
    if jnp.issubdtype(wanted.dtype, jnp.floating):
        return _placed(full, wanted)
    # A master that lies half-way between two weights belongs to the other one: to this, one part less is lacking.
    other, rest = stored(p, wanted).encode(full, 0)
    same = other == p.astype(other.dtype)
    return _placed(jnp.where(same, rounded(rest, wanted.dtype), jnp.iinfo(wanted.dtype).max), wanted)


# ---- the parts of a state


def _inner(state: Any) -> Any:
    return state.inner if isinstance(state, MasterState) else state


def _held(state: Any, leaves: Leaves) -> list[Any]:
    """Return the companions of each parameter's weights in a state."""
    return of_state(leaves, "weights", state.weights if isinstance(state, MasterState) else None)


def _begun(transform: Any, params: Any) -> Any:
    """Return the state before the first step, which shows what is wanted."""
    whole = transform.init(params)
    if type(_inner(whole)) not in RULES:
        found = type(_inner(whole)).__name__
        raise StateError(f"the optimizer must be one of layerwise.jax, but its state is a {found}.")
    return whole


RULES = {getattr(optimizers, f"{name}State"): entry.rule for name, entry in ENTRIES.items()}


def _parts(state: Any) -> dict[str, str]:
    """Return the parts of a state: their names in the PyTorch API and the rules, and their names here."""
    if type(state) not in RULES:
        raise StateError(
            f"the state must be one of layerwise.jax, but is a {type(state).__name__}. Use from_optax first."
        )
    return dict(zip(RULES[type(state)].State._fields, state._fields[1:-1], strict=True))


def _filled(whole: Any, leaves: Leaves, count: Any, trees: Mapping[str, Any], held: Sequence[Any]) -> Any:
    """Return our state with these trees in it, each array with the required shape, dtype and place, and with what it
    needs beside weights, made of what another state held.
    """
    ours, filled = _inner(whole), {}
    for part, given in trees.items():
        if (wanted := getattr(ours, part)) is not None:
            each = zip(leaves.names, of_state(leaves, part, wanted), of_state(leaves, part, given), strict=True)
            filled[part] = leaves.part_of_state([_fitted(f"{part} of {name}", *pair) for name, *pair in each])
    made = ours._replace(count=jnp.asarray(count, jnp.int32), **filled)
    if not isinstance(whole, MasterState):
        return made
    rows = zip(leaves.arrays, _held(whole, leaves), held, strict=True)
    return MasterState(made, leaves.like([_weights_in_form(*row) for row in rows]))


def _fitted(what: str, ours: Any, theirs: Any) -> Any:
    shape, has = _shape(ours), _shape(theirs)
    if shape is None:
        return None
    if has != shape:
        raise StateError(f"{what} must have the shape {shape}, but has {has or 'none'}. Do the options agree?")
    return _in_form(theirs, ours)


def _like(theirs: Any, ours: Any) -> Any:
    if ours is not None and _shape(ours) != _shape(theirs):
        raise StateError(f"theirs needs the shape {_shape(theirs)}, and ours has {_shape(ours)}.")
    return theirs if ours is None else _placed(ours, theirs)


# ---- optax


def _is_ours(x: Any) -> bool:
    return type(x) in RULES or isinstance(x, MasterState)


def _is_injected(x: Any) -> bool:
    return hasattr(x, "hyperparams") and hasattr(x, "inner_state")


def _masked_like(state: Any, params: Any) -> Any:
    """Return the parameters that a state of ours is of: masked where its own trees are."""
    tree = next((one for one in _inner(state)[1:-1] if one is not None), None)
    tree = tree.codes if isinstance(tree, Grouped) else tree
    if tree is None:
        return params
    return jax.tree.map(
        lambda x, p: x if _is_masked(x) else p, tree, params, is_leaf=lambda x: x is None or _is_masked(x)
    )


def _is_masked(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)


def _from_kinds(whole: Any, state: Any, params: Any, used: list[int]) -> Any:
    """Return a state of ours made of what optax keeps for these parameters."""
    ours, leaves = _inner(whole), parameters(params)
    if type(ours) not in OF_OPTAX:
        raise StateError(f"optax has no optimizer whose state a {type(ours).__name__} could be made of.")
    trees: dict[str, Any] = {}
    counts = []
    for name in OF_OPTAX[type(ours)]:
        parts, turned = KINDS[name]
        if any(getattr(ours, part) is not None for part in parts):
            one = _only(state, name, leaves)
            used.append(id(one))
            trees |= dict(zip(parts, turned(one, ours, leaves), strict=True))
            counts += [one.count] if "count" in one._fields else []
    # A momentum counts no steps, and optax counts those for schedules alone.
    counting = [*_found(state, _is_one_of(*COUNTED)), *_found(state, _is_injected)]
    counts += [*(one.count for one in counting), jnp.ones((), jnp.int32)]
    return _filled(whole, leaves, counts[0], trees, _held(whole, leaves))


def _to_kind(one: Any, ours: Sequence[Any], params: Any) -> Any:
    """Return a part of optax's state with what one of ours keeps for the same parameters."""
    name = type(one).__name__
    parts, turned = KINDS.get(name, ((), lambda *_: ()))
    if parts and not _arrays(one, parts):
        return one._replace(count=ours[0].count) if "count" in one._fields else one
    for state in ours:
        if all(hasattr(state, part) for part in parts):
            leaves = parameters(_masked_like(state, params))
            if len(ours) == 1 or not parts or _is_of(getattr(one, parts[0]), leaves):
                break
    else:
        missing = [part for part in parts if not any(hasattr(state, part) for state in ours)]
        lacking = f"has no {' or '.join(missing)}" if missing else "is of other parameters"
        raise StateError(f"theirs has a {name}, and a {type(ours[0]).__name__} {lacking}.")
    if name not in COUNTED and all(getattr(state, part) is None for part in parts):
        return one
    trees = zip(parts, turned(state, one, leaves), strict=True)
    found = {part: jax.tree.map(_like, getattr(one, part), tree) for part, tree in trees}
    return one._replace(**found, **({"count": state.count} if "count" in one._fields else {}))


def _with_numbers(one: Any, state: Any) -> Any:
    """Return a state of injected hyperparameters with the numbers that another state has injected, if it is alone."""
    others = _found(state, _is_injected)
    if len(others) != 1:
        return one
    kept = {"count": others[0].count}
    for field in ("hyperparams", "hyperparams_states"):
        own, found = (getattr(injected, field, {}) for injected in (one, others[0]))
        kept |= {field: {**own, **{name: x for name, x in found.items() if name in own}}} if own else {}
    return one._replace(**kept)


def _arrays(one: Any, parts: Iterable[str]) -> list[Any]:
    return [x for part in parts for x in jax.tree.leaves(getattr(one, part))]


def _say_what_is_lost(state: Any, used: Sequence[int], injected: bool) -> None:
    """Warn of arrays of optax's state that are neither converted nor counts."""
    paths, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_one_of(*COUNTED, *KINDS))
    lost = []
    for path, one in paths:
        where, kind = jax.tree_util.keystr(path), type(one).__name__
        known = id(one) in used or kind in COUNTED or where.endswith(".count") or (injected and ".hyperparams" in where)
        if not known and (kind not in KINDS or _arrays(one, KINDS[kind][0])):
            lost.append(f"{kind} at {where}" if kind in KINDS else where)
    if lost:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        warn(f"not converted, since this optimizer keeps nothing like it: {', '.join(lost[:5])}{more}.")


def _moments(given: Any, wanted: Any, leaves: Leaves) -> Iterable[Any]:
    return given.mu, jax.tree.map(_shaped, wanted.nu, jax.tree.map(jnp.real, given.nu))


def _shaped(like: Any, x: Any) -> Any:
    """Return a single number with the dimensions that other APIs give it."""
    return jnp.reshape(x, jnp.shape(like)) if jnp.size(x) == jnp.size(like) == 1 else x


def _trace(given: Any, wanted: Any, leaves: Leaves) -> Iterable[Any]:
    added = isinstance(given, LarsState) or isinstance(wanted, LarsState)  # in optax, it is that of what is added
    return [jax.tree.map(jnp.negative, given.trace) if added else given.trace]


def _factored(given: Any, wanted: Any, leaves: Leaves) -> Iterable[Any]:
    to_ours = isinstance(wanted, AdafactorState)
    columns = [of_state(leaves, part, getattr(one, part)) for one in (wanted, given) for part in FACTORED]
    shapes = [tuple(p.shape) for p in leaves.arrays]
    rows = [_turned_means(shape, row[:3], row[3:], to_ours) for shape, *row in zip(shapes, *columns, strict=True)]
    return [leaves.like(column) for column in zip(*rows, strict=True)]


def _turned_means(shape: Sequence[int], wanted: Sequence[Any], given: Sequence[Any], to_ours: bool) -> tuple[Any, ...]:
    """Return optax's v_row, v_col and v, which lack the dimension that a mean ran over, as ours, or ours as optax's."""
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
# Of each kind of state of optax the parts, which ours have under the same names, and what makes either of the other.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Any, Any, Leaves], Iterable[Any]]]] = {
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


def _is_one_of(*kinds: str) -> Callable[[Any], bool]:
    return lambda x: type(x).__name__ in kinds


def _found(state: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    return [one for one in jax.tree.leaves(state, is_leaf=wanted) if wanted(one)]


def _is_of(tree: Any, leaves: Leaves) -> bool:
    return jax.tree.structure(tree) in (leaves.tree, leaves.given)


def _only(state: Any, kind: str, leaves: Leaves) -> Any:
    """Return optax's state of this kind: the only one, or the only one of these parameters."""
    found = _found(state, _is_one_of(kind))
    if len(found) > 1:
        found = [one for one in found if _is_of(getattr(one, KINDS[kind][0][0]), leaves)]
    if len(found) != 1:
        raise StateError(f"the state must have one {kind}, but has {len(found)} for these parameters.")
    return found[0]


# ---- PyTorch


def _places(
    leaves: Leaves, groups: Iterable[Mapping[str, Any]], names: Names, axes: Axes
) -> Iterator[tuple[str, str, Any, tuple[int, ...] | None]]:
    """Yield each leaf, its name in PyTorch, its key in a state_dict if it has one, and the order of its dimensions."""
    for argument, given in (("names", names), ("axes", axes)):
        check_matched(argument, given if isinstance(given, Mapping) else (), leaves.names, exact=True)
    keys: dict[str, Any] = {}
    for group in groups:
        if "param_names" not in group:
            raise StateError("its parameters have no names. Make the optimizer of model.named_parameters().")
        keys |= zip(group["param_names"], group["params"], strict=True)
    for leaf in leaves.names:
        name = _of(names, leaf) or leaf.replace("/", ".")
        order = _of(axes, leaf)
        yield leaf, name, keys.get(name), None if order is None else tuple(order)


def _of(given: Any, leaf: str) -> Any:
    return given(leaf) if callable(given) else (given or {}).get(leaf)


def _for_torch(parts: Mapping[str, Any], held: Any, axes: Any) -> dict[str, Any]:
    """Return one parameter's state for PyTorch: as stored, or as numbers if its dimensions change places."""
    found = {one.key: np.asarray(held) for one in BESIDE.values() if held is not None and held.dtype == one.dtype}
    for part, x in parts.items():
        if isinstance(x, Grouped) and axes is None:
            coded: Any = coded_of(x.codes.dtype.name)
            found |= {part: np.asarray(x.codes), part + coded.suffix: np.asarray(x.scale)}
        elif x is not None:
            found[part] = np.asarray(numbers(x), np.float32)
    return _turned(found, axes)


def _read_torch(one: Mapping[str, Any], axes: Any) -> tuple[dict[str, Any], Any]:
    """Return one parameter's state of PyTorch under the rule's names, and what stands beside its weights.

    Groups stay groups if dimensions keep their places.
    """
    from layerwise.torch.step._namespace import named_state

    stored, found = named_state(one), {part: _on_host(x) for part, x in one.items() if part != "step"}
    for part, scale in stored.of_codes().items():
        grouped = Grouped(found[part], found.pop(scale).astype(np.float32))
        found[part] = grouped if axes is None else np.asarray(numbers(grouped))
    turned, beside = _turned(found, axes), [one.key for one in stored.beside_weights()]
    return turned, turned[beside[0]] if beside else None


def _on_host(x: Any) -> Any:
    x = x.detach().cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def _turned(parts: dict[str, Any], axes: Any) -> dict[str, Any]:
    """Return the parts with their dimensions in another order. Rows become columns if the two change places."""
    if axes is None:
        return parts
    parts = {part: np.transpose(array, axes) for part, array in parts.items()}
    for name in [part.removesuffix("_row") for part in parts if part.endswith("_row")]:
        row, col = parts[f"{name}_row"], parts[f"{name}_col"]
        cut = [d for d in range(row.ndim) if row.shape[d] != col.shape[d]]
        if cut and row.shape[cut[0]] == 1:  # the mean ran over the earlier dimension: these are columns
            parts |= {f"{name}_row": col, f"{name}_col": row}
    return parts
