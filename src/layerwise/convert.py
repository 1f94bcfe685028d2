"""States of the JAX front made of optax's and of the PyTorch front's, and the other way round.

Train in one, go on in the other. Parameters are yours to carry over; these carry what an optimizer remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layerwise.errors import StateError
from layerwise.jax import AdafactorState, LambState, LarsState, optimizers
from layerwise.jax._trees import Leaves, of_state, parameters
from layerwise.names import check_matched
from layerwise.registry import ENTRIES
from layerwise.storage.groups import decode

__all__ = ["from_optax", "from_torch", "to_optax", "to_torch"]

Names = Mapping[str, str] | Callable[[str], str] | None
Axes = Mapping[str, Sequence[int]] | Callable[[str], Sequence[int] | None] | None
OF_WEIGHTS = ("step", "master", "remainder")
COUNTED = ("ScaleByScheduleState", "WeightDecaySchedule")


def from_optax(state: Any, transform: Any, params: Any) -> Any:
    """Return the state of `transform`, ours, that goes on where optax.lamb, lars or adafactor left off with `state`."""
    ours, leaves = _ours(transform, params), parameters(params)
    if isinstance(ours, LambState):
        adam = _only(state, "ScaleByAdamState")
        return _filled(ours, leaves, count=adam.count, mu=adam.mu, nu=_real(adam.nu))
    if isinstance(ours, LarsState):
        # Its trace is of what is added to parameters, ours of what is taken away; it counts only for schedules.
        counts = [one.count for one in _found(state, *COUNTED)] or [jnp.ones((), jnp.int32)]
        trace = jax.tree.map(jnp.negative, _only(state, "TraceState").trace)
        kept = {} if ours.trace is None else {"trace": trace}
        return _filled(ours, leaves, count=counts[0], **kept)
    if not isinstance(ours, AdafactorState):
        raise StateError(f"optax has no optimizer whose state a {type(ours).__name__} could be made of.")
    rms = _only(state, "FactoredState")
    parts = [_from_factored(*row) for row in _rows(leaves, ours, rms)]
    trees = {part: leaves.like(column) for part, column in zip(FACTORED, zip(*parts, strict=True), strict=True)}
    kept = {} if ours.ema is None else {"ema": _only(state, "EmaState").ema}
    return _filled(ours, leaves, count=rms.count, **trees, **kept)


def to_optax(state: Any, transform: Any, params: Any) -> Any:
    """Return the state of `transform`, optax's, that goes on where ours left off with `state`."""
    leaves = parameters(params)

    def fill(one: Any) -> Any:
        kind, count = type(one).__name__, state.count
        if kind in COUNTED:
            return one._replace(count=count)
        if kind == "ScaleByAdamState":
            return one._replace(count=count, mu=_like(one.mu, state.mu), nu=_like(one.nu, state.nu))
        if kind == "TraceState":
            b = one.trace if state.trace is None else jax.tree.map(jnp.negative, state.trace)
            return one._replace(trace=_like(one.trace, b))
        if kind == "EmaState":
            return one._replace(count=count, ema=_like(one.ema, state.ema))
        if kind == "FactoredState":
            parts = [_to_factored(*row) for row in _rows(leaves, state, one)]
            trees = [leaves.like(column) for column in zip(*parts, strict=True)]
            v_row, v_col, v = (_like(a, b) for a, b in zip((one.v_row, one.v_col, one.v), trees, strict=True))
            return one._replace(count=count, v_row=v_row, v_col=v_col, v=v)
        return one

    return jax.tree.map(fill, transform.init(params), is_leaf=lambda x: type(x).__name__ in FILLED)


FILLED = (*COUNTED, "ScaleByAdamState", "TraceState", "EmaState", "FactoredState")
FACTORED = ("v_row", "v_col", "v")


def to_torch(state: Any, params: Any, optimizer: Any, *, names: Names = None, axes: Axes = None) -> dict[str, Any]:
    """Return the state_dict with which `optimizer`, of layerwise.torch and made of named parameters, goes on.

    `names` gives the name of a leaf such as "dense/kernel" there ("dense.kernel" by default). `axes` gives the order
    of its dimensions there, as numpy.transpose takes it.
    """
    import torch

    leaves = parameters(params)
    _check_leaves(leaves, names=names, axes=axes)
    saved = optimizer.state_dict()
    keys = {name: key for group in saved["param_groups"] for name, key in _named(group)}
    stored = {part: of_state(leaves, name, getattr(state, name)) for part, name in _parts(state).items()}
    made: dict[Any, Any] = {}
    for i, leaf in enumerate(leaves.names):
        name = _name(leaf, names)
        if name not in keys:
            raise StateError(f"{leaf} is {name} there, which the optimizer does not have. Pass names=…")
        found = {part: np.asarray(one[i], np.float32) for part, one in stored.items() if one[i] is not None}
        turned = _turned(found, _axes(leaf, axes))
        made[keys[name]] = {
            "step": torch.tensor(int(state.count)),
            **{part: torch.from_numpy(np.array(value)) for part, value in turned.items()},
        }
    return {**saved, "state": made}


def from_torch(
    state_dict: Mapping[str, Any], transform: Any, params: Any, *, names: Names = None, axes: Axes = None
) -> Any:
    """Return the state of `transform`, ours, that goes on from a state_dict of layerwise.torch's optimizer.

    `names` and `axes` are as in `to_torch`.
    """
    ours, leaves = _ours(transform, params), parameters(params)
    _check_leaves(leaves, names=names, axes=axes)
    keys = {name: key for group in state_dict["param_groups"] for name, key in _named(group)}
    found, counts = [], set()
    for leaf in leaves.names:
        one = state_dict["state"].get(keys.get(_name(leaf, names)))
        if one is None:
            raise StateError(f"the state_dict has nothing of {_name(leaf, names)}, which {leaf} is there. Pass names=…")
        counts.add(int(one["step"]))
        back = None if _axes(leaf, axes) is None else np.argsort(np.asarray(_axes(leaf, axes)))
        found.append(_turned(_numbers(one), back))
    if len(counts) > 1:
        raise StateError(f"its parameters have taken different numbers of steps, {sorted(counts)}; here all take one.")
    kept = {part: name for part, name in _parts(ours).items() if getattr(ours, name) is not None}
    trees = {name: leaves.like([one.get(part) for one in found]) for part, name in kept.items()}
    return _filled(ours, leaves, count=jnp.asarray(max(counts, default=0), jnp.int32), **trees)


def _numbers(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a parameter's state of the PyTorch front as numbers; weights are the caller's."""
    arrays = {key: x.detach().cpu().double().numpy() for key, x in state.items() if key not in OF_WEIGHTS}
    for key in [key for key in arrays if key + "_scale" in arrays]:
        codes, scale = arrays[key][..., 0], arrays.pop(key + "_scale")  # the last dimension is of bytes
        rows = scale.shape[0] if scale.ndim > 1 else 1
        signed = str(state[key].dtype) == "torch.int8"
        arrays[key] = decode(np, codes.reshape(rows, -1), scale.reshape(rows, -1), signed).reshape(codes.shape)
    return arrays


# ---- the parts of a state


def _ours(transform: Any, params: Any) -> Any:
    state = transform.init(params)
    if type(state) not in RULES:
        raise StateError(f"the optimizer must be one of layerwise.jax, but its state is a {type(state).__name__}.")
    return state


RULES = {getattr(optimizers, f"{name}State"): entry.rule for name, entry in ENTRIES.items()}


def _parts(state: Any) -> dict[str, str]:
    """Return the parts of a state: what the PyTorch front and the rules call each, and what it is called here."""
    if type(state) not in RULES:
        raise StateError(
            f"the state must be one of layerwise.jax, but is a {type(state).__name__}. Use from_optax first."
        )
    return dict(zip(RULES[type(state)].State._fields, state._fields[1:-1], strict=True))


def _filled(ours: Any, leaves: Leaves, count: Any, **trees: Any) -> Any:
    """Return our state with these trees in it, each array of the shape, dtype and place that it is to have."""
    filled = {part: leaves.like(_fitted(leaves, part, getattr(ours, part), tree)) for part, tree in trees.items()}
    return ours._replace(count=jnp.asarray(count, jnp.int32), **filled)


def _fitted(leaves: Leaves, part: str, wanted: Any, given: Any) -> list[Any]:
    pairs = zip(leaves.names, of_state(leaves, part, wanted), of_state(leaves, part, given), strict=True)
    fitted = []
    for name, ours, theirs in pairs:
        if ours is not None and (theirs is None or np.shape(theirs) != ours.shape):
            has = "none" if theirs is None else np.shape(theirs)
            raise StateError(f"{part} of {name} must have the shape {ours.shape}, but has {has}. Do the options agree?")
        fitted.append(None if ours is None else _placed(theirs, ours))
    return fitted


def _placed(given: Any, like: Any) -> Any:
    return jax.device_put(jnp.asarray(given, like.dtype), like.sharding)


def _like(wanted: Any, given: Any) -> Any:
    return jax.tree.map(lambda a, b: a if b is None else _placed(b, a), wanted, given)


# ---- optax


def _found(state: Any, *kinds: str) -> list[Any]:
    leaves = jax.tree.leaves(state, is_leaf=lambda x: type(x).__name__ in kinds)
    return [one for one in leaves if type(one).__name__ in kinds]


def _only(state: Any, kind: str) -> Any:
    found = _found(state, kind)
    if len(found) != 1:
        raise StateError(
            f"the state must have one {kind}, but has {len(found)}. Pass that of optax's optimizer, alone."
        )
    return found[0]


def _real(tree: Any) -> Any:
    return jax.tree.map(jnp.real, tree)


def _rows(leaves: Leaves, ours: Any, theirs: Any) -> list[tuple[Any, ...]]:
    """Return for each parameter its shape, our parts and optax's."""
    columns = [of_state(leaves, part, getattr(ours, part)) for part in FACTORED]
    columns += [of_state(leaves, part, getattr(theirs, part)) for part in ("v_row", "v_col", "v")]
    shapes = [tuple(p.shape) for p in leaves.arrays]
    return [(shape, row[:3], row[3:]) for shape, *row in zip(shapes, *columns, strict=True)]


def _dims(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return optax's second largest and largest dimension: v_row is the mean over the latter, v_col over the former."""
    order = np.argsort(shape)
    return int(order[-2]), int(order[-1])


def _from_factored(shape: tuple[int, ...], ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[Any, Any, Any]:
    if ours[0] is None:
        return None, None, theirs[2]
    second, largest = _dims(shape)
    over_largest, over_second = jnp.expand_dims(theirs[0], largest), jnp.expand_dims(theirs[1], second)
    return (over_largest, over_second, None) if largest > second else (over_second, over_largest, None)


def _to_factored(shape: tuple[int, ...], ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[Any, Any, Any]:
    if ours[0] is None:
        return theirs[0], theirs[1], ours[2]
    second, largest = _dims(shape)
    over_largest, over_second = (ours[0], ours[1]) if largest > second else (ours[1], ours[0])
    return jnp.squeeze(over_largest, largest), jnp.squeeze(over_second, second), theirs[2]


# ---- PyTorch


def _named(group: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if "param_names" not in group:
        raise StateError("its parameters have no names. Make the optimizer of model.named_parameters().")
    return list(zip(group["param_names"], group["params"], strict=True))


def _check_leaves(leaves: Leaves, **arguments: Any) -> None:
    """Raise if an argument names a leaf that the parameters do not have."""
    for argument, given in arguments.items():
        check_matched(argument, given if isinstance(given, Mapping) else (), leaves.names, exact=True)


def _name(leaf: str, names: Names) -> str:
    if names is None:
        return leaf.replace("/", ".")
    return names(leaf) if callable(names) else names.get(leaf, leaf.replace("/", "."))


def _axes(leaf: str, axes: Axes) -> Sequence[int] | None:
    found = None if axes is None else axes(leaf) if callable(axes) else axes.get(leaf)
    return None if found is None else tuple(found)


def _turned(parts: dict[str, Any], axes: Any) -> dict[str, Any]:
    """Return the parts with their dimensions in another order. Rows become columns where the two change places."""
    if axes is None:
        return parts
    parts = {part: np.transpose(array, axes) for part, array in parts.items()}
    if "exp_avg_sq_row" not in parts:
        return parts
    row, col = parts["exp_avg_sq_row"], parts["exp_avg_sq_col"]
    cut = [d for d in range(row.ndim) if row.shape[d] != col.shape[d]]
    if cut and row.shape[cut[0]] == 1:  # the mean ran over the earlier dimension: these are columns
        return {**parts, "exp_avg_sq_row": col, "exp_avg_sq_col": row}
    return parts
