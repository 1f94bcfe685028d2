"""Every option of every optimizer: what is refused, in which words, and what must not be refused."""

from __future__ import annotations

import inspect
import re
import warnings
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import CASES

from layerwise import hyper
from layerwise import numpy as front
from layerwise.errors import ContradictionError, HyperparameterError, LayerwiseError
from layerwise.rules.adafactor import Adafactor
from layerwise.rules.lamb import Lamb
from layerwise.rules.lars import Lars

ALL = [case.hyper for case in CASES]
each = pytest.mark.parametrize("cls", ALL)

# Not a number for any option, and -inf outside of every range.
NO_NUMBER = (
    float("nan"), float("inf"), float("-inf"), np.float32("nan"), np.array(np.inf),
    "0.1", b"1", [0.1], (0.1,), {}, 1j, np.complex64(1), True, np.True_, np.array(True), np.array([0.1, 0.2]), object,
)  # fmt: skip
NO_CALLABLE = NO_NUMBER[:-1]
NO_BOUND = tuple(x for x in NO_NUMBER if np.shape(x) != (2,))  # which are two bounds
NO_ARGUMENT = tuple(x for x in NO_CALLABLE if not isinstance(x, dict))  # which say something by name
NO_INTEGER = (*NO_NUMBER, 1.0, 1.5, None, np.float64(2))
NO_FLAG = (None, 0, 1, 1.0, "True", "", [], np.array([True]))
NO_NAME = (None, 0, 1, "", "RATIO", b"ratio", ["ratio"], np.array(["ratio"]))
NO_PAIR = (None, 0.9, "ab", b"ab", (), (0.9,), (0.9, 0.99, 0.999), {0.9: 0, 0.99: 1}, {0.9, 0.99})
NO_ENTRY = (float("nan"), float("inf"), -0.1, "0.5", True, 1j, [0.1])
NO_ENTRIES = (*((x, 0.9) for x in NO_ENTRY), *((0.5, x) for x in NO_ENTRY))
NO_BETAS = (*NO_PAIR, *NO_ENTRIES, (1, 0.5), (0.5, 1.0), (0.9, 1.5), (None, 0.5), (0.5, None))
NO_VALUE_BOUNDS = (
    "ab", (), (0.9,), (0.9, 0.99, 0.999), {0.9: 0, 0.99: 1}, (0.5, 0.4), (1, -1), (float("nan"), 1), (0, float("inf")),
    (float("-inf"), 0), ("0", 1), (None, "1"), (True, 1), (0, 1j), ([0], 1),
)  # fmt: skip
NO_BOUNDS = (*NO_PAIR[1:], *NO_ENTRIES, (10, 0.01), (-1, None), 1.0)

RATE = "a finite number ≥ 0 or a callable of the step"
POSITIVE = "a finite number > 0"
NOT_NEGATIVE = "a finite number ≥ 0"
UNIT = "a number in [0, 1)"
FLAG = "one of True, False"
GRAD = "None (or 0) for no clipping"
GRAD_VALUE = "(low, high) with low ≤ high, or None (or 0) for no clipping"

GRADIENT = {
    "max_grad_norm": (f"{NOT_NEGATIVE} or None", GRAD, (*NO_NUMBER, -1)),
    "max_grad_norm_per_tensor": (f"{NOT_NEGATIVE} or None", GRAD, (*NO_NUMBER, -1e-30)),
    "max_grad_value": (f"{NOT_NEGATIVE} or None or a pair", GRAD_VALUE, (*NO_BOUND, -1, *NO_VALUE_BOUNDS)),
    "maximize": (FLAG, "Pass True or False", NO_FLAG),
}
ADAPT = ("one of True, False, 'decayed'", "only where weight_decay is not 0", (*NO_FLAG, "ratio"))
WEIGHT_DECAY = (RATE, "maximize=True", (*NO_CALLABLE, None, -0.01))
ZERO_NORM = (NOT_NEGATIVE, "such as 1", (*NO_NUMBER, None, -1))
MIN_NORM = (NOT_NEGATIVE, "or 0 for no floor", (*NO_NUMBER, None, -1))
KEEP_NORM = ("one of True, False, 'first'", "norm before each step", (*NO_FLAG, "last"))
CAUTION = (FLAG, "Pass True or False", NO_FLAG)
L2 = (NOT_NEGATIVE, "weight_decay is another", (*NO_ARGUMENT, None, -1e-9))
# option: (the allowed range, a word of the way out, values that are refused)
TABLE: dict[type[Any], dict[str, tuple[str, str, tuple[Any, ...]]]] = {
    Lamb: {
        "lr": (RATE, "lr=1e-3", (*NO_CALLABLE, None, -1e-9)),
        "betas": ("a pair", "betas=(0.9, 0.999)", NO_BETAS),
        "eps": (NOT_NEGATIVE, "eps=1e-6", (*NO_NUMBER, None, -1e-6)),
        "weight_decay": WEIGHT_DECAY,
        "eps_root": (NOT_NEGATIVE, "or 0", (*NO_NUMBER, None, -1)),
        "bias_correction": ("one of True, False, 'lr'", "correct the step", (*NO_FLAG, "LR")),
        "decay": ("one of 'ratio', 'decoupled', 'l2'", "AdamW", (*NO_NAME, True, "L2")),
        "adapt": ADAPT,
        "trust_clip": ("with the first ≤ the second or None", "None for no clipping", NO_BOUNDS),
        "max_weight_norm": (f"{POSITIVE} or None", "such as 10", (*NO_NUMBER, 0, -1)),
        "grad_averaging": (FLAG, "Pass True or False", NO_FLAG),
        "zero_norm_ratio": ZERO_NORM,
        "min_norm": MIN_NORM,
        "trust_eps": (NOT_NEGATIVE, "trust_eps=1e-8", (*NO_NUMBER, None, -1)),
        "l2": L2,
        "peak_lr": (f"{POSITIVE} or None", "largest lr", (*NO_NUMBER, 0, -1)),
        "caution": CAUTION,
        "keep_norm": KEEP_NORM,
        **GRADIENT,
    },
    Lars: {
        "lr": (RATE, "lr=1e-3", (*NO_CALLABLE, None, -1)),
        "momentum": (UNIT, "momentum=0.9", (*NO_NUMBER, None, 1, 1.5, -0.1)),
        "weight_decay": WEIGHT_DECAY,
        "trust_coefficient": (POSITIVE, "trust_coefficient=0.001", (*NO_NUMBER, None, 0, -1)),
        "eps": (NOT_NEGATIVE, "eps=1e-8", (*NO_NUMBER, None, -1)),
        "nesterov": (FLAG, "Pass True or False", NO_FLAG),
        "dampening": ("a number in [0, 1]", "0 for none", (*NO_NUMBER, None, 1.01, -0.1)),
        "norm": ("one of 'split', 'decayed'", "‖g + λp‖", (*NO_NAME, True)),
        "lr_in_momentum": (FLAG, "Pass True or False", NO_FLAG),
        "adapt": ADAPT,
        "trust_clip": ("with the first ≤ the second or None", "None for no clipping", (*NO_BOUNDS, (0.5, None))),
        "zero_norm_ratio": ZERO_NORM,
        "min_norm": MIN_NORM,
        "l2": L2,
        "caution": CAUTION,
        "keep_norm": KEEP_NORM,
        **GRADIENT,
    },
    Adafactor: {
        "caution": CAUTION,
        "lr": (f"{RATE} or None", "relative step", (*NO_CALLABLE, -1)),
        "eps": ("a pair", "(1e-30, 1e-3)", (*NO_PAIR, *NO_ENTRIES, (0, 1e-3), (1e-30, None))),
        "eps_mode": ("one of 'add', 'clamp'", "max(√V, eps1)", (*NO_NAME, True)),
        "clip_threshold": (f"{POSITIVE} or None", "None is off", (*NO_NUMBER, 0, 0.0, -1)),
        "beta2_decay": ("a finite number ≤ 0", "-0.8, not 0.8", (*NO_NUMBER, None, 0.8)),
        "beta2": (f"{UNIT} or a callable of the step or None", "1 - t**beta2_decay", (*NO_CALLABLE, 1, -0.1)),
        "beta2_cap": (f"{UNIT} or None", "0.999", (*NO_NUMBER, 1, -0.1)),
        "decay_offset": ("an integer ≥ 0 and < 2^63", "trained before", (*NO_INTEGER, -1, 2**63, 2**64)),
        "beta1": (f"{UNIT} or None", "beta1=0.9", (*NO_NUMBER, 1, -0.1)),
        "momentum_dtype": (
            "None or one of 'float16', 'bfloat16', 'float32', 'float64' or a dtype of that name", "of the other state",
            (16, True, np.int32, np.dtype("i4"), "", "float 32", "single", "int32", [], object()),
        ),
        "lr_in_momentum": (FLAG, "Pass True or False", NO_FLAG),
        "weight_decay": WEIGHT_DECAY,
        "decay_scale": ("one of 'lr', 'step', 'none'", "whole step size", (*NO_NAME, True)),
        "scale_parameter": (f"{FLAG} or None", "on with a relative step", NO_FLAG[1:]),
        "relative_step": ("one of True, False, 'factor', 'cap', None", "on when lr is None", NO_FLAG[1:]),
        "lr_cap": (POSITIVE, "upper bound", (*NO_NUMBER, None, 0, -1)),
        "warmup_init": (FLAG, "Pass True or False", NO_FLAG),
        "factored": (
            '"last", "largest", "matrix", False, or two distinct dimensions or groups of dimensions',
            "such as ((0,), (1, 2, 3))",
            (True, None, 0, 1, "", "first", b"last", b"ab", (), (0,), (0, 1, 2), (0, 0), ((0, 1), (1, 2)), ((0, 0), 1),
             ((), 1), ((0,), ()), ("0", "1"), (0.0, 1.0), (True, False), (None, 1), "ab", {0, 1}, {0: 1, 1: 2}),
        ),
        "min_dim_size_to_factor": ("an integer ≥ 0 and < 2^63", "such as 128", (*NO_INTEGER, -1, 2**63)),
        **GRADIENT,
    },
}  # fmt: skip
ROWS = [
    pytest.param(cls, name, *row, id=f"{cls.__name__}.{name}")
    for cls, table in TABLE.items()
    for name, row in table.items()
]


def refused(cls: Any, options: dict[str, Any], error: type[LayerwiseError] = HyperparameterError) -> str:
    """The message, the same from the dataclass and from the NumPy front; "" if there is none."""
    messages: list[str] = []
    for constructor in (cls, getattr(front, cls.__name__)):
        try:
            constructor(**options)
            messages.append("")
        except error as caught:
            messages.append(str(caught))
    assert messages[0] == messages[1]
    return messages[0]


@pytest.mark.parametrize("cls", TABLE)
def test_table_has_every_option(cls):
    assert TABLE[cls].keys() == {spec.name for spec in fields(cls)}


@pytest.mark.parametrize(("cls", "name", "allowed", "way_out", "bad"), ROWS)
def test_refused(cls, name, allowed, way_out, bad):
    messages = {repr(value): refused(cls, {name: value}) for value in bad}
    assert [value for value, message in messages.items() if not message] == [], "accepted"
    for value, message in messages.items():
        range_said, found, help_said = message.partition(f", but is {value}. ")
        assert range_said.startswith(f"`{name}` must be ")
        assert allowed in range_said
        assert found
        assert way_out in help_said


@each
@pytest.mark.needs("max_grad_norm")
def test_huge_integers_are_no_finite_numbers(cls):
    for name in ("lr", "weight_decay", "max_grad_norm"):
        assert f"`{name}` must be a finite number" in refused(cls, {name: 10**400})


CONTRADICTIONS = [
    (Adafactor, {"momentum_dtype": "float32"}, ("`momentum_dtype`", "without momentum", "float32", "Pass beta1")),
    (Lars, {"nesterov": True, "momentum": 0}, ("`nesterov`", "momentum", "momentum > 0")),
    (Lars, {"nesterov": True, "dampening": 0.1}, ("`nesterov`", "0.1", "dampening=0")),
    (Adafactor, {"lr": 1e-3, "relative_step": True}, ("`lr`", "None", "0.001", 'relative_step="cap"', '"factor"')),
    (Adafactor, {"lr": 0, "relative_step": True}, ("`lr`", "None", "relative_step")),
    (Adafactor, {"relative_step": False}, ("`lr`", "relative_step=False", "None", "1e-3")),
    (Adafactor, {"lr": 1e-3, "warmup_init": True}, ("`warmup_init`", "lr", "schedule")),
    (Adafactor, {"beta2": 0.9, "beta2_decay": -0.5}, ("`beta2`", "exponent -0.5", "0.9", "Drop one")),
    (Adafactor, {"beta2": 0.9, "decay_offset": 3}, ("`decay_offset`", "0 with beta2=0.9", "3")),
    (Lamb, {"keep_norm": True, "decay": "decoupled"}, ("`keep_norm`", "False with decay", "Drop one")),
    (Lamb, {"peak_lr": 0.1}, ("`peak_lr`", "None with decay='ratio'", "0.1", 'decay="decoupled"')),
    (Adafactor, {"caution": True}, ("`caution`", "False without momentum", "beta1")),
    (Lamb, {"min_norm": 2, "max_weight_norm": 1}, ("`min_norm`", "max_weight_norm=1.0", "2.0", "Lower")),
]


@pytest.mark.parametrize(("cls", "options", "words"), CONTRADICTIONS)
def test_contradictions(cls, options, words):
    message = refused(cls, options, ContradictionError)
    assert [word for word in words if word not in message] == []


def test_an_option_in_error_goes_before_a_contradiction():
    assert "`lr` must be a finite number" in refused(Adafactor, {"lr": -1.0, "relative_step": True})


def halve(step: int) -> float:
    return 0.5**step


class Scheduled:
    def __call__(self, step: int) -> float:
        return 1.0


SCHEDULE = Scheduled()


SWAPPED = [
    (Lamb, {"betas": (0.999, 0.9)}, "b1=0.999 and b2=0.9 are taken"),
    (Lamb, {"betas": [0.995, 0.8]}, "b1=0.995 and b2=0.8 are taken"),
    (Adafactor, {"eps": (1e-3, 1e-30)}, "eps1=0.001 and eps2=1e-30 are taken"),
]


@pytest.mark.parametrize(("cls", "options", "said"), SWAPPED)
def test_what_looks_swapped_is_taken_with_a_warning(cls, options, said):
    with pytest.warns(UserWarning, match=f"{said} as they are. Swapped?"):
        settings = cls(**options)
    assert all(getattr(settings, name) == tuple(value) for name, value in options.items())


@pytest.mark.parametrize("betas", [(0.99, 0.9), (0.9, 0.0), (0.95, 0.9), (0.999, 0.99)])
def test_betas_that_are_used_need_no_warning(betas):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Lamb(betas=betas).betas == betas


@each
@pytest.mark.parametrize("schedule", [lambda: 0.1, lambda step, epoch: 0.1, lambda *, step: 0.1, float, Scheduled])
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_a_schedule_takes_a_step(cls, name, schedule):
    assert "a callable of the step" in refused(cls, {name: schedule})


@each
@pytest.mark.parametrize("one", [np.array([0.5]), np.array([[0.5]], np.float32)])
@pytest.mark.needs("max_grad_norm")
def test_arrays_of_one_element_are_numbers(cls, one):
    assert (cls(lr=one).lr, cls(weight_decay=one).weight_decay, cls(max_grad_norm=one).max_grad_norm) == (0.5,) * 3
    opt = getattr(front, cls.__name__)(lr=lambda step: one)
    opt.step("w", np.ones(2), np.ones(2))
    assert opt.lr == 0.5


NUMBERS = (
    0, 0.0, 0.5, np.float32(0.5), np.float16(0.5), np.float64(0.5), np.array(0.5), np.int64(0), np.array(0),
    Fraction(1, 2),
)  # fmt: skip
PLAIN = tuple((x, float(x)) for x in (*NUMBERS, 3))
UNITS = tuple((x, float(x)) for x in (*NUMBERS, 0.9999999999999999))
ABOVE_0 = tuple((x, float(x)) for x in (*NUMBERS[2:7], 5e-324, 1, 1e300))
RATES = (*PLAIN, (10**9, 1e9), (5e-324, 5e-324), (halve, halve), (SCHEDULE, SCHEDULE))
FLAGS = ((True, True), (False, False))
INTEGERS = ((0, 0), (7, 7), (np.int64(7), 7), (np.uint8(7), 7), (2**63 - 1, 2**63 - 1))
OPTIONAL = ((None, None),)
VALUE_BOUNDS = (
    ((-1, 2), (-1.0, 2.0)), ([0.1, 0.1], (0.1, 0.1)), ((None, -1), (None, -1.0)), ((-3, None), (-3.0, None)),
    ((None, None), (None, None)), ((np.float32(-0.5), np.array(1)), (-0.5, 1.0)),
)  # fmt: skip
GOOD_GRADIENT = {
    **dict.fromkeys(list(GRADIENT)[:2], PLAIN + OPTIONAL),
    "max_grad_value": PLAIN + OPTIONAL + VALUE_BOUNDS,
    "maximize": FLAGS,
}
GOOD_ADAPT = (*FLAGS, ("decayed", "decayed"))
BOUNDS = (
    (None, None), ((0, 1), (0.0, 1.0)), ([0, 0], (0.0, 0.0)), ((None, 1), (None, 1.0)), ((2, 2), (2.0, 2.0)),
    ((np.float32(0.5), np.array(1)), (0.5, 1.0)),
)  # fmt: skip
GOOD: dict[type[Any], dict[str, tuple[tuple[Any, Any], ...]]] = {
    Lamb: {
        "lr": RATES,
        "betas": (
            ((0, 0), (0.0, 0.0)), ([0.9, 0.999], (0.9, 0.999)), ((np.float64(0.5), np.array(0.25)), (0.5, 0.25)),
            ((0.9, 0.0), (0.9, 0.0)), ((0.99, 0.99), (0.99, 0.99)), ((0.999, 0.999), (0.999, 0.999)),
        ),
        "eps": PLAIN,
        "weight_decay": RATES,
        "eps_root": PLAIN,
        "bias_correction": (*FLAGS, ("lr", "lr")),
        "decay": tuple((x, x) for x in ("ratio", "decoupled", "l2")),
        "adapt": GOOD_ADAPT,
        "trust_clip": (*BOUNDS, ((1, None), (1.0, None)), ((None, None), (None, None))),
        "max_weight_norm": ABOVE_0 + OPTIONAL,
        "grad_averaging": FLAGS,
        "zero_norm_ratio": PLAIN,
        "min_norm": PLAIN,
        "trust_eps": PLAIN,
        "l2": PLAIN,
        "peak_lr": OPTIONAL,
        "caution": FLAGS,
        "keep_norm": (*FLAGS, ("first", "first")),
        **GOOD_GRADIENT,
    },
    Lars: {
        "lr": RATES,
        "momentum": UNITS,
        "weight_decay": RATES,
        "trust_coefficient": ABOVE_0,
        "eps": PLAIN,
        "nesterov": FLAGS,
        "dampening": (*UNITS, (1, 1.0)),
        "norm": (("split", "split"), ("decayed", "decayed")),
        "lr_in_momentum": FLAGS,
        "adapt": GOOD_ADAPT,
        "trust_clip": BOUNDS,
        "zero_norm_ratio": PLAIN,
        "min_norm": PLAIN,
        "l2": PLAIN,
        "caution": FLAGS,
        "keep_norm": (*FLAGS, ("first", "first")),
        **GOOD_GRADIENT,
    },
    Adafactor: {
        "caution": FLAGS[1:],
        "lr": (*RATES, (None, 1.0)),
        "eps": (
            ((None, 0), (None, 0.0)), ([1e-30, 1e-3], (1e-30, 1e-3)), ((5e-324, 1), (5e-324, 1.0)),
            ((1, 0), (1.0, 0.0)), ((np.float64(1e-30), np.array(1e-3)), (1e-30, 1e-3)),
        ),
        "eps_mode": (("add", "add"), ("clamp", "clamp")),
        "clip_threshold": ABOVE_0 + OPTIONAL,
        "beta2_decay": ((0, 0.0), (-0.8, -0.8), (-1000, -1000.0), (np.float64(-0.5), -0.5), (np.array(-1), -1.0)),
        "beta2": (*UNITS, (halve, halve), (SCHEDULE, SCHEDULE), *OPTIONAL),
        "beta2_cap": UNITS + OPTIONAL,
        "decay_offset": INTEGERS,
        "beta1": UNITS + OPTIONAL,
        "momentum_dtype": (
            *((x, x) for x in ("float16", "bfloat16", "float32", "float64")), (None, None), (np.float32, "float32"),
            (np.dtype("f2"), "float16"), (ml_dtypes.bfloat16, "bfloat16"), (np.dtype("bfloat16"), "bfloat16"),
        ),
        "lr_in_momentum": FLAGS,
        "weight_decay": RATES,
        "decay_scale": tuple((x, x) for x in ("lr", "step", "none")),
        "scale_parameter": (*FLAGS, (None, True)),
        "relative_step": ((True, "factor"), (None, "factor"), ("factor", "factor"), ("cap", "cap")),
        "lr_cap": ABOVE_0,
        "warmup_init": FLAGS,
        "factored": (
            ("last", "last"), ("largest", "largest"), ("matrix", "matrix"), (False, False), ((0, 1), ((0,), (1,))),
            ([0, 1], ((0,), (1,))), ((-1, 0), ((-1,), (0,))), ([[0], [1, 2, 3]], ((0,), (1, 2, 3))),
            ((0, (1, 2)), ((0,), (1, 2))),
        ),
        "min_dim_size_to_factor": INTEGERS,
        **GOOD_GRADIENT,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "name"), [pytest.param(cls, name, id=f"{cls.__name__}.{name}") for cls in GOOD for name in GOOD[cls]]
)
def test_accepted_in_one_form(cls, name):
    for value, normal in GOOD[cls][name]:
        options = {name: value} if name != "momentum_dtype" or value is None else {name: value, "beta1": 0.9}
        got = getattr(cls(**options), name)
        assert (got, type(got)) == (normal, type(normal)), value
        getattr(front, cls.__name__)(**options)


@pytest.mark.parametrize(
    ("cls", "name", "value", "normal"),
    [
        (Lamb, "maximize", np.True_, True),
        (Lars, "nesterov", np.float64(0.9) > 0, True),
        (Adafactor, "scale_parameter", np.False_, False),
        (Lamb, "bias_correction", np.False_, False),
        (Lamb, "decay", np.str_("l2"), "l2"),
        (Lamb, "adapt", np.str_("decayed"), "decayed"),
        (Adafactor, "factored", (np.int64(0), np.int64(1)), ((0,), (1,))),
        (Adafactor, "decay_offset", np.array(7), 7),
        (Adafactor, "min_dim_size_to_factor", np.array(7), 7),
    ],
)
def test_numpy_scalars_are_what_they_hold(cls, name, value, normal):
    got = getattr(cls(**{name: value}), name)
    assert (got, type(got)) == (normal, type(normal))


@pytest.mark.parametrize("cls", GOOD)
def test_accepted_table_has_every_option(cls):
    assert GOOD[cls].keys() == {spec.name for spec in fields(cls)}


def test_eps_of_adafactor_are_no_swap_where_they_clamp():
    assert Adafactor(eps=(1e-3, 1e-30), eps_mode="clamp").eps == (1e-3, 1e-30)


@each
def test_frozen(cls):
    settings = cls()
    for spec in fields(cls):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, spec.name, getattr(settings, spec.name))
    with pytest.raises(FrozenInstanceError):
        del settings.lr
    with pytest.raises(HyperparameterError, match=r"`weight_decay` must be .* but is -1"):
        replace(settings, weight_decay=-1)
    assert settings == cls()
    assert hash(settings) == hash(cls())


@each
def test_given_lists_are_not_kept(cls):
    lists = {"betas": [0.9, 0.99], "trust_clip": [0.1, 1.0], "factored": [0, [1, 2]]}
    given = {name: value for name, value in lists.items() if name in {spec.name for spec in fields(cls)}}
    settings = cls(**given)
    for name, value in given.items():
        value.clear()
        assert len(getattr(settings, name)) == 2


@each
def test_unknown_options_are_named(cls):
    for constructor in (cls, getattr(front, cls.__name__)):
        with pytest.raises(TypeError, match="learning_rate"):
            constructor(learning_rate=0.1)


def test_errors_are_the_builtin_ones_too():
    assert issubclass(HyperparameterError, ValueError)
    assert issubclass(ContradictionError, HyperparameterError)


@each
def test_signature_of_the_numpy_front(cls):
    own = {"lr_scale": None, "blocks": None, "skip_nonfinite": False, "shared_count": False, "engine": None}
    own |= {"master_weights": False, "rounding": None, "state_dtype": None, "seed": 0}
    declared = inspect.signature(cls).parameters
    if "decay" not in declared:
        own["decay"] = None
    offered = inspect.signature(getattr(front, cls.__name__)).parameters
    assert {name: (p.default, p.kind) for name, p in offered.items() if name not in own} == {
        name: (p.default, p.kind) for name, p in declared.items()
    }
    assert {name: (p.default, p.kind) for name, p in offered.items() if name in own} == {
        name: (default, inspect.Parameter.KEYWORD_ONLY) for name, default in own.items()
    }
    positional = [name for name, p in declared.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [name for name in offered if name in positional] == positional


@each
def test_defaults_agree_with_their_checks(cls):
    kept = [spec for spec in fields(cls) if spec.name not in cls.settled_here or spec.default is not None]
    assert all(getattr(cls(), spec.name) == spec.default for spec in kept)


BAD_ANSWERS = [float("nan"), float("inf"), -1.0, "0.1", [0.1], 1j, True, halve, np.array([0.1, 0.2])]


def named(x):
    """An id that is the same in every process, which a function's representation is not."""
    return getattr(x, "__name__", repr(x))


@pytest.mark.parametrize("answer", [*BAD_ANSWERS, None, 1.0, 1], ids=named)
def test_a_function_for_beta2_answers_for_itself(answer):
    opt = front.Adafactor(beta2=lambda step: 0.1 if step != 2 else answer)
    weights, g = {"w": np.array([3.0, 4.0])}, np.array([1.0, 2.0])
    for _ in range(2):
        opt.step_all(weights, {"w": g})
    before = weights["w"].tobytes(), {key: value.tobytes() for key, value in opt.state_dict().items()}
    weights["late"] = np.ones(2)  # whose own step is the first, which is answered well
    with pytest.raises(HyperparameterError) as caught:
        opt.step_all(weights, {"late": g, "w": g})
    assert str(caught.value).startswith("`beta2(2)` must be a number in [0, 1), but is ")
    assert f"but is {answer!r}. A function must return" in str(caught.value)
    assert (weights["w"].tobytes(), {key: value.tobytes() for key, value in opt.state_dict().items()}) == before
    assert weights["late"].tolist() == [1, 1]


def test_what_two_processes_compare_has_no_function_in_it():
    assert "beta2=" not in repr(Adafactor(beta2=halve))
    assert hyper.in_words(halve) == "<function halve>"
    assert hyper.in_words(SCHEDULE) == "<function Scheduled>"
    assert hyper.in_words(0.5) == 0.5


@each
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@pytest.mark.parametrize("answer", [*BAD_ANSWERS, None], ids=named)
def test_a_schedule_answers_for_itself(cls, name, answer):
    opt = getattr(front, cls.__name__)(**{name: lambda step: 0.1 if step != 2 else answer})
    w, late = np.array([3.0, 4.0]), np.array([1.0])
    for _ in range(2):
        opt.step("w", w, np.array([1.0, 2.0]))
    before, state = w.tobytes(), {key: value.tobytes() for key, value in opt.state_dict().items()}
    for stepped in ({"w": w}, {"w": w, "late": late}):
        with pytest.raises(HyperparameterError) as caught:
            opt.step_all(stepped, {key: np.ones(value.shape) for key, value in stepped.items()})
        assert str(caught.value).startswith(f"`{name}(2)` must be ")
        assert f"but is {answer!r}. " in str(caught.value)
    with pytest.raises(HyperparameterError, match=rf"`{name}\(2\)`"):
        getattr(opt, name)
    assert w.tobytes() == before
    assert late[0] == 1.0
    assert {key: value.tobytes() for key, value in opt.state_dict().items()} == state


@each
def test_every_option_refuses_what_is_of_no_kind_of_option(cls):
    for name in (spec.name for spec in fields(cls)):
        for value in (object(), float("nan"), "nonsense", 1j):
            message = refused(cls, {name: value})
            assert message.startswith(f"`{name}` must be ")
            assert f"but is {value!r}. " in message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_option_takes_the_values_that_tests_give_it(case):
    for name, values in case.options.items():
        for value in values:
            case.hyper.check(name, value)


@each
def test_every_option_has_a_meaning_and_a_way_out(cls):
    for spec in fields(cls):
        known = spec.metadata
        assert re.fullmatch(r"[A-Z].*\.", known["means"]), spec.name
        assert known["way_out"].endswith("."), spec.name
