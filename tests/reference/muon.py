"""Muon: Keller Jordan's algorithm (kellerjordan.github.io/posts/muon), with the scale of Liu et al., arXiv 2502.16982.

Newton–Schulz iterations on the matrix itself. Coefficients of Polar Express: Amsel et al., arXiv 2505.16932, algorithm
1, with its safety factor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from layerwise.rules import muon as rule

from .adafactor import factored_dims
from .case import Case, Options, one_hold_of_norm
from .paths import close, data, path
from .stepper import Stepper
from .tensors import at_least, indices, norm, stepped, trust_ratio

JORDAN = [(3.4445, -4.7750, 2.0315)]
POLAR_EXPRESS = [
    (8.28721201814563 / 1.01, -23.595886519098837 / 1.01**3, 17.300387312530933 / 1.01**5),
    (4.107059111542203 / 1.01, -2.9478499167379106 / 1.01**3, 0.5448431082926601 / 1.01**5),
    (3.9486908534822946 / 1.01, -2.908902115962949 / 1.01**3, 0.5518191394370137 / 1.01**5),
    (3.3184196573706015 / 1.01, -2.488488024314874 / 1.01**3, 0.51004894012372 / 1.01**5),
    (2.300652019954817 / 1.01, -1.6689039845747493 / 1.01**3, 0.4188073119525673 / 1.01**5),
    (1.891301407787398 / 1.01, -1.2679958271945868 / 1.01**3, 0.37680408948524835 / 1.01**5),
    (1.8750014808534479 / 1.01, -1.2500016453999487 / 1.01**3, 0.3750001645474248 / 1.01**5),
    (1.875, -1.25, 0.375),
]


DIGITS = {None: 53, "float32": 53, "float16": 11, "bfloat16": 8}


def rounded(x, digits):
    """Every number to so many binary digits."""
    out = np.empty(x.shape)
    for i in indices(x):
        fraction, exponent = math.frexp(x[i])
        out[i] = math.ldexp(round(math.ldexp(fraction, digits)), exponent - digits)
    return out


def stretches(polynomials, rows, columns):
    """Which iterations share a Gram matrix in 16 bits: each has its own in a matrix that is nearly square."""
    shares, found, growth = 2 * max(rows, columns) >= 3 * min(rows, columns), [], math.inf
    for one in polynomials:
        if growth > 32 or not shares:
            found.append([])
            growth = 1
        found[-1].append(one)
        growth *= one[0] ** 2
    return found


class Muon(Stepper):
    """p ← p − lr·lam·p − lr·scale·NS(u)"""

    def __init__(
        self,
        lr=0.02,
        momentum=0.95,
        weight_decay=0,
        decay="decoupled",
        nesterov=True,
        scale="original",
        ns_coefficients="jordan",
        ns_steps=5,
        eps=1e-7,
        dims="first",
        momentum_dtype=None,
        ns_dtype=None,
        adapt=False,
        trust_clip=None,
        zero_norm_ratio=1,
        min_norm=0,
        keep_norm=False,
        radial=None,
        max_grad_norm=None,
        max_grad_norm_per_tensor=None,
        max_grad_value=None,
        maximize=False,
        blocks=None,
    ):
        super().__init__(lr, weight_decay, blocks, max_grad_norm, max_grad_norm_per_tensor, max_grad_value, maximize)
        self.momentum = momentum
        self.decay = decay
        self.nesterov = nesterov
        self.scale = scale
        self.ns_coefficients = ns_coefficients
        self.ns_steps = ns_steps
        self.eps = eps
        self.dims = dims
        self.digits = DIGITS[ns_dtype]
        self.adapt = adapt
        self.trust_clip = trust_clip
        self.zero_norm_ratio = zero_norm_ratio
        self.min_norm = min_norm
        self.keep_norm = keep_norm
        self.radial = radial

    def update(self, state, p, g, t, lr, lam, lr_scale):
        """One step of one tensor."""
        lr = lr * lr_scale
        rows, columns = self.rows_and_columns(p.shape)
        if self.decay == "l2":
            g = np.array(g)
            for i in indices(p):
                g[i] += lam * p[i]
        x = self.of_all_matrices(self.averaged(state, g, t), rows, columns)
        scale = self.factor(math.prod(p.shape[d] for d in rows), math.prod(p.shape[d] for d in columns))
        r, decayed = np.empty(p.shape), np.empty(p.shape)
        for i in indices(p):
            decayed[i] = p[i] - lr * lam * p[i] if self.decay == "decoupled" else p[i]
            r[i] = scale * x[i]
        weight_norm, update_norm = norm(decayed), norm(r)
        ratio = trust_ratio(self, weight_norm, update_norm, lam)
        new_p = stepped(state, decayed, r, lr * ratio, self.keep_norm, self.radial)
        return new_p, {"weight_norm": weight_norm, "update_norm": update_norm, "trust_ratio": ratio}

    def averaged(self, state, g, t):
        b = self.momentum
        if b == 0:
            return g
        m = state.setdefault("m", np.zeros(g.shape))
        u = np.empty(g.shape)
        for i in indices(g):
            m[i] = b * m[i] + (1 - b) * g[i]
            if self.nesterov == "corrected":
                u[i] = b * m[i] / (1 - b ** (t + 1)) + (1 - b) * g[i] / (1 - b**t)
            else:
                u[i] = b * m[i] + (1 - b) * g[i] if self.nesterov else m[i]
        return u

    def rows_and_columns(self, shape):
        """The dimensions taken as rows and those taken as columns; all are columns where it says none."""
        if self.dims == "first" and len(shape) > 1:
            return (0,), tuple(range(1, len(shape)))
        found = None if self.dims == "first" else factored_dims(shape, self.dims, 0)
        return ((), tuple(range(len(shape)))) if found is None else found

    def of_all_matrices(self, x, rows, columns):
        """Every matrix of the tensor by itself."""
        others = [d for d in range(x.ndim) if d not in rows and d not in columns]
        out = np.empty(x.shape)
        for number in np.ndindex(*(x.shape[d] for d in others)):
            place = [slice(None)] * x.ndim
            for d, at in zip(others, number, strict=True):
                place[d] = slice(at, at + 1)
            part = x[tuple(place)]
            order = [*others, *rows, *columns]
            seen = part.transpose(order)
            matrix = seen.reshape(math.prod(x.shape[d] for d in rows), math.prod(x.shape[d] for d in columns))
            made = self.iterated(matrix).reshape(seen.shape)
            out[tuple(place)] = made.transpose(np.argsort(order))
        return out

    def iterated(self, x):
        x = x / at_least(norm(x), self.eps)
        named = {"jordan": JORDAN, "polar_express": POLAR_EXPRESS}
        each = named[self.ns_coefficients] if isinstance(self.ns_coefficients, str) else self.ns_coefficients
        each = [each] if np.ndim(each) == 1 else list(each)
        polynomials = [each[min(k, len(each) - 1)] for k in range(self.ns_steps)]
        if self.digits == DIGITS[None]:
            for a, b, c in polynomials:
                square = x @ x.T
                x = a * x + b * (square @ x) + c * (square @ (square @ x))
            return x
        turned = x.shape[0] > x.shape[1]
        x = self.of_rounded_products(x.T if turned else x, polynomials)
        return x.T if turned else x

    def of_rounded_products(self, x, polynomials):
        """The same of a matrix that is not taller than wide: every product is rounded, and every polynomial."""
        x = rounded(x, self.digits)
        for stretch in stretches(polynomials, *x.shape):
            square, whole = rounded(x @ x.T, self.digits), None
            for a, b, c in stretch:
                z = rounded(a * np.eye(len(x)) + b * square + c * square @ square, self.digits)
                whole = z if whole is None else rounded(z @ whole, self.digits)
                square = rounded(rounded(z @ square, self.digits) @ z, self.digits)
            x = rounded(whole @ x, self.digits)
        return x

    def factor(self, rows, columns):
        if self.scale == "original":
            return math.sqrt(max(1, rows / columns)) if columns else 1.0
        return (0.2 if self.scale == "match_rms_adamw" else self.scale) * math.sqrt(max(rows, columns))


# ---- what else tests know of it


def _vectors(world: Any) -> None:
    """By hand: singular values 3 and 4 of norm 5, after one iteration; and a vector, whose only one is its norm."""
    p, g = np.zeros((2, 3)), np.array([[3.0, 0.0, 0.0], [0.0, 0.0, -4.0]])
    options = {"momentum": 0.0, "ns_steps": 1, "ns_coefficients": (3.0, -2.0, 0.5)}
    [[after]] = path(world, rule.Muon(1.0, **options), [p], [[g]])
    close([-after], [[[1.40688, 0.0, 0.0], [0.0, 0.0, -1.53984]]], 1e-12)
    for scale, factor in (("match_rms_adamw", 0.2 * 3**0.5), (0.5, 0.5 * 3**0.5), ("original", 1.0)):
        [[scaled]] = path(world, rule.Muon(1.0, scale=scale, **options), [p], [[g]])
        close([scaled], [factor * after], 1e-12)
    [[tall]] = path(world, rule.Muon(1.0, **options), [p.T], [[g.T]])
    close([tall], [1.5**0.5 * after.T], 1e-12)
    [[vector]] = path(world, rule.Muon(1.0, **options), [p[0]], [[np.array([3.0, 0.0, 4.0])]])
    close([-vector], [[0.9, 0.0, 1.2]], 1e-12)
    [[decayed]] = path(world, rule.Muon(1.0, decay="l2", weight_decay=0.5, **options), [g], [[g * 0]])
    close([decayed - g], [after], 1e-12)
    # m is 0.5 and then 1.25 of a gradient of 1 and then 2; the corrected u is 0.5·1.25/0.875 + 0.5·2/0.75.
    [_, [after]] = path(
        world, rule.Muon(1.0, 0.5, eps=100.0, ns_coefficients=(1.0, 0.0, 0.0)), [np.zeros(1)], [[[1.0]], [[2.0]]]
    )
    close([-after], [[0.01 * (0.75 + 1.625)]], 1e-14)
    settings = rule.Muon(1.0, 0.5, nesterov="corrected", eps=100.0, ns_coefficients=(1.0, 0.0, 0.0))
    [_, [after]] = path(world, settings, [np.zeros(1)], [[[1.0]], [[2.0]]])
    close([-after], [[0.01 * (0.25 / 0.75 + 1.0 + 0.625 / 0.875 + 1.0 / 0.75)]], 1e-14)


def _properties(world: Any) -> None:
    """Rows and columns turn as those of the gradient do; its length is nothing; many iterations end at UVᵀ."""
    draw = np.random.default_rng(7)
    g = draw.normal(size=(4, 6))
    left, right = (np.linalg.qr(draw.normal(size=(n, n)))[0] for n in (4, 6))

    def stepped(one: Any, **options: Any) -> Any:
        return path(world, rule.Muon(1.0, **options), [np.zeros(one.shape)], [[one]])[0]

    [plain] = stepped(g)
    close(stepped(left @ g @ right), [left @ plain @ right], 1e-12)
    close(stepped(1e4 * g), [plain], 1e-12)
    u, _, vt = np.linalg.svd(g, full_matrices=False)
    close(stepped(g, ns_coefficients="polar_express", ns_steps=20), [-u @ vt], 1e-12)
    wide = np.linalg.svd(plain, compute_uv=False)
    assert 0.6 < wide.min() < wide.max() < 1.3
    # Of three dimensions, two are a matrix and the third counts matrices.
    three = draw.normal(size=(3, 4, 6))
    [together] = stepped(three, dims="last")
    close([together[1]], stepped(three[1]), 1e-12)


def _limits(world: Any) -> None:
    """Of matrices it is PyTorch's, whose iterations are in bfloat16."""
    params, grads = data(3)
    params, grads = [params[0]], [[g[0]] for g in grads]
    ours = path(world, rule.Muon(0.1, weight_decay=0.2), params, grads)[-1]
    tensors = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in params]
    stepper = torch.optim.Muon(tensors, lr=0.1, weight_decay=0.2)
    for gs in grads:
        tensors[0].grad = torch.tensor(np.asarray(gs[0]))
        stepper.step()
    close(ours, [tensors[0].detach().numpy()], 0.02)


def _consistent(options: Options) -> Options:
    options = one_hold_of_norm(options)
    apart = options["keep_norm"] and options["decay"] == "decoupled"
    return {**options, "weight_decay": 0.0} if apart else options


CASE = Case(
    reference=Muon,
    options={
        "lr": (0.1, 0.5),
        "momentum": (0.95, 0.0),
        "weight_decay": (0.0, 0.1),
        "decay": ("decoupled", "l2"),
        "nesterov": (True, False, "corrected"),
        "scale": ("original", "match_rms_adamw", 0.7),
        "ns_coefficients": ("jordan", "polar_express", (2.0, -1.5, 0.5), ((3.0, -3.0, 1.0), (1.5, -0.5, 0.0))),
        "ns_steps": (5, 1, 3),
        "eps": (1e-7, 10.0),
        "dims": ("first", "last", False, (0, 1), (-1, 0), ((0,), (1, 2))),
        "adapt": (False, True, "decayed"),
        "ns_dtype": (None, "bfloat16", "float16"),
        "momentum_dtype": (None,),  # how it is stored concerns a front, not the rule
    },
    busy={"lr": 0.1, "weight_decay": 0.01},
    vectors=_vectors,
    properties=_properties,
    limits=_limits,
    consistent=_consistent,
    measured={"adapt": True},
    relative={"adapt": True},
    fixed=("nesterov",),
    shows_with={
        ("decay", "l2"): {"weight_decay": 0.1},
        ("adapt", "decayed"): {"weight_decay": 0.1},
        "trust_clip": {"adapt": True},
        "min_norm": {"adapt": True},
        "zero_norm_ratio": {"adapt": True},
    },
    magnifies=30.0,
)
