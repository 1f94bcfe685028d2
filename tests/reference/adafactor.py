"""Adafactor: Shazeer & Stern, "Adaptive Learning Rates with Sublinear Memory Cost", arXiv 1804.04235."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from layerwise.rules import adafactor as rule

from .case import Case, Options
from .paths import close, path
from .stepper import Stepper
from .tensors import agreeing, indices, rms


class Adafactor(Stepper):
    """p ← p − max(eps2, RMS(p))·rho·û,  û = u / max(1, RMS(u) / d),  u = g / √V,  V = R·C / mean(R)"""

    def __init__(
        self,
        lr=None,
        eps=(1e-30, 1e-3),
        eps_mode="add",
        clip_threshold=1.0,
        beta2_decay=-0.8,
        beta2=None,
        beta2_cap=None,
        decay_offset=0,
        beta1=None,
        momentum_dtype=None,
        lr_in_momentum=True,
        weight_decay=0,
        decay_scale="lr",
        scale_parameter=None,
        relative_step=None,
        lr_cap=1e-2,
        warmup_init=False,
        factored="last",
        min_dim_size_to_factor=0,
        caution=False,
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
        machine_eps=2.220446049250313e-16,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.eps1, self.eps2 = eps
        if self.eps1 is None:
            self.eps1 = machine_eps
        self.eps_mode = eps_mode
        self.clip_threshold = clip_threshold
        self.beta2_decay = beta2_decay
        self.beta2_given = beta2
        self.beta2_cap = beta2_cap
        self.decay_offset = decay_offset
        self.beta1 = beta1
        self.momentum_dtype = momentum_dtype
        self.lr_in_momentum = lr_in_momentum
        self.decay_scale = decay_scale
        if relative_step is None or relative_step is True:
            relative_step = "factor" if lr is None else False
        if lr is None:
            self.lr = lr_cap if relative_step == "cap" else 1.0
        self.scale_parameter = relative_step is not False if scale_parameter is None else scale_parameter
        self.relative_step = relative_step
        self.lr_cap = lr_cap
        self.warmup_init = warmup_init
        self.factored = factored
        self.min_dim_size_to_factor = min_dim_size_to_factor
        self.caution = caution

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        g = counted(g)
        v = self.second_moment(state, g, self.beta2(t))
        u = self.direction(g, v)
        update_rms = rms(u)
        u_hat = self.clipped(u, update_rms)
        alpha = self.step_size(p, t, lr * lr_scale)
        step, found = self.momentum_step(state, u_hat, alpha), {}
        if self.caution:
            step, found["agreeing"] = agreeing(step, g)
        w = self.decay_factor(alpha, lr * lr_scale)
        new_p = np.empty(p.shape)
        for i in indices(p):
            new_p[i] = p[i] - w * lam * p[i] - step[i]
        return new_p, {**found, "update_rms": update_rms, "alpha": alpha}

    def beta2(self, t):
        """b2 = 1 − s^beta2_decay, or beta2(s − 1), or beta2 itself; at most beta2_cap.  s = max(t − decay_offset, 1)"""
        s = max(t - self.decay_offset, 1)
        if self.beta2_given is None:
            b2 = 1 - s**self.beta2_decay
        else:
            b2 = self.beta2_given(s - 1) if callable(self.beta2_given) else self.beta2_given
        return b2 if self.beta2_cap is None else min(b2, self.beta2_cap)

    def second_moment(self, state, g, b2):
        """V of this step, of g² + eps1 (or g²), from R and C where the tensor is factored."""
        squares = np.empty(g.shape)
        for i in indices(g):
            squares[i] = g[i] * g[i] + (self.eps1 if self.eps_mode == "add" else 0)
        dims = factored_dims(g.shape, self.factored, self.min_dim_size_to_factor)
        if dims is None:
            if "V" not in state:
                state["V"] = np.zeros(g.shape)
            average(state["V"], squares, b2)
            return state["V"]
        rows, columns = dims
        over_columns, over_rows = mean_over(squares, columns), mean_over(squares, rows)
        if "R" not in state:
            state["R"], state["C"] = np.zeros(over_columns.shape), np.zeros(over_rows.shape)
        average(state["R"], over_columns, b2)
        average(state["C"], over_rows, b2)
        return self.product(state["R"], state["C"], rows, columns, g.shape)

    def product(self, r, c, rows, columns, shape):
        """V = R·C / mean(R over the rows)"""
        mean_r = mean_over(r, rows)
        v = np.empty(shape)
        for i in indices(v):
            below = mean_r[without(i, rows + columns)]
            if self.eps_mode == "clamp":
                below = max(below, self.eps1)
            v[i] = r[without(i, columns)] * c[without(i, rows)] / below
        return v

    def direction(self, g, v):
        """u = g / √V"""
        u = np.empty(g.shape)
        for i in indices(g):
            root = math.sqrt(v[i])
            if self.eps_mode == "clamp":
                root = max(root, self.eps1)
            u[i] = g[i] / root
        return u

    def clipped(self, u, update_rms):
        """û = u / max(1, RMS(u) / d)"""
        if self.clip_threshold is None:
            return u
        # Python's max keeps its first argument where that is NaN, and a NaN must not get lost.
        divisor = max(update_rms / self.clip_threshold, 1.0)
        u_hat = np.empty(u.shape)
        for i in indices(u):
            u_hat[i] = u[i] / divisor
        return u_hat

    def step_size(self, p, t, lr):
        """alpha = rho·max(eps2, RMS(p)), or rho"""
        rho = lr
        if self.relative_step:
            rho = min(lr if self.relative_step == "cap" else self.lr_cap, 1 / math.sqrt(t))
            if self.warmup_init:
                rho = min(rho, 1e-6 * t)
            if self.relative_step == "factor":
                rho = lr * rho
        return rho * max(rms(p), self.eps2) if self.scale_parameter else rho

    def momentum_step(self, state, u_hat, alpha):
        """e ← b1·e + (1 − b1)·alpha·û and step = e, or e ← b1·e + (1 − b1)·û and step = alpha·e"""
        step = np.empty(u_hat.shape)
        if self.beta1 is None:
            for i in indices(step):
                step[i] = alpha * u_hat[i]
            return step
        if "e" not in state:
            state["e"] = np.zeros(u_hat.shape)
        for i in indices(step):
            new = alpha * u_hat[i] if self.lr_in_momentum else u_hat[i]
            e = self.beta1 * state["e"][i] + (1 - self.beta1) * new
            # The dtype is that of the storage: this step still uses e as it was computed.
            step[i] = e if self.lr_in_momentum else alpha * e
            state["e"][i] = stored(e, self.momentum_dtype)
        return step

    def decay_factor(self, alpha, lr):
        """w, which multiplies lam·p"""
        if self.decay_scale == "none":
            return 1.0
        if self.decay_scale == "step":
            return alpha
        return lr * self.lr_cap if self.relative_step == "factor" else lr


def factored_dims(shape, factored, min_size):
    """The dimensions taken as rows and those taken as columns, two tuples; None where nothing is factored."""
    n = len(shape)
    if factored is False:
        return None
    if factored == "matrix" and n != 2:
        return None
    if factored in ("last", "matrix"):
        rows, columns = (-2,), (-1,)
    elif factored == "largest":
        # Of equal dimensions the later one counts as the larger.
        ordered = sorted(range(n), key=lambda d: (shape[d], d))
        rows, columns = tuple(ordered[-2:-1]), tuple(ordered[-1:])
    else:
        rows, columns = (x if isinstance(x, tuple | list) else (x,) for x in factored)
    if n < 2 or any(not -n <= d < n for d in tuple(rows) + tuple(columns)):
        return None
    rows, columns = tuple(d % n for d in rows), tuple(d % n for d in columns)
    if len(set(rows + columns)) < len(rows + columns):
        return None
    if math.prod(shape[d] for d in rows) < min_size or math.prod(shape[d] for d in columns) < min_size:
        return None
    return rows, columns


def without(index, dims):
    """The index with 0 at the dimensions that a mean has run over."""
    return tuple(0 if d in dims else k for d, k in enumerate(index))


def mean_over(x, dims):
    """The mean over the dimensions `dims`, which stay with size 1."""
    out = np.zeros([1 if d in dims else size for d, size in enumerate(x.shape)])
    groups = {}
    for i in indices(x):
        groups.setdefault(without(i, dims), []).append(x[i])
    for i, values in groups.items():
        out[i] = math.fsum(values) / len(values)
    return out


def counted(g):
    """g within ±2^50; what is not finite is nan"""
    out = np.empty(g.shape)
    for i in indices(g):
        out[i] = min(max(g[i], -(2.0**50)), 2.0**50) if math.isfinite(g[i]) else math.nan
    return out


def average(old, new, b2):
    """old ← b2·old + (1 − b2)·new"""
    for i in indices(old):
        old[i] = b2 * old[i] + (1 - b2) * new[i]


def stored(x, dtype):
    """x as a number of the named dtype holds it."""
    if dtype != "bfloat16":
        return float(np.dtype(dtype).type(x))
    # bfloat16 is the upper half of a float32; round to the nearest, ties to the even one.
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


# ---- what else tests know of it


def ramp(step: Any) -> Any:
    """A decay of the second moment that nobody else has: 0, 1/3, 1/2, 3/5, …"""
    return step / (step + 2.0)  # of which JAX makes a float64 where there are such


OPTIONS = {
    "lr": (None, 0.1),
    "eps": ((1e-30, 1e-3), (1e-3, 0.5), (None, 1e-3)),
    "eps_mode": ("add", "clamp"),
    "clip_threshold": (1.0, None, 0.5, 2.0),
    "beta2_decay": (-0.8, -0.5),
    "beta2": (None, ramp, 0.6),
    "beta2_cap": (None, 0.3),
    "decay_offset": (0, 2),
    "beta1": (None, 0.9),
    "lr_in_momentum": (True, False),
    "weight_decay": (0.0, 0.1),
    "decay_scale": ("lr", "step", "none"),
    "scale_parameter": (None, True, False),
    "relative_step": (None, "factor", "cap"),
    "lr_cap": (1e-2, 0.8),  # 0.8 is above 1/√t from the second step on
    "warmup_init": (False, True),
    "factored": ("last", "largest", "matrix", False, (0, 1), (-1, 0), ((0,), (1, 2))),
    "min_dim_size_to_factor": (0, 4),
    "momentum_dtype": (None,),  # how it is stored concerns a front, not the rule
}


def _consistent(options: Options) -> Options:
    relative = options["lr"] is None or options["relative_step"] is not None
    options = {**options, "warmup_init": options["warmup_init"] and relative}
    options["caution"] = options["caution"] and options["beta1"] is not None
    if options["beta2"] is not None:  # which says all that these would
        options["beta2_decay"] = -0.8
    if isinstance(options["beta2"], float):
        options["decay_offset"] = 0
    return options


def _vectors(world: Any) -> None:
    """Numbers of torch and transformers."""
    p = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    gs = [[np.array([[0.1, 0.2, 0.3], [0.4, 0.5, -0.6]])], [np.array([[0.3, -0.1, 0.2], [0.1, 0.4, 0.2]])]]
    first, second = path(world, rule.Adafactor(), [p], gs)
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
    [[unscaled]] = path(world, rule.Adafactor(lr=0.01), [p], gs[:1])
    close([unscaled], [[[0.99381653, 1.99053136, 2.98859825], [3.98945344, 4.98990639, 6.00972345]]], 1e-8)


def _properties(world: Any) -> None:
    draw = np.random.default_rng(7)
    for shape in ((6, 5), (7,), (2, 3, 4)):
        p, g = draw.normal(size=shape), draw.normal(size=shape)
        _is_clipped(world, p, g)
        is_counted_to_a_bound(world, rule.Adafactor(lr=0.1), p, g)
    _factoring_is_exact_on_rank_one(world, draw)


def _is_clipped(world: Any, p: Any, g: Any) -> None:
    for d in (0.25, 1.0, 4.0):
        settings = rule.Adafactor(lr=1.0, clip_threshold=d)
        free = rule.Adafactor(lr=1.0, clip_threshold=None)
        gradients = [[g], [30 * g], [0.01 * g]]
        before = raw_before = p
        for [after], [raw] in zip(
            path(world, settings, [p], gradients), path(world, free, [p], gradients), strict=True
        ):
            rms = np.sqrt(np.mean((raw - raw_before) ** 2))
            np.testing.assert_allclose(np.sqrt(np.mean((after - before) ** 2)), min(rms, d), rtol=1e-10)
            before, raw_before = after, raw


def is_counted_to_a_bound(world: Any, settings: Any, p: Any, g: Any) -> None:
    """A number beyond the bound counts as the bound, as far as the reference says."""
    beyond, bound = g.copy(), g.copy()
    beyond.flat[:2], bound.flat[:2] = (1e16, -1e30), (2.0**50, -(2.0**50))
    close(*(path(world, settings, [p], [[one], [g]])[1] for one in (beyond, bound)), 1e-15)


def _factoring_is_exact_on_rank_one(world: Any, draw: Any) -> None:
    g = np.outer(draw.uniform(0.5, 2, 6), draw.uniform(0.5, 2, 4)) * np.sign(draw.normal(size=(6, 4)))
    p = draw.normal(size=(6, 4))
    # Unclipped, because the clip would hide a V that is off by a factor.
    factored, whole = (rule.Adafactor(clip_threshold=None, factored=how) for how in ("last", False))
    close(path(world, factored, [p], [[g], [3 * g]])[1], path(world, whole, [p], [[g], [3 * g]])[1], 1e-13)


CASE = Case(
    reference=Adafactor,
    options=OPTIONS,
    busy={"lr": 0.1, "weight_decay": 0.01, "beta1": 0.9, "scale_parameter": True},
    vectors=_vectors,
    properties=_properties,
    consistent=_consistent,
    whole={"factored": False},
    fixed=("factored", "min_dim_size_to_factor", "relative_step", "warmup_init"),
    smooth={"eps": (1e-8, 1e-3)},
    learns_at=0.01,
    shows_with={
        "caution": {"beta1": 0.9, "factored": False},
        "decay_offset": {"clip_threshold": None},
        "decay_scale": {"weight_decay": 0.1},
        "eps": {"eps": (0.1, 0.2), "eps_mode": "clamp"},
        "eps_mode": {"eps": (1e-2, 1e-1)},
        "lr_in_momentum": {"beta1": 0.9},
        ("scale_parameter", True): {"lr": 0.1},
        ("relative_step", "factor"): {"lr": 0.1},
        ("relative_step", "cap"): {"lr": 0.1},
    },
)
