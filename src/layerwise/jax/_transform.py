"""A rule as an optax transformation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from layerwise.blocks import Blocks, as_blocks
from layerwise.errors import ParameterError, StateError
from layerwise.jax import _mesh, _state, _trees
from layerwise.jax._drive import Cut, Task, driven
from layerwise.jax._options import Options
from layerwise.jax._stats import measured
from layerwise.jax._trees import Leaves
from layerwise.layout import Layout, lay_out
from layerwise.rules.asks import Now, Stepped


class Mask(NamedTuple):
    """What a front calls its mask, and what was given for it."""

    argument: str
    given: Any


@dataclass(frozen=True)
class Plan:
    """How one parameter is stepped."""

    name: str
    p: Any
    layout: Layout
    decayed: bool
    parts: tuple[_state.Shape | None, ...]  # of the state, as it is stored
    cut: Cut


@dataclass(frozen=True, eq=False)
class Transformation:
    """A rule, its options, and what is said of each parameter."""

    rule: Any
    state: type[Any]
    options: Options
    decay_mask: Mask
    ratio_mask: Any
    blocks: Any
    stats: bool
    mesh: _mesh.Mesh

    def as_optax(self) -> optax.GradientTransformationExtraArgs:
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    # ---- init

    def init(self, params: Any) -> Any:
        leaves = _trees.parameters(params)
        plans = self._plans(params, leaves)
        made = [self._fresh(plan, plan.p) for plan in plans]
        trees = [
            leaves.like([one[i] for one in made]) if self._is_kept(part) else None
            for i, part in enumerate(self.rule.State._fields)
        ]
        stats = leaves.like([self._no_stats(plan) for plan in plans]) if self.stats else None
        return self.state(jnp.zeros((), jnp.int32), *trees, stats)

    def _is_kept(self, part: str) -> bool:
        """Whether any parameter could have this part of the state: momentum only where it was asked for."""
        h = self.options.fitted_to(jnp.float32)
        shapes = self.rule.shapes(h.fit((), (), 1.0), ())
        return part.startswith(_state.REAL) or getattr(shapes, part) is not None

    def _no_stats(self, plan: Plan) -> dict[str, Any]:
        """What a step will measure, before there was one."""
        shapes = jax.eval_shape(partial(self._measured_at_first, plan))
        return {key: jnp.zeros(one.shape, one.dtype) for key, one in shapes.items()}

    def _measured_at_first(self, plan: Plan) -> dict[str, Any]:
        p = jnp.zeros(plan.p.shape, plan.p.dtype)
        tasks = list(self._tasks(plan, p, p, self._fresh(plan, p), jnp.zeros((), jnp.int32)))
        return self._measured([*driven(tasks)], tasks)

    # ---- update

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        del extra_args  # what is meant for other transformations of a chain
        if params is None:
            raise ParameterError("the step is measured against the parameters. Call update(updates, state, params).")
        leaves = _trees.parameters(params)
        grads = _trees.gradients(leaves, updates)
        self._check_state(state)
        plans = self._plans(params, leaves)
        stored = self._stored(plans, leaves, state)
        stats = _trees.of_state(leaves, "stats", state.stats)
        moves = [jnp.zeros_like(plan.p) for plan in plans]  # of those without a gradient
        due = [i for i, g in enumerate(grads) if g is not None]
        tasks = {i: list(self._tasks(plans[i], plans[i].p, grads[i], stored[i], state.count)) for i in due}
        done = driven([task for each in tasks.values() for task in each])
        for i, each in tasks.items():
            stepped = [next(done) for _ in each]
            moves[i] = _move(plans[i], grads[i], stepped)
            stored[i] = _remembered(plans[i], stored[i], stepped)
            if self.stats:
                stats[i] = self._measured(stepped, each)
        return leaves.of_all(moves), self._next(state, leaves, stored, stats)

    def _stored(self, plans: list[Plan], leaves: Leaves, state: Any) -> list[list[Any]]:
        """For each parameter the parts of its state."""
        called = self.state._fields[1:-1]
        columns = [_trees.of_state(leaves, name, tree) for name, tree in zip(called, _state.parts(state), strict=True)]
        for column, name, i in zip(columns, called, range(len(called)), strict=True):
            for plan, one in zip(plans, column, strict=True):
                _state.check_part(f"{name} of {plan.name}", one, plan.parts[i])
        return [list(row) for row in zip(*columns, strict=True)]

    def _next(self, state: Any, leaves: Leaves, stored: list[list[Any]], stats: list[Any]) -> Any:
        trees = [
            None if before is None else leaves.like([one[i] for one in stored])
            for i, before in enumerate(_state.parts(state))
        ]
        kept = leaves.like(stats) if self.stats else None
        return self.state(_state.counted(state.count), *trees, kept)

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, self.state):
            raise StateError(
                f"the state must be of type {self.state.__name__}, but is of type {type(state).__name__}. "
                "Pass what init made; layerwise.convert.from_optax(state, optimizer, params) makes one of optax's."
            )
        _state.check_count(state.count)
        if (state.stats is not None) != self.stats:
            raise StateError(f"the state was made with stats={state.stats is not None}. Pass that, or make it again.")

    def _tasks(self, plan: Plan, p: Any, g: Any, state: Sequence[Any], count: Any) -> Iterator[Task]:
        scalar = _scalar(p)
        lr = self.options.rate("lr", count, scalar)
        lam = self.options.rate("weight_decay", count, scalar) if plan.decayed else 0.0
        t = _state.counted(count)
        now = Now(t.astype(scalar), lr, lam, beta2=self.options.beta2(t, scalar))
        for piece in plan.layout.pieces:
            h: Any = piece.h
            arrays = tuple(None if x is None else piece.view(x) for x in (p, g, *state))
            cut, dtype = _mesh.cut_of_piece(plan.cut, piece), _state.computing(p.dtype)
            yield Task(self.rule, h, piece.shape, piece.block_dims, arrays, now, dtype, cut)

    def _measured(self, stepped: Sequence[Stepped], tasks: Sequence[Task]) -> dict[str, Any]:
        blocked = bool(tasks[0].block_dims) or len(tasks) > 1
        return measured([one.stats for one in stepped], tasks, blocked, _state.real(tasks[0].dtype))

    def _fresh(self, plan: Plan, p: Any) -> list[Any]:
        """The state of one parameter before its first step."""
        dtypes = self.options.h.state_dtypes()
        parts = zip(self.rule.State._fields, plan.parts, strict=True)
        made = [_state.zeros(p, part, shape, dtypes.get(part)) for part, shape in parts]
        return [_mesh.with_axes(one, p, plan.cut) for one in made]

    # ---- what is said of each parameter

    def _plans(self, params: Any, leaves: Leaves) -> list[Plan]:
        decayed = _trees.by_leaf(self.decay_mask.argument, self.decay_mask.given, params, leaves, _trees.flag)
        adapted = _trees.by_leaf("trust_ratio_mask", self.ratio_mask, params, leaves, _trees.flag)
        blocks = _trees.by_leaf("blocks", self.blocks, params, leaves, _blocks)
        rows = zip(leaves.names, leaves.arrays, decayed, adapted, blocks, self.mesh.cuts(params, leaves), strict=True)
        return [self._plan(*row) for row in rows]

    def _plan(self, name: str, p: Any, decayed: bool, adapted: bool, blocks: Blocks | None, cut: Cut) -> Plan:
        h = self.options.fitted_to(_scalar(p))
        if not adapted:
            h = h.settled(adapt=False)
        if jnp.iscomplexobj(p) and h.value_bounds is not None:
            raise ParameterError(f"{name} is complex, and max_grad_value clips numbers that have a size. Drop one.")
        here, eps = tuple(p.shape), float(jnp.finfo(p.dtype).eps)
        layout = lay_out(name, self.rule, h, _mesh.whole_shape(here, cut), blocks, eps)
        if cut.axes:
            layout = _mesh.shard_layout(self.rule, layout, name, here, cut)
        return Plan(name, p, layout, decayed, layout.state_shapes(), cut)


def _blocks(argument: str, value: Any) -> Blocks | None:
    return None if value is None else as_blocks(value, argument)


def _scalar(p: Any) -> Any:
    return _state.real(_state.computing(p.dtype))


def _move(plan: Plan, g: Any, stepped: Sequence[Stepped]) -> Any:
    """What is to be added to the parameter, in the dtype that its gradient and it have together."""
    sums = [sum(a * x for a, x in one.moves) for one in stepped]
    return _joined(plan.layout, sums, plan.p.shape).astype(jnp.result_type(plan.p, g))


def _remembered(plan: Plan, before: Sequence[Any], stepped: Sequence[Stepped]) -> list[Any]:
    return [
        None if old is None else _joined(plan.layout, [one.state[i] for one in stepped], old.shape).astype(old.dtype)
        for i, old in enumerate(before)
    ]


def _joined(layout: Layout, pieces: Sequence[Any], shape: Any) -> Any:
    """The pieces of an array put together as it is stored."""
    part = layout.pieces[0].part
    if part is not None and part.one is not None:
        return jnp.concatenate(pieces, axis=part.axis)
    return pieces[0].reshape(shape) if pieces[0].shape != tuple(shape) else pieces[0]
