"""Conversion of states of the JAX API: from optax's, to other storage formats, and bit by bit to and from PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from layerwise.convert._kept import Axes, Fields, Names, in_order, permuted, value_of
from layerwise.errors import StateError
from layerwise.jax import Grouped
from layerwise.jax._of_optax import (
    COUNTED,
    KINDS,
    found_in,
    from_optax_states,
    is_injected,
    is_one_of,
    is_ours,
    masked_like,
    say_what_is_lost,
    to_optax_state,
    with_injected_numbers,
)
from layerwise.jax._state_conversion import (
    companions_of,
    in_numbers,
    initial_state,
    own_of,
    state_field_names,
    state_with_trees,
)
from layerwise.jax._storage import numbers
from layerwise.jax._trees import Leaves, of_state, parameters
from layerwise.jax._types import Array, Tree
from layerwise.options.by_name import check_matched
from layerwise.storage.coded import coded_of
from layerwise.storage.sixteen_bits import BESIDE

if TYPE_CHECKING:
    import optax
    from torch import Tensor
    from torch.optim.optimizer import Optimizer, StateDict

    from layerwise.torch.groups._members import Group, State


def from_optax(state: Tree, transform: optax.GradientTransformation, params: Tree) -> Tree:
    """Return a state of our `transform` that continues where the optax optimizer of the same name left off.

    Either may be inside chains, partitions, masks and injected hyperparameters. A warning lists values that are not
    converted.

    Args:
        state: The state of optax's optimizer.
        transform: The transformation of `layerwise.jax`, or one of optax that contains it.
        params: The parameters.
    """
    whole = transform.init(params)
    used: list[int] = []
    if not found_in(whole, is_ours):
        raise StateError(f"the optimizer must be one of layerwise.jax, but its state is a {type(whole).__name__}.")

    def fill(one: Tree) -> Tree:
        if is_ours(one):
            return from_optax_states(one, state, masked_like(one, params), used)
        if is_injected(one):
            return with_injected_numbers(one, state)._replace(inner_state=filled(one.inner_state))
        return one

    def filled(tree: Tree) -> Tree:
        return jax.tree.map(fill, tree, is_leaf=lambda x: is_ours(x) or is_injected(x))

    made = filled(whole)
    say_what_is_lost(state, used, bool(found_in(whole, is_injected)))
    return made


def to_optax(state: Tree, transform: optax.GradientTransformation, params: Tree) -> Tree:
    """Return a state of optax's `transform` that continues where ours left off with `state`.

    Args:
        state: The state of an optimizer of `layerwise.jax`, or one of optax that contains it.
        transform: The transformation of optax.
        params: The parameters.
    """
    ours = [in_numbers(own_of(one), parameters(masked_like(one, params))) for one in found_in(state, is_ours)]
    if not ours:
        state_field_names(state)  # raises an error

    def fill(one: Tree) -> Tree:
        if is_injected(one):
            return with_injected_numbers(one, state)._replace(inner_state=filled(one.inner_state))
        return to_optax_state(one, ours, params) if is_kind(one) else one

    def filled(tree: Tree) -> Tree:
        return jax.tree.map(fill, tree, is_leaf=lambda x: is_kind(x) or is_injected(x))

    is_kind = is_one_of(*COUNTED, *KINDS)
    return filled(transform.init(params))


def to_torch(state: Tree, params: Tree, optimizer: Optimizer, *, names: Names = None, axes: Axes = None) -> StateDict:
    """Return a state_dict with which an optimizer of `layerwise.torch` continues.

    Args:
        state: The state of an optimizer of `layerwise.jax`.
        params: The parameters.
        optimizer: The optimizer, made of named parameters.
        names: The name in PyTorch of each leaf, such as "dense/kernel"; None is "dense.kernel".
        axes: The order of its dimensions in PyTorch, as numpy.transpose takes it.
    """
    import torch

    from layerwise.torch.checkpoints._saving import saved_state as in_bytes

    leaves, saved = parameters(params), optimizer.state_dict()
    own, held = own_of(state), companions_of(state, leaves)
    columns = {part: of_state(leaves, name, getattr(own, name)) for part, name in state_field_names(own).items()}
    made: dict[object, object] = {}
    for i, (leaf, name, key, order) in enumerate(_places(leaves, saved["param_groups"], names, axes)):
        if key is None:
            raise StateError(f"{leaf} would be named {name}, which the optimizer does not have. Pass names=…")
        turned = _for_torch({part: column[i] for part, column in columns.items()}, held[i], order)
        arrays = {part: torch.from_numpy(np.array(value)) for part, value in turned.items()}
        made[key] = {"step": torch.tensor(int(own.count)), **in_bytes(arrays)}
    return {**saved, "state": made}


def from_torch(
    state_dict: StateDict,
    transform: optax.GradientTransformation,
    params: Tree,
    *,
    names: Names = None,
    axes: Axes = None,
) -> Tree:
    """Return a state of our `transform` that continues from a state_dict of an optimizer of `layerwise.torch`.

    Args:
        state_dict: The state_dict.
        transform: The transformation of `layerwise.jax`.
        params: The parameters.
        names: The name in PyTorch of each leaf, as in `to_torch`.
        axes: The order of its dimensions in PyTorch, as in `to_torch`.
    """
    from layerwise.torch.checkpoints._saving import restored

    whole, leaves = initial_state(transform, params), parameters(params)
    found, counts = [], set()
    places = _places(leaves, state_dict["param_groups"], names, axes)
    for p, (leaf, name, key, order) in zip(leaves.arrays, places, strict=True):
        one = state_dict["state"].get(key)
        if one is None:
            raise StateError(f"the state_dict has no {name}, the PyTorch name of leaf {leaf}. Pass names=…")
        counts.add(int(one["step"]))
        there = tuple(p.shape if order is None else (p.shape[d] for d in order))
        back = None if order is None else np.argsort(np.asarray(order))
        found.append(_read_torch(restored(one, there), back))
    if len(counts) > 1:
        raise StateError(
            f"its parameters have taken different numbers of steps, {sorted(counts)}, but the target keeps one count "
            "for all."
        )
    kept = state_field_names(own_of(whole)).items()
    trees = {name: leaves.part_of_state([one.get(part) for one, _ in found]) for part, name in kept}
    return state_with_trees(whole, leaves, max(counts, default=0), trees, [held for _, held in found])


def stored_as(state: Tree, transform: optax.GradientTransformation, params: Tree) -> Tree:
    """Return a state of our `transform` with the contents of `state`, of the same optimizer, in other storage formats.

    Fields with the same format in both are copied bit by bit.

    Args:
        state: The state.
        transform: The transformation of `layerwise.jax` whose formats the result has.
        params: The parameters of `state`.
    """
    whole, leaves, inner = initial_state(transform, params), parameters(params), own_of(state)
    if type(inner) is not type(own_of(whole)):
        raise StateError(f"the state must be a {type(own_of(whole)).__name__}, but is a {type(inner).__name__}.")
    trees = {name: getattr(inner, name) for name in state_field_names(inner).values()}
    return state_with_trees(whole, leaves, inner.count, trees, companions_of(state, leaves))


# ---- PyTorch


def _places(
    leaves: Leaves, groups: Iterable[Group], names: Names, axes: Axes
) -> Iterator[tuple[str, str, int | None, tuple[int, ...] | None]]:
    """Yield each leaf, its name in PyTorch, its key in a state_dict if it has one, and the order of its dimensions."""
    for argument, given in (("names", names), ("axes", axes)):
        check_matched(argument, given if isinstance(given, Mapping) else (), leaves.names, exact=True)
    keys: dict[str, int] = {}
    for group in groups:
        if "param_names" not in group:
            raise StateError("its parameters have no names. Create the optimizer from model.named_parameters().")
        keys |= zip(group["param_names"], group["params"], strict=True)
    for leaf in leaves.names:
        name = value_of(names, leaf) or leaf.replace("/", ".")
        order = value_of(axes, leaf)
        n = leaves.arrays[leaves.names.index(leaf)].ndim
        yield leaf, name, keys.get(name), None if order is None else in_order(leaf, order, n)


def _for_torch(parts: Mapping[str, Array], held: Array, axes: Sequence[int] | None) -> Fields:
    """Return one parameter's state for PyTorch: as stored, or as numbers if its dimensions change places."""
    found = {one.key: np.asarray(held) for one in BESIDE.values() if held is not None and held.dtype == one.dtype}
    for part, x in parts.items():
        if isinstance(x, Grouped) and axes is None:
            coded: Any = coded_of(x.codes.dtype.name)
            found |= {part: np.asarray(x.codes), part + coded.suffix: np.asarray(x.unit)}
        elif x is not None:
            found[part] = np.asarray(numbers(x), np.float32)
    return permuted(found, axes)


def _read_torch(one: State, axes: Any) -> tuple[Fields, Array]:
    """Return one parameter's state of PyTorch under the rule's names, and the companion of its weights.

    Groups stay groups if dimensions keep their places.
    """
    from layerwise.torch.arrays._library import named_state

    stored = named_state(named_state(one).in_present_formats())
    found = {part: _on_host(x) for part, x in stored.arrays.items() if part != "step"}
    for part, scale in stored.coded_fields().items():
        grouped = Grouped(found[part], found.pop(scale).astype(np.float32))
        found[part] = grouped if axes is None else np.asarray(numbers(grouped))
    parts, beside = permuted(found, axes), [one.key for one in stored.companion_kinds()]
    return parts, parts[beside[0]] if beside else None


def _on_host(x: Tensor) -> Array:
    x = x.detach().cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()
