"""What the comparisons share: tensors, gradients, options drawn at random, our steps, and the verdict."""

import numpy as np

SHAPES = {"scalar": (), "vector": (7,), "matrix": (5, 3), "wide": (3, 8), "cube": (4, 2, 4), "zeros": (3,)}
# Powers of two, so that every number is exact in float32 too.
TENSOR_SCALE = {"vector": 2.0**-10, "wide": 32.0, "cube": 8.0, "zeros": 0.125}
STEP_SCALE = (1.0, 2.0**-10, 2.0, 0.25, 1.0)


def tensors(dtype="float64", shapes=SHAPES, zero_gradients=True):
    """Parameters and the gradients of five steps; "zeros" starts at zero, "wide" and "matrix" once have no slope."""
    rng = np.random.default_rng(20190401)

    def normal(shape):
        return np.asarray(rng.standard_normal(shape, dtype=np.float32), dtype=dtype)

    params = {name: normal(shape) for name, shape in shapes.items()}
    params["zeros"] = np.zeros_like(params["zeros"])
    grads = [
        {name: np.asarray(normal(shape) * TENSOR_SCALE.get(name, 1.0) * s, dtype) for name, shape in shapes.items()}
        for s in STEP_SCALE
    ]
    if zero_gradients:
        grads[0]["wide"] = np.zeros_like(params["wide"])
        grads[2]["matrix"] = np.zeros_like(params["matrix"])
    return params, grads


class Draw:
    """Options drawn at random, the same ones for the same seed."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def between(self, low, high):
        """A number that is as likely to be found in one octave as in the next."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))


def ours(optimizer, params, grads, lrs=None):
    """The weights after each step of one of our optimizers; `lrs` sets its lr before each."""
    weights = {name: p.copy() for name, p in params.items()}
    for step, g in enumerate(grads):
        if lrs is not None:
            optimizer.lr = lrs[step]
        optimizer.step_all(weights, g)
        yield {name: p.copy() for name, p in weights.items()}


def torch_steps(build, params, grads, lrs=None):
    """As `ours`, for the torch optimizer that `build` makes of the list of parameters."""
    import torch  # not every module that compares has it

    weights = {name: torch.nn.Parameter(torch.tensor(p)) for name, p in params.items()}
    optimizer = build(list(weights.values()))
    for step, g in enumerate(grads):
        if lrs is not None:
            optimizer.param_groups[0]["lr"] = lrs[step]
        for name, w in weights.items():
            w.grad = torch.tensor(g[name])
        optimizer.step()
        yield {name: w.detach().numpy().copy() for name, w in weights.items()}


def assert_same(mine, theirs, start, of_size, of_move=0.0):
    """Two trajectories agree: to `of_size` of each tensor's largest entry, and `of_move` of how far it has moved."""
    compared, seen = 0, 0.0
    for step, (a, b) in enumerate(zip(mine, theirs, strict=True), 1):
        assert a.keys() == b.keys()
        for name, p in a.items():
            q = np.asarray(b[name])
            assert p.shape == q.shape
            moved = largest(q - start[name])
            off, allowed = largest(p - q), of_size * largest(q) + of_move * moved
            assert off <= allowed, f"{name} at step {step}: off by {off:.3g}, {allowed:.3g} allowed"
            seen = max(seen, moved / allowed if allowed else 0.0)
            compared += 1
    # Otherwise the tolerance would hide the steps that are compared.
    assert compared > 0
    assert seen > 100


def largest(x):
    return float(np.max(np.abs(x)))
