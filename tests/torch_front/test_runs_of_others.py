"""A run that another package's optimizer began goes on here as it would have gone on there, and back again."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, StepLR

from layerwise import preset
from layerwise.errors import StateError
from layerwise.torch import (
    SGD,
    Adafactor,
    AdamW,
    Came,
    Lamb,
    Lars,
    Lion,
    Mixed,
    Muon,
    StableAdamW,
    convert,
    convert_back,
    param_groups,
)

BEFORE, AFTER = 4, 20
SHAPES = [(24, 18), (64, 64), (7,), ()]
CUBES = [(20, 17, 3), (3, 18, 20), (2, 5, 19)]  # of which timm factors the first two dimensions, the last two, none
SMALL = [(5, 3), (7,)]


def parameters(shapes: Any = SHAPES, dtype: Any = torch.float64, seed: int = 0) -> list[Any]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)) for shape in shapes]


def own(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def copies(params: Any) -> list[Any]:
    return [torch.nn.Parameter(p.detach().clone()) for p in params]


def go(optimizer: Any, steps: Any, schedule: Any = None) -> list[Any]:
    """Step with gradients that depend on the number of the step alone; a scalar has none in the first."""
    params = own(optimizer)
    for step in steps:
        for p, g in zip(params, parameters([p.shape for p in params], params[0].dtype, 100 + step), strict=True):
            p.grad = None if step == 0 and p.ndim == 0 else g.detach()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return [p.detach().clone() for p in params]


def differ(ours: Any, theirs: Any, begun: Any) -> float:
    """By how much they differ, as a part of what moved most."""
    return max(float((p - q).abs().max() / (q - x).abs().max()) for p, q, x in zip(ours, theirs, begun, strict=True))


def grouped(params: Any, **second: Any) -> list[Any]:
    """Two groups: the checkpoint brings the second one's options, which are not told to the other optimizer."""
    return [{"params": params[:2]}, {"params": params[2:], **second}]


class Kind(NamedTuple):
    """How an optimizer is made there and here, and how near they are after one step, after all, and on the way back."""

    source: str
    module: str
    theirs: Any  # given the module and parameters
    ours: Any
    shapes: Any = SHAPES
    dtype: Any = torch.float64
    first: float = 1e-12
    after: float = 1e-12
    back: float = 1e-12
    steps: int = AFTER


def in_float32(source: str, theirs: Any, ours: Any, near: float = 1e-4) -> Kind:
    package = source.partition(".")[0]
    module = "torchao.optim" if package == "torchao" else package
    return Kind(source, module, theirs, ours, SHAPES[:3], torch.float32, 1e-4, near, near, 3)


ADAM = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}
HEAVY = {"lr": 0.1, "momentum": 0.9}
FLASH = {"quantize": False, "fused": False, "master_weight_bits": None}
SECOND = {"lr": 0.03, "weight_decay": 0.0}
BYTES = {"min_8bit_size": 1}


def adam(name: str, decay: str, **options: Any) -> Kind:
    return Kind(
        "torch.Adam",
        "torch.optim",
        lambda m, ps: getattr(m, name)(grouped(ps, **SECOND, betas=(0.5, 0.9)), **ADAM, **options),
        lambda ps: Lamb(grouped(ps), eps=1e-8, adapt=False, decay=decay),
    )


def sgd(kept: bool, **options: Any) -> Kind:
    return Kind(
        "torch.SGD",
        "torch.optim",
        lambda m, ps: m.SGD(grouped(ps, lr=0.03, momentum=0.5), **HEAVY, weight_decay=0.1, **options),
        lambda ps: Lars(grouped(ps), lr=0.3, adapt=False, lr_in_momentum=kept, **options),
    )


def torch_adafactor(foreach: bool, cap: float = 1e-2, **options: Any) -> Kind:
    mine = {**preset("torch.Adafactor"), "lr_cap": cap, "relative_step": "cap", "lr": 0.5}
    return Kind(
        "torch.Adafactor",
        "torch.optim",
        lambda m, ps: m.Adafactor(grouped(ps, weight_decay=0.2), foreach=foreach, **options),
        lambda ps: Adafactor(grouped(ps), **mine),
        (*CUBES, *SHAPES),
    )


def t5(options: Any, **mine: Any) -> Kind:
    return Kind(
        "transformers.Adafactor",
        "transformers.optimization",
        lambda m, ps: m.Adafactor(grouped(ps, weight_decay=0.2), **options),
        lambda ps: Adafactor(grouped(ps), **{**preset("transformers.Adafactor"), **options, **mine}),
        (*CUBES, *SHAPES),
    )


def timm_adafactor(options: Any, **mine: Any) -> Kind:
    plain = {**preset("timm.cadafactor"), "beta1": None, "caution": False, **mine}
    return Kind(
        "timm.Adafactor",
        "timm.optim.adafactor",
        lambda m, ps: m.Adafactor([{"params": ps[:1]}, {"params": ps[1:]}], **options),
        lambda ps: Adafactor([{"params": ps[:1], "factored": (0, 1)}, {"params": ps[1:]}], **plain),
        (*CUBES, *SHAPES[:3]),
    )


OF_PO_LAMB = {"bias_correction": False, "max_weight_norm": 10.0, "trust_eps": 1e-6, "decay": "decoupled"}
OF_BNB_LAMB = {"eps": 1e-8, "bias_correction": "lr", "trust_clip": (None, 1.0), "zero_norm_ratio": 0.0}
RELATIVE = {"relative_step": False, "scale_parameter": False}
BIG = {**preset("timm.AdafactorBigVision"), "momentum_dtype": "float32", "lr": 0.5}
KINDS = {
    "torch.Adam": adam("Adam", "l2"),
    "torch.AdamW, fused": adam("AdamW", "decoupled", fused=True),
    "torch.SGD": sgd(False),
    "torch.SGD, lr in the momentum": sgd(True),
    "torch.SGD, nesterov": sgd(True, nesterov=True),
    "torch.SGD, dampening": sgd(False, dampening=0.3),
    "torch.Adafactor": torch_adafactor(True),
    "torch.Adafactor, lr": torch_adafactor(False, 0.3, lr=0.3, weight_decay=0.1),
    "timm.Lamb": Kind(
        "timm.Lamb",
        "timm.optim.lamb",
        lambda m, ps: m.Lamb(ps, lr=0.01),
        lambda ps: Lamb(ps, **preset("timm.Lamb")),
        SHAPES[:3],
    ),
    "timm.Lars": Kind(
        "timm.Lars",
        "timm.optim.lars",
        lambda m, ps: m.Lars(ps, lr=0.5, momentum=0.9, weight_decay=0.1),
        lambda ps: Lars(ps, **{**preset("timm.Lars"), "momentum": 0.1}),
        SHAPES[:3],
    ),
    # Its iterations are in bfloat16.
    "torch.Muon": Kind(
        "torch.Muon",
        "torch.optim",
        lambda m, ps: m.Muon(ps, lr=0.02, weight_decay=0.1),
        lambda ps: Muon(ps, **preset("torch.Muon")),
        SHAPES[:2],
        *(torch.float32, 0.04, 0.04, 0.04),
    ),
    "timm.Lion": Kind(
        "timm.Lion",
        "timm.optim.lion",
        lambda m, ps: m.Lion(ps, lr=0.01, weight_decay=0.1),
        lambda ps: Lion(ps, **preset("timm.Lion")),
        SHAPES[:3],
    ),
    "lion_pytorch.Lion": Kind(
        "lion_pytorch.Lion",
        "lion_pytorch",
        lambda m, ps: m.Lion(ps, lr=0.01, weight_decay=0.1),
        lambda ps: Lion(ps, **preset("lion_pytorch.Lion")),
        SHAPES[:3],
    ),
    "timm.Adafactor": timm_adafactor({"weight_decay": 0.1}),
    "timm.Adafactor, lr": timm_adafactor({"lr": 0.01, "betas": (0.8, 0.9)}, lr=0.5, beta1=0.8, **RELATIVE),
    # With its momentum in bfloat16 it rounds before it steps, and ours does after.
    "timm.AdafactorBigVision": Kind(
        "timm.AdafactorBigVision",
        "timm.optim.adafactor_bv",
        lambda m, ps: m.AdafactorBigVision(ps, lr=0.01, momentum_dtype="float32"),
        lambda ps: Adafactor(ps, **BIG),
        (*CUBES, *SHAPES[:3]),
        *(torch.float32, 1e-4, 1e-4, 1e-4),
    ),
    "transformers.Adafactor": t5({"beta1": 0.8}),
    "transformers.Adafactor, lr": t5({"lr": 0.01, **RELATIVE}, lr=0.5),
    "transformers.Adafactor, warm-up": t5({"beta1": 0.5, "warmup_init": True})._replace(after=1e-9, back=1e-9),
    **{
        f"pytorch_optimizer.{name}": Kind(
            f"pytorch_optimizer.{name}",
            "pytorch_optimizer",
            lambda m, ps, name=name, theirs=theirs: getattr(m, name)(ps, **theirs),
            ours,
            (*CUBES, *SHAPES[:3]),
        )
        for name, theirs, ours in (
            ("Lamb", {"lr": 0.01, "weight_decay": 0.1, "adam_debias": True}, lambda ps: Lamb(ps, **OF_PO_LAMB)),
            (
                "AdaFactor",
                {"weight_decay": 0.1, "momentum_dtype": torch.float64},
                lambda ps: Adafactor(ps, beta1=0.9, beta2_cap=0.999, decay_scale="step"),
            ),
            ("CAME", {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.8, 0.99, 0.9999)}, lambda ps: Came(ps)),
            (
                "StableAdamW",
                {"lr": 0.01, "weight_decay": 0.1},
                lambda ps: StableAdamW(ps, **preset("pytorch_optimizer.StableAdamW")),
            ),
        )
    },
    "pytorch_optimizer.LARS": Kind(
        "pytorch_optimizer.LARS",
        "pytorch_optimizer",
        lambda m, ps: m.LARS([{"params": ps[:-1]}, {"params": ps[-1:], "weight_decay": 0.0}], lr=0.5, weight_decay=0.1),
        lambda ps: Lars([{"params": ps[:-1]}, {"params": ps[-1:], "adapt": False}], lr_in_momentum=False),
        (*CUBES, *SHAPES[:3]),
    ),
    "bitsandbytes.AdamW": in_float32(
        "bitsandbytes.Adam", lambda m, ps: m.optim.AdamW(ps, **ADAM), lambda ps: AdamW(ps, eps=1e-8)
    ),
    "bitsandbytes.AdamW8bit": in_float32(
        "bitsandbytes.Adam", lambda m, ps: m.optim.AdamW8bit(ps, **BYTES, **ADAM), lambda ps: AdamW(ps, eps=1e-8), 0.03
    ),
    "bitsandbytes.LAMB8bit": in_float32(
        "bitsandbytes.LAMB",
        lambda m, ps: m.optim.LAMB8bit(ps, lr=0.01, **BYTES),
        lambda ps: Lamb(ps, eps=1e-8, adapt=False),
        0.03,
    ),
    "bitsandbytes.LAMB8bit, small tensors": in_float32(
        "bitsandbytes.LAMB",
        lambda m, ps: m.optim.LAMB8bit(grouped(ps), lr=0.01, min_8bit_size=400),
        lambda ps: Lamb([{"params": ps[:2], "adapt": False}, {"params": ps[2:]}], **OF_BNB_LAMB),
        0.03,
    ),
    "bitsandbytes.SGD": in_float32(
        "bitsandbytes.SGD", lambda m, ps: m.optim.SGD(ps, **HEAVY), lambda ps: SGD(ps, lr=1.0)
    ),
    "bitsandbytes.SGD8bit": in_float32(
        "bitsandbytes.SGD", lambda m, ps: m.optim.SGD8bit(ps, **HEAVY, **BYTES), lambda ps: SGD(ps, lr=1.0), 0.03
    ),
    "bitsandbytes.LARS8bit": in_float32(
        "bitsandbytes.LARS",
        lambda m, ps: m.optim.LARS8bit(ps, **HEAVY, **BYTES),
        lambda ps: Lars(ps, adapt=False),
        0.03,
    ),
    **{
        f"torchao.{name}": in_float32(
            f"torchao.{name}",
            lambda m, ps, name=name: getattr(m, name)(ps, **ADAM),
            lambda ps: AdamW(ps, **{**ADAM, "lr": 0.5}, eps=1e-8),
            near,
        )
        for name, near in (("AdamW8bit", 0.03), ("AdamWFp8", 0.08), ("AdamW4bit", 0.3))
    },
    "flashoptim.FlashAdamW": in_float32(
        "flashoptim.FlashAdamW", lambda m, ps: m.FlashAdamW(ps, **ADAM, **FLASH), lambda ps: AdamW(ps, eps=1e-8)
    ),
    "flashoptim.FlashSGD": in_float32(
        "flashoptim.FlashSGD", lambda m, ps: m.FlashSGD(ps, **HEAVY, **FLASH), lambda ps: SGD(ps, lr=1.0)
    ),
}
ROWS = [
    pytest.param(name, marks=() if one.module == "torch.optim" else pytest.mark.slow) for name, one in KINDS.items()
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ROWS)
def test_a_run_goes_on_here_and_back_there(name):
    kind = KINDS[name]
    module = pytest.importorskip(kind.module)
    theirs = kind.theirs(module, parameters(kind.shapes, kind.dtype))
    begun = go(theirs, range(BEFORE))
    ours = kind.ours(copies(own(theirs)))
    ours.load_state_dict(convert(theirs.state_dict(), kind.source))
    assert differ(go(ours, [BEFORE]), go(theirs, [BEFORE]), begun) <= kind.first
    later = range(BEFORE + 1, BEFORE + kind.steps)
    last = go(ours, later)
    assert differ(last, go(theirs, later), begun) <= kind.after

    back = kind.theirs(module, copies(own(ours)))
    back.load_state_dict(convert_back(ours.state_dict(), back, kind.source))
    more = range(BEFORE + kind.steps, BEFORE + 2 * kind.steps)
    assert differ(go(back, more), go(ours, more), last) <= kind.back


def as_theirs(saved: Any, step: Any = None, **options: Any) -> Any:
    """A checkpoint with the package's own options in place of ours, and steps where it counts them."""
    kept = ("params", "lr", "betas", "eps", "weight_decay", "momentum")
    counts = {} if step is None else {"step": step}
    groups = [{key: g[key] for key in kept if key in g} | counts | options for g in saved["param_groups"]]
    states = {i: {key: x for key, x in one.items() if key != "step"} for i, one in saved["state"].items()}
    return {"state": states, "param_groups": groups}


APEX = {"bias_correction": True, "grad_averaging": True, "max_grad_norm": 1.0}
TIMM = {"trust_clip": False, "always_adapt": False}
TIMM_LARS = {"dampening": 0.0, "nesterov": False, "trust_coeff": 0.001, **TIMM}


# timm counts in a float32 tensor, before 1.0.25 and in apex in an integer, apex with capturable=True in int32.
@pytest.mark.parametrize("step", [2, torch.tensor(2.0), torch.tensor([2], dtype=torch.int32)], ids=str)
@pytest.mark.parametrize(("source", "options"), [("apex.FusedLAMB", APEX), ("timm.Lamb", {**APEX, **TIMM})])
def test_steps_counted_in_the_group_are_those_of_its_parameters(source, options, step):
    theirs = Lamb(parameters(SMALL), **{**preset(source), **ADAM})
    begun = go(theirs, range(2))
    ours = Lamb(copies(begun), **preset(source))
    ours.load_state_dict(convert(as_theirs(theirs.state_dict(), step, **options), source))
    assert differ(go(ours, [2, 3]), go(theirs, [2, 3]), begun) < 1e-12


# ---- momentum, with lr in it or without


@pytest.mark.parametrize("asked", [{}, {"lr_in_momentum": True}, {"lr_in_momentum": False}], ids=str)
@pytest.mark.parametrize("kept", [True, False], ids=["lr in ours", "lr outside ours"])
@pytest.mark.parametrize("source", ["torch.SGD", "timm.Lars"])
def test_momentum_takes_the_form_of_the_optimizer_that_loads_it(source, kept, asked):
    """Also after a change of lr, and whichever form the converted checkpoint was asked to have."""
    theirs = torch.optim.SGD(parameters(SMALL), **HEAVY)
    go(theirs, [0, 1])
    theirs.param_groups[0]["lr"] = 0.02
    begun = go(theirs, [2])
    saved = theirs.state_dict()
    if source == "timm.Lars":
        saved = as_theirs(saved, **TIMM_LARS, eps=1e-8)
    ours = Lars(copies(begun), adapt=False, lr_in_momentum=kept, momentum=0.1)  # the checkpoint brings 0.9
    ours.load_state_dict(convert(saved, source, **asked))
    assert differ(go(ours, [3, 4]), go(theirs, [3, 4]), begun) < 1e-12


@pytest.mark.parametrize("saved", [True, False])
def test_momentum_of_our_own_takes_the_form_of_the_optimizer_that_loads_it(saved):
    one = Lars(parameters(SMALL), lr=0.1, adapt=False, lr_in_momentum=saved)
    begun = go(one, range(3))
    other = Lars(copies(begun), lr=0.1, adapt=False, lr_in_momentum=not saved)
    other.load_state_dict(one.state_dict())
    assert differ(go(other, [3, 4]), go(one, [3, 4]), begun) < 1e-12
    one.set_lr(0.0)
    fresh = Lars(copies(begun), lr=0.1, lr_in_momentum=not saved)
    with pytest.raises(StateError, match=f"Create the optimizer with lr_in_momentum={saved}"):
        fresh.load_state_dict(one.state_dict())
    assert not fresh.state


@pytest.mark.parametrize(
    ("theirs", "source", "asked", "told"),
    [
        (torch.optim.Adam, "torch.Adam", True, "lr_in_momentum"),
        (torch.optim.SGD, "torch.SGD", "no", "`lr_in_momentum` must be True, False or None, but is 'no'"),
    ],
)
def test_lr_in_momentum_is_true_or_false_and_for_momentum_alone(theirs, source, asked, told):
    opt = theirs(parameters(SMALL), lr=0.1)
    go(opt, [1])
    with pytest.raises(StateError, match=told):
        convert(opt.state_dict(), source, lr_in_momentum=asked)


@pytest.mark.parametrize("state", [{}, {"momentum_buffer": None}], ids=["no state", "no buffer"])
def test_sgd_without_momentum_has_nothing_to_convert(state):
    theirs = torch.optim.SGD(parameters(SMALL), lr=0.1)
    begun = go(theirs, [1])
    saved = {**theirs.state_dict(), "state": {i: dict(state) for i in range(2)}}
    converted = convert(saved, "torch.SGD")
    assert converted["state"] == {}
    ours = Lars(copies(begun), momentum=0.5, adapt=False)
    ours.load_state_dict(converted)
    assert differ(go(ours, [2]), go(theirs, [2]), begun) < 1e-12


# ---- rates and schedules

SCHEDULES = {
    "steps": lambda opt: StepLR(opt, 1, gamma=0.5),
    "warm-up": lambda opt: LambdaLR(opt, lambda t: min(1, t / 3) * 0.9**t),
}
FIXED = {"lr": 1e-2, **RELATIVE}
PAIRS = {
    "torch.Adam": (
        lambda m, ps: m.Adam(ps, lr=0.01),
        lambda ps: Lamb(ps, lr=0.01, eps=1e-8, adapt=False, decay="l2"),
    ),
    "transformers.Adafactor": (
        lambda m, ps: m.Adafactor(ps, **FIXED),
        lambda ps: Adafactor(ps, **{**preset("transformers.Adafactor"), **FIXED}),
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("source", ["torch.Adam", pytest.param("transformers.Adafactor", marks=pytest.mark.slow)])
def test_a_schedule_goes_on_with_the_rate_that_it_had(source, schedule):
    module = pytest.importorskip("torch.optim" if source == "torch.Adam" else "transformers.optimization")
    theirs, ours = PAIRS[source]
    before = theirs(module, parameters(SMALL))
    their_schedule = SCHEDULES[schedule](before)
    begun = go(before, range(2), their_schedule)
    after = ours(copies(begun))
    our_schedule = SCHEDULES[schedule](after)
    after.load_state_dict(convert(before.state_dict(), source))
    our_schedule.load_state_dict(their_schedule.state_dict())
    wanted = go(before, range(2, 5), their_schedule)
    assert differ(go(after, range(2, 5), our_schedule), wanted, begun) < 1e-9
    assert after.param_groups[0]["lr"] == pytest.approx(before.param_groups[0]["lr"], rel=1e-12)


@pytest.mark.slow
def test_a_relative_step_stays_one_under_a_schedule():
    """AdafactorSchedule writes numbers into groups whose step is relative, where they mean nothing."""
    optimization = pytest.importorskip("transformers.optimization")
    theirs = optimization.Adafactor(parameters(SMALL))
    begun = go(theirs, range(2), optimization.AdafactorSchedule(theirs))
    assert theirs.param_groups[0]["lr"] > 0
    ours = Adafactor(copies(begun), **preset("transformers.Adafactor"))
    ours.load_state_dict(convert(theirs.state_dict(), "transformers.Adafactor"))
    assert differ(go(ours, [2]), go(theirs, [2]), begun) < 1e-9
    with pytest.raises(StateError, match="written with lr=None and relative_step='factor'"):
        Adafactor(copies(begun), lr=0.1).load_state_dict(convert(theirs.state_dict(), "transformers.Adafactor"))


@pytest.mark.slow
def test_the_trainer_of_transformers_goes_on_with_ours(tmp_path):
    """T5 under the Trainer with its own Adafactor; resumed with it, and with ours from the converted checkpoint."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 17}
    config = transformers.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
    ids = torch.randint(2, 17, (32, 5), generator=torch.Generator().manual_seed(3))
    rows = [{"input_ids": row, "labels": row.flip(0)} for row in ids]
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
    run = {"optim": "adafactor", "learning_rate": 0.01, "lr_scheduler_type": "linear", "max_steps": 5, "save_steps": 2}

    def trained(resume: Any = None, **made: Any) -> list[Any]:
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration(config)
        folder = str(tmp_path / ("go on" if resume else "begin"))
        options = transformers.TrainingArguments(output_dir=folder, per_device_train_batch_size=4, **run, **quiet)
        transformers.Trainer(model, options, train_dataset=rows, **made).train(resume_from_checkpoint=resume)
        return [p.detach().clone() for p in model.parameters()]

    straight = trained()
    checkpoint = tmp_path / "begin" / "checkpoint-2"
    theirs = trained(str(checkpoint))
    path = checkpoint / "optimizer.pt"
    torch.save(convert(torch.load(path, weights_only=True), "transformers.Adafactor"), path)
    options = {**preset("transformers.Adafactor"), **FIXED}
    ours = trained(str(checkpoint), optimizer_cls_and_kwargs=(Adafactor, options))
    assert all(map(torch.equal, straight, theirs))
    assert all(torch.allclose(p, q, rtol=0, atol=1e-4) for p, q in zip(ours, theirs, strict=True))


def test_names_and_the_start_of_a_schedule_come_along():
    theirs = torch.optim.Adam([(f"p{i}", p) for i, p in enumerate(parameters(SMALL))], lr=0.5)
    go(theirs, [1], StepLR(theirs, 1))
    [group] = convert(theirs.state_dict(), "torch.Adam")["param_groups"]
    assert (group["lr"], group["initial_lr"], group["param_names"]) == (0.05, 0.5, ["p0", "p1"])


# ---- another rule goes on

OTHER_RULES = {
    "Lamb": ("AdamW", "torch.AdamW", lambda ps: Lamb(ps, lr=0.02, weight_decay=0.2, betas=(0.7, 0.8))),
    "a group of Mixed": ("AdamW", "torch.AdamW", lambda ps: Mixed([{"params": ps, "rule": "lamb", "lr": 0.02}])),
    "keep_norm": ("AdamW", "torch.AdamW", lambda ps: Lamb(ps, lr=0.02, adapt=False, keep_norm=True)),
    "Lars": ("SGD", "torch.SGD", lambda ps: Lars(ps, lr=0.02)),
}


@pytest.mark.parametrize("ours", OTHER_RULES)
def test_rates_stay_as_given_where_another_rule_goes_on(ours):
    """Those of AdamW are other steps in LAMB; the state is taken over."""
    name, source, build = OTHER_RULES[ours]
    options = {"momentum": 0.3} if name == "SGD" else {}
    theirs = getattr(torch.optim, name)(parameters(SMALL), lr=0.001, weight_decay=0.01, **options)
    ConstantLR(theirs, factor=1.0)
    begun = go(theirs, [1])
    mine = build(copies(begun))
    before = [dict(group) for group in mine.param_groups]
    with pytest.warns(UserWarning, match=r"keeps its own rates: lr=0.02 \(the checkpoint has 0.001\)"):
        mine.load_state_dict(convert(theirs.state_dict(), source))
    assert mine.param_groups == before
    key, scale = ("momentum_buffer", 0.001) if name == "SGD" else ("exp_avg", 1)  # of the lr of then
    for p, q in zip(own(theirs), own(mine), strict=True):
        torch.testing.assert_close(mine.state[q][key], theirs.state[p][key] * scale)


def rates(optimizer: Any) -> list[Any]:
    return [(group["lr"], group["weight_decay"], group["betas"]) for group in optimizer.param_groups]


@pytest.mark.parametrize("alike", [False, True], ids=["other groups", "the same groups"])
def test_rates_stay_in_all_groups_or_in_none(alike):
    """Biases have no ratio, and so AdamW's rule; but they belong to the new run, as the other groups do."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    given = [{**group, "lr": 0.001} for group in param_groups(model)] if alike else model.named_parameters()
    theirs = torch.optim.AdamW(given, weight_decay=0.01)
    go(theirs, [1])
    mine = Lamb(param_groups(model), lr=0.02, weight_decay=0.1)
    with pytest.warns(UserWarning, match=r"lr=0.02 \(the checkpoint has 0.001\)") as said:
        mine.load_state_dict(convert(theirs.state_dict(), "torch.AdamW"))
    assert rates(mine) == [(0.02, 0.1, (0.9, 0.999)), (0.02, 0.0, (0.9, 0.999))]
    assert len(said) == 1
    assert ("weight_decay=0.0 (the checkpoint has 0.01)" in str(said[0].message)) == (not alike)
    back = torch.optim.AdamW([{**group, "lr": 0.3} for group in param_groups(model)])
    before = rates(back)
    with pytest.warns(
        UserWarning, match=r"torch.AdamW has another.*lr=0.3 \(the checkpoint has 0.02.*To change them, set them"
    ):
        back.load_state_dict(convert_back(mine.state_dict(), back, "torch.AdamW"))
    assert rates(back) == before


# ---- what options make of a state


def as_apex(saved: Any) -> Any:
    [group] = saved["param_groups"]
    return as_theirs(saved, 1, **{**APEX, "grad_averaging": group["grad_averaging"]})


MEANINGS = {
    "the other way": ("torch.Adam", {"maximize": True}, Lamb, {}, "maximize"),
    "sums": ("torch.Adam", {}, Lamb, {"grad_averaging": False}, "grad_averaging"),
    "apex's sums": ("apex.FusedLAMB", {"grad_averaging": False}, Lamb, {}, "grad_averaging"),
    "no lr": ("transformers.Adafactor", {}, Adafactor, {"lr": 0.1, "beta1": 0.9, "lr_in_momentum": False}, "lr_in"),
    "another cap": ("torch.Adafactor", {}, Adafactor, {"lr_cap": 0.5}, "lr_cap"),
}


@pytest.mark.parametrize(
    "what", [pytest.param(x, marks=pytest.mark.slow) if "transf" in row[0] else x for x, row in MEANINGS.items()]
)
def test_options_that_change_what_a_state_means_are_named(what):
    source, theirs, front, ours, said = MEANINGS[what]
    params = parameters(SMALL)
    if source == "transformers.Adafactor":
        opt = pytest.importorskip("transformers.optimization").Adafactor(params, lr=0.1, relative_step=False, beta1=0.9)
    else:
        opt = (torch.optim.Adafactor if "Ada" in source and "Adam" not in source else torch.optim.Adam)(params)
    opt.param_groups[0].update(theirs)
    go(opt, [0])
    saved = as_apex(opt.state_dict()) if source == "apex.FusedLAMB" else opt.state_dict()
    with pytest.warns(UserWarning, match=said):
        front(params, **ours).load_state_dict(convert(saved, source))
