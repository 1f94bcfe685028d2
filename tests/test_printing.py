"""Kernels are printed from rules: what the printer finds in a rule is the rule; another rule gives other kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, KERNELED, case_of
from namespaces import NAMESPACES, trajectory

from layerwise.catalog.registry import Entry
from layerwise.engines.program_types import option_forms, present_state
from layerwise.engines.programs import kernel_numbers
from layerwise.errors import EngineError
from layerwise.rules.requests import Now

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "tools").exists(), reason="the tools are in the source alone")
cases = pytest.mark.parametrize("case", KERNELED, ids=lambda case: case.name)
STEPS = 3


@pytest.fixture(autouse=True)
def _tools(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


@cache
def kernels_for(name: str) -> Any:
    """The kernels of an optimizer; the rule is run once for all tests."""
    from kernels import kernels_of

    case = case_of(name)
    return kernels_of(Entry(case.name, case.rule, case.hyper))


# ---- what is found in a rule is the rule


OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
    "<": np.less,
    ">": np.greater,
    "==": np.equal,
    "!=": np.not_equal,
    "&": np.logical_and,
    "|": np.logical_or,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "where": np.where,
    "unless_off": lambda a, x: np.where(a == 0, 0.0, x),
}
SUMS: dict[str, Callable[..., Any]] = {
    "Squares": lambda x: np.sum(x * x),
    "MeanSquare": lambda x: np.mean(x * x),
    "Mean": np.mean,
    "Sum": np.sum,
    "RowMean": lambda x: np.mean(x, axis=1, keepdims=True),
    "ColumnMean": lambda x: np.mean(x, axis=0, keepdims=True),
    "MatrixMean": np.mean,
    "MeanOfRows": np.mean,
}


def value_of(x: Any, known: dict[Any, Any]) -> Any:
    """The value of an expression, given the values of its leaves."""
    if not hasattr(x, "op"):
        return x
    if x not in known:
        known[x] = OPERATIONS[x.op](*(value_of(one, known) for one in x.args))
    return known[x]


def stepped(program: Any, given: dict[Any, Any], leaf: Any) -> tuple[Any, dict[str, Any]]:
    """The new weights and state, by the program's passes one after the other."""
    known, total = dict(given), 0
    known |= {answer.leaf: value_of(answer.value, known) for answer in program.answers if program.is_early(answer)}
    for j, requests in enumerate(program.rounds):
        if program.keeps == j:
            kept = {name: value_of(x, known) for name, x in program.keep.items()}
            known |= {leaf("kept", name, is_array=True): x for name, x in kept.items()}
        for request in requests:
            along = ("mean", request.kind, request.axis) if request.axis else ("total", total)
            known[leaf(*along, is_array=False)] = SUMS[request.kind](value_of(request.terms, known))
            total += 1
        for axis, x in program.made.items():
            known[leaf("made", axis, is_array=False)] = value_of(x, known)
        for answer in program.answers:
            if answer.round <= j:
                known[answer.leaf] = value_of(answer.value, known)
    for answer in program.answers:
        known.setdefault(answer.leaf, value_of(answer.value, known))
    for i in program.cached:
        known[leaf("term", i, is_array=True)] = value_of(program.rounds[-1][i].terms, known)
    new = {name: known[leaf("kept", name, is_array=True)] for name in program.keep}
    new |= {name: value_of(x, known) for name, x in {**program.state, **program.lines, **program.remember}.items()}
    return value_of(program.weights, known), new


@np.errstate(all="ignore")
def compare(
    found: Any, program: Any, rule: Any, h: Any, known: Callable[[int], dict[str, float]], shape: Any = (7,)
) -> None:
    """Compare steps of a program, of these numbers, with the rule's."""
    from symbols import AXES, leaf

    draw = np.random.default_rng(5)
    p, grads = draw.normal(size=shape), draw.normal(size=(STEPS, *shape))
    expected = trajectory(NAMESPACES[0], rule, h, [p], [[g] for g in grads])
    shapes = rule.shapes(h, shape)._asdict()
    state = {name: None if shape is None else np.zeros(shape) for name, shape in shapes.items()}
    for t, g in enumerate(grads, 1):
        given = {leaf("coefficient", name, is_array=False): x for name, x in known(t).items()}
        given |= {leaf("input", name, is_array=True): x for name, x in (("p", p), ("g", g))}
        given |= {leaf("state", name, is_array=True): x for name, x in state.items()}
        lines = zip(program.lines, AXES, strict=False)
        given |= {leaf("line", name, axis, is_array=False): state[name] for name, axis in lines}
        given |= {leaf("layer", name, is_array=False): state[name] for name in program.remember}
        p, new = stepped(program, given, leaf)
        state |= new
        np.testing.assert_allclose(p, expected[t - 1][0], rtol=1e-12, atol=1e-14)


@cases
@pytest.mark.parametrize("shape", [(7,), (4, 6)])
def test_the_program_is_the_rule(case: Any, shape: Any) -> None:
    found = kernels_for(case.name)
    for seed in range(12):
        options = {name: value for name, value in case.drawn(seed).items() if "grad" not in name and name != "maximize"}
        h = case.hyper(**options).fit(shape, (), 1e-7)
        if not h.has_kernels:
            rare = {name: x for name, x in case.usual().items() if name in ("caution", "keep_norm", "radial", "adapt")}
            h = case.hyper(**{**options, **rare}).fit(shape, (), 1e-7)
        there = present_state(case.rule.shapes(h, shape))
        key = (there, *option_forms(getattr(h, name) for name in found.structures.options))

        def known(t: int, h: Any = h) -> dict[str, float]:
            values = kernel_numbers(h, Now(t, h.lr, h.weight_decay, beta2=h.beta2_of(t)))[6:]
            return dict(zip(found.numbers, values, strict=True))

        compare(found, found.structures.programs[key], case.rule, h, known, shape)


@pytest.mark.parametrize("case", [case for case in CASES if case not in KERNELED], ids=lambda case: case.name)
def test_a_rule_without_kernels_says_why(case: Any) -> None:
    from symbols import NotPrinted

    with pytest.raises(NotPrinted, match=r"sums along some dimensions only|multiplies matrices|group of coefficients"):
        kernels_for(case.name)
    title = (ROOT / "docs" / "optimizers" / f"{case.name.lower()}.md").read_text("utf-8").splitlines()[0]
    assert title.removeprefix("# ") in (ROOT / "docs" / "engines.md").read_text("utf-8")
    opt = case.numpy(engine="compiled")
    with pytest.raises(EngineError, match=f"there are no kernels for {case.name}"):
        opt.step("w", np.ones((3, 2)), np.ones((3, 2)))


# ---- another rule gives other kernels


def load(path: Path, source: str) -> Any:
    path.write_text(source)
    spec = spec_from_file_location(f"unseen.{path.stem}", path)
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[module.__name__]
    return module


def rule_from(tmp_path: Path, name: str, source: str) -> Entry:
    folder = tmp_path / str(len([*tmp_path.iterdir()]))  # two sources of one name would share what Python compiled
    folder.mkdir()
    module = load(folder / f"{name.lower()}.py", source)
    return Entry(name, module, getattr(module, name))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "d = add(xp, k.eps, k.c1, d)",
            "d = add(xp, k.eps, k.c2, d)",
            "exp_avg / (eps + c2 * root(c2 * exp_avg_sq + eps_root))",
        ),
        ("u, k.lam, unless", "u, -k.lam, unless", "- lam * unless_off(lam, y0)"),
        ("lr=lr * (c2**0.5 / c1) if", "lr=2 * lr * (c2**0.5 / c1) if", ""),
    ],
)
def test_a_changed_rule_is_printed_changed(tmp_path: Path, old: str, new: str, line: str) -> None:
    from kernels import kernels_of

    source = Path(case_of("Lamb").rule.__file__).read_text()
    assert source.count(old) == 1
    changed = kernels_of(rule_from(tmp_path, "Lamb", source.replace(old, new)))
    as_it_is = kernels_of(rule_from(tmp_path, "Lamb", source))
    there = (ROOT / "csrc/printed/lamb.hpp").read_text()
    assert as_it_is.header.replace("lamb.py", "") == there.replace("lamb.py", "")
    for own, of_rule in ((changed.header, as_it_is.header), (changed.functions, as_it_is.functions)):
        assert (own != of_rule) == bool(line)  # coefficients are numbers to kernels, however they are made
        assert line in own


UNSEEN = '''
"""A rule with three states, a flag and two rounds, whose sums are of squares and of terms as they are."""
from __future__ import annotations
from dataclasses import dataclass
from typing import Any, NamedTuple
from layerwise.options.checks import number
from layerwise.options.settings import ClippedByNorm, Hyper, Scheduled
from layerwise.options.fields import flag, option
from layerwise.options import fields
from layerwise.rules.requests import Array, Keep, Mean, Now, Squares, Stepped, Sum
from layerwise.rules.arrays import length, square
from layerwise.rules.clipping import prepare_gradient
from layerwise.rules.scalars import choose
from layerwise.options.values import is_zero

@dataclass(frozen=True)
class Unseen(Hyper):
    """Options."""
    lr: Scheduled = fields.lr(1e-3)
    beta: float = option(0.9, number(0, 1), "Decay.", "Pass a number.")
    tau: float = option(4.0, number(1), "Steps.", "Pass a number.")
    weight_decay: Scheduled = fields.weight_decay()
    signed: bool = flag(False, "By sign.")

    @property
    def rate(self):
        return 1 - 1 / self.tau

    def weight(self, x):
        return x * self.rate

class State(NamedTuple):
    m: Array
    v: Array
    most: Array

def shapes(h, shape):
    return State(shape, shape, shape)

def step(xp, p, g, state, h, now):
    raw, g = g, (yield from prepare_gradient(xp, g, h, now))
    m, v, most = state
    (mean,) = yield (Mean(g),)
    g = g - mean
    m = h.beta * m + (1 - h.beta) * g
    v = h.beta * v + (1 - h.beta) * square(g)
    most = choose(xp, v > most, v, most)
    u = xp.where(m > 0, 1.0, -1.0) * xp.sqrt(most) if h.signed else m / (xp.sqrt(most) + 1e-8)
    u = h.weight(u) ** 2 / h.rate + now.weight_decay * p
    m, v, most = yield Keep(State(m, v, most))
    pp, uu, pu = yield Squares(p), Squares(u), Sum(p * u)
    w, x = length(xp, pp, p), length(xp, uu, u)
    ratio = choose(xp, (w != 0) & (x != 0), w / choose(xp, x == 0, 1.0, x), 1.0) * (1 + pu / (1 + abs(pu)))
    return Stepped(((-now.lr * ratio, u),), State(m, v, most), {"trust_ratio": ratio})
'''


def test_an_unseen_rule_is_stepped(tmp_path: Path) -> None:
    """Without `coefficients` of its own: options and `now` are then numbers that kernels take."""
    from kernels import kernels_of

    entry = rule_from(tmp_path, "Unseen", UNSEEN)
    found = kernels_of(entry)
    assert found.structures.options == ("signed",)
    assert found.numbers == ["h.beta", "h.tau", "now.lr", "now.weight_decay"]
    for signed in (False, True):
        h = entry.hyper(lr=0.1, weight_decay=0.1, signed=signed)
        program = found.structures.programs[((True,) * 3, signed)]
        assert (program.keeps, [len(one) for one in program.rounds]) == (1, [1, 3])
        values = dict(zip(found.numbers, (0.9, 4.0, 0.1, 0.1), strict=True))
        compare(found, program, entry.rule, h, lambda t, values=values: values)


LAYERED = '''
"""A rule whose state has a number of each layer, between two states of elements."""
from __future__ import annotations
from dataclasses import dataclass
from typing import NamedTuple
from layerwise.options.checks import number
from layerwise.options.settings import OneNumberPerLayer, Scheduled
from layerwise.options.fields import option
from layerwise.options import fields
from layerwise.rules.requests import Array, Keep, Now, PerLayer, Squares, Stepped
from layerwise.rules.arrays import length
from layerwise.rules.clipping import prepare_gradient

@dataclass(frozen=True)
class Layered(OneNumberPerLayer):
    """Options."""
    lr: Scheduled = fields.lr(1e-3)
    beta: float = option(0.9, number(0, 1), "Decay.", "Pass a number.")
    weight_decay: Scheduled = fields.weight_decay()

class State(NamedTuple):
    m: Array
    size: PerLayer
    e: Array

def shapes(h, shape):
    return State(shape, h.layer_shape(shape), shape)

def step(xp, p, g, state, h, now):
    g = yield from prepare_gradient(xp, g, h, now)
    m, size, e = state
    (gg,) = yield (Squares(g),)
    before, size = size, h.beta * size + length(xp, gg, g)
    m = h.beta * m + g / size
    m, size, e = yield Keep(State(m, size, e))
    (mm,) = yield (Squares(m),)
    e = e + m * before
    moves = (-now.lr / (1 + length(xp, mm, m)), m), (-0.1, e)
    return Stepped(moves, State(m, size, e), {"size": size, "trust_ratio": 1.0})
'''


def test_state_that_is_one_number_of_a_layer(tmp_path: Path) -> None:
    from kernels import kernels_of

    entry = rule_from(tmp_path, "Layered", LAYERED)
    found = kernels_of(entry)
    [program] = found.structures.programs.values()
    assert (program.states, [*program.remember], program.keeps) == (("m", "e"), ["size"], 1)
    assert "LAYER_STATES = 1, OF_LAYER = 1 << 1;" in " ".join(found.header.split())
    values = dict.fromkeys(found.numbers, 0.9) | {"now.lr": 0.1}
    compare(found, program, entry.rule, entry.hyper(lr=0.1), lambda t: values)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return State(shape, shape, shape)", "return State(shape, (1,), shape)", "its state `v` has another shape"),
        ("(mean,) = yield (Mean(g),)", "mean = xp.sum(g, axis=(0,))", "it sums along some dimensions only"),
        ("(Mean(g),)", "(Mean(g, (0,)),)", "it sums along some dimensions only"),
        ("u = h.weight(u) ** 2", "u = xp.sign(u)", "it uses `sign` of the array library"),
        ("u = h.weight(u) ** 2", "u = h.weight(u) ** 3", "another power than 2 or 0.5"),
        (
            "m, v, most = yield Keep(State(m, v, most))",
            "yield Keep(State(m, v, most))\n    m, v, most = yield Keep(State(m, v, most))",
            "it keeps state twice",
        ),
        ("State(m, v, most), {", "State(m, v, 0.0), {", "its state `most` becomes a number"),
        ('{"trust_ratio": ratio}', '{"trust_ratio": u}', "it reports `trust_ratio` of each element"),
        (
            "pp, uu, pu = yield Squares(p), Squares(u), Sum(p * u)",
            "pp, uu, pu, *_ = yield (Squares(p),) * 2 + (Squares(u),) * 3",
            "at most 4 sums",
        ),
        ("(yield from prepare_gradient(xp, g, h, now))", "g", "does not make the gradient `ready`"),
        (
            "prepare_gradient(xp, g, h, now)",
            "prepare_gradient(xp, 2 * g, h, now)",
            "something else `ready` than the gradient",
        ),
        ("g = g - mean", "g = raw - mean", "the gradient before that is `ready`"),
        ("g = g - mean", "g = (g - mean) / now.g_scale", "its `step` reads `now.g_scale`"),
        ("h.beta * v + ", "now.beta2 * v + ", "its `step` reads `now.beta2`"),
        ("yield (Squares(g),)", "yield (Squares(g / (1 + size)),)", "with the number of a layer before its first sum"),
        ("State(m, size, e), {", "State(m, m, e), {", "its state `size` is one number of a layer, and becomes one of"),
        ("h.layer_shape(shape)", "shape[1:]", "its state `size` has another shape"),
    ],
)
def test_unprintable_rules_are_reported(tmp_path: Path, old: str, new: str, why: str) -> None:
    from kernels import kernels_of
    from symbols import NotPrinted

    name, source = ("Unseen", UNSEEN) if old in UNSEEN else ("Layered", LAYERED)
    assert source.count(old) == 1
    with pytest.raises(NotPrinted, match=why):
        kernels_of(rule_from(tmp_path, name, source.replace(old, new)))


def test_a_rule_must_not_branch_on_values(tmp_path: Path) -> None:
    from kernels import kernels_of

    with pytest.raises(TypeError, match=r"a rule branched on .* Branch on options, and choose between values"):
        kernels_of(rule_from(tmp_path, "Unseen", UNSEEN.replace("(w != 0) & (x != 0)", "bool(w != 0)")))
