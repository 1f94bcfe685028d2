"""States of `layerwise.jax`."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import optax

from layerwise.catalog.registry import ENTRIES
from layerwise.convert._kept import Kept, TensorFields, common_count, numbers_of
from layerwise.errors import StateError
from layerwise.jax._state_conversion import (
    RULES,
    companions_of,
    in_numbers,
    initial_state,
    own_of,
    state_field_names,
    state_with_trees,
)
from layerwise.jax._trees import of_state, parameters
from layerwise.jax._types import Tree
from layerwise.rules.requests import Array

NAMES = {id(entry.rule): name for name, entry in ENTRIES.items()}


class Ours:
    """A transformation with its parameters."""

    def __init__(self, transform: optax.GradientTransformation, state: Tree, params: Tree) -> None:
        self.state, self.leaves = state, parameters(params)
        self.whole = initial_state(transform, params)
        made = getattr(transform.init, "__self__", None)
        self.of = TensorFields.of(NAMES[id(RULES[type(own_of(self.whole))])], {} if made is None else made.options.h)

    def wanted(self) -> dict[str, TensorFields]:
        return dict.fromkeys(self.leaves.names, self.of)

    def read(self) -> dict[str, Kept]:
        if type(own_of(self.state)) is not type(own_of(self.whole)):
            wanted, given = (type(own_of(one)).__name__ for one in (self.whole, self.state))
            raise StateError(f"the state must be a {wanted}, but is a {given}. Pass what update returned.")
        own = in_numbers(own_of(self.state), self.leaves)
        columns = {
            part: of_state(self.leaves, name, getattr(own, name)) for part, name in state_field_names(own).items()
        }
        found: dict[str, Kept] = {}
        for i, (leaf, p) in enumerate(zip(self.leaves.names, self.leaves.arrays, strict=True)):
            fields = {part: numbers_of(column[i]) for part, column in columns.items() if column[i] is not None}
            found[leaf] = self.of.kept(int(own.count), tuple(p.shape), fields)
        return found

    def write(self, kept: Mapping[str, Kept]) -> object:
        names, count = self.leaves.names, common_count(kept, self.leaves.names)
        parts = state_field_names(own_of(self.whole))
        trees = {
            here: self.leaves.part_of_state([_array(kept[name].fields.get(part)) for name in names])
            for part, here in parts.items()
        }
        for part, here in parts.items():
            if getattr(own_of(self.whole), here) is None and any(part in one.fields for one in kept.values()):
                raise StateError(
                    f"the state has {part}, but the optimizer does not keep it. Create it with the same options."
                )
        return state_with_trees(self.whole, self.leaves, count, trees, companions_of(self.whole, self.leaves))


def _array(x: Array) -> Array:
    return None if x is None else jnp.asarray(x)
