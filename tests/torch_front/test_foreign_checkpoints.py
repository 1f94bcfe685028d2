"""Checkpoints of others are read as their writers read them, and refused with a way out."""

from __future__ import annotations

import base64
import json
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch_front.test_runs_of_others import ADAM, CUBES, SMALL, copies, go, own, parameters

from layerwise import preset
from layerwise.errors import StateError
from layerwise.torch import SGD, Adafactor, AdamW, Came, Lamb, Lars, Lion, StableAdamW, convert, convert_back
from layerwise.torch.checkpoints.foreign import CODECS
from layerwise.torch.checkpoints.foreign._eight_bits import nearest_codes


def of_adam(**options: Any) -> dict[str, Any]:
    theirs = torch.optim.Adam(parameters(SMALL), **options)
    go(theirs, [1])
    return theirs.state_dict()


def of_ours(front: Any = AdamW, **options: Any) -> dict[str, Any]:
    ours = front(parameters(SMALL), **options)
    go(ours, [1])
    return ours.state_dict()


# ---- whose checkpoint it is

OPTIMIZERS = {
    "torch.Adam": lambda ps: torch.optim.AdamW(ps, lr=0.1),
    "torch.SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "torch.Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.1),
    "transformers.Adafactor": lambda ps: pytest.importorskip("transformers.optimization").Adafactor(ps),
}


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize(
    "source", [pytest.param(x, marks=pytest.mark.slow) if x.startswith("tr") else x for x in OPTIMIZERS]
)
def test_a_checkpoint_that_was_not_converted_is_refused(source, stepped):
    theirs = OPTIMIZERS[source](parameters(SMALL))
    if stepped:
        go(theirs, [1])
    for one in (Lamb, Lars, Adafactor):
        ours = one(own(theirs), lr=0.7)
        with pytest.raises(StateError, match=r"not written by layerwise.*load layerwise\.torch\.convert"):
            ours.load_state_dict(theirs.state_dict())
        assert (ours.get_lr(), len(ours.state)) == (0.7, 0)
    for wrong in {"torch.Adam", "torch.SGD", "torch.Adafactor"} - {source}:
        with pytest.raises(StateError):
            convert(theirs.state_dict(), wrong)


def test_keys_of_the_user_in_groups_do_no_harm():
    checkpoint = of_adam()
    checkpoint["param_groups"][0] |= {"alpha": 1, "lr_scale": 1.0, "name": "head", "initial_lr": 0.1}
    assert convert(checkpoint, "torch.Adam")["state"].keys() == {0, 1}
    with pytest.raises(StateError, match="If your program added keys, remove them"):
        AdamW(parameters(SMALL)).load_state_dict(checkpoint)


def test_a_checkpoint_that_no_converter_reads_says_so():
    theirs = torch.optim.RAdam(parameters(SMALL))
    go(theirs, [0])
    with pytest.raises(StateError, match=r"is not as torch\.Adam saves it: it has no 'amsgrad'"):
        convert(theirs.state_dict(), "torch.Adam")
    with pytest.raises(StateError, match="amsgrad, whose maximum no layerwise optimizer keeps"):
        convert(of_adam(amsgrad=True), "torch.AdamW")
    with pytest.raises(StateError, match="needs no conversion"):
        convert(of_ours(), "torch.Adam")
    with pytest.raises(StateError, match="Lion has only exp_avg"):  # and would go on from a mean of another optimizer
        convert(of_adam(), "timm.Lion")


def test_old_adam_checkpoints_have_fewer_keys_and_integer_counts():
    now, old = of_adam(), of_adam()
    kept = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")
    old["param_groups"] = [{key: group[key] for key in kept} for group in old["param_groups"]]
    for state in old["state"].values():
        state["step"] = int(state["step"])
    expected = convert(now, "torch.Adam")["state"]
    for key, state in convert(old, "torch.Adam")["state"].items():
        assert int(state["step"]) == int(expected[key]["step"]) == 1
        assert torch.equal(state["exp_avg"], expected[key]["exp_avg"])


# ---- names of sources and targets


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, r"Pass one of apex\.FusedLAMB, bitsandbytes\.Adam") for name in ("torch.RMSprop", "", None, 3, {})),
        (["torch.Adam"], "Pass one of apex"),
        ("torch.adamw", "cannot convert (from|to) .*Did you mean `torch.AdamW`"),
        ("timm.LAMB", "cannot convert (from|to) .*Did you mean `timm.Lamb`"),
        ("torch.optim.SGD", "cannot convert (from|to) .*Did you mean `torch.SGD`"),
    ],
    ids=str,
)
def test_an_unknown_name_is_answered_with_the_known_ones(name, told):
    with pytest.raises(StateError, match=told):
        convert(of_adam(), name)
    with pytest.raises(StateError, match=told):
        convert_back(of_ours(), torch.optim.Adam(parameters(SMALL)), name)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_converts_under_both_names_in_both_directions(name):
    theirs = getattr(torch.optim, name)(parameters(SMALL), **ADAM)
    begun = go(theirs, range(2))
    mine = AdamW(copies(begun), decay="l2" if name == "Adam" else "decoupled")
    mine.load_state_dict(convert(theirs.state_dict(), f"torch.{name}"))
    again = getattr(torch.optim, name)(copies(begun))
    again.load_state_dict(convert_back(mine.state_dict(), again, f"torch.{name}"))
    assert all(map(torch.equal, go(theirs, [2]), go(again, [2])))


@pytest.mark.parametrize(("name", "other"), [("Adam", "AdamW"), ("AdamW", "Adam")])
def test_adam_named_as_adamw_warns_in_both_directions(name, other):
    theirs = getattr(torch.optim, name)(parameters(SMALL), weight_decay=0.1)
    go(theirs, [1])
    with pytest.warns(UserWarning, match=rf"is of torch\.{name} .*not of torch\.{other}\. .*like\('torch\.{name}'"):
        found = convert(theirs.state_dict(), f"torch.{other}")
    mine = AdamW(parameters(SMALL), decay="l2" if other == "Adam" else "decoupled", weight_decay=0.1)
    mine.load_state_dict(found)
    with pytest.warns(UserWarning, match=rf"of torch\.{other}, but the target takes steps of torch\.{name}"):
        convert_back(mine.state_dict(), theirs, "torch.Adam")
    plain = getattr(torch.optim, name)(parameters(SMALL), weight_decay=0.0)
    go(plain, [1])
    convert(plain.state_dict(), f"torch.{other}")  # without a warning: they are the same


def test_sgd_without_momentum_goes_back_with_nothing():
    theirs = torch.optim.SGD(parameters(SMALL), lr=0.1)
    go(theirs, [1])
    mine = SGD(copies(own(theirs)), lr=0.1)
    mine.load_state_dict(convert(theirs.state_dict(), "torch.SGD"))
    go(mine, [2])
    again = torch.optim.SGD(copies(own(mine)), lr=0.2)
    again.load_state_dict(convert_back(mine.state_dict(), again, "torch.SGD"))
    go(theirs, [2])
    assert all(map(torch.equal, go(theirs, [3]), go(again, [3])))


# ---- what is not as its source saves it


def without(*path: Any) -> Any:
    def change(saved: Any) -> None:
        for key in path[:-1]:
            saved = saved[key]
        del saved[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without("state"), "state"),
        (without("param_groups"), "param_groups"),
        (without("state", 0, "exp_avg"), "exp_avg"),
        (lambda saved: saved["state"][0].update(step=None), "step"),
        (lambda saved: saved["state"].update({7: saved["state"][0]}), "7"),
        (lambda saved: saved["state"][0].update(exp_avg=torch.ones(5, 3).byte()), "must have a floating-point dtype"),
    ],
    ids=["no state", "no groups", "no moment", "no count", "state of nobody", "codes without scales"],
)
def test_a_checkpoint_that_is_not_whole_is_refused(change, told):
    checkpoint = of_adam()
    change(checkpoint)
    with pytest.raises(StateError, match=told):
        convert(checkpoint, "torch.Adam")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_converted_state_keeps_its_dtype_and_shares_nothing(dtype):
    theirs = torch.optim.Adam(parameters(SMALL, dtype))
    go(theirs, range(2))
    kept = [theirs.state[p]["exp_avg"].clone() for p in own(theirs)]
    mine = Lamb(copies(own(theirs)))
    mine.load_state_dict(convert(theirs.state_dict(), "torch.Adam"))
    go(mine, [2, 3])
    assert all(mine.state[p]["exp_avg"].dtype is dtype for p in own(mine))
    assert all(torch.equal(theirs.state[p]["exp_avg"], x) for p, x in zip(own(theirs), kept, strict=True))


class Packed(torch.Tensor):
    """What torchao's states of few bits are: tensors of a class of their own that give numbers when asked for them."""

    def dequantize(self) -> Any:
        return self.as_subclass(torch.Tensor) * 2


@pytest.mark.parametrize("source", ["torchao.AdamW8bit", "torch.Adam"])
def test_numbers_of_torchao_are_asked_for(source):
    """Its groups are those of an older Adam of PyTorch, whose codec reads them as well."""
    saved, expected = of_adam(), convert(of_adam(), "torch.Adam")["state"]
    saved["param_groups"] = [
        {"eps": 1, "weight_decay": 1, "amsgrad": False, "lr": 0.1, "betas": (0.5, 0.6), "params": [0, 1]}
    ]
    for state in saved["state"].values():
        state["exp_avg"] = (state["exp_avg"] / 2).as_subclass(Packed)
    for key, state in convert(saved, source)["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            assert type(state[name]) is torch.Tensor
            assert torch.equal(state[name], expected[key][name])


# ---- states as others saved them, without their packages

STATES = Path(__file__).parent / "states"
RECORDED = [("bitsandbytes.AdamW8bit", "bitsandbytes.Adam"), ("flashoptim.FlashAdamW", "flashoptim.FlashAdamW")]


def unpacked(x: Any) -> Any:
    if not isinstance(x, dict):
        return x
    numbers = torch.frombuffer(bytearray(base64.b64decode(x["bytes"])), dtype=getattr(torch, x["dtype"]))
    return numbers.reshape(x["shape"])


def recorded(name: str, wrapped: bool = False) -> Any:
    """A checkpoint of one parameter, and the numbers that those who saved it read in it."""
    found = json.loads((STATES / f"{name}.json").read_text())
    state = {key: unpacked(x) for key, x in found["state"].items()}
    if wrapped:
        state = {"step": state.pop("step"), "__bnb_optimizer_quant_state__": state}
    saved = {"state": {0: state}, "param_groups": [found["group"]]}
    return saved, {key: unpacked(x) for key, x in found["numbers"].items()}


@pytest.mark.parametrize("form", ["as it was", "wrapped"])
@pytest.mark.parametrize(("name", "source"), RECORDED)
def test_codes_are_the_numbers_that_others_read_in_them(name, source, form):
    """bitsandbytes wraps its state in newer versions; FlashOptim saves scales as bfloat16 beside such parameters."""
    saved, numbers = recorded(name, form == "wrapped" and "bits" in name)
    if form == "wrapped" and "flash" in name:
        state = saved["state"][0]
        state |= {key: x.view(torch.bfloat16) for key, x in state.items() if key.endswith("scales")}
    with pytest.raises(StateError, match="not written by layerwise"):
        AdamW([Parameter(torch.ones(3, 100))]).load_state_dict(saved)
    found = convert(saved, source)
    state = found["state"][0]
    assert int(state["step"]) == 3
    for key, wanted in numbers.items():
        torch.testing.assert_close(state[key], wanted, rtol=2e-7, atol=0)
    ours = AdamW([Parameter(torch.ones(3, 100))], state_dtype="int8", lr=1.0)
    ours.load_state_dict(found)
    assert ours.param_groups[0]["lr"] == 0.01
    assert "initial_lr" not in ours.param_groups[0]


def test_numbers_go_to_the_nearest_code_of_bitsandbytes():
    """Codes that were read are the ones that are written again; the table of m has a 1 and no -1."""
    saved, numbers = recorded("bitsandbytes.AdamW8bit")
    state = saved["state"][0]
    for i, key in ((1, "exp_avg"), (2, "exp_avg_sq")):
        codes, largest = nearest_codes(numbers[key], state[f"qmap{i}"])
        assert torch.equal(codes, state[f"state{i}"])
        torch.testing.assert_close(largest, state[f"absmax{i}"], rtol=1 + float(state["qmap1"][0]) + 1e-5, atol=0)
    zeros, largest = nearest_codes(torch.zeros(300), state["qmap2"])
    assert not zeros.any()
    assert not largest.any()


def now(key: str, value: Any) -> Any:
    return lambda state, group: state.update({key: value})


def gone(key: str) -> Any:
    return lambda state, group: state.pop(key)


BNB, FLASH = "bitsandbytes.Adam", "flashoptim.FlashAdamW"
BROKEN = {
    "no table": (BNB, gone("qmap1"), "'qmap1' is missing"),
    "no second state, as of Lion": (BNB, gone("state2"), "checkpoint of bitsandbytes.Adam: 'state2' is missing"),
    "one scale per tensor": (BNB, gone("absmax2"), "block_wise=False"),
    "4 bits": (BNB, now("qmap1", torch.ones(16)), "must have 256 entries, but the checkpoint's has 16"),
    "a table of two dimensions": (BNB, now("qmap1", torch.ones(2, 256)), "256 entries"),
    "other blocks": (BNB, now("absmax1", torch.ones(5)), "300 codes with 5 scales are not blocks of 256"),
    "state that is none": (BNB, now("state1", None), "NoneType"),
    "Lion": (
        "bitsandbytes.SGD",
        lambda _, group: group.update(betas=(0.9, 0.99), eps=0.0),
        "not those of bitsandbytes' SGD or LARS",
    ),
    "no second moment": (FLASH, gone("exp_avg_sq::quantized"), "exp_avg_sq::quantized"),
    "other groups": (FLASH, now("exp_avg::scales", torch.ones(3)), "not blocks of 32"),
    "odd scales": (FLASH, now("exp_avg::scales", torch.ones(10, dtype=torch.int8)), "and torch.int8"),
    "another's": ("timm.Adafactor", gone("step"), "step"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_recorded_state_that_is_not_as_they_save_it_is_refused(what):
    source, change, told = BROKEN[what]
    saved, _ = recorded(RECORDED["flash" in source][0])
    change(saved["state"][0], saved["param_groups"][0])
    with pytest.raises(StateError, match=told):
        convert(saved, source)


# ---- layouts of packages that are not installed


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
def test_the_dimensions_that_timm_has_factored_are_found_from_their_means(row, col, shape):
    group = {"min_dim_size_to_factor": 16}
    rows, cols = CODECS["timm.Adafactor"].dims_of(row, col, group)
    assert (rows, cols) == CODECS["timm.Adafactor"].dims(shape, group)
    assert row[:cols] + shape[cols : cols + 1] + row[cols:] == shape
    assert col[:rows] + shape[rows : rows + 1] + col[rows:] == shape


def test_means_that_match_no_tensor_are_refused():
    with pytest.raises(StateError, match=r"shapes \(4, 3\) and \(5, 3\) .*min_dim_size_to_factor=16"):
        CODECS["timm.Adafactor"].dims_of((4, 3), (5, 3), {"min_dim_size_to_factor": 16})


def stand_in(name: str, params: Any, group: Any, **attributes: Any) -> Any:
    """An optimizer of a package that is not installed, with a group that has these options beside others."""
    package, _, kind = name.partition(".")
    group = {**dict.fromkeys(CODECS[name].has, 0.0), **group}
    made = type(kind, (torch.optim.Optimizer,), {"__module__": f"{package}.optim", **attributes})
    return made(params, group)


def in_bits(bits: int, bound: float = 0.0) -> Any:
    saved, _ = recorded("bitsandbytes.AdamW8bit")
    config = {"optim_bits": bits, "min_8bit_size": 300, "max_unorm": bound}
    tables = {"dynamic": saved["state"][0]["qmap1"], "udynamic": saved["state"][0]["qmap2"]}
    return {"name2qmap": tables, "get_config": lambda *_: config}


OF_BNB = {"lr": 0.5, "betas": (0.5, 0.5, 0.9), "eps": 1e-8, "alpha": 0.0, "t_alpha": None}
OF_LAMB = {"lr": 0.5, "betas": (0.5, 0.5), "grad_averaging": True}
HEAVY = {"lr": 0.5, "momentum": 0.1}
LAST = [{"exp_avg_sq_row": (20, 17), "exp_avg_sq_col": (20, 3)}, {"exp_avg_sq_row": (3, 18), "exp_avg_sq_col": (3, 20)}]
LAYOUTS = {
    "transformers.Adafactor": (
        {"lr": None, "beta1": None, "relative_step": True},
        {},
        lambda ps: Adafactor(ps, **preset("transformers.Adafactor")),
        LAST,
    ),
    "timm.Adafactor": (
        {"lr": None, "beta1": None, "min_dim_size_to_factor": 16, "relative_step": True, "eps_scale": 1e-3},
        {},
        lambda ps: Adafactor([{"params": ps[:1], "factored": (0, 1)}, {"params": ps[1:]}], min_dim_size_to_factor=17),
        [{"exp_avg_sq_row": (20, 3), "exp_avg_sq_col": (17, 3)}, LAST[1]],
    ),
    "timm.AdafactorBigVision": (
        {**HEAVY, "min_dim_size_to_factor": 16, "beta2_cap": 0.999},
        {},
        lambda ps: Adafactor(ps, **preset("timm.AdafactorBigVision"), lr=0.01),
        [
            {"exp_avg_sq_r": (1, 17, 3), "exp_avg_sq_c": (20, 1, 3)},
            {"exp_avg_sq_r": (3, 18, 1)},
            {"exp_avg_sq": (2, 5, 19)},
        ],
    ),
    "apex.FusedLAMB": (OF_LAMB, {}, Lamb, [{"exp_avg": (20, 17, 3)}]),
    "timm.Lamb": (OF_LAMB, {}, Lamb, [{"exp_avg_sq": (20, 17, 3)}]),
    "timm.Lars": (HEAVY, {}, Lars, [{"momentum_buffer": (20, 17, 3)}]),
    "timm.Lion": ({"lr": 0.5, "betas": (0.5, 0.5)}, {}, Lion, [{"exp_avg": (20, 17, 3)}]),
    "lion_pytorch.Lion": ({"lr": 0.5, "betas": (0.5, 0.5)}, {}, Lion, [{"exp_avg": (20, 17, 3)}]),
    BNB: (OF_BNB, in_bits(32), AdamW, [{"state1": (20, 17, 3), "state2": (20, 17, 3)}]),
    "bitsandbytes.LAMB": (OF_BNB, in_bits(8, 1.0), Lamb, [{"qmap1": (256,), "absmax2": (4,), "unorm_vec": (1,)}]),
    "bitsandbytes.SGD": (
        {"lr": 0.5, "betas": (0.5, 0), "eps": 0.0},
        in_bits(8),
        lambda ps: SGD(ps, momentum=0.9),
        [{"state1": (20, 17, 3), "absmax1": (4,)}],
    ),
    FLASH: ({"lr": 0.5, "betas": (0.5, 0.5)}, {}, AdamW, [{"exp_avg": (20, 17, 3)}]),
    "pytorch_optimizer.AdaFactor": (
        {"lr": 0.1, "betas": (0.9, 0.999), "relative_step": False, "ams_bound": False},
        {},
        lambda ps: Adafactor(ps, lr=0.1, beta1=0.9),
        LAST,
    ),
    "pytorch_optimizer.CAME": (
        {"lr": 0.1, "betas": (0.9, 0.999, 0.9999), "ams_bound": False},
        {},
        Came,
        [{"exp_avg_res_row": (20, 17), "exp_avg_res_col": (20, 3), **LAST[0]}],
    ),
    "pytorch_optimizer.Lamb": (OF_LAMB, {}, Lamb, [{"exp_avg": (20, 17, 3)}]),
    "pytorch_optimizer.StableAdamW": (
        {"lr": 0.5, "betas": (0.5, 0.5), "kahan_sum": True},
        {},
        StableAdamW,
        [{"exp_avg_sq": (20, 17, 3)}],
    ),
    "flashoptim.FlashSGD": ({"lr": 0.5, "momentum": 0.5}, {}, lambda ps: SGD(ps, momentum=0.9), []),
}


def test_a_schedule_does_not_set_lr_with_a_relative_step():
    name = "transformers.Adafactor"
    ours = Adafactor(parameters(SMALL), **preset(name))
    go(ours, [1])
    theirs = convert_back(ours.state_dict(), stand_in(name, own(ours), LAYOUTS[name][0]), name)
    theirs["param_groups"][0].update(lr=0.1, initial_lr=0.1)
    [group] = convert(theirs, name)["param_groups"]
    assert group["lr"] is None
    assert "initial_lr" not in group


@pytest.mark.filterwarnings("ignore:.*max_unorm")
@pytest.mark.parametrize("target", LAYOUTS)
def test_converted_state_has_the_target_s_layout_and_converts_back(target):
    group, attributes, make, shapes = LAYOUTS[target]
    ours = make(parameters([*CUBES, (7,)], torch.float32))
    go(ours, range(2))
    # In groups of their own in both, as the tensor is that timm factors along its first dimensions.
    theirs = stand_in(target, [{"params": g["params"]} for g in ours.param_groups], group, **attributes)
    there = convert_back(ours.state_dict(), theirs, target)
    for number, wanted in enumerate(shapes):
        assert {key: tuple(there["state"][number][key].shape) for key in wanted} == wanted
    again = make(copies(own(ours)))
    again.load_state_dict(convert(there, target))
    near = 0.02 if attributes.get("get_config", dict)().get("optim_bits") == 8 else 0
    uncounted = (
        {"step"} if any(one in target for one in ("SGD", "Lars", "Lion")) else set()
    )  # a momentum is one that has begun
    for p, q in zip(own(ours), own(again), strict=True):
        for key in ours.state[p].keys() - uncounted:
            x, y = ours.state[p][key].float(), again.state[q][key].float()
            assert (x - y).abs().max() <= near * x.abs().max(), key
    assert again.param_groups[0]["lr"] == ours.param_groups[0]["lr"]


# ---- the way back


def torch_adam(shapes: Any = SMALL, **options: Any) -> Any:
    return torch.optim.Adam(parameters(shapes), **options)


def torch_sgd() -> Any:
    return torch.optim.SGD(parameters(SMALL))


def torch_adafactor() -> Any:
    return torch.optim.Adafactor(parameters(SMALL))


def lamb_of(name: str, **options: Any) -> Any:
    return stand_in(name, parameters(SMALL), {**OF_LAMB, **options})


def t5(**options: Any) -> Any:
    name = "transformers.Adafactor"
    return stand_in(name, parameters(SMALL), {**LAYOUTS[name][0], **options})


def of_two_counts() -> Any:
    saved = of_ours(Lamb)
    saved["state"][1]["step"] += 1
    return saved


@pytest.mark.parametrize(
    ("saved", "theirs", "target", "told"),
    [
        (of_ours, torch_adam, "timm.Lamb", "`optimizer` must be timm.Lamb, but is an Adam of torch"),
        (of_ours, lambda: None, "torch.Adam", "but is a NoneType"),
        (of_ours, torch_sgd, "torch.Adam", "but is an SGD of torch"),
        (of_ours, lambda: torch.optim.Adamax(parameters(SMALL)), "torch.Adam", "but is an Adamax of"),
        (lambda: {**of_ours(), "state": {9: {}}}, torch_adam, "torch.Adam", "state for \\['9'\\], which match no"),
        (of_ours, lambda: torch_adam(amsgrad=True), "torch.Adam", "amsgrad=True"),
        (of_ours, lambda: torch_adam(SMALL[:1]), "torch.Adam", r"groups of \[2\] parameters"),
        (of_ours, lambda: torch.optim.Adam([{"params": p} for p in parameters(SMALL)]), "torch.Adam", r"of \[1, 1\]\."),
        (of_ours, lambda: torch_adam([(1, 15), (7,)]), "torch.Adam", r"must have the shape \(1, 15\)"),
        (of_ours, torch_sgd, "torch.SGD", "momentum_buffer"),
        (dict, torch_adam, "torch.Adam", "param_groups"),
        (lambda: of_ours(Lamb, grad_averaging=False), torch_adam, "torch.Adam", "made with grad_averaging=False"),
        (
            of_ours,
            lambda: lamb_of("apex.FusedLAMB", grad_averaging=False),
            "apex.FusedLAMB",
            "the target has grad_averaging=False",
        ),
        (of_ours, lambda: lamb_of("timm.Lamb", grad_averaging=False), "timm.Lamb", "made with grad_averaging=True"),
        (
            of_two_counts,
            lambda: lamb_of("apex.FusedLAMB"),
            "apex.FusedLAMB",
            r"parameters of a group have taken \[1, 2\] steps",
        ),
        (lambda: of_ours(Adafactor, beta1=0.9), torch_adafactor, "torch.Adafactor", "no momentum"),
        (
            lambda: of_ours(Adafactor, beta1=0.9),
            t5,
            "transformers.Adafactor",
            "one of the two optimizers has momentum",
        ),
        (
            lambda: of_ours(Adafactor, beta1=0.9, lr_in_momentum=False),
            lambda: t5(beta1=0.9),
            "transformers.Adafactor",
            "made with lr_in_momentum=False, but the target has lr_in_momentum=True",
        ),
        (
            lambda: of_ours(Adafactor, factored=False),
            torch_adafactor,
            "torch.Adafactor",
            r"by rows along 0 and columns along 1, but the state does not",
        ),
        (
            lambda: of_ours(Adafactor, factored=((1,), (0,))),
            torch_adafactor,
            "torch.Adafactor",
            r"factored=\(0, 1\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_states_that_cannot_be_converted_back_are_refused(saved, theirs, target, told):
    with pytest.raises(StateError, match=told):
        convert_back(saved(), theirs(), target)


class Mine(torch.optim.AdamW):
    """A user's own."""


def test_a_subclass_of_a_foreign_optimizer_converts_like_it():
    theirs = Mine(parameters(SMALL))
    theirs.load_state_dict(convert_back(of_ours(), theirs, "torch.Adam"))
    assert theirs.state_dict()["state"][0]["step"] == 1


def test_state_in_few_bits_goes_back_as_numbers():
    ours = AdamW([("w", Parameter(torch.ones(64, 64)))], state_dtype="int8", lr=0.01)
    go(ours, range(2))
    theirs = torch.optim.AdamW([("w", Parameter(torch.ones(64, 64)))])
    theirs.load_state_dict(convert_back(ours.state_dict(), theirs, "torch.AdamW"))
    [state] = theirs.state.values()
    assert (theirs.param_groups[0]["lr"], float(state["step"])) == (0.01, 2)
    g = [parameters([(64, 64)], torch.float32, 100 + i)[0].detach() for i in range(2)]
    wanted = 0.09 * g[0] + 0.1 * g[1]
    within = 1.9 / 8  # a code is up to an eighth of a number: that of the second step, and nine tenths of the first
    assert (state["exp_avg"] - wanted).abs().max() < within * wanted.abs().max()


def test_parameters_of_other_groups_go_by_name():
    model = dict(torch.nn.Linear(3, 2).named_parameters())
    ours = AdamW(list(model.items()), lr=0.01)
    go(ours, [0])
    copied = {name: Parameter(p.detach().clone()) for name, p in model.items()}
    theirs = torch.optim.AdamW([{"params": [(name, copied[name])]} for name in ("bias", "weight")])
    theirs.load_state_dict(convert_back(ours.state_dict(), theirs, "torch.Adam"))
    for name, p in model.items():
        assert torch.equal(theirs.state[copied[name]]["exp_avg"], ours.state[p]["exp_avg"])
        assert theirs.state[copied[name]]["exp_avg"].data_ptr() != ours.state[p]["exp_avg"].data_ptr()


# ---- what no option of a group says


@pytest.mark.parametrize(("name", "told"), [("LAMB", r"trust_clip=\(None, 1\.0\)"), ("LARS", "smaller lr")])
def test_tensors_whose_steps_bitsandbytes_bounds_warn(name, told):
    name = f"bitsandbytes.{name}"
    group, attributes, make, _ = LAYOUTS.get(name, LAYOUTS["bitsandbytes.SGD"])
    make = partial(Lars, adapt=False) if name.endswith("LARS") else make
    small, large = parameters([(5, 3)], torch.float32), parameters([(20, 17)], torch.float32)
    for params, counts in (([*small, *large], "1 of 2"), (small, "1 of 1"), (large, "")):
        ours = make(copies(params))
        go(ours, [1])
        theirs = convert_back(ours.state_dict(), stand_in(name, copies(params), group, **attributes), name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            convert(theirs, name)
        found = [str(one.message) for one in caught if "max_unorm" in str(one.message)]
        assert len(found) == bool(counts)
        assert all(re.search(f"{counts} tensors have float32 state.*{told}", one) for one in found)


def of_lars(**vectors: Any) -> dict[str, Any]:
    """A checkpoint of pytorch_optimizer's LARS, with a group of vectors that has these options."""
    group = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1}
    group |= {"nesterov": False, "trust_coefficient": 0.001}
    groups = [{**group, "params": [0]}, {**group, "params": [1], **vectors}]
    return {"state": {i: {"momentum_buffer": torch.ones(x)} for i, x in enumerate(SMALL)}, "param_groups": groups}


def test_decay_of_vectors_that_lars_of_pytorch_optimizer_leaves_out_is_said():
    with pytest.warns(
        UserWarning,
        match=r"group 1 contains vectors and has weight_decay=0\.1.*with weight_decay=0, and set adapt=False",
    ):
        convert(of_lars(), "pytorch_optimizer.LARS")
    convert(of_lars(weight_decay=0.0), "pytorch_optimizer.LARS")  # without a warning


@pytest.mark.parametrize("name", ["AdaFactor", "CAME"])
def test_a_maximum_of_pytorch_optimizer_is_refused_there_and_back(name):
    source = f"pytorch_optimizer.{name}"
    group, _, make, _ = LAYOUTS[source]
    ours = make(parameters(SMALL))
    go(ours, [1])
    there = convert_back(ours.state_dict(), stand_in(source, own(ours), group), source)
    there["state"][0]["exp_avg_sq_hat"] = torch.ones(5, 3)
    with pytest.raises(StateError, match="made with ams_bound"):
        convert(there, source)
    with pytest.raises(StateError, match="the target has ams_bound=True"):
        convert_back(ours.state_dict(), stand_in(source, own(ours), {**group, "ams_bound": True}), source)


def test_an_optimizer_in_place_of_its_state_is_refused():
    theirs = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(StateError, match=r"but is an AdamW of torch\. Pass its state_dict\(\)\. The order is"):
        convert(theirs, "torch.AdamW")
    with pytest.raises(StateError, match=r"The order is convert_back\(state_dict, optimizer, target\)"):
        convert_back(theirs, {}, "torch.AdamW")
