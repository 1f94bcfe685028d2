"""The PyTorch front beside the packages, the recordings and the NumPy front that it is to equal."""

import pytest
from cases import CASES
from draws import seeds
from parity import test_torch
from parity.live import SHAPES, Draw, assert_same, largest, ours, tensors, torch_steps

from layerwise import preset

torch = pytest.importorskip("torch")
from layerwise import torch as front  # noqa: E402

LRS = [0.002, 0.004, 0.016, 0.008, 0.001]
VECTORS = [name for name, shape in SHAPES.items() if len(shape) < 2]
OTHERS = [name for name in SHAPES if name not in VECTORS]


class Stepper:
    """The PyTorch front behind the calls of the NumPy front; every tensor is a group of its own."""

    def __init__(self, cls, **options):
        by_name = {key: options.pop(key) for key in ("adapt", "decay") if isinstance(options.get(key), dict)}
        self.adapt, self.decay = by_name.get("adapt", {}), by_name.get("decay", {})
        self.make = lambda groups: cls(groups, **options)
        self.lr, self.params = options.get("lr"), {}

    def group(self, name, p):
        adapt = {"adapt": self.adapt[name]} if name in self.adapt else {}
        return {"params": [(name, p)], **adapt, **({} if self.decay.get(name, True) else {"weight_decay": 0.0})}

    def step_all(self, weights, grads):
        if not self.params:
            self.params = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in weights.items()}
            self.optimizer = self.make([self.group(name, p) for name, p in self.params.items()])
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] if self.lr is None else self.lr
        for name, p in self.params.items():
            p.grad = torch.tensor(grads[name])
        self.optimizer.step()
        weights.update({name: p.detach().numpy().copy() for name, p in self.params.items()})


def live(build, params, grads, lrs, dtype):
    """The weights after each step of what `build` makes of the matrices and of the vectors, in this dtype."""
    weights = {name: torch.nn.Parameter(torch.tensor(p).to(dtype)) for name, p in params.items()}
    optimizer = build(*([weights[name] for name in names] for names in (OTHERS, VECTORS)))
    for lr, g in zip(lrs, grads, strict=True):
        if lr is not None:
            optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = lr, lr / 2
        for name, w in weights.items():
            w.grad = torch.tensor(g[name]).to(dtype)
        optimizer.step()
        yield {name: w.detach().double().numpy().copy() for name, w in weights.items()}


def peer(name):
    package, _, optimizer = name.partition(".")
    if package == "torch":
        return getattr(torch.optim, optimizer)
    return getattr(pytest.importorskip({"transformers": "transformers.optimization"}.get(package, package)), optimizer)


T5 = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
DEBIASED = {"adam_debias": True, "eps": 1e-15}
SLOW = pytest.mark.slow

# Theirs and ours for all groups, and for the second one; whether lr moves from step to step.
PEERS = [
    pytest.param(
        "torch.Adafactor",
        "Adafactor",
        ({}, preset("torch.Adafactor")),
        ({"lr": 0.3, "d": 2.0, "weight_decay": 0.1}, {"lr_cap": 0.3, "clip_threshold": 2.0, "weight_decay": 0.1}),
        False,
        id="torch.Adafactor",
    ),
    pytest.param(
        "transformers.Adafactor",
        "Adafactor",
        ({}, preset("transformers.Adafactor")),
        ({"beta1": 0.9, "weight_decay": 0.1},) * 2,
        False,
        id="transformers.Adafactor",
        marks=SLOW,
    ),
    pytest.param(
        "transformers.Adafactor",
        "Adafactor",
        (T5, preset("transformers.Adafactor-T5")),
        ({"beta1": 0.5, "weight_decay": 0.1},) * 2,
        True,
        id="transformers.Adafactor-T5",
        marks=SLOW,
    ),
    pytest.param(
        "torch.AdamW",
        "Lamb",
        ({"weight_decay": 0.0}, {"eps": 1e-8, "decay": "decoupled", "adapt": False}),
        ({"weight_decay": 0.1, "betas": (0.5, 0.9)},) * 2,
        True,
        id="torch.AdamW",
    ),
    pytest.param(
        "torch.Adam",
        "Lamb",
        ({}, {"eps": 1e-8, "decay": "l2", "adapt": False}),
        ({"weight_decay": 0.1, "eps": 1e-3},) * 2,
        True,
        id="torch.Adam",
    ),
    pytest.param(
        "torch.SGD",
        "Lars",
        ({"momentum": 0.9}, {"adapt": False, "lr_in_momentum": False}),
        ({"weight_decay": 0.1, "nesterov": True},) * 2,
        True,
        id="torch.SGD",
    ),
    pytest.param(
        "pytorch_optimizer.Lamb",
        "Lamb",
        (DEBIASED, {"bias_correction": False, "eps": 1e-15, "decay": "decoupled", "max_weight_norm": 10.0}),
        ({"weight_decay": 0.1, "betas": (0.5, 0.9)},) * 2,
        True,
        id="pytorch_optimizer.Lamb",
        marks=SLOW,
    ),
    pytest.param(
        "pytorch_optimizer.LARS",
        "Lars",
        ({"weight_decay": 0.0}, {"lr_in_momentum": False}),
        ({"momentum": 0.5}, {"adapt": False, "momentum": 0.5}),
        True,
        id="pytorch_optimizer.LARS",
        marks=SLOW,
    ),
    pytest.param(
        "pytorch_optimizer.AdaFactor",
        "Adafactor",
        ({"betas": (None, 0.999)}, {"lr": None, "beta2_cap": 0.999, "decay_scale": "step"}),
        ({"weight_decay": 0.1},) * 2,
        False,
        id="pytorch_optimizer.AdaFactor",
        marks=SLOW,
    ),
]
peers = pytest.mark.parametrize(("their_class", "our_class", "everywhere", "second", "moves"), PEERS)


def two_groups(cls, everywhere, second):
    return lambda matrices, vectors: cls([{"params": matrices}, {"params": vectors, **second}], **everywhere)


@pytest.mark.parametrize(
    ("dtype", "of_size", "of_move"),
    # In float32 the packages sum in another order.
    [pytest.param(torch.float64, 1e-12, 0.0, id="float64"), pytest.param(torch.float32, 3e-6, 1e-5, id="float32")],
)
@peers
def test_live(their_class, our_class, everywhere, second, moves, dtype, of_size, of_move):
    params, grads = tensors(zero_gradients=our_class != "Lars")
    lrs = LRS if moves else [None] * 5
    theirs = live(two_groups(peer(their_class), everywhere[0], second[0]), params, grads, lrs, dtype)
    mine = live(two_groups(getattr(front, our_class), everywhere[1], second[1]), params, grads, lrs, dtype)
    assert_same(mine, theirs, params, of_size, of_move)


@peers
def test_live_bfloat16(their_class, our_class, everywhere, second, moves):
    """Ours is off by the rounding of the parameter alone, once a step; the packages round everything."""
    dtype, eps = torch.bfloat16, torch.finfo(torch.bfloat16).eps
    params, grads = tensors(zero_gradients=our_class != "Lars")
    params, *grads = ({k: torch.tensor(a).to(dtype).double().numpy() for k, a in x.items()} for x in (params, *grads))
    lrs = [8 * lr for lr in LRS] if moves else [None] * 5
    # The epsilon of torch.Adafactor is that of the parameter's dtype.
    exact = {**everywhere[1], **({"eps": (eps, 1e-3)} if their_class == "torch.Adafactor" else {})}
    cls, theirs = getattr(front, our_class), {**everywhere[0]}
    truth = list(live(two_groups(cls, exact, second[1]), params, grads, lrs, torch.float64))
    mine = list(live(two_groups(cls, everywhere[1], second[1]), params, grads, lrs, dtype))
    other = list(live(two_groups(peer(their_class), theirs, second[0]), params, grads, lrs, dtype))
    for step, (exactly, a, b) in enumerate(zip(truth, mine, other, strict=True), 1):
        for name, p in exactly.items():
            ulp, moved = eps * largest(p), largest(p - params[name])
            assert largest(a[name] - p) <= 0.6 * step * ulp, (name, step)
            assert largest(b[name] - p) <= 2 * step * ulp + 0.1 * moved, (name, step)
    # Otherwise the tolerance would hide the steps that are compared.
    assert max(largest(truth[-1][name] - p) / (eps * largest(p)) for name, p in params.items() if p.any()) > 2


def torch_adafactor(draw):
    theirs, mine = test_torch.adafactor(draw)
    return theirs, {**preset("torch.Adafactor"), **mine}, None, None


def torch_adam(draw):
    cls, theirs, mine = test_torch.adam(draw)
    return theirs, mine, LRS, LRS, cls


def torch_sgd(draw):
    cls, theirs, mine = test_torch.sgd(draw)
    return theirs, mine, LRS, LRS, cls


def transformers_adafactor(draw):
    from parity.test_transformers import options

    theirs, mine, lrs = options(draw)
    return theirs, {**preset("transformers.Adafactor"), **mine}, lrs, lrs


def pytorch_optimizer(kind):
    def options(draw):
        from parity import test_pytorch_optimizer

        theirs, mine, factors = getattr(test_pytorch_optimizer, kind)(draw)
        return theirs, mine, LRS, factors and [lr * factor for lr, factor in zip(LRS, factors, strict=True)]

    return options


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("their_class", "our_class", "options"),
    [
        pytest.param("torch.Adafactor", "Adafactor", torch_adafactor, id="torch.Adafactor"),
        pytest.param("torch.Adam", "Lamb", torch_adam, id="torch.Adam"),
        pytest.param("torch.SGD", "Lars", torch_sgd, id="torch.SGD"),
        pytest.param("transformers.Adafactor", "Adafactor", transformers_adafactor, id="transformers", marks=SLOW),
        pytest.param("pytorch_optimizer.Lamb", "Lamb", pytorch_optimizer("lamb"), id="kozistr.Lamb", marks=SLOW),
        pytest.param("pytorch_optimizer.LARS", "Lars", pytorch_optimizer("lars"), id="kozistr.LARS", marks=SLOW),
        pytest.param(
            "pytorch_optimizer.AdaFactor", "Adafactor", pytorch_optimizer("adafactor"), id="kozistr.AF", marks=SLOW
        ),
    ],
)
def test_drawn_options(their_class, our_class, options, seed):
    cls = peer(their_class)
    theirs, mine, their_lrs, our_lrs, *other = options(Draw(seed))
    params, grads = tensors(zero_gradients="LARS" not in their_class)
    # pytorch_optimizer computes the global norm of pre_norm in float32.
    of_move = 1e-6 if theirs.get("pre_norm") else 0.0
    first = {} if "lr" in theirs or not their_lrs else {"lr": their_lrs[0]}
    them = torch_steps(lambda ps: (other or [cls])[0](ps, **first, **theirs), params, grads, their_lrs)
    us = ours(Stepper(getattr(front, our_class), **mine), params, grads, our_lrs)
    assert_same(us, them, params, 1e-12, of_move)


@pytest.mark.parametrize("seed", seeds(3, 6))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_numpy_front(case, seed):
    options = case.drawn(seed)
    params, grads = tensors()
    mine = ours(Stepper(getattr(front, case.name), **options), params, grads)
    assert_same(mine, ours(case.numpy(**options), params, grads), params, 1e-11)
