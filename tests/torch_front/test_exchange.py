"""Checkpoints that go from other libraries' optimizers to ours and back, beside a run that stays where it is."""

import base64
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from layerwise import preset
from layerwise.errors import StateError

torch = pytest.importorskip("torch")
from layerwise.torch import SGD, Adafactor, AdamW, Lamb, Lars, convert, convert_back  # noqa: E402
from layerwise.torch.checkpoints import _others  # noqa: E402
from layerwise.torch.checkpoints._back import TARGETS  # noqa: E402
from layerwise.torch.checkpoints._convert import SOURCES  # noqa: E402
from layerwise.torch.checkpoints._origin import WRITERS  # noqa: E402

BEFORE, AFTER = 4, 3
SHAPES = [(24, 18), (64, 64), (7,)]
CUBES = [(20, 17, 3), (3, 18, 20), (2, 5, 19)]  # of which timm factors the first two dimensions, the last two, none


def parameters(shapes, dtype, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)) for shape in shapes]


def go(optimizer, steps):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in steps:
        for p, g in zip(params, parameters([p.shape for p in params], params[0].dtype, 100 + step), strict=True):
            p.grad = g.detach()
        optimizer.step()
    return [p.detach().clone() for p in params]


def differ(ours, theirs, begun):
    """By how much they differ, as a part of what moved most."""
    return max(float((p - q).abs().max() / (q - x).abs().max()) for p, q, x in zip(ours, theirs, begun, strict=True))


class Kind(NamedTuple):
    """How an optimizer is made there and here, and how near they are after one step, after all, and on the way back."""

    source: str
    module: str
    theirs: object  # given the module and parameters
    ours: object
    shapes: tuple = (*SHAPES,)
    dtype: object = torch.float64
    first: float = 1e-12
    after: float = 1e-12
    back: float = 1e-12


def bnb(source, name, ours, after=0.03, back=0.03, **options):
    return Kind(
        f"bitsandbytes.{source}",
        "bitsandbytes",
        lambda m, ps: getattr(m.optim, name)(ps, **options),
        ours,
        dtype=torch.float32,
        first=1e-4,
        after=after,
        back=back,
    )


def torchao(name, back, after):
    options = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}
    ours = {**options, "eps": 1e-8}
    return Kind(
        f"torchao.{name}",
        "torchao.optim",
        lambda m, ps: getattr(m, name)(ps, **options),
        lambda ps: AdamW(ps, **{**ours, "lr": 0.5}),
        dtype=torch.float32,
        first=1e-4,
        after=after,
        back=back,
    )


def timm_adafactor(options, **mine):
    def ours(ps):
        plain = {**preset("timm.cadafactor"), "beta1": None, "caution": False, **mine}
        return Adafactor([{"params": ps[:1], "factored": (0, 1)}, {"params": ps[1:]}], **plain)

    return Kind(
        "timm.Adafactor",
        "timm.optim.adafactor",
        lambda m, ps: m.Adafactor([{"params": ps[:1]}, {"params": ps[1:]}], **options),
        ours,
        (*CUBES, *SHAPES),
    )


def big_vision(**options):
    """With its momentum in bfloat16 it rounds before it steps, and ours does after."""
    return Kind(
        "timm.AdafactorBigVision",
        "timm.optim.adafactor_bv",
        lambda m, ps: m.AdafactorBigVision(ps, lr=0.01, momentum_dtype="float32", **options),
        lambda ps: Adafactor(ps, **{**preset("timm.AdafactorBigVision"), "momentum_dtype": "float32", "lr": 0.5}),
        (*CUBES, *SHAPES),
        torch.float32,
        1e-4,
        1e-4,
        1e-4,
    )


ADAM = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}
FLASH = {"quantize": False, "fused": False, "master_weight_bits": None}
KINDS = {
    "torch.AdamW": Kind(
        "torch.Adam", "torch.optim", lambda m, ps: m.AdamW(ps, **ADAM), lambda ps: AdamW(ps, betas=(0.5, 0.5))
    ),
    "torch.SGD": Kind(
        "torch.SGD",
        "torch.optim",
        lambda m, ps: m.SGD(ps, lr=0.1, momentum=0.9),
        lambda ps: Lars(ps, lr=0.3, adapt=False, lr_in_momentum=False),
    ),
    "torch.SGD, lr in the momentum": Kind(
        "torch.SGD",
        "torch.optim",
        lambda m, ps: m.SGD(ps, lr=0.1, momentum=0.9),
        lambda ps: Lars(ps, lr=0.3, adapt=False),
    ),
    "torch.Adafactor": Kind(
        "torch.Adafactor",
        "torch.optim",
        lambda m, ps: m.Adafactor(ps, lr=0.2, weight_decay=0.1),
        lambda ps: Adafactor(ps, **{**preset("torch.Adafactor"), "lr_cap": 1e-2, "relative_step": "cap", "lr": 0.5}),
        (*CUBES, *SHAPES),
    ),
    "timm.Lamb": Kind(
        "timm.Lamb",
        "timm.optim.lamb",
        lambda m, ps: m.Lamb(ps, lr=0.01),
        lambda ps: Lamb(ps, **preset("timm.Lamb")),
    ),
    "timm.Lars": Kind(
        "timm.Lars",
        "timm.optim.lars",
        lambda m, ps: m.Lars(ps, lr=0.5, momentum=0.9, weight_decay=0.1),
        lambda ps: Lars(ps, **{**preset("timm.Lars"), "momentum": 0.1}),
    ),
    "timm.Adafactor": timm_adafactor({"weight_decay": 0.1}),
    "timm.Adafactor, lr": timm_adafactor(
        {"lr": 0.01, "betas": (0.8, 0.9)}, lr=0.5, scale_parameter=False, relative_step=False, beta1=0.8
    ),
    "timm.AdafactorBigVision": big_vision(),
    "transformers.Adafactor": Kind(
        "transformers.Adafactor",
        "transformers.optimization",
        lambda m, ps: m.Adafactor(ps, beta1=0.8),
        lambda ps: Adafactor(ps, **preset("transformers.Adafactor"), beta1=0.8),
        (*CUBES, *SHAPES),
    ),
    "transformers.Adafactor, lr": Kind(
        "transformers.Adafactor",
        "transformers.optimization",
        lambda m, ps: m.Adafactor(ps, lr=0.01, relative_step=False, scale_parameter=False),
        lambda ps: Adafactor(ps, **{**preset("transformers.Adafactor-T5"), "lr": 0.5}),
        (*CUBES, *SHAPES),
    ),
    "bitsandbytes.AdamW": bnb("Adam", "AdamW", lambda ps: AdamW(ps, eps=1e-8), 1e-4, 1e-4, **ADAM),
    "bitsandbytes.AdamW8bit": bnb("Adam", "AdamW8bit", lambda ps: AdamW(ps, eps=1e-8), min_8bit_size=1, **ADAM),
    "bitsandbytes.LAMB8bit": bnb(
        "LAMB", "LAMB8bit", lambda ps: Lamb(ps, eps=1e-8, adapt=False), lr=0.01, min_8bit_size=1
    ),
    "bitsandbytes.SGD": bnb("SGD", "SGD", lambda ps: SGD(ps, lr=1.0), 1e-4, 1e-4, lr=0.1, momentum=0.9),
    "bitsandbytes.SGD8bit": bnb("SGD", "SGD8bit", lambda ps: SGD(ps, lr=1.0), lr=0.1, momentum=0.9, min_8bit_size=1),
    "bitsandbytes.LARS8bit": bnb(
        "LARS", "LARS8bit", lambda ps: Lars(ps, adapt=False), lr=0.1, momentum=0.9, min_8bit_size=1
    ),
    "torchao.AdamW8bit": torchao("AdamW8bit", 0.03, 0.03),
    "torchao.AdamWFp8": torchao("AdamWFp8", 0.08, 0.08),
    "torchao.AdamW4bit": torchao("AdamW4bit", 0.3, 0.3),
    "flashoptim.FlashAdamW": Kind(
        "flashoptim.FlashAdamW",
        "flashoptim",
        lambda m, ps: m.FlashAdamW(ps, **ADAM, **FLASH),
        lambda ps: AdamW(ps, eps=1e-8),
        dtype=torch.float32,
        first=1e-4,
        after=1e-4,
        back=1e-4,
    ),
    "flashoptim.FlashSGD": Kind(
        "flashoptim.FlashSGD",
        "flashoptim",
        lambda m, ps: m.FlashSGD(ps, lr=0.1, momentum=0.9, **FLASH),
        lambda ps: SGD(ps, lr=1.0),
        dtype=torch.float32,
        first=1e-4,
        after=1e-4,
        back=1e-4,
    ),
}
SLOW = [
    pytest.param(name, marks=() if one.module == "torch.optim" else pytest.mark.slow) for name, one in KINDS.items()
]


def copies(params):
    return [torch.nn.Parameter(p.detach().clone()) for p in params]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SLOW)
def test_there_and_back(name):
    """A run of theirs goes on in ours, and the same run goes back after that."""
    kind = KINDS[name]
    module = pytest.importorskip(kind.module)
    params = parameters(kind.shapes, kind.dtype)
    theirs = kind.theirs(module, params)
    begun = go(theirs, range(BEFORE))
    ours = kind.ours(copies(params))
    ours.load_state_dict(convert(theirs.state_dict(), kind.source))
    first, wanted = go(ours, [BEFORE]), go(theirs, [BEFORE])
    assert differ(first, wanted, begun) <= kind.first
    later = range(BEFORE + 1, BEFORE + AFTER)
    last, wanted = go(ours, later), go(theirs, later)
    assert differ(last, wanted, begun) <= kind.after

    back = kind.theirs(module, copies([p for group in ours.param_groups for p in group["params"]]))
    back.load_state_dict(convert_back(ours.state_dict(), back, kind.source))
    more = range(BEFORE + AFTER, BEFORE + 2 * AFTER)
    assert differ(go(back, more), go(ours, more), last) <= kind.back


# ---- states as others saved them, without their packages

STATES = Path(__file__).parent / "states"


def unpacked(x):
    if not isinstance(x, dict):
        return x
    numbers = torch.frombuffer(bytearray(base64.b64decode(x["bytes"])), dtype=getattr(torch, x["dtype"]))
    return numbers.reshape(x["shape"])


def recorded(name, wrapped=False):
    """A checkpoint of one parameter, and the numbers that those who saved it read in it."""
    found = json.loads((STATES / f"{name}.json").read_text())
    state = {key: unpacked(x) for key, x in found["state"].items()}
    if wrapped:
        state = {"step": state.pop("step"), "__bnb_optimizer_quant_state__": state}
    saved = {"state": {0: state}, "param_groups": [found["group"]]}
    return saved, {key: unpacked(x) for key, x in found["numbers"].items()}


RECORDED = [("bitsandbytes.AdamW8bit", "bitsandbytes.Adam"), ("flashoptim.FlashAdamW", "flashoptim.FlashAdamW")]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("name", "source"), RECORDED)
def test_codes_are_the_numbers_that_others_read_in_them(name, source, wrapped):
    saved, numbers = recorded(name, wrapped and "bits" in name)
    found = convert(saved, source)
    state = found["state"][0]
    assert int(state["step"]) == 3
    for key, wanted in numbers.items():
        torch.testing.assert_close(state[key], wanted, rtol=2e-7, atol=0)
    ours = AdamW([torch.nn.Parameter(torch.ones(3, 100))], state_dtype="int8", lr=1.0)
    ours.load_state_dict(found)
    assert ours.param_groups[0]["lr"] == 0.01
    assert "initial_lr" not in ours.param_groups[0]


def test_scales_beside_bfloat16_parameters():
    """They are saved as bfloat16, with the bits of float16."""
    saved, numbers = recorded("flashoptim.FlashAdamW")
    state = saved["state"][0]
    state |= {key: x.view(torch.bfloat16) for key, x in state.items() if key.endswith("scales")}
    found = convert(saved, "flashoptim.FlashAdamW")["state"][0]
    for key, wanted in numbers.items():
        torch.testing.assert_close(found[key], wanted, rtol=2e-7, atol=0)


def test_numbers_go_to_the_nearest_code():
    """Codes that were read are the ones that are written again; the table of m has a 1 and no -1."""
    saved, numbers = recorded("bitsandbytes.AdamW8bit")
    state = saved["state"][0]
    for i, key in ((1, "exp_avg"), (2, "exp_avg_sq")):
        codes, largest = _others.to_bitsandbytes(numbers[key], state[f"qmap{i}"])
        assert torch.equal(codes, state[f"state{i}"])
        torch.testing.assert_close(largest, state[f"absmax{i}"], rtol=1 + float(state["qmap1"][0]) + 1e-5, atol=0)
    zeros, largest = _others.to_bitsandbytes(torch.zeros(300), state["qmap2"])
    assert not zeros.any()
    assert not largest.any()


def without(key):
    return lambda state, group: state.pop(key)


def now(key, value):
    return lambda state, group: state.update({key: value})


BROKEN = {
    "no table": ("bitsandbytes.Adam", without("qmap1"), "qmap1"),
    "one scale a tensor": ("bitsandbytes.Adam", without("absmax2"), "block_wise=False"),
    "4 bits": ("bitsandbytes.Adam", now("qmap1", torch.ones(16)), "has 256 numbers, and that of the checkpoint 16"),
    "other blocks": (
        "bitsandbytes.Adam",
        now("absmax1", torch.ones(5)),
        "300 codes with 5 scales are no blocks of 256",
    ),
    "two momenta": ("bitsandbytes.Adam", now("state1", torch.ones(2, 3, 100)), "AdEMAMix"),
    "Lion": ("bitsandbytes.SGD", lambda _, group: group.update(betas=(0.9, 0.99), eps=0.0), "not those of SGD or LARS"),
    "no second moment": ("flashoptim.FlashAdamW", without("exp_avg_sq::quantized"), "exp_avg_sq::quantized"),
    "other groups": ("flashoptim.FlashAdamW", now("exp_avg::scales", torch.ones(3)), "no blocks of 32"),
    "odd scales": ("flashoptim.FlashAdamW", now("exp_avg::scales", torch.ones(10, dtype=torch.int8)), "and torch.int8"),
    "codes that are no codes": ("bitsandbytes.Adam", now("qmap1", torch.ones(2, 256)), "256 numbers"),
    "state that is none": ("bitsandbytes.Adam", now("state1", None), "NoneType"),
    "another's": ("timm.Adafactor", without("step"), "step"),
}


@pytest.mark.parametrize("which", BROKEN)
def test_what_is_not_as_they_save_it(which):
    source, change, told = BROKEN[which]
    saved, _ = recorded(RECORDED["flash" in source][0])
    change(saved["state"][0], saved["param_groups"][0])
    with pytest.raises(StateError, match=told):
        convert(saved, source)


def test_codes_without_their_scales_are_no_numbers():
    saved = of_adam(state_dtype="int8")
    saved["param_groups"] = torch_adam().state_dict()["param_groups"]
    with pytest.raises(StateError, match="must have floating-point numbers, but has"):
        convert(saved, "torch.Adam")


def test_what_is_read_is_written_and_known_by_its_groups():
    assert SOURCES.keys() == TARGETS.keys() == WRITERS.keys()


@pytest.mark.parametrize("name", [None, ["torch.Adam"], {}, "torch.Rprop"])
def test_names_of_no_optimizer(name):
    with pytest.raises(StateError, match="Pass one of apex"):
        convert(of_adam(), name)
    with pytest.raises(StateError, match="Pass one of apex"):
        convert_back(of_adam(), torch_adam(), name)


def test_a_momentum_has_lr_or_has_not():
    theirs = torch.optim.SGD(parameters(SHAPES, torch.float64), lr=0.1, momentum=0.9)
    go(theirs, [0])
    with pytest.raises(StateError, match="`lr_in_momentum` must be True, False or None, but is 'no'"):
        convert(theirs.state_dict(), "torch.SGD", lr_in_momentum="no")


@pytest.mark.parametrize(("name", "source"), RECORDED)
def test_a_checkpoint_that_was_not_converted_names_the_converter(name, source):
    saved, _ = recorded(name)
    with pytest.raises(StateError, match=f'convert\\(state_dict, "{source}"\\)'):
        AdamW([torch.nn.Parameter(torch.ones(3, 100))]).load_state_dict(saved)


@pytest.mark.parametrize(
    ("row", "col", "shape"),
    [
        ((24,), (18,), (24, 18)),
        ((20, 3), (17, 3), (20, 17, 3)),
        ((3, 18), (3, 20), (3, 18, 20)),
        ((20, 20), (20, 20), (20, 20, 20)),
        ((20, 5, 5), (20, 5, 5), (20, 20, 5, 5)),
    ],
)
def test_the_dimensions_that_timm_has_factored(row, col, shape):
    rows, cols = _others.timm_dims_of(row, col, 16)
    assert (rows, cols) == _others.timm_dims(shape, 16)
    assert (row[:cols] + shape[cols : cols + 1] + row[cols:], col[:rows] + shape[rows : rows + 1] + col[rows:]) == (
        shape,
        shape,
    )


def test_means_of_no_tensor():
    with pytest.raises(StateError, match="min_dim_size_to_factor=16"):
        _others.timm_dims_of((4, 3), (5, 3), 16)


# ---- back


def of_adam(**options):
    ours = AdamW(parameters(SHAPES, torch.float64), **options)
    go(ours, [0])
    return ours.state_dict()


def torch_adam(shapes=SHAPES, **options):
    return torch.optim.Adam(parameters(shapes, torch.float64), **options)


@pytest.mark.parametrize(
    ("saved", "theirs", "target", "told"),
    [
        (of_adam, torch_adam, "torch.RMSprop", "Pass one of apex.FusedLAMB, bitsandbytes.Adam"),
        (of_adam, torch_adam, "timm.Lamb", "`optimizer` must be that of timm.Lamb, but is a Adam of torch"),
        (of_adam, lambda: None, "torch.Adam", "but is a NoneType of builtins"),
        (of_adam, lambda: torch.optim.SGD(parameters(SHAPES, torch.float64)), "torch.Adam", "but is a SGD of torch"),
        (of_adam, lambda: torch.optim.Adamax(parameters(SHAPES, torch.float64)), "torch.Adam", "but is a Adamax of"),
        (lambda: {**of_adam(), "state": {9: {}}}, torch_adam, "torch.Adam", "state of \\['9'\\], which belongs to no"),
        (of_adam, lambda: torch_adam(amsgrad=True), "torch.Adam", "amsgrad=True"),
        (of_adam, lambda: torch_adam(SHAPES[:2]), "torch.Adam", r"groups of \[3\] parameters"),
        (of_adam, lambda: torch_adam([(1, 432), *SHAPES[1:]]), "torch.Adam", r"must have the shape \(1, 432\)"),
        (of_adam, lambda: torch.optim.SGD(parameters(SHAPES, torch.float64)), "torch.SGD", "momentum_buffer"),
        (dict, torch_adam, "torch.Adam", "param_groups"),
    ],
)
def test_what_cannot_go_back(saved, theirs, target, told):
    with pytest.raises(StateError, match=told):
        convert_back(saved(), theirs(), target)


class Mine(torch.optim.AdamW):
    pass


def test_an_optimizer_derived_from_theirs():
    theirs = Mine(parameters(SHAPES, torch.float64))
    theirs.load_state_dict(convert_back(of_adam(), theirs, "torch.Adam"))
    assert theirs.state_dict()["state"][0]["step"] == 1


def of_adafactor(**options):
    ours = Adafactor(parameters(SHAPES, torch.float64), **options)
    go(ours, [0])
    return ours.state_dict()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"beta1": 0.9}, "no momentum"),
        ({"factored": False}, r"by rows along 0 and columns along 1, and ours did not"),
        ({"factored": ((1,), (0,))}, r"factored=\(0, 1\)"),
    ],
)
def test_what_pytorchs_adafactor_cannot_hold(options, told):
    theirs = torch.optim.Adafactor(parameters(SHAPES, torch.float64))
    with pytest.raises(StateError, match=told):
        convert_back(of_adafactor(**options), theirs, "torch.Adafactor")


def test_state_in_few_bits_goes_back_as_numbers():
    ours = AdamW([("w", torch.nn.Parameter(torch.ones(64, 64)))], state_dtype="int8", lr=0.01)
    go(ours, range(2))
    other = torch.nn.Parameter(torch.ones(64, 64))
    theirs = torch.optim.Adam([("w", other)])
    theirs.load_state_dict(convert_back(ours.state_dict(), theirs, "torch.Adam"))
    [state] = theirs.state.values()
    assert theirs.param_groups[0]["lr"] == 0.01
    assert float(state["step"]) == 2
    g = [parameters([(64, 64)], torch.float32, 100 + i)[0].detach() for i in range(2)]
    wanted = 0.09 * g[0] + 0.1 * g[1]
    assert (state["exp_avg"] - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_parameters_of_other_groups_go_by_name():
    model = dict(torch.nn.Linear(3, 2).named_parameters())
    ours = AdamW(list(model.items()), lr=0.01)
    go(ours, [0])
    copied = {name: torch.nn.Parameter(p.detach().clone()) for name, p in model.items()}
    theirs = torch.optim.AdamW([{"params": [(name, copied[name])]} for name in ("bias", "weight")])
    theirs.load_state_dict(convert_back(ours.state_dict(), theirs, "torch.Adam"))
    for name, p in model.items():
        assert torch.equal(theirs.state[copied[name]]["exp_avg"], ours.state[p]["exp_avg"])
        assert theirs.state[copied[name]]["exp_avg"].data_ptr() != ours.state[p]["exp_avg"].data_ptr()


def stand_in(name, params, group, **attributes):
    """An optimizer of a package that is not installed, with a group that has these options beside others."""
    package, _, kind = name.partition(".")
    group = {**dict.fromkeys(WRITERS[name].has, 0.0), **group}
    kind = type(kind, (torch.optim.Optimizer,), {"__module__": f"{package}.optim", **attributes})
    return kind(params, group)


def tables():
    saved, _ = recorded("bitsandbytes.AdamW8bit")
    return {"dynamic": saved["state"][0]["qmap1"], "udynamic": saved["state"][0]["qmap2"]}


def in_bits(bits, bound=0.0):
    config = {"optim_bits": bits, "min_8bit_size": 300, "max_unorm": bound}
    return {"name2qmap": tables(), "get_config": lambda *_: config}


TIMM = {"lr": None, "beta1": None, "min_dim_size_to_factor": 16, "relative_step": True, "eps_scale": 1e-3}
BIG_VISION = {"lr": 0.5, "momentum": 0.9, "min_dim_size_to_factor": 16, "beta2_cap": 0.999}
BNB = {"lr": 0.5, "betas": (0.5, 0.5, 0.9), "eps": 1e-8, "alpha": 0.0, "t_alpha": None}
LAYOUTS = {
    "timm.Adafactor": (
        TIMM,
        {},
        lambda ps: Adafactor([{"params": ps[:1], "factored": (0, 1)}, {"params": ps[1:]}], min_dim_size_to_factor=17),
        [
            {"exp_avg_sq_row": (20, 3), "exp_avg_sq_col": (17, 3)},
            {"exp_avg_sq_row": (3, 18), "exp_avg_sq_col": (3, 20)},
        ],
    ),
    "timm.AdafactorBigVision": (
        BIG_VISION,
        {},
        lambda ps: Adafactor(ps, **preset("timm.AdafactorBigVision"), lr=0.01),
        [
            {"exp_avg_sq_r": (1, 17, 3), "exp_avg_sq_c": (20, 1, 3)},
            {"exp_avg_sq_r": (3, 18, 1)},
            {"exp_avg_sq": (2, 5, 19)},
        ],
    ),
    "apex.FusedLAMB": ({"lr": 0.5, "betas": (0.5, 0.5), "grad_averaging": True}, {}, Lamb, [{"exp_avg": (20, 17, 3)}]),
    "timm.Lamb": ({"lr": 0.5, "betas": (0.5, 0.5), "grad_averaging": True}, {}, Lamb, [{"exp_avg_sq": (20, 17, 3)}]),
    "timm.Lars": ({"lr": 0.5, "momentum": 0.1}, {}, Lars, [{"momentum_buffer": (20, 17, 3)}]),
    "bitsandbytes.Adam": (BNB, in_bits(32), AdamW, [{"state1": (20, 17, 3), "state2": (20, 17, 3)}]),
    "bitsandbytes.LAMB": (BNB, in_bits(8, 1.0), Lamb, [{"qmap1": (256,), "absmax2": (4,), "unorm_vec": (1,)}]),
    "bitsandbytes.SGD": (
        {"lr": 0.5, "betas": (0.5, 0), "eps": 0.0},
        in_bits(8),
        lambda ps: SGD(ps, momentum=0.9),
        [{"state1": (20, 17, 3), "absmax1": (4,)}],
    ),
    "flashoptim.FlashAdamW": ({"lr": 0.5, "betas": (0.5, 0.5)}, {}, AdamW, [{"exp_avg": (20, 17, 3)}]),
    "flashoptim.FlashSGD": ({"lr": 0.5, "momentum": 0.5}, {}, lambda ps: SGD(ps, momentum=0.9), []),
}


@pytest.mark.parametrize("target", LAYOUTS)
def test_layouts_of_packages_that_are_not_installed(target):
    """What goes there lies as they have it, and comes back as it was."""
    group, attributes, make, shapes = LAYOUTS[target]
    params = parameters([*CUBES, (7,)], torch.float32)
    ours = make(params)
    go(ours, range(2))
    # In groups of their own in both, as the tensor is that timm factors along its first dimensions.
    theirs = stand_in(target, [{"params": g["params"]} for g in ours.param_groups], group, **attributes)
    there = convert_back(ours.state_dict(), theirs, target)
    for number, wanted in enumerate(shapes):
        assert {key: tuple(there["state"][number][key].shape) for key in wanted} == wanted
    again = make([torch.nn.Parameter(p.detach().clone()) for p in params])
    again.load_state_dict(convert(there, target))
    eighth = 0.02 if attributes.get("get_config", dict)().get("optim_bits") == 8 else 0
    for p, q in zip(params, [p for g in again.param_groups for p in g["params"]], strict=True):
        # Without a count of its own, a momentum is one that has begun.
        for key in ours.state[p].keys() - ({"step"} if "SGD" in target or "Lars" in target else set()):
            x, y = ours.state[p][key].float(), again.state[q][key].float()
            assert (x - y).abs().max() <= eighth * x.abs().max(), key
    assert again.param_groups[0]["lr"] == ours.param_groups[0]["lr"]
