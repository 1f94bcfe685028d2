"""What the rules are held against, as functions of the rules, so that mutants can be held against it too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from cases import CASES, Case
from namespaces import NAMESPACES, Namespace, trajectory

from layerwise import drive, hyper
from layerwise.engines import Job
from layerwise.engines.rule import RuleEngine
from layerwise.numpy import _arrays
from layerwise.rules.asks import Now

SHAPES = [(5, 4), (4,), (), (4, 2, 3), (3, 2)]
NUMPY = NAMESPACES[0]
WORLD = SimpleNamespace(
    rules={case.name: case.rule for case in CASES}, local=drive.local, Run=drive.Run, RuleEngine=RuleEngine
)


def data(seed: int, steps: int = 4) -> tuple[list[Any], list[list[Any]]]:
    """Tensors, the last of them zero, and gradients of very different size, one of them zero once the state is not."""
    draw = np.random.default_rng(seed)
    params = [draw.normal(size=shape) for shape in SHAPES]
    params[-1] = np.zeros(SHAPES[-1])
    grads = [[draw.normal(size=shape) * 10.0 ** draw.uniform(-2, 1) for shape in SHAPES] for _ in range(steps)]
    grads[2][0] = np.zeros(SHAPES[0])
    return params, grads


def close(ours: Any, theirs: Any, tolerance: float, hint: object = "") -> None:
    """Equal to `tolerance` of the tensor's largest element (or of 1), element by element."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=f"tensor {i} {hint}")


def path(world: Any, settings: Any, params: Any, grads: Any, lrs: Any = None) -> Any:
    rule = world.rules[settings.optimizer]
    return trajectory(NUMPY, rule, settings, params, grads, lrs=lrs, local=world.local, run=world.Run)


def matches_reference(world: Any, case: Case, seed: int, space: Namespace = NUMPY) -> None:
    """Drawn options and data, against the float64 loops written from the paper."""
    options = case.drawn(seed)
    settings, oracle = case.hyper(**options), case.reference(**options)
    params, grads = data(seed)
    lrs = [settings.lr * k for k in (1.0, 0.5, 2.0, 0.0)]
    rule = world.rules[settings.optimizer]
    ours = trajectory(space, rule, settings, params, grads, lrs=lrs, local=world.local, run=world.Run)
    names = [str(i) for i in range(len(params))]
    theirs = dict(zip(names, params, strict=True))
    for t, gs in enumerate(grads):
        theirs = oracle.step(theirs, dict(zip(names, gs, strict=True)), lr=lrs[t])
        close(ours[t], theirs.values(), 1e-12, f"step {t + 1} {options}")


def reference(world: Any) -> None:
    for case in CASES:
        for seed in range(25):
            matches_reference(world, case, seed)


def vectors(world: Any) -> None:
    """Numbers that other implementations give: optax (docstring and runs), timm, Paddle, torch and transformers."""
    one = np.array([1.0, 2.0, 3.0])
    tenth = np.array([0.1, 0.2, 0.3])
    for options, g, expected in (
        ({}, tenth, [0.783976150143, 1.783975070029, 2.783974709989]),
        ({"weight_decay": 0.01}, tenth, [0.786100893123, 1.783982000314, 2.781863813436]),
        ({"eps_root": 1e-2}, tenth, [0.821623936805, 1.774369557706, 2.760682462847]),
        ({"adapt": "decayed"}, tenth, [0.900001, 1.9000005, 2.90000033]),
        ({"weight_decay": 0.01, "trust_clip": (None, 1)}, tenth, [0.899001, 1.8980005, 2.89700033]),
        ({"bias_correction": "lr", "eps": 1e-8}, tenth, [0.931687079, 1.931686971, 2.931686935]),
        ({"weight_decay": 0.5}, 0 * tenth, [0.9, 1.8, 2.7]),
    ):
        [[p]] = path(world, hyper.Lamb(lr=0.1, **options), [one], [[g]])
        close([p], [expected], 2e-9, options)
    w, g = np.array([1.0, 2.0]), np.array([0.5, -1.0])
    [moved] = path(world, hyper.Lamb(lr=0.1), [np.array([3.0, 4.0]), 0 * w], [[np.ones(2), g]])
    close(moved, [[2.646446609407, 3.646446609407], [-0.0999998, 0.0999999]], 1e-9)
    for options, expected in (
        ({}, [0.99999, 2.00002]),
        ({"weight_decay": 0.1}, [0.99999, 2.0000133333]),
        ({"weight_decay": 0.1, "norm": "decayed"}, [0.999986583592, 2.000017888544]),
        ({"adapt": "decayed", "lr_in_momentum": False}, [0.995, 2.01]),
        ({"weight_decay": 0.1, "trust_clip": (None, 1)}, [0.999, 2.00133333]),
    ):
        [[p]] = path(world, hyper.Lars(lr=0.01, momentum=0, **options), [w], [[g]])
        close([p], [expected], 1e-8, options)
    for inside, expected in ((True, [0.999880999, 2.000238001]), (False, [0.999799999, 2.000400001])):
        steps = path(world, hyper.Lars(lr_in_momentum=inside), [w], [[g], [g]], lrs=[0.01, 0.1])
        close(steps[-1], [expected], 1e-9, inside)
    p = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    gs = [[np.array([[0.1, 0.2, 0.3], [0.4, 0.5, -0.6]])], [np.array([[0.3, -0.1, 0.2], [0.1, 0.4, 0.2]])]]
    first, second = path(world, hyper.Adafactor(), [p], gs)
    close(
        first,
        [[[0.975918846357, 1.963124939119, 2.955596546681], [3.958927046341, 4.960691053023, 6.037867392225]]],
        1e-12,
    )
    close(
        second,
        [[[0.909701947725, 1.980037315496, 2.922961510987], [3.946593271707, 4.922889203093, 6.019631268952]]],
        1e-12,
    )
    [[unscaled]] = path(world, hyper.Adafactor(lr=0.01), [p], gs[:1])
    close([unscaled], [[[0.99381653, 1.99053136, 2.98859825], [3.98945344, 4.98990639, 6.00972345]]], 1e-8)


def properties(world: Any) -> None:
    """What the theory says of every step, without any other implementation's help."""
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        _lamb_moves_by_lr(world, p, g)
        _lars_ignores_scale(world, p, g)
        _adafactor_is_clipped(world, p, g)
    _factoring_is_exact_on_rank_one(world, draw)


def _lamb_moves_by_lr(world: Any, p: Any, g: Any) -> None:
    for lam in (0.0, 0.3):
        before = p
        for [after] in path(world, hyper.Lamb(lr=0.05, weight_decay=lam), [p], [[g], [2 * g], [g - 1]]):
            moved = np.linalg.norm(after - before) / np.linalg.norm(before)
            np.testing.assert_allclose(moved, 0.05, rtol=1e-12)
            before = after


def _lars_ignores_scale(world: Any, p: Any, g: Any) -> None:
    settings = hyper.Lars()
    close(path(world, settings, [p], [[g], [g]])[1], path(world, settings, [p], [[1e3 * g], [1e-3 * g]])[1], 1e-14)


def _adafactor_is_clipped(world: Any, p: Any, g: Any) -> None:
    for d in (0.25, 1.0, 4.0):
        settings = hyper.Adafactor(lr=1.0, clip_threshold=d)
        free = hyper.Adafactor(lr=1.0, clip_threshold=None)
        gradients = [[g], [30 * g], [0.01 * g]]
        before = raw_before = p
        for [after], [raw] in zip(
            path(world, settings, [p], gradients), path(world, free, [p], gradients), strict=True
        ):
            rms = np.sqrt(np.mean((raw - raw_before) ** 2))
            np.testing.assert_allclose(np.sqrt(np.mean((after - before) ** 2)), min(rms, d), rtol=1e-10)
            before, raw_before = after, raw


def _factoring_is_exact_on_rank_one(world: Any, draw: Any) -> None:
    g = np.outer(draw.uniform(0.5, 2, 6), draw.uniform(0.5, 2, 4)) * np.sign(draw.normal(size=(6, 4)))
    p = draw.normal(size=(6, 4))
    # Unclipped, because the clip would hide a V that is off by a factor.
    factored, whole = (hyper.Adafactor(clip_threshold=None, factored=how) for how in ("last", False))
    close(path(world, factored, [p], [[g], [3 * g]])[1], path(world, whole, [p], [[g], [3 * g]])[1], 1e-13)


def limits(world: Any) -> None:
    """With the ratio off, LAMB is Adam's family and LARS is SGD with momentum: PyTorch's own."""
    adamw, adam, sgd = torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD
    for settings, theirs in (
        (hyper.Lamb(0.1, adapt=False, decay="decoupled", weight_decay=0.2, eps=1e-8), (adamw, {"weight_decay": 0.2})),
        (
            hyper.Lamb(0.1, (0.8, 0.9), adapt=False, weight_decay=0.2, eps=1e-8),
            (adamw, {"betas": (0.8, 0.9), "weight_decay": 0.2}),
        ),
        (hyper.Lamb(0.1, adapt=False, decay="l2", weight_decay=0.2, eps=1e-8), (adam, {"weight_decay": 0.2})),
        (hyper.Lars(0.1, adapt=False, weight_decay=0.2), (sgd, {"momentum": 0.9, "weight_decay": 0.2})),
        (hyper.Lars(0.1, adapt=False, nesterov=True), (sgd, {"momentum": 0.9, "nesterov": True})),
        (hyper.Lars(0.1, adapt=False, dampening=0.3), (sgd, {"momentum": 0.9, "dampening": 0.3})),
        (hyper.Lars(0.1, adapt=False, momentum=0, maximize=True), (sgd, {"maximize": True})),
    ):
        params, grads = data(3)
        close(path(world, settings, params, grads)[-1], _torch_steps(*theirs, params, grads), 1e-13, settings)


def _torch_steps(optimizer: Any, options: Any, params: Any, grads: Any) -> list[Any]:
    tensors = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in params]
    stepper = optimizer(tensors, lr=0.1, **options)
    for gs in grads:
        for tensor, g in zip(tensors, gs, strict=True):
            tensor.grad = torch.tensor(np.asarray(g))
        stepper.step()
    return [tensor.detach().numpy() for tensor in tensors]


def slices(world: Any) -> None:
    """A tensor taken in slices takes the step it takes as a whole, and measures the same."""
    for case in CASES:
        for seed in range(6):
            settings = case.hyper(**case.drawn(seed))
            for shape, block_dims in (
                ((9, 5), ()),
                ((40,), ()),
                ((2, 13, 3), ()),
                ((3, 4, 5), (0,)),
                ((6, 2, 2), (0,)),
            ):
                whole = _in_slices(WORLD, settings, shape, block_dims, seed, None)
                for size in (1, 7, 16):
                    close(_in_slices(world, settings, shape, block_dims, seed, size), whole, 1e-11, (size, settings))


def _in_slices(world: Any, settings: Any, shape: Any, block_dims: Any, seed: int, size: int | None) -> list[Any]:
    """Parameter, state and stats after three steps."""
    engine = world.RuleEngine(_arrays.Arrays(), size)
    rule = world.rules[settings.optimizer]
    draw = np.random.default_rng(seed)
    h, p = settings.fit(shape, block_dims, 1e-16), draw.normal(size=shape)
    shapes = rule.shapes(h, shape)
    state = type(shapes)(*(None if s is None else np.zeros(s) for s in shapes))
    prepared = engine.prepare([Job(rule, h, p, state, block_dims)])
    for t in (1, 2, 3):
        now = Now(t, settings.lr or 1.0, settings.weight_decay)
        prepared.step([draw.normal(size=shape)], [now])
    [stats] = prepared.stats()
    return [p, *(s for s in state if s is not None), *(stats[key] for key in sorted(stats))]


ORACLES: dict[str, Callable[[Any], None]] = {
    "reference": reference,
    "vectors": vectors,
    "properties": properties,
    "limits": limits,
    "slices": slices,
}
