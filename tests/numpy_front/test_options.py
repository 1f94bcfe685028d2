"""Options as attributes: read, set while training, and refused as in the constructor."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
from cases import CASES
from numpy_front.front import arrays, bits, busy, copies, everything, fronts

from layerwise import Blocks
from layerwise.errors import ContradictionError, EngineError, HyperparameterError, ParameterError, UnknownOptionError
from layerwise.numpy import Adafactor, Lamb, Lars
from layerwise.rules.states import is_of_layer, is_statistic

CHANGES = [
    pytest.param(case, name, value, id=f"{case.name}-{name}-{getattr(value, '__name__', value)}")
    for case in CASES
    for name, values in case.options.items()
    for value in values[1:]
    if name not in case.fixed and not (name == "max_grad_norm" and value is None)
]


def pair(front, **options):
    return busy(front, **options), arrays(1, {"w": (4, 3), "b": (3,)})


def stepped(opt, weights, seed):
    opt.step_all(weights, arrays(seed, {name: w.shape for name, w in weights.items()}))


@fronts
def test_every_option_can_be_read(front):
    opt = front()
    for name, parameter in inspect.signature(front).parameters.items():
        found = getattr(opt, name)
        settled = {"lr": 1.0, "relative_step": "factor", "scale_parameter": True} if front is Adafactor else {}
        assert found == settled.get(name, parameter.default), name
        assert name in dir(opt)


@pytest.mark.parametrize(("case", "name", "value"), CHANGES)
def test_a_set_option_acts_from_the_next_step_as_if_it_had_been_given(case, name, value):
    """The state of a run with the old options goes on under the new ones, in both ways the same."""
    before, after = case.alone(name, value)
    if before["lr"] is None and name == "lr":  # which decided on other options
        before["lr"] = 0.2
    opt, weights = case.numpy(**before), arrays(2, {"w": (4, 3), "b": (3,)})
    stepped(opt, weights, 20)
    other = copies(weights)
    given, there = case.numpy(**after), opt.state_dict()
    stepped(given, arrays(3, {"w": (4, 3), "b": (3,)}), 4)
    state = {key: there.get(key, np.zeros_like(one)) for key, one in given.state_dict().items()}  # what is new is 0
    given.load_state_dict(
        {key: one for key, one in state.items() if key not in ("lr", "weight_decay", "relative_step")}
    )
    setattr(opt, name, value)
    assert getattr(opt, name) == getattr(given, name)
    stepped(opt, weights, 21)
    stepped(given, other, 21)
    assert bits(weights) == bits(other)


BY_NAME = {
    "lr_scale": {"w": 0.5},
    "decay": {"w": False},
    "blocks": {"w": Blocks(2)},
}


def has_statistics(front):
    rule = front._rule
    return any(is_statistic(rule, field) or is_of_layer(rule, field) for field in rule.State._fields)


@fronts
@pytest.mark.parametrize("option", [*BY_NAME, "adapt"])
@pytest.mark.parametrize("form", ["mapping", "callable"])
def test_options_by_name_are_set(front, option, form):
    if option == "adapt" and option not in inspect.signature(front).parameters:
        pytest.skip("it has no such option")
    value = BY_NAME.get(option, {"w": False})
    given = value if form == "mapping" else value.get
    (opt, weights), calm = pair(front), busy(front, **{option: given})
    other = copies(weights)
    setattr(opt, option, given)
    assert getattr(opt, option) == given
    stepped(opt, weights, 5)
    stepped(calm, other, 5)
    assert bits(weights) == bits(other)
    assert opt.stats().keys() == calm.stats().keys()
    if option != "blocks" or not has_statistics(front):  # which have another form then
        usual = inspect.signature(front).parameters[option].default
        setattr(opt, option, usual)
        assert getattr(opt, option) == usual
        stepped(opt, weights, 6)


@fronts
def test_a_mapping_that_was_read_cannot_be_written_to(front):
    opt = busy(front, lr_scale={"w": 0.5})
    with pytest.raises(TypeError):
        opt.lr_scale["w"] = 2.0
    given = {"w": 0.25}
    opt.lr_scale = given
    given["w"] = 3.0
    assert opt.lr_scale == {"w": 0.25}


@fronts
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("max_grad_norm", -1, HyperparameterError),
        ("lr_scale", {"w": -1}, HyperparameterError),
        ("blocks", "every", HyperparameterError),
        ("blocks", {"w": 5}, ParameterError),
        ("skip_nonfinite", 1, HyperparameterError),
        ("shared_count", "yes", HyperparameterError),
        ("engine", "cuda", EngineError),
        ("lr", "fast", HyperparameterError),
        ("maximize", None, HyperparameterError),
    ],
)
def test_what_is_refused_changes_nothing(front, name, value, error):
    opt, weights = pair(front)
    stepped(opt, weights, 7)
    before, said, was = everything(opt, weights), repr(opt), getattr(opt, name)
    with pytest.raises(error, match=name if error is not ParameterError else "'w'"):
        setattr(opt, name, value)
    with pytest.raises(error):
        opt.set_options(**{"maximize": True, name: value})
    assert (everything(opt, weights), repr(opt), getattr(opt, name)) == (before, said, was)


def test_contradictions_are_seen_and_solved_together():
    opt, weights = pair(Lars, dampening=0.0, nesterov=True)
    stepped(opt, weights, 8)
    before = everything(opt, weights)
    with pytest.raises(
        ContradictionError, match=r"`nesterov` must be False with momentum=0\.0.*set_options\(momentum=…"
    ):
        opt.momentum = 0
    assert everything(opt, weights) == before
    assert opt.momentum == 0.9
    opt.set_options(momentum=0, nesterov=False)
    assert (opt.momentum, opt.nesterov) == (0.0, False)
    ada = Adafactor(relative_step=True)
    with pytest.raises(ContradictionError):
        ada.relative_step = True
    ada.set_options(lr=1e-3, relative_step=False)
    assert (ada.lr, ada.relative_step) == (1e-3, False)


def test_a_schedule_is_not_replaced_by_a_number_beside_others():
    opt = Lamb(lr=lambda step: 0.1)
    with pytest.raises(ContradictionError, match="follows a schedule"):
        opt.set_options(lr=0.5, betas=(0.5, 0.5))
    assert opt.betas == (0.9, 0.999)


@pytest.mark.parametrize(
    ("name", "value"), [("factored", False), ("min_dim_size_to_factor", 9), ("blocks", {"w": "each"})]
)
def test_statistics_of_another_form_are_not_made_up(name, value):
    opt, weights = pair(Adafactor)
    stepped(opt, weights, 9)
    before = everything(opt, weights)
    with pytest.raises(ContradictionError, match=r"of 'w' .*clear_state\('w'\)"):
        setattr(opt, name, value)
    assert everything(opt, weights) == before
    opt.clear_state()
    setattr(opt, name, value)
    stepped(opt, weights, 10)


# ---- what is no option

HINTS = [
    ("learning_rate", "`lr`"), ("betass", "`betas`"), ("wieght_decay", "`weight_decay`"),
    ("max_norm", "`max_grad_norm`"), ("nothing_like_it", "has no attribute 'nothing_like_it'"),
]  # fmt: skip


@fronts
@pytest.mark.parametrize(("name", "hint"), HINTS)
def test_unknown_attributes_have_a_hint(front, name, hint):
    opt = busy(front)
    if hint.startswith("`") and hint.strip("`") not in front._names():
        hint = "has no attribute"
    for touch in (lambda: setattr(opt, name, 0.5), lambda: getattr(opt, name)):
        with pytest.raises(AttributeError) as caught:
            touch()
        assert hint in str(caught.value)
    with pytest.raises(UnknownOptionError):
        opt.set_options(**{name: 0.5})
    assert name not in vars(opt)


class Extended(Lamb):
    """As a user derives one."""

    tag = "mine"

    def __init__(self, **options):
        super().__init__(**options)
        self.history, self._hidden, self.learning_rate = [], 1, 0.5

    @property
    def eps(self):
        return "own"


def test_users_may_derive_their_own():
    opt = Extended(lr=0.5)
    opt.tag, opt.more = "other", 3
    assert (opt.history, opt.learning_rate, opt.tag, opt.more, opt.eps) == ([], 0.5, "other", 3, "own")
    opt.betas = (0.5, 0.5)
    assert (opt.betas, opt.lr) == ((0.5, 0.5), 0.5)
    for clone in (copy.copy(opt), copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert (clone.betas, clone.history, clone.more) == ((0.5, 0.5), [], 3)
        clone.betas = (0.1, 0.1)
    assert opt.betas == (0.5, 0.5)


# ---- one count for all names


def test_each_name_counts_for_itself_unless_one_count_is_shared():
    for shared, late in ((False, 1), (True, 4)):
        opt = Lamb(shared_count=shared)
        weights = arrays(1, {"early": (3,), "late": (3,)})
        for _ in range(3):
            opt.step_all(weights, {"early": np.ones(3)})
        opt.step_all(weights, {"early": np.ones(3), "late": np.ones(3)})
        assert opt.state_dict()["late/step"] == late
        assert opt.steps == 4


@fronts
def test_a_shared_count_is_that_of_the_formula(front):
    """A late name is stepped as one that has taken as many steps before, without having moved its statistics."""
    opt, alone = busy(front, shared_count=True), busy(front)
    weights = arrays(1, {"early": (4, 3), "late": (4, 3)})
    other = weights["late"].copy()
    for _ in range(3):
        opt.step_all(weights, {"early": np.ones((4, 3))})
    alone.step("late", other.copy(), np.ones((4, 3)))
    state = alone.state_dict()
    state |= {k: np.zeros_like(v) for k, v in state.items() if "/" in k and v.dtype.kind == "f"}
    alone.load_state_dict({**state, "late/step": np.array(3)})
    opt.step_all(weights, {"late": np.full((4, 3), 0.3), "early": np.ones((4, 3))})
    alone.step("late", other, np.full((4, 3), 0.3))
    assert weights["late"].tobytes() == other.tobytes()


def test_one_name_after_the_other_is_one_step_until_one_comes_again():
    opt, together = Adafactor(shared_count=True), Adafactor(shared_count=True)
    weights = arrays(1, {"a": (3,), "b": (3,), "late": (3,)})
    other = copies(weights)
    for k in range(3):
        names = ("a", "b") if k < 2 else ("a", "b", "late")
        for name in names:
            opt.step(name, weights[name], np.ones(3))
        together.step_all(other, {name: np.ones(3) for name in names})
    assert bits(weights) == bits(other)
    assert bits(opt.state_dict()) == bits(together.state_dict())


def test_a_shared_count_goes_through_a_file():
    opt, weights = Lamb(shared_count=True, lr=0.1), arrays(1, {"a": (3,), "b": (3,)})
    opt.step_all(weights, {"a": np.ones(3)})
    again = Lamb(shared_count=True, lr=0.1)
    again.load_state_dict(opt.state_dict())
    other = copies(weights)
    for one, named in ((opt, weights), (again, other)):
        one.step_all(named, {"b": np.ones(3)})
    assert bits(weights) == bits(other)
    assert again.state_dict()["b/step"] == 2


def test_schedules_follow_the_shared_count():
    seen = []
    opt = Lamb(shared_count=True, lr=lambda step: seen.append(step) or 0.1)
    for name in ("a", "b", "a"):
        opt.step_all({name: np.ones(2)}, {name: np.ones(2)})
    assert seen == [0, 1, 2]


@fronts
def test_names_are_known_as_soon_as_they_are_given(front):
    opt = busy(front, skip_nonfinite=True)
    opt.step("w", np.ones(2), np.full(2, np.nan))
    assert (opt.num_parameters, opt.skipped) == (1, 1)
    opt.step_all({"w": np.ones(2), "v": np.ones(3)}, {"w": np.ones(2)})
    assert opt.parameters == {"w": (2,), "v": (3,)}


def test_options_become_plain_python_objects():
    odd = {"lr": np.float64(0.5), "betas": np.array([0.5, 0.75]), "seed": np.int64(3), "state_dtype": np.str_("int8")}
    odd |= {"lr_scale": {"a": np.float32(0.5)}, "skip_nonfinite": np.True_, "master_weights": np.False_}
    for opt in (Lamb(**odd), Lamb()):
        opt.set_options(**odd)
        found = [opt.lr, *opt.betas, opt.seed, opt.state_dtype, opt.lr_scale["a"], opt.skip_nonfinite]
        assert [type(x) for x in found] == [float, float, float, int, str, float, bool]
        assert opt.master_weights is False
