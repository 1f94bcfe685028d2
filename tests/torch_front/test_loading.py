"""A checkpoint brings state and the rates that schedulers move; options stay as given, and what does not fit changes
nothing.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from cases import case_of
from torch.nn import Parameter
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR
from torch_front.front import BUSY, FRONTS, bits, busy, everything, fronts, in_slices, lows, parameters, twins, walk

from layerwise.errors import ContradictionError, HyperparameterError, StateError
from layerwise.schedules import Polynomial
from layerwise.torch import Adafactor, AdamW, Lamb, Lars, Mixed, convert, scheduler

pytestmark = pytest.mark.thinned(1, 2)


def saved(x: Any) -> Any:
    """By way of a file, as people do."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---- options and rates


def test_a_removed_option_is_left_out():
    opt = Lamb(parameters(0).values(), lr=0.1)
    keys, state = set(opt.param_groups[0]), opt.state_dict()
    state["param_groups"][0]["reproducible"] = True
    opt.load_state_dict(state)
    assert set(opt.param_groups[0]) == keys


@fronts
def test_options_stay_as_given_and_moved_rates_come_from_the_checkpoint(front):
    params = parameters(1)
    moved = {"lr": 0.3, "weight_decay": 0.2, **{Lamb: {"betas": (0.5, 0.9)}, Lars: {"momentum": 0.4}}.get(front, {})}
    opt = busy(front, params.items(), maximize=True, max_grad_value=0.5, **moved)
    walk(opt, params, [1])
    fresh = busy(front, twins(params).items(), max_grad_value=0.25, lr=0.7)
    before = everything(fresh, params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="maximize"):  # a warning that is an error changes nothing
            fresh.load_state_dict(opt.state_dict())
    assert everything(fresh, params) == before
    with pytest.warns(UserWarning, match="maximize.*True"):
        fresh.load_state_dict(saved(opt.state_dict()))
    [group] = fresh.param_groups
    assert (group["maximize"], group["max_grad_value"]) == (False, 0.25)
    assert {key: group[key] for key in moved} == moved


@pytest.mark.parametrize(
    "spoil", [lambda x: x[:1], torch.Tensor.long, lambda x: x.to("meta")], ids=["shape", "dtype", "meta"]
)
def test_each_state_is_checked_also_beside_others_that_are_alike(spoil):
    params = {name: Parameter(torch.ones(3, 2)) for name in "abc"}
    opt = Lamb(params.items(), lr=0.1)
    walk(opt, params, [1])
    before, state = everything(opt, params), opt.state_dict()
    state["state"][1]["exp_avg"] = spoil(state["state"][1]["exp_avg"])
    with pytest.raises(StateError, match="'exp_avg' of b "):
        opt.load_state_dict(state)
    assert everything(opt, params) == before


def test_state_takes_the_form_that_is_asked_for_at_the_next_step():
    params = {"w": Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))}
    opt = Lamb(params.items(), lr=0.1)
    walk(opt, params, [1])
    again = twins(params)
    fresh = Lamb(again.items(), lr=0.1, state_dtype="int8")
    fresh.load_state_dict(opt.state_dict())
    assert bits(fresh.state[again["w"]]["exp_avg"]) == bits(opt.state[params["w"]]["exp_avg"])
    walk(fresh, again, [2])
    assert fresh.storage()["w"]["state"] == {"exp_avg": "int8", "exp_avg_sq": "int8"}


@fronts
def test_a_checkpoint_of_an_older_version_lacks_newer_options(front):
    params = parameters(1)
    opt = busy(front, params.items())
    walk(opt, params, [1])
    old = saved(opt.state_dict())
    for name in ("max_grad_value", "capturable", "maximize"):
        del old["param_groups"][0][name]
    fresh = busy(front, (again := twins(params)).items(), max_grad_value=0.25)
    fresh.load_state_dict(old)
    assert (fresh.param_groups[0]["max_grad_value"], fresh.param_groups[0]["maximize"]) == (0.25, False)
    walk(fresh, again, [2])


def test_a_relative_step_does_not_become_lr():
    params = parameters(1)
    for given, other in ((None, 0.1), (0.1, None)):
        with pytest.raises(StateError, match="give lr another meaning"):
            Adafactor(params.values(), lr=given).load_state_dict(Adafactor(params.values(), lr=other).state_dict())


@pytest.mark.parametrize("form", [{"master_weights": "split24"}, {"state_dtype": "int8"}], ids=str)
def test_few_bytes_of_a_column_are_not_taken_for_saved_ones(form):
    """A saved integer has a dimension more, which is as long as the last of a column; it may also lie as it is."""
    params = parameters(1, {"column": (4200, 1)}, torch.bfloat16)
    opt = AdamW(params.items(), **form)
    walk(opt, params, [1])
    as_it_is = {**opt.state_dict(), "state": {0: dict(opt.state[params["column"]])}}
    runs = [(AdamW((other := twins(params)).items(), **form), other) for _ in range(2)]
    for (again, _), saved in zip(runs, (opt.state_dict(), as_it_is), strict=True):
        again.load_state_dict(saved)
    walk(opt, params, [2])
    for again, other in runs:
        walk(again, other, [2])
        assert bits(other) == bits(params)
        assert bits(again.state_dict()) == bits(opt.state_dict())


@fronts
def test_a_run_goes_on_with_groups_that_were_added_later(front):
    a = parameters(1)
    late = {"maximize": True, "lr": 0.3}

    def grown(opt: Any, params: Any) -> Any:
        opt.add_param_group({**late, "params": [(name, params[name]) for name in ("vector", "stack")]})
        return CosineAnnealingLR(opt, 9)

    opt = busy(front, [("matrix", a["matrix"])])
    walk(opt, a, [0])
    schedule = grown(opt, a)
    walk(opt, a, [1, 2], [schedule])
    state = saved(opt.state_dict())
    b = twins(a)
    fresh = busy(front, [("matrix", b["matrix"])])
    with pytest.raises(StateError, match="has 'stack', 'vector', which this optimizer lacks"):
        fresh.load_state_dict(state)
    again = grown(fresh, b)
    fresh.load_state_dict(state)
    again.load_state_dict(schedule.state_dict())
    walk(opt, a, [3, 4], [schedule])
    walk(fresh, b, [3, 4], [again])
    assert bits(a) == bits(b)


@pytest.mark.parametrize("form", [{}, {"capturable": True}, {"lr": torch.tensor(0.1)}], ids=str)
@pytest.mark.parametrize("kind", [CosineAnnealingLR, OneCycleLR])
@fronts
def test_a_run_under_a_scheduler_goes_on_bit_for_bit(front, kind, form):
    """Also one of several groups, whose rates are tensors or whose counts are where the parameters are."""
    a = parameters(1, dtype=torch.float32)

    def made(params: Any) -> Any:
        groups = [{"params": [(n, p)]} for n, p in params.items()]
        opt = busy(front, groups, **{k: x.clone() if k == "lr" else x for k, x in form.items()})
        if kind is CosineAnnealingLR:
            return opt, kind(opt, 12)
        still = {"cycle_momentum": False} if front is Adafactor else {}
        return opt, kind(opt, 0.2, 12, **still)

    straight, schedule = made(a)
    walk(straight, a, range(3), [schedule], but=["vector"])
    state = saved({"opt": straight.state_dict(), "schedule": schedule.state_dict()})
    fresh, again = made(b := twins(a))
    fresh.load_state_dict(state["opt"])
    again.load_state_dict(state["schedule"])
    for opt, params, one in ((straight, a, schedule), (fresh, b, again)):
        walk(opt, params, range(3, 6), [one])
    assert bits(a) == bits(b)
    assert bits(fresh.state_dict()) == bits(straight.state_dict())


# ---- schedules that ended with the run that was saved


@pytest.fixture
def scheduled():
    """An optimizer that has loaded a run under a schedule, from lr 0.2 to 0.05."""
    params = parameters(1)
    opt = Lamb(params.items(), lr=0.2)
    walk(opt, params, range(2), [StepLR(opt, 1, gamma=0.5)])
    fresh = Lamb(twins(params).items(), lr=0.3)
    fresh.load_state_dict(opt.state_dict())
    return fresh, opt.state_dict()


def test_set_lr_is_free_where_the_schedule_was_that_of_the_saved_run(scheduled):
    opt, _ = scheduled
    assert (opt.get_lr(), opt.param_groups[0]["initial_lr"]) == (0.05, 0.2)
    for again in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt)), opt):
        again.set_lr(0.7)
        assert again.get_lr() == 0.7
    assert LambdaLR(opt, lambda t: 0.5**t).base_lrs == [0.7]
    with pytest.raises(ContradictionError, match="follows a scheduler"):
        opt.set_lr(0.1)


def test_set_lr_is_refused_where_a_schedule_is_here(scheduled):
    _, state = scheduled
    opt = Lamb(parameters(1).items(), lr=0.2)
    schedule = StepLR(opt, 1)
    for key in ("nothing", "initial_lr"):  # of a run without a schedule, which ends nothing here
        state["param_groups"][0].pop(key, None)
        opt.load_state_dict(state)
        with pytest.raises(ContradictionError, match="follows a scheduler"):
            opt.set_lr(0.1)
    assert schedule.base_lrs == [0.2]


@pytest.mark.parametrize(
    ("make", "base", "now"),
    [
        (lambda opt: StepLR(opt, 1, 0.5, last_epoch=1), [0.2], None),
        (lambda opt: LambdaLR(opt, lambda t: 0.5**t, last_epoch=1), [0.2], None),
        (lambda opt: scheduler(opt, Polynomial(peak=0.2, total=4), last_epoch=1), None, [0.1]),
    ],
    ids=["StepLR", "LambdaLR", "ours"],
)
def test_a_schedule_made_after_loading_goes_on(scheduled, make, base, now):
    """With last_epoch it needs the initial_lr that came along."""
    opt, _ = scheduled
    schedule = make(opt)
    assert base is None or schedule.base_lrs == base
    assert now is None or schedule.get_last_lr() == now
    with pytest.raises(ContradictionError, match="follows a scheduler"):
        opt.set_lr(0.1)


# ---- the form of a state


@lows
@fronts
def test_state_beside_masters_keeps_the_dtype_it_was_saved_in(front, low):
    params = parameters(1, dtype=low)
    opt, fresh = (busy(front, ps.items(), master_weights=True) for ps in (params, twins(params)))
    walk(opt, params, range(2))
    for dtype in (torch.float32, torch.float64):
        state = saved(opt.state_dict())
        for one in state["state"].values():
            one.update({key: x.to(dtype) for key, x in one.items() if key != "step"})
        fresh.load_state_dict(state)
        assert {x.dtype for one in fresh.state.values() for x in one.values()} == {dtype, torch.int64}


@lows
@fronts
def test_a_master_copy_follows_the_option_and_not_the_checkpoint(front, low):
    """master_weights stays as it was given here, and so must what it does."""
    params = parameters(1, dtype=low)
    opt = busy(front, params.items(), master_weights=True)
    walk(opt, params, range(2))
    again, calm = twins(params), twins(params)
    fresh, plain = busy(front, again.items()), busy(front, calm.items())
    with pytest.warns(UserWarning, match="master_weights"):
        fresh.load_state_dict(saved(opt.state_dict()))
    bare = saved(opt.state_dict())
    bare["param_groups"][0]["master_weights"] = False
    for one in bare["state"].values():
        del one["master"]
    plain.load_state_dict(bare)
    walk(fresh, again, [2, 3])
    walk(plain, calm, [2, 3])
    assert not any("master" in one for one in fresh.state.values())
    assert bits(again) == bits(calm)
    begun = busy(front, (third := twins(params)).items(), master_weights=True)
    with pytest.warns(UserWarning, match="master_weights"):
        begun.load_state_dict(bare | {"param_groups": [{**bare["param_groups"][0], "master_weights": False}]})
    walk(begun, third, [2])
    assert all(one["master"].dtype == torch.float32 for one in begun.state.values())


@fronts
def test_the_memory_format_of_a_parameter_is_that_of_its_state(front, monkeypatch):
    in_slices(monkeypatch, 16)
    p = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    a = {"conv": Parameter(p)}
    opt = busy(front, a.items(), **case_of(front.__name__).whole)
    walk(opt, a, range(2))
    fresh = busy(front, (b := twins(a)).items(), **case_of(front.__name__).whole)
    fresh.load_state_dict(saved(opt.state_dict()))
    walk(opt, a, [2])
    walk(fresh, b, [2])
    assert bits(a) == bits(b)
    assert {x.stride() for x in fresh.state[b["conv"]].values() if x.shape == p.shape} == {p.stride()}


# ---- what does not fit


def _with(state: Any, where: Any, value: Any) -> None:
    *path, last = where
    for key in path:
        state = state[key]
    if value is KeyError:
        del state[last]
    else:
        state[last] = value


with warnings.catch_warnings():  # they say that they are prototypes, and deprecated
    warnings.simplefilter("ignore")
    NESTED = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    CSR = torch.eye(4, 3, dtype=torch.float64).to_sparse_csr()
    QUANTIZED = torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.quint8)

STEP, GROUP = ["state", 0, "step"], ["param_groups", 0]
META = torch.ones(4, 3, device="meta")
SPOILT = {
    "no state": (["state"], KeyError),
    "no groups": (["param_groups"], KeyError),
    "state of nobody": (["state", 9], {"step": torch.tensor(1)}),
    "state that is no dict": (["state", 0], 3),
    "a tensor for a state": (["state", 0], torch.ones(4, 3)),
    "none for a state": (["state", 0], None),
    "a list for a state": (["state", 0], [1, 2]),
    "groups that are no list": (["param_groups"], 3),
    "a group without parameters": ([*GROUP, "params"], KeyError),
    "too few parameters": ([*GROUP, "params"], [0, 1]),
    "the same parameter twice": ([*GROUP, "params"], [0, 0, 1, 2]),
    "parameters that are lists": ([*GROUP, "params"], [[0], [1], [2], [3]]),
    "too many groups": (["param_groups"], [{"params": [0, 1, 2, 3]}, {"params": [4]}]),
    "an lr without a value": ([*GROUP, "lr"], torch.tensor(0.1, device="meta")),
    "a complex lr": ([*GROUP, "lr"], torch.tensor(1j)),
    "a nested lr": ([*GROUP, "lr"], NESTED),
    "a sparse lr": ([*GROUP, "lr"], torch.ones(1).to_sparse()),
    "a negative lr": ([*GROUP, "lr"], -1.0),
    "an lr in words": ([*GROUP, "lr"], "0.1"),
    "a decay that is nan": ([*GROUP, "weight_decay"], float("nan")),
    **{
        f"a schedule's lr of {rate!r}": ([*GROUP, name], rate)
        for name in ("initial_lr", "max_lr")
        for rate in ("0.1", [0.1], torch.ones(2), float("nan"), -1.0, torch.tensor(1j), META[0, 0])
    },
    "a nested tensor beside options": ([*GROUP, "note"], NESTED),
    **{
        f"{step!r} steps": (STEP, step)
        for step in (
            *(KeyError, float("nan"), True, 10**30, torch.tensor(-1), torch.tensor(1e30), torch.tensor(True)),
            *(torch.tensor(1 + 2j), torch.tensor(2, device="meta"), NESTED, torch.ones(1).to_sparse()),
        )
    },
    "no tensor": (["state", 1, None], 3.0),
    "sparse": (["state", 0, None], torch.eye(4, 3, dtype=torch.float64).to_sparse()),
    "sparse by rows": (["state", 0, None], CSR),
    "on the meta device": (["state", 0, None], META),
    "another program's, on the meta device": (["state", 0, "note"], META),
    "another program's list, on the meta device": (["state", 0, "note"], [META]),
    "nested": (["state", 0, None], NESTED),
    "quantized": (["state", 0, None], QUANTIZED),
    "eight bits": (["state", 0, None], torch.ones(4, 3).to(torch.float8_e4m3fn)),
}
MAIN = {
    front: "exp_avg_sq" if "exp_avg_sq" in front._rule.State._fields else front._rule.State._fields[0]
    for front in FRONTS
}


@pytest.mark.parametrize("what", SPOILT)
@fronts
def test_a_checkpoint_that_does_not_fit_changes_nothing(front, what):
    where, value = SPOILT[what]
    params = parameters(1)
    opt, fresh = busy(front, params.items()), busy(front, (again := twins(params)).items(), lr=0.7)
    walk(opt, params, range(2))
    walk(fresh, again, range(3))
    state = saved(opt.state_dict())
    _with(state, [MAIN[front] if key is None else key for key in where], value)
    before = everything(fresh, again)
    with pytest.raises(StateError) as found:
        fresh.load_state_dict(state)
    assert everything(fresh, again) == before
    if where[0] == "state" and len(where) == 3:
        assert list(params)[where[1]] in str(found.value)
        assert (where[2] or MAIN[front]) in str(found.value)
    walk(fresh, again, [5])


@pytest.mark.parametrize(("keys", "names"), [(["x"], ["a", "b"]), (["x", "y", "z"], ["a", "b"]), (["x", "y"], 3)])
def test_names_of_more_or_fewer_parameters_than_the_checkpoint_has_are_refused(keys, names):
    opt = Lars(parameters(0, {"a": (3,), "b": (3,)}).items())
    state = opt.state_dict()
    state["param_groups"][0] |= {"params": keys, "param_names": names}
    with pytest.raises(StateError, match="the checkpoint lacks 'a'"):
        opt.load_state_dict(state)


@pytest.mark.parametrize("betas", [QUANTIZED[0, :2], META[0, :2]], ids=["quantized", "without values"])
def test_betas_that_cannot_be_read_are_refused(betas):
    opt = Lamb(parameters(0, {"a": (3,)}).items())
    with pytest.raises(HyperparameterError, match="`betas` must be"):
        Lamb(parameters(0, {"a": (3,)}).items(), betas=betas)
    state = opt.state_dict()
    state["param_groups"][0]["betas"] = betas
    with pytest.raises(StateError, match="betas"):
        opt.load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_a_single_number_has_no_eight_bits(dtype):
    params = parameters(0, {"scalar": ()})
    opt = Lars(params.items())
    walk(opt, params, [0])
    state = opt.state_dict()
    state["state"][0] |= {"momentum_buffer": torch.ones((), dtype=dtype), "momentum_buffer_unit": torch.ones(1)}
    for _ in range(2):
        with pytest.raises(StateError, match="momentum_buffer"):
            opt.load_state_dict(state)
        state["state"][0].pop("momentum_buffer_unit", None)


# ---- groups with different rules

SHAPES = {"matrix": (4, 3), "vector": (5,)}


@fronts
def test_checkpoints_of_one_optimizer_and_of_a_group_are_the_same(front):
    params, again = parameters(0, SHAPES), parameters(0, SHAPES)
    options = BUSY[front]
    own, fresh = front(params.items(), **options), Mixed([{"params": list(again.items()), "rule": front, **options}])
    walk(own, params, range(2))
    for p, q in zip(params.values(), again.values(), strict=True):
        q.data.copy_(p.data)
    fresh.load_state_dict(own.state_dict())
    walk(own, params, [2])
    walk(fresh, again, [2])
    assert bits(params) == bits(again)
    own.load_state_dict(fresh.state_dict())


def of_rules(params: Any, *rules: str, order: tuple[str, ...] = ("matrix", "vector"), **options: Any) -> Mixed:
    named = zip(order, rules, strict=True)
    return Mixed([{"params": [(name, params[name])], "rule": rule} for name, rule in named], **options)


def test_a_parameter_keeps_the_rule_that_it_was_saved_with():
    params, again = parameters(0, SHAPES), parameters(0, SHAPES)
    opt = of_rules(params, "lamb", "sgd")
    walk(opt, params, range(2))
    turned = ("vector", "matrix")
    of_rules(again, "sgd", "lamb", order=turned).load_state_dict(opt.state_dict())
    fresh = of_rules(again, "lamb", "sgd", order=turned)
    walk(fresh, again, [0])
    before = everything(fresh, again)
    with pytest.raises(StateError, match="were saved by SGD, but are stepped by Lamb here"):
        fresh.load_state_dict(opt.state_dict())
    with pytest.raises(StateError, match=r"group 0 were saved by AdamW, but are stepped by Lamb here"):
        fresh.load_state_dict(AdamW([(name, again[name]) for name in turned]).state_dict())
    assert everything(fresh, again) == before
    adamw = Mixed([{"params": list(again.items()), "rule": "adamw"}])
    with pytest.raises(StateError, match="were saved by AdamW, but are stepped by Lamb here"):
        Lamb(again.items()).load_state_dict(adamw.state_dict())


def test_a_rule_changed_by_hand_finds_state_of_another():
    params = parameters(0, SHAPES)
    opt = Mixed([{"params": list(params.items()), "rule": "lamb"}])
    walk(opt, params, range(2))
    opt.param_groups[0]["rule"] = "lars"
    with pytest.raises(HyperparameterError, match="the group has no 'momentum', which Lars needs"):
        walk(opt, params, [2])
    opt.param_groups[0].update({"rule": "lars", **Lars(parameters(0).items()).defaults})
    with pytest.raises(StateError, match=r"'exp_avg' of matrix is not part of the state of Lars.*clear_state"):
        walk(opt, params, [2])
    opt.clear_state()
    walk(opt, params, [2])
    assert set(opt.state[params["matrix"]]) == {"step", "momentum_buffer"}


# ---- groups without parameters


@pytest.mark.parametrize("named", [False, True])
@fronts
def test_a_group_without_parameters_goes_on_without_a_warning(front, named):
    """As the Trainer of transformers makes one where no bias and no norm is trained, which accelerate loads at once."""

    def made(seed):
        params = parameters(seed)
        given = list(params.items()) if named else list(params.values())
        return params, busy(front, [{"params": given}, {"params": [], "weight_decay": 0.0}])

    params, opt = made(0)
    opt.load_state_dict(opt.state_dict())
    walk(opt, params, range(2))
    for group in opt.param_groups:  # as a scheduler does
        group["lr"] = 0.125
    again, fresh = made(1)
    for name, p in again.items():
        p.data = params[name].data.clone()
    fresh.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert [group["lr"] for group in fresh.param_groups] == [0.125, 0.125]
    assert fresh.param_groups[1]["weight_decay"] == 0
    walk(opt, params, [2])
    walk(fresh, again, [2])
    assert bits(list(again.values())) == bits(list(params.values()))


def test_a_group_that_had_parameters_is_another_group():
    params = parameters(0)
    opt = Lamb([{"params": list(params.items())[:1]}, {"params": list(params.items())[1:], "lr": 0.5}], lr=0.25)
    whole = Lamb([{"params": list(params.items())}, {"params": []}], lr=0.125)
    opt.set_lr(0.25)
    with pytest.warns(UserWarning, match="the checkpoint has other groups"):
        whole.load_state_dict(opt.state_dict())
    assert [group["lr"] for group in whole.param_groups] == [0.25, 0.125]


def test_what_is_no_checkpoint_of_this_optimizer_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    opt, other = Lamb(model.named_parameters()), torch.optim.AdamW(model.parameters())
    lars, wide = Lars(model.parameters()), Lamb(torch.nn.Linear(8, 8).parameters())
    for one in (*opt.parameters(), *wide.parameters()):
        one.grad = torch.ones_like(one)
    for one in (opt, other, wide):
        one.step()
    saved = opt.state_dict()
    for target, wrong, words in (
        (opt, model.state_dict(), r"has '0\.weight' and 1 more, not 'state'.* It looks like the model's"),
        (opt, opt, r"a checkpoint must be a dict, but is a Lamb of layerwise\. Pass its state_dict\(\)\."),
        (opt, other.state_dict(), r"It looks like torch\.AdamW's: load .*convert\(state_dict, 'torch\.AdamW'\)"),
        (lars, convert(other.state_dict(), "torch.AdamW"),
         r"has exp_avg and exp_avg_sq, but Lars keeps momentum_buffer .*Load it into .* Lamb.*, or start Lars without"),
        (wide, {**saved, "param_groups": [{**saved["param_groups"][0], "params": [0, 1]}]},
         r"must have the shape \(8, 8\), but has \(4, 4\)\. Load a checkpoint of the same model, saved with the same"),
        (opt, {**saved, "state": {0: {**saved["state"][0], "step": -1}}}, r"but is -1\. Load what state_dict\("),
    ):  # fmt: skip
        before = bits(target.state_dict())
        with pytest.raises(StateError, match=words):
            target.load_state_dict(wrong)
        assert bits(target.state_dict()) == before
