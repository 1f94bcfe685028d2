"""torch.optim.Adafactor run beside ours; and its Adam, AdamW and SGD, which are LAMB and LARS without the ratio."""

import numpy as np
import pytest
from parity.live import SHAPES, Draw, assert_same, largest, ours, tensors, torch_steps

from layerwise import preset
from layerwise.numpy import SGD, Adafactor, AdamW, Lamb, Lars, Muon

torch = pytest.importorskip("torch")

DRAWS = range(10)
LRS = [0.002, 0.004, 0.016, 0.008, 0.001]


def adafactor(draw):
    """One draw: the arguments of torch.optim.Adafactor, and ours."""
    lr, d = draw.between(1e-3, 1e-1), draw.of(1.0, 1.5, 4.0)
    shared = {
        "eps": (draw.of(None, 1e-30, 1e-8, 1e-2), draw.of(1e-3, 0.5)),
        "beta2_decay": draw.of(-0.8, -0.5, -1.0),
        "weight_decay": draw.of(0.0, 0.1, 1.0),
        "maximize": draw.of(True, False),
    }
    return {"lr": lr, "d": d, "foreach": draw.of(True, False), **shared}, {"lr_cap": lr, "clip_threshold": d, **shared}


def adam(draw):
    decay = draw.of("decoupled", "l2")
    shared = {
        "betas": (draw.of(0.0, 0.9), draw.of(0.95, 0.999)),
        "eps": draw.of(1e-8, 1e-2),
        "weight_decay": draw.of(0.0, 0.1),
        "maximize": draw.of(True, False),
    }
    their_class = torch.optim.AdamW if decay == "decoupled" else torch.optim.Adam
    return their_class, shared, {"decay": decay, "adapt": False, **shared}


def sgd(draw):
    momentum, dampening = draw.of(0.0, 0.5, 0.9), draw.of(0.0, 0.25, 1.0)
    shared = {
        "momentum": momentum,
        "dampening": dampening,
        "weight_decay": draw.of(0.0, 0.1),
        "nesterov": momentum > 0 and dampening == 0 and draw.of(True, False),
        "maximize": draw.of(True, False),
    }
    return torch.optim.SGD, shared, {"adapt": False, "lr_in_momentum": False, **shared}


@pytest.mark.parametrize("seed", DRAWS)
def test_adafactor(seed):
    their_options, our_options = adafactor(Draw(seed))
    params, grads = tensors()
    mine = ours(Adafactor(**{**preset("torch.Adafactor"), **our_options}), params, grads)
    peer = torch_steps(lambda ps: torch.optim.Adafactor(ps, **their_options), params, grads)
    assert_same(mine, peer, params, 1e-12)


@pytest.mark.parametrize(
    ("dtype", "of_size", "of_move"),
    [
        # torch takes R and C of norms, ‖g‖²/n, and √V of the product R·C.
        pytest.param("float64", 1e-12, 0.0, id="float64"),
        pytest.param("float32", 3e-6, 1e-5, id="float32"),
    ],
)
@pytest.mark.parametrize("foreach", [True, False])
def test_adafactor_defaults(dtype, of_size, of_move, foreach):
    params, grads = tensors(dtype)
    mine = ours(Adafactor(**preset("torch.Adafactor")), params, grads)
    peer = torch_steps(lambda ps: torch.optim.Adafactor(ps, foreach=foreach), params, grads)
    assert_same(mine, peer, params, of_size, of_move)


OF_FLOAT32 = {"eps": (float(np.finfo(np.float32).eps), 1e-3)}


@pytest.mark.parametrize(("options", "same"), [({}, True), (OF_FLOAT32, False)], ids=["its own", "float32's"])
def test_adafactor_takes_the_epsilon_of_bfloat16(options, same):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    # Gradients so small that eps1, the epsilon of bfloat16, is the divisor: u = g / 2^-7, far below the clip.
    p, g = np.zeros(4, bfloat16), np.array([1.0, -0.5, 0.25, 0.75]).astype(bfloat16) * bfloat16(2.0**-14)
    weights = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    weights.grad = torch.tensor(g.astype(np.float32)).bfloat16()
    torch.optim.Adafactor([weights]).step()
    Adafactor(**{**preset("torch.Adafactor"), **options}).step("p", p, g)
    # bfloat16 holds 8 bits, and torch rounds V, 1/√V, u and the step to them.
    theirs = weights.detach().double().numpy()
    assert np.allclose(p.astype(float), theirs, rtol=4 * 2.0**-8, atol=0) == same


@pytest.mark.parametrize("seed", DRAWS)
@pytest.mark.parametrize(
    ("our_class", "options"),
    [(Lamb, adam), (Lars, sgd), (AdamW, adam), (SGD, sgd)],
    ids=["adam", "sgd", "AdamW", "SGD"],
)
def test_without_the_ratio(our_class, options, seed):
    their_class, their_options, our_options = options(Draw(seed))
    our_options = {key: x for key, x in our_options.items() if key in our_class._hyper.__dataclass_fields__}
    params, grads = tensors()
    peer = torch_steps(lambda ps: their_class(ps, lr=LRS[0], **their_options), params, grads, LRS)
    assert_same(ours(our_class(**our_options), params, grads, LRS), peer, params, 1e-12)


@pytest.mark.parametrize(
    ("name", "our_class", "their_class"),
    [
        ("torch.AdamW", AdamW, torch.optim.AdamW),
        ("torch.Adam", AdamW, torch.optim.Adam),
        ("torch.SGD", SGD, torch.optim.SGD),
    ],
)
@pytest.mark.parametrize(("dtype", "of_size"), [("float64", 1e-13), ("float32", 3e-7)])
@pytest.mark.parametrize("foreach", [True, False])
def test_presets_of_what_has_no_ratio(name, our_class, their_class, dtype, of_size, foreach):
    params, grads = tensors(dtype)
    mine = ours(our_class(**preset(name), lr=0.01), params, grads)
    peer = torch_steps(lambda ps: their_class(ps, lr=0.01, foreach=foreach), params, grads)
    assert_same(mine, peer, params, of_size, 0.0 if dtype == "float64" else 1e-6)


MATRICES = {"matrix": SHAPES["matrix"], "wide": SHAPES["wide"], "zeros": (4, 3)}


def muon(draw):
    """One draw: the arguments of torch.optim.Muon, and ours."""
    shared = {
        "lr": draw.between(1e-3, 1e-1),
        "momentum": draw.of(0.5, 0.95),
        "weight_decay": draw.of(0.0, 0.1),
        "nesterov": draw.of(True, False),
        "ns_coefficients": draw.of((3.4445, -4.7750, 2.0315), (2.0, -1.5, 0.5)),
        "ns_steps": draw.of(5, 1, 6),
        "eps": draw.of(1e-7, 1.0),
    }
    scale = draw.of("original", "match_rms_adamw")
    return {"adjust_lr_fn": scale, **shared}, {"scale": scale, **shared}


@pytest.mark.parametrize("seed", DRAWS)
@pytest.mark.parametrize("iterates_in", ["float64", "bfloat16"])
def test_muon(seed, iterates_in, monkeypatch):
    """Its iterations are in bfloat16, as ours by the preset, rounded elsewhere; in float64 they are the same."""
    their_options, our_options = muon(Draw(seed))
    if iterates_in == "float64":
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        our_options["ns_dtype"] = "float32"
    params, grads = tensors(shapes=MATRICES)
    mine = ours(Muon(**{**preset("torch.Muon"), **our_options}), params, grads)
    peer = torch_steps(lambda ps: torch.optim.Muon(ps, **their_options), params, grads)
    if iterates_in == "float64":
        assert_same(mine, peer, params, 1e-11)
        return
    before = params
    for a, b in zip(mine, peer, strict=True):
        for name, p in a.items():
            assert largest(p - b[name]) <= 0.06 * largest(b[name] - params[name]) + 1e-12
        before = a
    assert any(largest(before[name] - params[name]) > 0 for name in params)


@pytest.mark.parametrize("name", ["kellerjordan.Muon", "moonlight.Muon"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_by_others_sources(name, nesterov):
    """With an average as Jordan's file keeps it, or heavy ball as Moonlight's; both add eps to the norm."""
    params, grads = tensors(shapes=MATRICES)
    mine = ours(
        Muon(
            **{
                **preset(name),
                "lr": 0.1,
                "momentum": 0.9,
                "weight_decay": 0.2,
                "nesterov": nesterov,
                "ns_dtype": "float32",
            }
        ),
        params,
        grads,
    )
    heavy = name == "moonlight.Muon"

    def theirs():
        weights, buffers = dict(params), dict.fromkeys(params, 0.0)
        for g in grads:
            for key, p in weights.items():
                buffers[key] = 0.9 * buffers[key] + (1 if heavy else 0.1) * g[key]
                u = buffers[key] if not nesterov else (1 if heavy else 0.1) * g[key] + 0.9 * buffers[key]
                rows, columns = p.shape
                scale = 0.2 * max(rows, columns) ** 0.5 if heavy else max(1, rows / columns) ** 0.5
                x = u / (np.linalg.norm(u) + 1e-7)
                for _ in range(5):
                    s = x @ x.T
                    x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
                weights[key] = p - 0.1 * 0.2 * p - 0.1 * scale * x
            yield dict(weights)

    assert_same(mine, theirs(), params, 1e-5)
