"""Optimizers of pytorch_optimizer run beside ours, where their formulas are those of the papers.

Lamb: no bias correction of v; that of m is on lr, outside the ratio, unless adam_debias=True. Its eps is also added to
the denominator of the ratio, and to the norm that pre_norm clips by, where it is drawn too small to matter. rectify and
adanorm are other optimizers.
LARS: tensors of one dimension and none are plain SGD; a zero gradient with decay has the ratio η/λ where ours is 1; the
first gradient is dampened too.
AdaFactor: the momentum is rounded to momentum_dtype before it is used, not after; weight_decouple=False and ams_bound
are other optimizers.
NovoGrad: adam_debias corrects lr for v's start; fixed_decay has no equal.
CAME: weight_decouple=False and ams_bound are other optimizers.
StableAdamW: weight_decouple=False is another optimizer.
"""

from functools import partial

import pytest
from parity.live import SHAPES, Draw, assert_same, ours, tensors, torch_steps

import layerwise
from layerwise import preset
from layerwise.numpy import Adafactor, Came, Lamb, Lars, NovoGrad, StableAdamW

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
peer = pytest.importorskip("pytorch_optimizer")
pytest.importorskip("layerwise.torch")

LRS = [0.002, 0.004, 0.016, 0.008, 0.001]
VECTORS = {name: False for name, shape in SHAPES.items() if len(shape) < 2}


def lamb(draw):
    """One draw: the arguments of pytorch_optimizer.Lamb, ours, and the factor on our lr at each step."""
    b1, b2 = draw.of(0.0, 0.5, 0.9), draw.of(0.95, 0.999)
    in_ratio, debias = draw.of(True, False), draw.of(True, False)
    adam, clip = draw.of(True, False), draw.of(None, 0.5, 4.0)
    # Its correction of m raises the step, but not the decay.
    decay = draw.of(0.0, 0.1, 1.0) if in_ratio or debias else 0.0
    eps = draw.of(1e-15, 1e-6, 1e-2)
    shared = {"betas": (b1, b2), "eps": 1e-15 if clip else eps, "weight_decay": decay}
    shared |= {"grad_averaging": draw.of(True, False), "maximize": draw.of(True, False)}
    return (
        {
            "weight_decouple": not in_ratio,
            "adam_debias": debias,
            "adam": adam,
            "pre_norm": clip is not None,
            "max_grad_norm": clip or 1.0,
            "foreach": draw.of(True, False),
            **shared,
        },
        {
            "decay": "ratio" if in_ratio else "decoupled",
            "adapt": not adam,
            "max_grad_norm": clip,
            "bias_correction": False,
            "max_weight_norm": 10.0,
            "trust_eps": shared["eps"],
            **shared,
        },
        [1.0 if debias else 1 / (1 - b1**t) for t in range(1, 6)],
    )


def lars(draw):
    momentum = draw.of(0.0, 0.5, 0.9)
    shared = {
        "momentum": momentum,
        "weight_decay": draw.of(0.0, 0.1, 1.0),
        "trust_coefficient": draw.between(1e-3, 1e-1),
        "nesterov": momentum > 0 and draw.of(True, False),
        "maximize": draw.of(True, False),
    }
    mine = {"lr_in_momentum": False, "adapt": VECTORS, "decay": VECTORS}
    return {"foreach": draw.of(True, False), **shared}, {**mine, **shared}, [1.0] * 5


def adafactor(draw):
    """lr is None on our side where theirs is not looked at."""
    beta1, cap = draw.of(None, 0.0, 0.9), draw.of(0.5, 0.999)
    relative, fixed = draw.of(True, False), draw.of(True, False)
    rate, eps = draw.of(-0.8, -0.5), (draw.of(1e-30, 1e-8), draw.of(1e-3, 0.5))
    shared = {
        "relative_step": relative,
        "scale_parameter": draw.of(True, False),
        "warmup_init": relative and draw.of(True, False),
        "weight_decay": draw.of(0.0, 0.01, 0.1),
        "clip_threshold": draw.of(0.5, 1.0, 2.0),
        "maximize": draw.of(True, False),
    }
    return (
        {
            "betas": (beta1, cap),
            "decay_rate": rate,
            "fixed_decay": fixed,
            "eps1": eps[0],
            "eps2": eps[1],
            "momentum_dtype": torch.float64,
            "foreach": draw.of(True, False),
            **shared,
        },
        {
            "lr": None if relative else LRS[0],
            "beta1": beta1,
            "beta2_cap": cap,
            "beta2_decay": rate,
            "decay_scale": "none" if fixed else "step",
            "eps": eps,
            **shared,
        },
        None if relative else [1.0] * 5,
    )


def novograd(draw):
    b1, b2 = draw.of(0.0, 0.5, 0.95), draw.of(0.25, 0.98)
    debias = draw.of(True, False)
    decoupled = draw.of(True, False) and not debias  # which its correction of v leaves alone
    shared = {
        "betas": (b1, b2),
        "eps": draw.of(1e-8, 1e-2),
        "weight_decay": draw.of(0.0, 0.1, 1.0),
        "grad_averaging": draw.of(True, False),
        "maximize": draw.of(True, False),
    }
    theirs = {"weight_decouple": decoupled, "adam_debias": debias, "foreach": draw.of(True, False), **shared}
    mine = preset("pytorch_optimizer.NovoGrad", decay="decoupled" if decoupled else "momentum", **shared)
    return theirs, mine, [(1 - b2**t) ** 0.5 if debias else 1.0 for t in range(1, 6)]


def came(draw):
    betas, b3 = (draw.of(0.0, 0.5, 0.9), draw.of(0.5, 0.999)), draw.of(0.0, 0.9, 0.9999)
    fixed, eps = draw.of(True, False), (draw.of(1e-30, 1e-8), draw.of(1e-16, 1e-3))
    shared = {
        "weight_decay": draw.of(0.0, 0.01, 0.1),
        "clip_threshold": draw.of(0.5, 1.0, 2.0),
        "maximize": draw.of(True, False),
    }
    theirs = {"betas": (*betas, b3), "fixed_decay": fixed, "eps1": eps[0], "eps2": eps[1]}
    return (
        {"foreach": draw.of(True, False), **theirs, **shared},
        {"betas": betas, "beta3": b3, "decay_scale": "none" if fixed else "lr", "eps": eps, **shared},
        [1.0] * 5,
    )


def stableadamw(draw):
    shared = {
        "betas": (draw.of(0.0, 0.5, 0.9), draw.of(0.5, 0.99)),
        "eps": draw.of(1e-8, 1e-2),
        "weight_decay": draw.of(0.0, 0.1, 1.0),
        "maximize": draw.of(True, False),
    }
    return {"foreach": draw.of(True, False), **shared}, shared, [1.0] * 5


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("their_class", "our_class", "options"),
    [
        pytest.param(peer.Lamb, Lamb, lamb, id="lamb"),
        pytest.param(peer.LARS, Lars, lars, id="lars"),
        pytest.param(peer.AdaFactor, Adafactor, adafactor, id="adafactor"),
        pytest.param(peer.NovoGrad, NovoGrad, novograd, id="novograd"),
        pytest.param(peer.CAME, Came, came, id="came"),
        pytest.param(peer.StableAdamW, StableAdamW, stableadamw, id="stableadamw"),
    ],
)
def test_drawn_options(their_class, our_class, options, seed):
    their_options, our_options, factors = options(Draw(seed))
    params, grads = tensors(zero_gradients=our_class is not Lars)
    lrs = factors and [lr * factor for lr, factor in zip(LRS, factors, strict=True)]
    theirs = torch_steps(lambda ps: their_class(ps, lr=LRS[0], **their_options), params, grads, LRS)
    # The global norm of pre_norm is computed in float32.
    of_move = 1e-6 if their_options.get("pre_norm") else 0.0
    assert_same(ours(our_class(**our_options), params, grads, lrs), theirs, params, 1e-12, of_move)


@pytest.mark.parametrize(
    ("their_class", "our_class", "their_options", "our_options"),
    [
        (peer.Lamb, Lamb, {"adam_debias": True}, {"bias_correction": False, "trust_eps": 1e-6}),
        (peer.LARS, Lars, {}, {"lr_in_momentum": False, "adapt": VECTORS, "decay": VECTORS}),
        (peer.AdaFactor, Adafactor, {"betas": (None, 0.999)}, {"lr": None, "beta2_cap": 0.999}),
        (peer.CAME, Came, {}, {}),
        (peer.StableAdamW, StableAdamW, {}, preset("pytorch_optimizer.StableAdamW")),
    ],
)
def test_float32(their_class, our_class, their_options, our_options):
    params, grads = tensors("float32")
    theirs = torch_steps(lambda ps: their_class(ps, lr=0.01, **their_options), params, grads)
    assert_same(ours(our_class(**{"lr": 0.01, **our_options}), params, grads), theirs, params, 3e-6, 1e-5)


@pytest.mark.filterwarnings("ignore:a parameter group has the unknown option 'adaptive'")
@pytest.mark.parametrize("front", ["Lamb", "AdamW"])
def test_its_sam_wraps_ours(front):
    """Beside its SAM around PyTorch's AdamW, where ours is that."""
    torch.manual_seed(0)
    x, options = torch.randn(8, 3), {"lr": 0.01, "weight_decay": 0.1}
    mine, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(mine.state_dict())
    own = {"adapt": False, "decay": "decoupled", "eps": 1e-8} if front == "Lamb" else {}
    wrapped = partial(getattr(layerwise.torch, front), **own)
    for model, base in ((mine, wrapped), (theirs, torch.optim.AdamW)):
        opt = peer.SAM(model.parameters(), base, rho=0.1, foreach=None, **options)

        def closure(model=model, opt=opt):
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            closure()
            opt.step(closure)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
