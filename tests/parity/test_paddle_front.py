"""Paddle's own optimizers, beside ours under the same arguments."""

import inspect

import numpy as np
import pytest
from paddle_front.front import paddle
from parity.live import SHAPES, Draw, assert_same, tensors

from layerwise.paddle import AdamW, Lamb, Lars

pytestmark = pytest.mark.slow

NAMES = sorted(SHAPES)
STEPS = 20
nn, schedulers = paddle.nn, paddle.optimizer.lr


def weights_of(params, dtype=None, **given):
    found = {}
    for name, a in params.items():
        p = paddle.create_parameter(a.shape, str(a.dtype), name=name, attr=paddle.ParamAttr(**given))
        p.name = name
        p.set_value(a)
        if dtype is not None:
            p = paddle.base.framework.EagerParamBase.from_tensor(paddle.cast(p.detach(), dtype))
            p.name = name
        found[name] = p
    return found


def gradients(dtype, seed):
    """Parameters, and gradients of twenty steps of which a few have another size."""
    params, first = tensors(dtype)
    draw = np.random.default_rng(seed)
    more = [
        {
            name: np.asarray(draw.standard_normal(p.shape) * 4.0 ** draw.integers(-2, 2), dtype)
            for name, p in params.items()
        }
        for _ in range(STEPS - len(first))
    ]
    return params, first + more


def steps(make, weights, grads, scheduler=None):
    """The weights after each step of an optimizer of Paddle's kind."""
    opt = make(weights)
    for g in grads:
        for name, w in weights.items():
            w.grad = paddle.cast(paddle.to_tensor(g[name]), w.dtype)
        opt.step()
        if scheduler is not None:
            scheduler.step()
        yield {name: paddle.cast(w, "float64").numpy() for name, w in weights.items()}


# Of Paddle β, ε and λ are in float32, so only numbers exact in it are the same on both sides.
def drawn(draw):
    """Draw arguments that `paddle.optimizer.Lamb` takes, without `parameters`, and what its groups say."""
    clip = draw.of(None, nn.ClipGradByGlobalNorm(0.5), nn.ClipGradByValue(0.25), nn.ClipGradByValue(1.0, -0.125))
    excluded = [name for name in NAMES if draw.of(True, False)]
    options = {
        "learning_rate": draw.of(
            2.0**-6, lambda: schedulers.StepDecay(2.0**-6, 5, 0.5), lambda: schedulers.NoamDecay(64, 8)
        ),
        "lamb_weight_decay": draw.of(0.0, 2.0**-7, 0.5),
        "beta1": draw.of(0.0, 0.5, 0.875),
        "beta2": draw.of(0.5, 0.9375, 1 - 2.0**-10),
        "epsilon": draw.of(2.0**-20, 2.0**-7),
        "grad_clip": clip,
        "exclude_from_weight_decay_fn": draw.of(None, lambda p: p.name in excluded),
        "always_adapt": draw.of(True, False),
    }
    return options, draw.of(None, *(_groups(draw) for _ in range(2)))


def _groups(draw):
    """Draw what two groups say, and which parameters are in the first."""
    each = [
        {
            "learning_rate": draw.of(0.5, 1.0, 2.0),
            **draw.of({}, {"weight_decay": 0.25}, {"weight_decay": paddle.regularizer.L1Decay(0.125)}),
            **draw.of({}, {"grad_clip": None}, {"grad_clip": nn.ClipGradByGlobalNorm(1.0)}),
            **draw.of({}, {"lamb_weight_decay": 0.25, "beta1": 0.75}, {"epsilon": 0.125, "beta2": 0.75}),
        }
        for _ in range(2)
    ]
    return each, [name for name in NAMES if draw.of(True, False)] or NAMES[:1]


def optimizer(front, options, groups):
    """Return what makes the optimizer of weights, and its scheduler."""
    rate = options["learning_rate"]
    scheduler = rate() if callable(rate) else None
    given = {**options, "learning_rate": scheduler or rate}

    def make(weights):
        if groups is None:
            return front(parameters=list(weights.values()), **given)
        each, first = groups
        members = [[w for name, w in weights.items() if (name in first) is where] for where in (True, False)]
        return front(parameters=[{"params": p, **own} for p, own in zip(members, each, strict=True) if p], **given)

    return make, scheduler


def assert_alike(mine, theirs, params, grads, of_size, of_move=0.0, dtype=None, **given):
    each = [steps(make, weights_of(params, dtype, **given), grads, one) for make, one in (mine, theirs)]
    assert_same(*each, params, of_size, of_move)


@pytest.mark.parametrize(
    ("seed", "engine"), [*((seed, None) for seed in range(10)), *((seed, "rule") for seed in range(4))]
)
def test_lamb_with_drawn_options(seed, engine):
    draw = Draw(seed)
    options, groups = drawn(draw)
    params, grads = gradients("float64", seed)

    def front(**given):
        return Lamb(engine=engine, **given)

    mine, theirs = optimizer(front, options, groups), optimizer(paddle.optimizer.Lamb, options, groups)
    assert_alike(mine, theirs, params, grads, 1e-11)


@pytest.mark.parametrize("seed", range(20, 24))
def test_lamb_with_drawn_options_in_float32(seed):
    options, groups = drawn(Draw(seed))
    params, grads = gradients("float32", seed)
    each = [optimizer(front, options, groups) for front in (Lamb, paddle.optimizer.Lamb)]
    assert_alike(*each, params, grads, 5e-6, 1e-5)


@pytest.mark.parametrize("given", [{}, {"always_adapt": True}, {"lamb_weight_decay": 0.0}], ids=str)
def test_lamb_by_default(given):
    params, grads = gradients("float32", 1)
    each = [
        (lambda weights, front=front: front(parameters=list(weights.values()), **given), None)
        for front in (Lamb, paddle.optimizer.Lamb)
    ]
    # 1 − β₂ = 0.001 of a β₂ in float32 is off by half of 2^-24 / 0.001, of which √v̂ has half.
    assert_alike(*each, params, grads, 3e-6, 6e-5)


@pytest.mark.parametrize(
    "clip", [nn.ClipGradByGlobalNorm(0.5), nn.ClipGradByNorm(0.5), nn.ClipGradByValue(0.25)], ids=str
)
@pytest.mark.parametrize("need_clip", [True, False])
def test_clips(clip, need_clip):
    params, grads = gradients("float32", 2)
    options = {"learning_rate": 2.0**-6, "beta1": 0.875, "beta2": 1 - 2.0**-10, "grad_clip": clip}
    each = [optimizer(front, options, None) for front in (Lamb, paddle.optimizer.Lamb)]
    assert_alike(*each, params, grads, 5e-6, 1e-5, need_clip=need_clip)


def test_what_is_said_of_parameters():
    params, grads = gradients("float64", 3)
    options = {
        "learning_rate": 2.0**-6,
        "beta1": 0.875,
        "beta2": 1 - 2.0**-10,
        "epsilon": 2.0**-20,
        "lamb_weight_decay": 2.0**-7,
    }
    each = [optimizer(front, options, None) for front in (Lamb, paddle.optimizer.Lamb)]
    of_all = {"learning_rate": 0.5, "regularizer": paddle.regularizer.L2Decay(0.25)}
    assert_alike(*each, params, grads, 1e-11, **of_all)


def test_the_signature_begins_with_paddle_s():
    theirs = inspect.signature(paddle.optimizer.Lamb).parameters
    ours = inspect.signature(Lamb).parameters
    first = list(ours.values())[: len(theirs)]
    assert [(p.name, p.kind, p.default) for p in first] == [(p.name, p.kind, p.default) for p in theirs.values()]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[len(theirs) :])


@pytest.mark.parametrize("decay", [0.0, 0.125])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lars(decay, dtype):
    from paddle.incubate.optimizer import LarsMomentumOptimizer

    params, grads = gradients(dtype, 4)

    def mine(weights):
        options = {"momentum": 0.875, "trust_coefficient": 2.0**-8, "weight_decay": decay, "adapt": "decayed"}
        return Lars(0.5, parameters=list(weights.values()), **options)

    def theirs(weights):
        options = {"lars_coeff": 2.0**-8, "lars_weight_decay": decay, "parameter_list": list(weights.values())}
        return LarsMomentumOptimizer(0.5, 0.875, **options)

    assert_alike((mine, None), (theirs, None), params, grads, *((5e-6, 1e-5) if dtype == "float32" else (1e-11,)))


def test_adamw_and_its_state():
    params, grads = gradients("float32", 5)
    options = {
        "learning_rate": 2.0**-8,
        "weight_decay": 0.125,
        "beta1": 0.875,
        "beta2": 1 - 2.0**-10,
        "epsilon": 2.0**-20,
    }
    each = [
        (lambda weights, front=front: front(parameters=list(weights.values()), **options), None)
        for front in (AdamW, paddle.optimizer.AdamW)
    ]
    assert_alike(*each, params, grads, 5e-6, 1e-5)
    with paddle.utils.unique_name.guard():
        weights = weights_of(params)
        theirs = paddle.optimizer.AdamW(parameters=list(weights.values()), **options)
        for name, w in weights.items():
            w.grad = paddle.to_tensor(grads[0][name])
        theirs.step()
    ours = AdamW(parameters=list(weights.values()), **options)
    ours.set_state_dict(theirs.state_dict())
    assert {slot.step for slot in ours._tensors.slots.values()} == {1}


SCRIPT = """
import numpy as np
import paddle
import paddle.nn as nn
from paddle.optimizer import Lamb


class Classifier(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0), 2)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(axis=1))


paddle.seed(7)
model = Classifier()
decayed = lambda name: not any(word in name for word in ("bias", "norm"))
kept = [p.name for n, p in model.named_parameters() if decayed(n)]
schedule = paddle.optimizer.lr.LinearWarmup(
    paddle.optimizer.lr.PolynomialDecay(0.02, 20, end_lr=0.0), warmup_steps=5, start_lr=0.0, end_lr=0.02
)
optimizer = Lamb(
    learning_rate=schedule,
    lamb_weight_decay=0.01,
    parameters=[
        {"params": model.embed.parameters(), "learning_rate": 0.5},
        {"params": model.encoder.parameters() + model.head.parameters()},
    ],
    grad_clip=nn.ClipGradByGlobalNorm(1.0),
    exclude_from_weight_decay_fn=lambda p: p.name not in kept,
)
draw = np.random.default_rng(7)
losses = []
for step in range(20):
    tokens = paddle.to_tensor(draw.integers(0, 20, (16, 8)))
    labels = paddle.to_tensor(draw.integers(0, 3, 16))
    loss = nn.functional.cross_entropy(model(tokens), labels)
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.clear_grad()
    losses.append(loss.item())
"""
THEIRS, OURS = "from paddle.optimizer import Lamb", "from layerwise.paddle import Lamb"


def test_a_script_with_one_line_switched():
    losses = []
    for line in (THEIRS, OURS):
        assert SCRIPT.count(THEIRS) == 1
        found = {}
        with paddle.utils.unique_name.guard():
            exec(compile(SCRIPT.replace(THEIRS, line), "script", "exec"), found)  # noqa: S102
        losses.append(found["losses"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][0] - losses[0][-1] > 0.01
