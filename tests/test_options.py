"""Every option of every optimizer: the values it takes and the form they get, those it refuses, and in which words."""

from __future__ import annotations

import inspect
import pickle
import re
import warnings
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from math import inf
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from cases import CASES

from layerwise import numpy as front
from layerwise.catalog.registry import ENTRIES
from layerwise.errors import ContradictionError, HyperparameterError, shown
from layerwise.options import settings
from layerwise.options.by_name import INSTEAD
from layerwise.options.checks import alternatives
from layerwise.rules.adafactor import Adafactor
from layerwise.rules.lamb import Lamb
from layerwise.rules.lars import Lars
from layerwise.rules.lion import Lion
from layerwise.rules.muon import Muon
from layerwise.rules.sgd import SGD

each = pytest.mark.parametrize("cls", [case.hyper for case in CASES])


def halve(step: int) -> float:
    return 0.5**step


class Scheduled:
    def __call__(self, step: int) -> float:
        return 1.0


SCHEDULE = Scheduled()


class Range(NamedTuple):
    """What an option allows: as its message says it, values with the form that they get, and values that it refuses."""

    words: str
    good: tuple[tuple[Any, Any], ...]
    bad: tuple[Any, ...]

    def __or__(self, other: Range) -> Range:
        taken = [x for x, _ in other.good]
        bad = tuple(x for x in self.bad if not any(x is y for y in taken))
        return Range(f"{self.words} or {other.words}", self.good + other.good, bad)

    def but(self, *bad: Any) -> Range:
        return self._replace(bad=self.bad + bad)


# Not a number for any option.
NO_NUMBER = (
    float("nan"), float("inf"), float("-inf"), np.float32("nan"), np.array(np.inf), 10**400, None, "0.1", b"1", [0.1],
    (0.1,), {}, 1j, np.complex64(1), True, np.True_, np.array(True), np.array([0.1, 0.2]), object, object(), "nonsense",
    np.timedelta64(1, "s"),
)  # fmt: skip
HALVES = (0.5, np.float32(0.5), np.float16(0.5), np.array(0.5), np.array([[0.5]], np.float32), Fraction(1, 2))
ZEROS = (0, 0.0, np.int64(0), np.array(0))


def numbers(words: str, good: tuple[Any, ...], *bad: Any) -> Range:
    return Range(words, tuple((x, float(np.reshape(x, ())[()])) for x in (*HALVES, *good)), (*NO_NUMBER, *bad))


def choices(*values: Any) -> Range:
    """Return the range of the given values, of which True is not 1 and "ratio" is not "RATIO"."""
    strings = [x for x in values if isinstance(x, str)]
    alike = [(np.str_(x), x) for x in strings] + [(np.bool_(x), x) for x in values if isinstance(x, bool)]
    bad = (0, 1, 1.0, "True", "", b"ratio", [], np.array([True]), np.array(["ratio"]), float("nan"), "nonsense", 1j)
    other = [x for x in (None, True) if x not in values] + [x.swapcase() for x in strings]
    return Range(alternatives([*map(repr, values)]), (*((x, x) for x in values), *alike), (*bad, *other))


def integers(low: int, bits: int) -> Range:
    good = ((7, 7), (np.int64(7), 7), (np.uint8(7), 7), (np.array(7), 7), (low, low), (2**bits - 1, 2**bits - 1))
    return Range(f"an integer ≥ {low} and < 2^{bits}", good, (*NO_NUMBER, 1.0, 1.5, np.float64(2), low - 1, 2**bits))


def pairs(words: str, good: tuple[Any, ...], *bad: Any) -> Range:
    no_pair = (0.9, "ab", b"ab", (), (0.9,), (0.9, 0.99, 0.999), {0.9: 0, 0.99: 1}, {0.9, 0.99}, np.ones((2, 2)))
    for no_entry in (float("nan"), float("inf"), -0.1, "0.5", True, 1j, [0.1]):
        bad = (*bad, (no_entry, 0.9), (0.5, no_entry))
    normal = tuple((x, tuple(None if y is None else float(y) for y in x)) for x in good)
    return Range(words, normal, (*no_pair, *bad))


NONE = Range("None", ((None, None),), ())
SCHEDULES = Range("a function of the step", ((halve, halve), (SCHEDULE, SCHEDULE)), ())
DOES = "lambda step: 0.1 does."
NO_SCHEDULES = (lambda: 0.1, lambda step, epoch: 0.1, lambda *, step: 0.1, float, Scheduled)
FLAG = choices(True, False)
NOT_NEGATIVE = numbers("a finite number ≥ 0", (*ZEROS, 3, 10**9, 5e-324), -1, -1e-30)
POSITIVE = numbers("a finite number > 0", (5e-324, 1, 1e300), 0, 0.0, -1)
NOT_POSITIVE = Range("a finite number ≤ 0", ((0, 0.0), (-0.8, -0.8), (np.array(-1), -1.0)), (*NO_NUMBER, 0.8, 5e-324))
UNIT = numbers("a number in [0, 1)", (*ZEROS, 0.9999999999999999), 1, 1.5, -0.1)
UP_TO_1 = numbers("a number in [0, 1]", (*ZEROS, 1), 1.0000000000000002, -0.1)
RATE = (NOT_NEGATIVE | SCHEDULES).but(*NO_SCHEDULES)
BOUND = NOT_NEGATIVE | NONE
BETAS = pairs(
    "two values, each a number in [0, 1)",
    ((0, 0), [0.9, 0.999], (np.float64(0.5), np.array(0.25)), np.array([0.5, 0.25]), (0.99, 0.9),
     (0.9, 0.0), (0.999, 0.99)), None, (1, 0.5), (0.5, 1.0), (None, 0.5), (0.5, None),
)  # fmt: skip
EPS = pairs("two values, each a finite number > 0", ((5e-324, 1), [1e-30, 1e-16]), None, (0, 1), (1, 0))
EPS_OR_OWN = pairs(
    "a pair (a finite number > 0 or None, a finite number ≥ 0)",
    ((None, 0), [1e-30, 1e-3], (5e-324, 1), (1, 0)),
    *(None, (0, 1e-3), (1e-30, None)),
)
LIMITS = "a pair (low, high) with low ≤ high, each a finite number ≥ 0 or None"
TRUST = pairs("", ((0, 1), [0, 0], (None, 1), (2, 2)), (10, 0.01), (-1, None), 1.0) | NONE
TRUST = TRUST._replace(words=f"None or {LIMITS}")
OPEN_TRUST = TRUST._replace(good=(*TRUST.good, ((1, None), (1.0, None)), ((None, None), (None, None))))
TO_HIGH = "None or a pair (a finite number ≥ 0 or None, a finite number ≥ 0) with the first ≤ the second"
UP_TO_TRUST = TRUST._replace(words=TO_HIGH).but((0.5, None))
LOW_HIGH = Range(
    "a pair (low, high) with low ≤ high, each a finite number or None",
    (((-1, 2), (-1.0, 2.0)), ([0.1, 0.1], (0.1, 0.1)), ((None, -1), (None, -1.0)), ((None, None), (None, None))), (),
)  # fmt: skip
NO_BOUNDS = ("ab", (), (0.9,), (0.1, 0.2, 0.3), {0.9: 0, 0.99: 1}, (0.5, 0.4), (1, -1), (float("nan"), 1), (0, "1"))
CLIP = numbers("a finite number ≥ 0", (0, 3), -1)._replace(bad=(*NO_BOUNDS, -1, 1j, True, "0.1", object())) | NONE
DTYPES = tuple((x, x) for x in ("float16", "bfloat16", "float32", "float64"))
DTYPE = Range(
    "None or 'float16', 'bfloat16', 'float32', or 'float64' (or such a dtype)",
    (*DTYPES, (None, None), (np.float32, "float32"), (np.dtype("f2"), "float16"), (ml_dtypes.bfloat16, "bfloat16")),
    (16, True, np.int32, np.dtype("i4"), "", "float 32", "single", "int32", [], object(), float("nan"), 1j),
)
NS_DTYPE = Range(
    "None or 'float32', 'float16', or 'bfloat16' (or such a dtype)",
    tuple(one for one in DTYPE.good if one[1] != "float64"),
    (*DTYPE.bad, "float64", np.float64),
)
NO_DIMS = (
    True, None, 0, 1, "", b"last", b"ab", "ab", (), (0,), (0, 1, 2), (0, 0), ((0, 1), (1, 2)), ((0, 0), 1), ((), 1),
    ((0,), ()), ("0", "1"), (0.0, 1.0), (True, False), (None, 1), {0, 1}, {0: 1, 1: 2}, "nonsense", 1j, float("nan"),
)  # fmt: skip
DIMS = (
    (False, False), ((0, 1), ((0,), (1,))), ([0, 1], ((0,), (1,))), ((-1, 0), ((-1,), (0,))),
    ([[0], [1, 2, 3]], ((0,), (1, 2, 3))), ((0, (1, 2)), ((0,), (1, 2))), ((np.int64(0), np.int64(1)), ((0,), (1,))),
)  # fmt: skip


def dims(*names: str) -> Range:
    words = f"{', '.join(f'{name!r}'.replace(chr(39), chr(34)) for name in names)}, False, or two distinct dimensions"
    return Range(f"{words} or groups of dimensions", (*((x, x) for x in names), *DIMS), NO_DIMS)


THREE = (3.4445, -4.775, 2.0315)
COEFFICIENTS = Range(
    '"jordan", "polar_express", three numbers, or three for each iteration',
    (("jordan", "jordan"), (np.str_("polar_express"), "polar_express"), (THREE, THREE), ([1, 0, 0], (1.0, 0.0, 0.0)),
     (np.array(THREE), THREE), ([THREE], (THREE,)), ((THREE, [2, -1.5, 0.5]), (THREE, (2.0, -1.5, 0.5)))),
    (*NO_NUMBER, *ZEROS, 0.5, "Jordan", "", (), (1, 2), (1, 2, 3, 4), (1, 2, "3"), (1, 2, None), (1, 2, float("nan")),
     (THREE, 1), ((1, 2), (3, 4)), {1: 2}),
)  # fmt: skip


# Of an option, or of that of one optimizer: what it allows, and a word of the way out.
OPTIONS: dict[str, tuple[Range, str]] = {
    "lr": (RATE, "lr=1e-3"),
    "Adafactor.lr": (RATE | NONE, "None asks for the relative step"),
    "weight_decay": (RATE, "maximize=True"),
    "max_grad_norm": (BOUND, "None (or 0) for no clipping"),
    "max_grad_norm_per_tensor": (BOUND, "None (or 0) for no clipping"),
    "max_grad_value": (CLIP | LOW_HIGH, "None (or 0) for no clipping"),
    "maximize": (FLAG, "True means: "),
    "caution": (FLAG, "True means: "),
    "betas": (BETAS, "betas=(0.9"),
    "eps": (NOT_NEGATIVE, "eps=1e-"),
    "Adafactor.eps": (EPS_OR_OWN, "(1e-30, 1e-3)"),
    "Came.eps": (EPS, "(1e-30, 1e-16)"),
    "ScaleSGD.eps": (POSITIVE, "eps=1e-8"),
    "SinkGD.eps": (POSITIVE, "eps=1e-8"),
    "eps_mode": (choices("add", "clamp"), "max(√V, eps1)"),
    "eps_root": (NOT_NEGATIVE, "or 0"),
    "clip_threshold": (POSITIVE | NONE, "or None for no bound"),
    "beta1": (UNIT | NONE, "beta1=0.9"),
    "beta2": ((UNIT | SCHEDULES).but(*NO_SCHEDULES) | NONE, "1 - t**beta2_decay"),
    "beta3": (UNIT, "beta3=0.9999"),
    "beta2_decay": (NOT_POSITIVE, "-0.8, not 0.8"),
    "beta2_cap": (UNIT | NONE, "0.999"),
    "decay_offset": (integers(0, 63), "earlier steps"),
    "momentum": (UNIT, "momentum=0.9"),
    "momentum_dtype": (DTYPE, "of the other state"),
    "ns_dtype": (NS_DTYPE, "by device"),
    "lr_in_momentum": (FLAG, "True means: "),
    "Adafactor.decay_scale": (choices("lr", "step", "none"), "whole step size"),
    "Came.decay_scale": (choices("lr", "none"), '"none" for λ'),
    "StableAdamW.decay_scale": (choices("lr", "step", "none"), "whole step size"),
    "scale_parameter": (FLAG | NONE, "on with a relative step"),
    "relative_step": (choices(True, False, "factor", "cap", None), "on if lr is None"),
    "lr_cap": (POSITIVE, "upper bound"),
    "warmup_init": (FLAG, "True means: "),
    "factored": (dims("last", "largest", "matrix"), "such as ((0,), (1, 2, 3))"),
    "min_dim_size_to_factor": (integers(0, 63), "such as 128"),
    "AdamW.decay": (choices("decoupled", "l2"), "as in AdamW"),
    "Muon.decay": (choices("decoupled", "l2"), "as in AdamW"),
    "Lamb.decay": (choices("ratio", "decoupled", "l2"), "AdamW"),
    "Lion.decay": (choices("ratio", "decoupled", "l2"), "AdamW"),
    "NovoGrad.decay": (choices("momentum", "decoupled"), "the paper"),
    "SGD.decay": (choices("l2", "decoupled"), "torch.optim.SGD"),
    "nesterov": (FLAG, "True means: "),
    "Muon.nesterov": (choices(True, False, "corrected"), "as in optax"),
    "Muon.scale": (
        choices("original", "match_rms_adamw")._replace(bad=POSITIVE.bad) | POSITIVE,
        "as long as AdamW's",
    ),
    "Muon.eps": (POSITIVE, "eps=1e-7"),
    "ns_coefficients": (COEFFICIENTS, "or a list of such"),
    "ns_steps": (integers(1, 7), "ns_steps=5"),
    "dampening": (UP_TO_1, "0 for none"),
    "keep_norm": (choices(True, False, "first"), "norm before each step"),
    "l2": (NOT_NEGATIVE, "independent of weight_decay"),
    "adapt": (choices(True, False, "decayed"), "only where weight_decay is not 0"),
    "Lars.adapt": (choices(True, False, "decayed", "step"), "only where weight_decay is not 0"),
    "radial": (UNIT | NONE, "Pass 0 to remove that part"),
    "trust_clip": (OPEN_TRUST, "None for no clipping"),
    "Lars.trust_clip": (UP_TO_TRUST, "None for no clipping"),
    "zero_norm_ratio": (NOT_NEGATIVE, "such as 1"),
    "min_norm": (NOT_NEGATIVE, "or 0 for none"),
    "max_weight_norm": (POSITIVE | NONE, "such as 10"),
    "Lamb.bias_correction": (choices(True, False, "lr"), "correct the step"),
    "NovoGrad.bias_correction": (FLAG, "True means: "),
    "peak_lr": (POSITIVE | NONE, "largest lr"),
    "grad_averaging": (FLAG, "True means: "),
    "trust_eps": (NOT_NEGATIVE, "trust_eps=1e-8"),
    "trust_coefficient": (POSITIVE, "trust_coefficient=0.001"),
    "Lars.norm": (choices("split", "decayed"), "‖g + λp‖"),
    "ScaleSGD.norm": (choices("rms", "l2"), '"rms" or "l2"'),
    "normalize": (choices("gradient", "momentum"), "divide the average"),
    "v_start": (choices("first", "zero", "nonzero"), "that is not 0"),
    "m_start": (choices("zero", "direction"), "the paper"),
    "scale": (POSITIVE, "scale=0.05"),
    "dims": (dims("first", "last"), "such as ((0,), (1, 2, 3))"),
    "p_bound": (POSITIVE | NONE, "p_bound=2"),
    "over": (choices("columns", "rows"), "as in PyTorch"),
    "iterations": (integers(1, 31), "iterations=5"),
}
# Options beside which a value is no contradiction; of one option, or of an optimizer's others.
BESIDE: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adafactor": {"beta1": 0.9},
    "peak_lr": {"decay": "decoupled"},
}


def row(cls: Any, name: str) -> tuple[Range, str]:
    found = OPTIONS.get(f"{cls.__name__}.{name}", OPTIONS.get(name))
    assert found is not None, (
        f"tests/test_options.py has no row for the option {name} of {cls.__name__}: add {name!r} to OPTIONS, with the "
        "range that it allows and a word of the way out."
    )
    return found


def refused(make: Any, error: type[Exception], **options: Any) -> str:
    """Return the message, the same from the settings and from the NumPy front, or "" if there is none."""
    messages = []
    by_name = any(name in INSTEAD and (callable(x) or isinstance(x, dict)) for name, x in options.items())
    for constructor in (make,) if by_name else (make, getattr(front, make.__name__)):
        try:
            constructor(**options)
            messages.append("")
        except error as caught:
            messages.append(str(caught))
    assert len({*messages}) == 1, messages
    return messages[0]


@each
def test_an_option_refuses_what_is_out_of_its_range_and_says_the_way_out(cls):
    for name in (spec.name for spec in fields(cls)):
        allowed, way_out = row(cls, name)
        for value in allowed.bad:
            message = refused(cls, HyperparameterError, **{name: value})
            if inspect.isfunction(value) and SCHEDULES.words in allowed.words:
                assert message == f"`{name}` is called with the step, which this function does not take: {name}={DOES}"
                continue
            begin, found, end = message.partition(f", but is {shown(value)}. ")
            assert (begin, found != "") == (f"`{name}` must be {allowed.words}", True), (name, value, message)
            assert way_out in end or end == f"Pass float({value!r}).", (name, message)


@each
def test_an_option_takes_its_range_and_has_one_form(cls):
    for name in (spec.name for spec in fields(cls)):
        for value, normal in row(cls, name)[0].good:
            if cls is Adafactor and name in ("relative_step", "scale_parameter", "lr"):
                continue  # which are settled together
            options = {**BESIDE.get(cls.__name__, {}), **BESIDE.get(name, {}), name: value}
            if name == "beta1" and value is None:
                options = {name: value}
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                got = getattr(cls(**options), name)
            assert (got, type(got)) == (normal, type(normal)), (name, value)
            getattr(front, cls.__name__)(**options)


@pytest.mark.parametrize(
    ("options", "settled"),
    [
        ({}, (1.0, "factor", True)),
        ({"relative_step": True}, (1.0, "factor", True)),
        ({"relative_step": "cap"}, (0.01, "cap", True)),
        ({"relative_step": "cap", "lr_cap": 0.25}, (0.25, "cap", True)),
        ({"lr": 0.5}, (0.5, False, False)),
        ({"lr": 0}, (0.0, False, False)),
        ({"lr": halve}, (halve, False, False)),
        ({"lr": 0.5, "scale_parameter": True}, (0.5, False, True)),
        ({"lr": 0.5, "relative_step": "factor"}, (0.5, "factor", True)),
        ({"lr": 0.5, "relative_step": "cap", "scale_parameter": np.False_}, (0.5, "cap", False)),
    ],
)
def test_adafactor_settles_its_relative_step_by_its_lr(options, settled):
    made = Adafactor(**options)
    assert (made.lr, made.relative_step, made.scale_parameter) == settled
    assert front.Adafactor(**options).lr == (1.0 if callable(settled[0]) else settled[0])


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (Adafactor, {"momentum_dtype": "float32"}, ("`momentum_dtype`", "without momentum", "float32", "Pass beta1")),
        (SGD, {"momentum_dtype": "float32"}, ("`momentum_dtype`", "without momentum", "float32", "Pass momentum")),
        (Lars, {"nesterov": True, "momentum": 0}, ("`nesterov`", "momentum=0.0", "momentum > 0")),
        (Lars, {"nesterov": True, "dampening": 0.1}, ("`nesterov`", "0.1", "dampening=0")),
        (SGD, {"nesterov": True}, ("`nesterov`", "momentum=0.0", "momentum > 0")),
        (Adafactor, {"lr": 1e-3, "relative_step": True}, ("`lr`", "None", "0.001", 'relative_step="cap"', '"factor"')),
        (Adafactor, {"lr": 0, "relative_step": True}, ("`lr`", "None", "0.0", "relative_step")),
        (Adafactor, {"relative_step": False}, ("`lr`", "relative_step=False", "None", "1e-3")),
        (Adafactor, {"lr": 1e-3, "warmup_init": True}, ("`warmup_init`", "lr", "schedule")),
        (Adafactor, {"beta2": 0.9, "beta2_decay": -0.5}, ("`beta2`", "exponent -0.5", "0.9", "Drop one")),
        (Adafactor, {"beta2": 0.9, "decay_offset": 3}, ("`decay_offset`", "0 with beta2=0.9", "3")),
        (Adafactor, {"caution": True}, ("`caution`", "False without momentum", "beta1")),
        *(
            (one, {"keep_norm": "first", "decay": "decoupled", "weight_decay": 0.1}, ("`keep_norm`", "False with"))
            for one in (Lamb, Lion, Muon)
        ),
        (Lamb, {"keep_norm": True, "radial": 0.5}, ("`radial`", "None with keep_norm=True", "0.5", "Drop one")),
        (Lars, {"adapt": "step", "trust_clip": (0, 1)}, ("`trust_clip`", 'None with adapt="step"', "Drop one")),
        (Lars, {"adapt": "step", "norm": "decayed"}, ("`norm`", '"split" with adapt="step"', "decayed", "‖b‖")),
        (Lamb, {"peak_lr": 0.1}, ("`peak_lr`", "None with decay='ratio'", "0.1", 'decay="decoupled"')),
        (Lamb, {"min_norm": 2, "max_weight_norm": 1}, ("`min_norm`", "max_weight_norm=1.0", "2.0", "Lower")),
    ],
)
def test_options_that_contradict_each_other_are_refused(cls, options, words):
    message = refused(cls, ContradictionError, **options)
    assert [word for word in words if word not in message] == []


def test_options_at_the_edge_of_a_contradiction_are_taken():
    Lamb(min_norm=1, max_weight_norm=1)
    Adafactor(beta2=0.9, beta2_decay=float(np.float32(-0.8)))
    Adafactor(beta2=halve, decay_offset=3)


def test_an_option_in_error_is_named_before_a_contradiction():
    assert "`lr` must be a finite number" in refused(Adafactor, HyperparameterError, lr=-1.0, relative_step=True)


@each
def test_settings_are_values_that_cannot_change(cls):
    settings = cls()
    for spec in fields(cls):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, spec.name, getattr(settings, spec.name))
    with pytest.raises(HyperparameterError, match=r"`weight_decay` must be .* but is -1"):
        replace(settings, weight_decay=-1)
    assert (settings, hash(settings)) == (cls(), hash(cls()))


@each
def test_lists_that_were_given_are_not_kept(cls):
    lists = {"betas": [0.9, 0.99], "trust_clip": [0.1, 1.0], "factored": [0, [1, 2]], "dims": [0, [1, 2]]}
    given = {name: value for name, value in lists.items() if name in {spec.name for spec in fields(cls)}}
    settings = cls(**given)
    for name, value in given.items():
        value.clear()
        assert len(getattr(settings, name)) == 2


@each
def test_defaults_are_in_range_and_every_option_has_its_meaning(cls):
    for spec in fields(cls):
        assert spec.name in cls.settled_here or getattr(cls(), spec.name) == spec.default
        assert re.fullmatch(r"[A-Z].*\.", spec.metadata["means"]), spec.name
        assert spec.metadata["way_out"].endswith("."), spec.name


def test_errors_are_the_builtin_ones_too():
    assert issubclass(HyperparameterError, ValueError)
    assert issubclass(ContradictionError, HyperparameterError)


@each
def test_the_numpy_front_has_the_signature_of_the_settings(cls):
    own = {"lr_scale": None, "blocks": None, "skip_nonfinite": False, "shared_count": False, "engine": None}
    own |= {"master_weights": False, "rounding": None, "state_dtype": None, "seed": 0}
    declared = inspect.signature(cls).parameters
    if "decay" not in declared:
        own["decay"] = None
    keyword = inspect.Parameter.KEYWORD_ONLY
    expected = {name: (p.default, p.kind) for name, p in declared.items()} | {n: (x, keyword) for n, x in own.items()}
    offered = inspect.signature(getattr(front, cls.__name__)).parameters
    assert {name: (p.default, p.kind) for name, p in offered.items()} == expected
    positional = [name for name, p in declared.items() if p.kind is not keyword]
    assert [name for name in offered if name in positional] == positional


def test_functions_are_compared_between_processes_by_their_names():
    assert "beta2=" not in repr(Adafactor(beta2=halve))
    assert [settings.as_plain_value(x) for x in (halve, SCHEDULE, 0.5)] == [
        "<function halve>",
        "<function Scheduled>",
        0.5,
    ]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_settings_that_only_count_in_the_norm_of_all_are_like_others(entry):
    h = entry.hyper()
    counting = h.counted_in_norm()
    assert (h.model_bound, counting.model_bound) == (0, inf)
    assert h.counted_in_norm() is counting
    assert counting.counted_in_norm() is counting
    assert type(counting) is type(h)
    assert counting.without_numbers() != h.without_numbers()
    assert pickle.loads(pickle.dumps(counting)).model_bound == inf
    assert settings.with_values(h, lr=0.5).model_bound == 0
    assert settings.with_values(counting, lr=0.5).model_bound == inf


def test_settings_that_count_in_the_norm_of_all_are_of_the_same_blocks():
    fitted = [ENTRIES["NovoGrad"].hyper().fit((4, 6), dims, 1e-7) for dims in ((0,), (1,))]
    assert [h.counted_in_norm().block_dims for h in fitted] == [(0,), (1,)]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_settings_are_equal_if_they_compute_the_same(entry):
    """What is set beside options counts, and the types of numbers do."""
    h = entry.hyper()
    others = [
        h.counted_in_norm(),
        h.settled(block_dims=(0,)),
        h.settled(block_dims=(1,)),
        h.settled(maximize=0),
        h.settled(max_grad_value=1.0),
        h.settled(max_grad_value=1),
        h.settled(max_grad_value=(True, 2.0)),
        h.settled(max_grad_value=(1.0, 2.0)),
        *(one.hyper() for one in ENTRIES.values() if one is not entry),
    ]
    assert [one for one in others if one == h] == []
    assert [(i, j) for i, x in enumerate(others) for j, y in enumerate(others) if (x == y) is not (i == j)] == []
    assert h.settled(block_dims=(0,)) == others[1]
    assert hash(h.settled(block_dims=(0,))) == hash(others[1])
    assert [settings.with_values(h, lr=x).lr for x in (1.0, True, 1)] == [1.0, True, 1]
    assert [type(settings.with_values(h, lr=x).lr) for x in (1.0, True, 1)] == [float, bool, int]


@each
def test_contradictions_ask_of_rates_only_whether_they_are_0(cls):
    """PyTorch's groups are looked at again only if a rate begins to be 0, or ends to be."""
    for spec in fields(cls):
        for choice in (spec.default, *spec.metadata["check"].choices, 0.5, True):
            if spec.name not in ("lr", "weight_decay"):
                h = cls().settled(**{spec.name: choice})
                found = [
                    [bool(wrong) for wrong, *_ in h.settled(lr=lr, weight_decay=lam).contradictions()]
                    for lr, lam in ((1e-9, 1e-9), (0.1, 0.1), (1e9, 1e9), (1e-9, 1e9))
                ]
                assert found == found[:1] * 4, (spec.name, choice)


@each
def test_negative_zero_is_zero(cls):
    assert repr(cls(weight_decay=-0.0)) == repr(cls(weight_decay=0.0))
