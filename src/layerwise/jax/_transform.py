"""A rule as an optax transformation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from layerwise.blocks import Blocks, as_blocks
from layerwise.errors import ParameterError, StateError
from layerwise.jax import _mesh, _slots, _trees
from layerwise.jax._drive import Cut, Task, driven
from layerwise.jax._options import BUFFERED, Options, is_known
from layerwise.jax._stats import measured
from layerwise.jax._storage import Grouped, MasterState, Storing, check_grouped, check_held, unread, weights_of
from layerwise.jax._trees import Leaves
from layerwise.layout import Layout, elementwise, lay_out
from layerwise.rules.asks import Now, Stepped
from layerwise.storage.options import Wanted, is_signed


class Mask(NamedTuple):
    """The name of a mask's argument, and its value."""

    argument: str
    given: Any


@dataclass(frozen=True)
class Plan:
    """The plan of one parameter's step."""

    name: str
    p: Any
    layout: Layout
    decayed: bool
    parts: tuple[_slots.Shape | None, ...]  # of the state, as it is stored
    cut: Cut
    storing: Storing


@dataclass(frozen=True, eq=False)
class Transformation:
    """A rule, its options, and the settings of each parameter."""

    rule: Any
    state: type[Any]
    options: Options
    decay_mask: Mask
    ratio_mask: Any
    blocks: Any
    stats: bool
    mesh: _mesh.Mesh
    want: Wanted

    def as_optax(self) -> optax.GradientTransformationExtraArgs:
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    # ---- init

    def init(self, params: Any) -> Any:
        if self.options.buffered(to_be_zero=True):
            return self._unbuffered().init(params)
        leaves = _trees.parameters(params)
        plans = self._plans(params, leaves)
        made = [self._fresh(plan) for plan in plans]
        trees = [
            leaves.like([one[i] for one in made]) if self._is_kept(part) else None
            for i, part in enumerate(self.rule.State._fields)
        ]
        stats = leaves.like([self._no_stats(plan) for plan in plans]) if self.stats else None
        state = self.state(jnp.zeros((), jnp.int32), *trees, stats)
        return MasterState(state, leaves.like([plan.storing.held() for plan in plans])) if self.want.master else state

    def _unbuffered(self) -> Transformation:
        return replace(self, options=self.options.unbuffered())

    def _is_kept(self, part: str) -> bool:
        """Return True if any parameter could have this part of the state: momentum only if it is on."""
        h = self.options.fitted_to(jnp.float32)
        shapes = self.rule.shapes(h.fit((), (), 1.0), ())
        return not is_signed(self.rule, part) or getattr(shapes, part) is not None

    def _no_stats(self, plan: Plan) -> dict[str, Any]:
        """Return the measurements before the first step."""
        shapes = jax.eval_shape(partial(self._measured_at_first, plan))
        return {key: jnp.zeros(one.shape, one.dtype) for key, one in shapes.items()}

    def _measured_at_first(self, plan: Plan) -> dict[str, Any]:
        p = jnp.zeros(plan.p.shape, plan.p.dtype)
        plan = replace(plan, p=p, storing=plan.storing._replace(p=p))
        count = jnp.zeros((), jnp.int32)
        tasks = list(self._tasks(plan, None, p, self._fresh(plan), partial(self._now, count, _slots.counted(count))))
        return self._measured([*driven(tasks)], tasks)

    # ---- update

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        del extra_args  # what is meant for other transformations of a chain
        if self._lacks_buffer(state):
            return self._unbuffered().update(updates, state, params)
        params = self._stand_ins(updates) if params is None else params
        leaves = _trees.parameters(params)
        grads = _trees.gradients(leaves, updates)
        whole, state = state, self._without_weights(state)
        self._check_state(state)
        plans = self._plans(params, leaves)
        stored, held = self._stored(plans, leaves, state), self._held(plans, leaves, whole)
        stats = _trees.of_state(leaves, "stats", state.stats)
        moves = [jnp.zeros_like(plan.p) for plan in plans]  # of those without a gradient
        due = [i for i, g in enumerate(grads) if g is not None]
        t = _slots.counted(state.count)
        now = cache(partial(self._now, state.count, t))
        tasks = {i: list(self._tasks(plans[i], held[i], grads[i], stored[i], now)) for i in due}
        done = driven([task for each in tasks.values() for task in each])
        for i, each in tasks.items():
            stepped = [next(done) for _ in each]
            moves[i], held[i] = _move(plans[i], grads[i], stepped, held[i], t)
            stored[i] = _remembered(plans[i], stored[i], stepped, t)
            if self.stats:
                stats[i] = self._measured(stepped, each)
        found = self._next(state, leaves, stored, stats)
        return leaves.of_all(moves), MasterState(found, leaves.like(held)) if self.want.master else found

    def _lacks_buffer(self, state: Any) -> bool:
        """Return True if an array decides about a buffer, and the state was made where it was 0."""
        own = state.inner if isinstance(state, MasterState) else state
        if not isinstance(own, self.state) or not {*BUFFERED} & self.options.traced.keys():
            return False
        trees = zip(self.rule.State._fields, _slots.parts(own), strict=True)
        lacks = any(tree is None and is_signed(self.rule, part) and self._is_kept(part) for part, tree in trees)
        if lacks and self.options.buffered(to_be_zero=False):
            raise StateError("the state was made with momentum=0 and has no buffer. Make it again with this momentum.")
        return lacks

    def _stand_ins(self, updates: Any) -> Any:
        """Return the gradients in place of the parameters, where their shapes and dtypes are all that is needed."""
        if why := self._reading():
            raise ParameterError(f"{why} depends on the parameters. Call update(updates, state, params).")
        return updates

    def _reading(self) -> str:
        """Return what of the step needs the parameters themselves, or nothing."""
        h: Any = self.options.h
        if h.reads_weights:
            return "the step"
        if not is_known(self.options.traced.get("weight_decay", h.weight_decay), to_be_zero=True):
            name = self.options.arguments.get("weight_decay", "weight_decay")
            return f"a step with `{name}`, unless that is known to be 0 when the step is traced,"
        storage = zip(self.want.words().items(), Wanted(seed=self.want.seed), strict=True)
        used = next((option for (option, value), usual in storage if value != usual), None)
        return "" if used is None else f"a step with `{used}`"

    def _without_weights(self, state: Any) -> Any:
        """Return the optimizer's own state."""
        if isinstance(state, MasterState) != bool(self.want.master):
            made = "a" if isinstance(state, MasterState) else "no"
            raise StateError(
                f"the state has {made} part for what weights lack, and master_weights is {self.want.master!r}. "
                "layerwise.convert.stored_as(state, optimizer, params) puts it in the form that the optimizer has."
            )
        return state.inner if self.want.master else state

    def _held(self, plans: list[Plan], leaves: Leaves, state: Any) -> list[Any]:
        """Return the companions of each parameter's weights."""
        held = _trees.of_state(leaves, "weights", state.weights) if self.want.master else [None] * len(plans)
        for plan, one in zip(plans, held, strict=True):
            check_held(plan.name, plan.p, one, self.want.master)
        return held

    def _stored(self, plans: list[Plan], leaves: Leaves, state: Any) -> list[list[Any]]:
        """Return the parts of each parameter's state."""
        called = self.state._fields[1:-1]
        columns = [_trees.of_state(leaves, name, tree) for name, tree in zip(called, _slots.parts(state), strict=True)]
        for column, name, i in zip(columns, called, range(len(called)), strict=True):
            for plan, one in zip(plans, column, strict=True):
                if isinstance(one, Grouped):
                    signed = is_signed(self.rule, self.rule.State._fields[i])
                    check_grouped(f"{name} of {plan.name}", one, plan.parts[i], signed)
                else:
                    _slots.check_part(f"{name} of {plan.name}", one, plan.parts[i])
        return [list(row) for row in zip(*columns, strict=True)]

    def _next(self, state: Any, leaves: Leaves, stored: list[list[Any]], stats: list[Any]) -> Any:
        trees = [
            None if before is None else leaves.like([one[i] for one in stored])
            for i, before in enumerate(_slots.parts(state))
        ]
        kept = leaves.like(stats) if self.stats else None
        return self.state(_slots.counted(state.count), *trees, kept)

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, self.state):
            raise StateError(
                f"the state must be of type {self.state.__name__}, but is of type {type(state).__name__}. "
                "Pass what init made; layerwise.convert.from_optax(state, optimizer, params) makes one of optax's."
            )
        _slots.check_count(state.count)
        if (state.stats is not None) != self.stats:
            raise StateError(f"the state was made with stats={state.stats is not None}. Pass that, or make it again.")

    def _now(self, count: Any, t: Any, decayed: bool, scalar: Any) -> Now:
        """Return what changes from step to step, in this dtype: the same for all tensors alike in it and in decay."""
        lr = self.options.rate("lr", count, scalar)
        lam = self.options.rate("weight_decay", count, scalar) if decayed else 0.0
        return Now(t.astype(scalar), lr, lam, beta2=self.options.beta2(t, scalar))

    def _tasks(self, plan: Plan, held: Any, g: Any, state: Sequence[Any], now: Callable[..., Now]) -> Iterator[Task]:
        p, own = plan.p, now(plan.decayed, _scalar(plan.p))
        for piece in plan.layout.pieces:
            h: Any = piece.h
            parts = (unread(x, piece.view) for x in state)
            arrays = (weights_of(p, held, piece.view), piece.view(g), *parts)
            cut, dtype = _mesh.cut_of_piece(plan.cut, piece), _slots.computing(p.dtype)
            yield Task(self.rule, h, piece.shape, piece.block_dims, arrays, own, dtype, cut)

    def _measured(self, stepped: Sequence[Stepped], tasks: Sequence[Task]) -> dict[str, Any]:
        blocked = bool(tasks[0].block_dims) or len(tasks) > 1
        return measured([one.stats for one in stepped], tasks, blocked, _slots.real(tasks[0].dtype))

    def _fresh(self, plan: Plan) -> list[Any]:
        """Return the state of one parameter before its first step."""
        parts = zip(self.rule.State._fields, plan.parts, strict=True)
        return [plan.storing.fresh(part, shape) for part, shape in parts]

    # ---- what is said of each parameter

    def _plans(self, params: Any, leaves: Leaves) -> list[Plan]:
        decayed = _trees.by_leaf(self.decay_mask.argument, self.decay_mask.given, params, leaves, _trees.flag)
        adapted = _trees.by_leaf("trust_ratio_mask", self.ratio_mask, params, leaves, _trees.flag)
        blocks = _trees.by_leaf("blocks", self.blocks, params, leaves, _blocks)
        rows = zip(leaves.names, leaves.arrays, decayed, adapted, blocks, self.mesh.cuts(params, leaves), strict=True)
        fitted = cache(self.options.fitted_to)
        return [self._plan(fitted(_scalar(row[1])), *row) for row in rows]

    def _plan(self, h: Any, name: str, p: Any, decayed: bool, adapted: bool, blocks: Blocks | None, cut: Cut) -> Plan:
        if not adapted:
            h = h.settled(adapt=False)
        if jnp.iscomplexobj(p) and h.value_bounds is not None:
            raise ParameterError(f"{name} is complex, and max_grad_value clips numbers that have a size. Drop one.")
        here, eps = tuple(p.shape), float(jnp.finfo(p.dtype).eps)
        layout = lay_out(name, self.rule, h, _mesh.whole_shape(here, cut), blocks, eps)
        if cut.axes:
            layout = _mesh.shard_layout(self.rule, layout, name, here, cut)
        alike = elementwise(self.rule, layout, len(here))
        storing = Storing(self.rule, name, p, cut, self.want, self.options.h.state_dtypes(), alike)
        return Plan(name, p, layout, decayed, layout.state_shapes(), cut, storing)


def _blocks(argument: str, value: Any) -> Blocks | None:
    return None if value is None else as_blocks(argument, value)


def _scalar(p: Any) -> Any:
    return _slots.real(_slots.computing(p.dtype))


def _move(plan: Plan, g: Any, stepped: Sequence[Stepped], held: Any, t: Any) -> tuple[Any, Any]:
    """Return the update of the parameter, and the companion of its weights.

    The update has the dtype of the gradient and the parameter together; float32 if it leads to weights rounded here.
    """
    sums = [reduce(add, [a * x for a, x in one.moves]) for one in stepped]
    move = _joined(plan.layout, sums, plan.p.shape)
    if not plan.storing.rounds(held):
        return move.astype(jnp.result_type(plan.p, g)), None
    return plan.storing.moved(held, move, t)


def _remembered(plan: Plan, before: Sequence[Any], stepped: Sequence[Stepped], t: Any) -> list[Any]:
    fields, found = plan.storing.rule.State._fields, []
    for i, (field, old, shape) in enumerate(zip(fields, before, plan.parts, strict=True)):
        pieces = () if old is None else [one.state[i] for one in stepped]
        found.append(plan.storing.written(field, old, _joined(plan.layout, pieces, shape), t) if pieces else None)
    return found


def _joined(layout: Layout, pieces: Sequence[Any], shape: Any) -> Any:
    """Return the pieces of an array, joined as it is stored."""
    part = layout.pieces[0].part
    if part is not None and part.one is not None:
        return jnp.concatenate(pieces, axis=part.axis)
    return pieces[0].reshape(shape) if pieces[0].shape != tuple(shape) else pieces[0]
