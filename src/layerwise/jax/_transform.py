"""A rule as an optax transformation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from layerwise.catalog.hidden_matrices import is_misplaced_vector, warn_of_nonhidden
from layerwise.errors import ParameterError, StateError, sentence, with_article
from layerwise.jax import _mesh, _trees
from layerwise.jax._drive import Axes, Cut, drive_rules
from layerwise.jax._dtypes import arithmetic_dtype, mixing, real
from layerwise.jax._options import TracedOptions, is_traced
from layerwise.jax._plan import Plan
from layerwise.jax._products import fast_product_dtype
from layerwise.jax._storage import WAY_OUT, MasterState, check_companions, check_part
from layerwise.jax._trees import Leaves
from layerwise.jax._types import Array, Tree
from layerwise.layout.blocks import Blocks, as_blocks
from layerwise.layout.pieces import lay_out
from layerwise.options.settings import Hyper
from layerwise.rules.requests import Now
from layerwise.rules.states import is_signed
from layerwise.storage.options import RequestedStorage

MASKS = ("mask", "weight_decay_mask")  # the two names that optax has for one quantity
OTHERS = 'Step them with AdamW: optax.partition({"muon": muon(…), "rest": adamw(…)}, labels).'


@dataclass(frozen=True, eq=False)
class Transformation:
    """A rule, its options, and the settings of each parameter."""

    rule: ModuleType
    state: type[Any]
    options: TracedOptions
    want: RequestedStorage
    stats: bool
    axes: Axes
    given: Mapping[str, Any]  # arguments, of which masks, blocks and specs are by leaf

    # ---- init

    def init(self, params: Tree) -> Tree:
        leaves = _trees.parameters(params)
        plans, h = self._plans(params, leaves), self.options.fitted_to(jnp.float32)
        if vectors := [plan.name for plan in plans if is_misplaced_vector(h, plan.p.shape)]:
            warn_of_nonhidden(h.optimizer, vectors, OTHERS)
        # Momentum is kept only if it is on, and then for parameters of any shape.
        could_be = self.rule.shapes(h.fit((), (), 1.0), ())._asdict()
        trees = [
            None
            if is_signed(self.rule, field) and shape is None
            else leaves.part_of_state([one.fresh(field) for one in plans])
            for field, shape in could_be.items()
        ]
        stats = leaves.by_measurement([self._no_stats(plan) for plan in plans]) if self.stats else None
        state = self.state(jnp.zeros((), jnp.int32), *trees, stats)
        return MasterState(state, leaves.like([plan.held() for plan in plans])) if self.want.master else state

    def _no_stats(self, plan: Plan) -> dict[str, Array]:
        def first() -> dict[str, Array]:
            p, count = jnp.zeros(plan.p.shape, plan.p.dtype), jnp.zeros((), jnp.int32)
            own, now = replace(plan, p=p), self._now(count, _counted(count), plan.decayed, real(plan.dtype))
            tasks = [*own.tasks(p, [own.fresh(field) for field in own.shapes], None, now)]
            return own.measured(drive_rules(tasks), tasks)

        with mixing([plan.p]):
            measured = jax.eval_shape(first)
        return {key: jnp.zeros(one.shape, one.dtype) for key, one in measured.items()}

    # ---- update

    def update(self, updates: Tree, state: Tree, params: Tree = None, **extra_args: object) -> tuple[Tree, Tree]:
        del extra_args  # meant for other transformations of a chain
        if isinstance(params, (self.state, MasterState)):
            raise ParameterError(
                f"the third argument is {with_article(type(params).__name__)}, not parameters. {_trees.CALL}"
            )
        params = self._stand_ins(updates) if params is None else params
        leaves = _trees.parameters(params)
        with mixing(leaves.arrays):
            return self._updated(params, leaves, _trees.gradients(leaves, updates), state)

    def _updated(self, params: Tree, leaves: Leaves, grads: list[Array], state: Tree) -> tuple[Tree, Tree]:
        own = self._own(state)
        plans = self._plans(params, leaves)
        stored, held = self._stored(plans, leaves, own), self._held(plans, leaves, state)
        stats = _trees.measurements_by_parameter(leaves, own.stats) if self.stats else []
        moves = [jnp.zeros_like(plan.p) for plan in plans]  # for those without a gradient
        due = [i for i, g in enumerate(grads) if g is not None]
        t = _counted(own.count)
        now = cache(partial(self._now, own.count, t))
        nows = [now(plan.decayed, real(plan.dtype)) for plan in plans]
        tasks = {i: list(plans[i].tasks(grads[i], stored[i], held[i], nows[i])) for i in due}
        done = iter(drive_rules([task for each in tasks.values() for task in each]))
        for i, each in tasks.items():
            stepped = [next(done) for _ in each]
            moves[i], held[i] = plans[i].moved(stepped, grads[i], held[i], t)
            stored[i] = plans[i].written(stepped, stored[i], t)
            if self.stats:
                stats[i] = plans[i].measured(stepped, each)
        columns = enumerate(own[1:-1])
        trees = [None if tree is None else leaves.part_of_state([one[i] for one in stored]) for i, tree in columns]
        after = self.state(t, *trees, leaves.by_measurement(stats) if self.stats else None)
        return leaves.of_all(moves), MasterState(after, leaves.like(held)) if self.want.master else after

    def _stand_ins(self, updates: Tree) -> Tree:
        """Return the gradients in place of the parameters, if only their shapes and dtypes are needed."""
        h = self.options.h
        decay = self.options.traced.get("weight_decay", h.weight_decay)
        usual = RequestedStorage(seed=self.want.seed).as_options()
        reading = ["the step"] if h.reads_weights else []
        if is_traced(decay) or callable(decay) or decay != 0:
            name = self.options.arguments.get("weight_decay", "weight_decay")
            reading.append(f"a step with `{name}`, unless that is known to be 0 when the step is traced,")
        reading += [f"a step with `{name}`" for name, value in self.want.as_options().items() if value != usual[name]]
        if reading:
            raise ParameterError(f"{reading[0]} depends on the parameters. Call update(updates, state, params).")
        return updates

    def _own(self, state: Tree) -> Tree:
        if isinstance(state, MasterState) != bool(self.want.master):
            made = "a" if isinstance(state, MasterState) else "no"
            raise StateError(
                f"the state has {made} extra bits of the weights, but master_weights is {self.want.master!r}. "
                "layerwise.convert.stored_as(state, optimizer, params) converts it to the optimizer's format."
            )
        own = state.inner if self.want.master else state
        if not isinstance(own, self.state):
            raise StateError(
                f"the state must be of type {self.state.__name__}, but is of type {type(own).__name__}. Pass what "
                "init returned; layerwise.convert.from_optax(state, optimizer, params) converts optax's state."
            )
        _check_count(own.count)
        if (own.stats is not None) != self.stats:
            raise StateError(
                f"the state was made with stats={own.stats is not None}. Use the same value, or create the state again."
            )
        return own

    def _held(self, plans: list[Plan], leaves: Leaves, state: Tree) -> list[Array]:
        held = _trees.of_state(leaves, "weights", state.weights if self.want.master else None)
        for plan, one in zip(plans, held, strict=True):
            check_companions(plan.name, plan.p, one, self.want.master)
        return held

    def _stored(self, plans: list[Plan], leaves: Leaves, own: Tree) -> list[list[Array]]:
        columns = []
        for field, name, tree in zip(self.rule.State._fields, self.state._fields[1:-1], own[1:-1], strict=True):
            columns.append(_trees.of_state(leaves, name, tree))
            for plan, one in zip(plans, columns[-1], strict=True):
                check_part(f"{name} of {plan.name}", one, plan.shapes[field], is_signed(self.rule, field))
        return [list(row) for row in zip(*columns, strict=True)]

    def _now(self, count: Array, t: Array, decayed: bool, scalar: Array) -> Now:
        """Return the numbers that change from step to step, in this dtype: the same for all tensors with equal dtype
        and decay.
        """
        lr = self.options.rate("lr", count, scalar)
        lam = self.options.rate("weight_decay", count, scalar) if decayed else 0.0
        return Now(t.astype(scalar), lr, lam, beta2=self.options.beta2(t, scalar))

    # ---- properties of each parameter

    def _plans(self, params: Tree, leaves: Leaves) -> list[Plan]:
        def by_leaf(argument: str, check: _trees.Check, usual: object) -> list[Array]:
            given = self.given.get(argument)
            return _trees.by_leaf(argument, usual if given is None else given, params, leaves, check)

        decayed = by_leaf(next(name for name in MASKS if name in self.given), _trees.flag, True)
        adapted, blocks = by_leaf("trust_ratio_mask", _trees.flag, True), by_leaf("blocks", _blocks, None)
        cuts, fitted = _mesh.cuts(self.axes, self.given["specs"], params, leaves), cache(self.options.fitted_to)
        rows = zip(leaves.names, leaves.arrays, decayed, adapted, blocks, cuts, strict=True)
        return [self._plan(fitted(real(arithmetic_dtype(row[1].dtype))), *row) for row in rows]

    def _plan(
        self, h: Hyper, name: str, p: Array, decayed: bool, adapted: bool, blocks: Blocks | None, cut: Cut
    ) -> Plan:
        if not adapted:
            h = h.settled(adapt=False)
        if jnp.iscomplexobj(p) and h.value_bounds is not None:
            raise ParameterError(f"{name} is complex, but max_grad_value clips real numbers only. Drop one.")
        here, eps = tuple(p.shape), float(jnp.finfo(p.dtype).eps)
        layout = lay_out(
            name, self.rule, h.with_fast_dtype(fast_product_dtype(p.dtype)), _mesh.whole_shape(here, cut), blocks, eps
        )
        if any(cut):
            layout = _mesh.shard_layout(self.rule, layout, name, here, cut)
        return Plan(self.rule, name, p, layout, cut, decayed, self.want)


def stats(state: Tree) -> dict[str, dict[str, Array]]:
    """Return the measurements of the last step by parameter: arrays, with one number per block of it.

    Args:
        state: A state of an optimizer made with stats=True, or one that contains it, as that of optax.chain does.
    """
    ours = [one for one in jax.tree.leaves(state, is_leaf=_is_ours) if _is_ours(one)]
    if not ours or all(one.stats is None for one in ours):
        raise StateError("no step has been measured in this state. Create the optimizer with stats=True.")
    found: dict[str, dict[str, Array]] = {}
    for name, tree in (pair for one in ours if one.stats is not None for pair in one.stats.items()):
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            found.setdefault(_trees.name_of(path), {})[name] = value
    return found


def _is_ours(x: Tree) -> bool:
    return isinstance(x, tuple) and type(x).__module__ == "layerwise.jax.optimizers"


def _blocks(argument: str, value: object) -> Blocks | None:
    return None if value is None else as_blocks(argument, value)


def _counted(count: Array) -> Array:
    """Return the count plus one, up to the largest number of its dtype. A count below 0 is taken for 0."""
    count = jnp.maximum(jnp.asarray(count), 0)
    most = jnp.iinfo(count.dtype).max
    return jnp.where(count < most, count + 1, count)


def _check_count(count: Array) -> None:
    dtype = getattr(count, "dtype", type(count))
    if isinstance(count, bool) or not jnp.issubdtype(dtype, jnp.integer) or jnp.shape(count) != ():
        raise StateError(sentence("count", "one integer", count, f"It counts the steps in the state. {WAY_OUT}"))
