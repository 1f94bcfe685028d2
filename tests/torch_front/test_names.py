"""Names: a checkpoint's parameters are found by them, and they stay their parameters'."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch_front.front import BUSY, bits, busy, everything, fronts, parameters, set_grads, twins, walk

from layerwise import optional
from layerwise.errors import ParameterError, StateError
from layerwise.torch import Lamb

SQUARES = dict.fromkeys("abcd", (3, 3))


def stepped(front, params, names=str, **options):
    """An optimizer after two steps with gradients that differ by name; `names` says what parameters are called."""
    opt = busy(front, [(names(name), p) for name, p in params.items()], **options)
    for seed in range(2):
        set_grads(params, seed)
        opt.step()
    return opt


def states(opt, params):
    return {name: bits(opt.state[p]) for name, p in params.items()}


def called(state, form):
    """The checkpoint with its parameters called otherwise."""
    state = copy.deepcopy(state)
    for group in state["param_groups"]:
        group["param_names"] = [form(name) for name in group["param_names"]]
    return state


# ---- the same parameters under other names, and in another order

FORMS = {
    "as they are": str,
    "compiled": lambda name: f"_orig_mod.{name}",
    "DDP": lambda name: f"module.{name}",
    "DDP around DDP": lambda name: f"module.module.{name}",
    "DDP of a compiled model": lambda name: f"module._orig_mod.{name}",
    "compiled DDP": lambda name: f"_orig_mod.module.{name}",
    "FSDP1 around all": lambda name: f"_fsdp_wrapped_module.{name}",
    "FSDP1 and checkpointing at depth": lambda name: name.replace(
        "layer.", "_fsdp_wrapped_module.layer._checkpoint_wrapped_module."
    ),
    "a layer compiled by itself": lambda name: name.replace("layer.", "layer._orig_mod."),
    "a layer in DDP by itself": lambda name: name.replace("layer.", "layer.module."),
    "Fabric": lambda name: f"_forward_module.{name}",
    "a layer set up by Fabric by itself": lambda name: name.replace("layer.", "layer._forward_module."),
    "in a module of its own": lambda name: f"net.{name}",
}
NAMES = {"layer.qkv.weight": (6, 4), "layer.qkv.bias": (6,), "head.weight": (6, 4), "module.weight": (6, 4)}


@pytest.mark.parametrize("back", [False, True], ids=["saved wrapped", "saved plain"])
@pytest.mark.parametrize("permuted", [False, True], ids=["in order", "permuted"])
@pytest.mark.parametrize("form", FORMS)
@fronts
@pytest.mark.thinned(1)
def test_names_are_those_of_the_wrapped_model(front, form, permuted, back):
    """Blocks by name go on as well: without them the states of Adafactor would not fit."""
    wrapped = FORMS[form]
    there, here = (str, wrapped) if back else (wrapped, str)
    params = parameters(1, NAMES)
    split = lambda names: {"blocks": {names("layer.qkv.weight"): 3}}  # noqa: E731
    opt = stepped(front, params, there, **split(there))
    again = twins(params)
    order = list(reversed(again)) if permuted else list(again)
    fresh = busy(front, [(here(name), again[name]) for name in order], **split(here))
    fresh.load_state_dict(opt.state_dict())
    assert fresh.param_groups[0]["param_names"] == [here(name) for name in order]
    assert states(fresh, again) == states(opt, params)
    for one, ps in ((opt, params), (fresh, again)):
        set_grads(ps, 5)
        one.step()
    assert bits(again) == bits(params)
    assert fresh.stats()[here("layer.qkv.weight")]["trust_ratio"].shape == (3,)


def test_a_wrapper_is_not_taken_for_a_module_of_that_name():
    """What DDP calls module.weight is weight; the model has a module.weight, too."""
    params = parameters(1, {"weight": (3, 3), "module.weight": (3, 3)})
    opt = stepped(Lamb, params)
    again = twins(params)
    fresh = busy(Lamb, reversed(again.items()))
    fresh.load_state_dict(called(opt.state_dict(), lambda name: f"module.{name}"))
    assert states(fresh, again) == states(opt, params)


# ---- names that contradict, are there twice, or are not there


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ("bcde", "lacks 'e', which this optimizer has, and has 'a', which this optimizer lacks"),
        ("abc", "has 'd', which this optimizer lacks"),
        ("abcde", "lacks 'e', which this optimizer has"),
    ],
)
def test_different_names_raise_and_change_nothing(ours, words):
    opt = stepped(Lamb, parameters(1, SQUARES))
    fresh = busy(Lamb, (ps := parameters(2, dict.fromkeys(ours, (3, 3)))).items(), lr=0.7)
    walk(fresh, ps, [0])
    before = everything(fresh, ps)
    with pytest.raises(StateError, match=words):
        fresh.load_state_dict(opt.state_dict())
    assert everything(fresh, ps) == before


@pytest.mark.filterwarnings("ignore:several parameters are named")
def test_names_that_appear_twice():
    """Two models in one optimizer: in the same order there is no doubt, in another there is."""
    params = parameters(1, SQUARES)
    two = [("weight", params["a"]), ("weight", params["b"]), ("bias", params["c"])]
    opt = Lamb(two)
    set_grads(params, 1)
    opt.step()
    again = Lamb(two)
    again.load_state_dict(called(opt.state_dict(), lambda name: f"module.{name}"))
    assert all(bits(again.state[p]) == bits(opt.state[p]) for _, p in two)
    with pytest.raises(StateError, match="twice"):
        Lamb(two[::-1]).load_state_dict(opt.state_dict())


@pytest.mark.filterwarnings("ignore:several parameters are named")
def test_parameters_of_one_name_have_settings_of_their_own():
    """Also beside a tensor of a class of its own, of which nothing is planned together."""
    other = type("Other", (torch.nn.Parameter,), {})(torch.ones(3))
    twins = [torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    groups = [{"params": [("w", p)], "weight_decay": decay} for p, decay in zip(twins, (0.0, 0.5), strict=True)]
    opt = Lamb([*groups, {"params": [("other", other)]}], lr=0.1, adapt=False, eps=0.0)
    for p in (*twins, other):
        p.grad = torch.full_like(p, 2.0)
    opt.step()
    torch.testing.assert_close(twins, [torch.full((4, 3), 0.9), torch.full((4, 3), 0.85)])


@pytest.mark.parametrize("there", [False, True], ids=["names here", "names there"])
@fronts
def test_names_on_one_side_alone_go_by_place(front, there):
    params = parameters(1)
    one, other = (params.items(), params.values()) if there else (params.values(), params.items())
    opt = busy(front, one)
    walk(opt, params, range(2))
    fresh = busy(front, other)
    fresh.load_state_dict(opt.state_dict())
    assert states(fresh, params) == states(opt, params)
    assert fresh.param_groups[0].get("param_names") == (None if there else list(params))


# ---- groups


def in_groups(front, params, *groups):
    return busy(front, [{"params": [(name, params[name]) for name in names], **said} for names, said in groups])


@fronts
@pytest.mark.parametrize(("option", "value"), [("betas", (0.5, 0.6)), ("momentum", 0.3), ("weight_decay", 0.7)])
def test_groups_in_another_order(front, option, value):
    params = parameters(1, SQUARES)
    opt = in_groups(front, params, ("ab", {}), ("cd", {"lr": 0.5, option: value}))
    walk(opt, params, range(2))
    fresh = in_groups(front, params, ("dc", {}), ("ab", {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.load_state_dict(opt.state_dict())
    assert states(fresh, params) == states(opt, params)
    assert [group["lr"] for group in fresh.param_groups] == [0.5, BUSY[front]["lr"]]
    assert fresh.param_groups[0][option] == value


@fronts
def test_parameters_in_other_groups(front):
    """Where all the groups they come from say the same, that holds, and a warning says what it is."""
    params = parameters(1, SQUARES)
    opt = in_groups(front, params, ("ab", {"lr": 0.5}), ("cd", {"lr": 0.5}))
    walk(opt, params, range(2))
    fresh = in_groups(front, params, ("a", {}), ("cdb", {}))
    with pytest.warns(UserWarning, match=r"groups.*'group 1': {'lr': 0\.5") as found:
        fresh.load_state_dict(opt.state_dict())
    assert found[0].filename == __file__
    assert states(fresh, params) == states(opt, params)
    one = busy(front, params.items())
    with pytest.warns(UserWarning, match="groups"):
        one.load_state_dict(opt.state_dict())
    assert one.param_groups[0]["lr"] == 0.5


def test_parameters_of_groups_with_other_rates():
    params = parameters(1, SQUARES)
    opt = in_groups(Lamb, params, ("ab", {}), ("cd", {"weight_decay": 0.0}))
    walk(opt, params, range(2))
    fresh = in_groups(Lamb, params, ("a", {}), ("bcd", {}))
    before = everything(fresh, params)
    with pytest.raises(StateError, match=r"group 1 .*weight_decay=0\.01 and weight_decay=0\.0"):
        fresh.load_state_dict(opt.state_dict())
    assert everything(fresh, params) == before


# ---- torch.distributed.checkpoint


class Net(nn.Module):
    def __init__(self, order):
        super().__init__()
        for name in order:
            self.register_module(name, nn.Linear(3, 3, bias=False))


OPTIONS = {
    "keys": StateDictOptions(),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
    "full": StateDictOptions(full_state_dict=True),
}


@pytest.mark.parametrize("names", [str, lambda name: f"_orig_mod.{name}"], ids=["plain", "compiled"])
@pytest.mark.parametrize("how", OPTIONS)
@fronts
def test_distributed_checkpoints_of_another_order(front, how, names):
    """They put the keys in our order, and leave 'param_names' in that of the run that saved."""

    def trained(order, seeds):
        model = Net(order)
        params = dict(model.named_parameters())
        opt = busy(front, [(names(name), p) for name, p in params.items()])
        for seed in seeds:
            for i, name in enumerate(sorted(params)):
                params[name].grad = torch.randn(3, 3, generator=torch.Generator().manual_seed(10 * seed + i))
            opt.step()
        return model, params, opt

    model, params, opt = trained("abc", range(2))
    state = get_optimizer_state_dict(model, opt, options=OPTIONS[how])
    other, theirs, fresh = trained("cab", [])
    set_optimizer_state_dict(other, fresh, state, options=OPTIONS[how])
    assert fresh.param_groups[0]["param_names"] == [names(f"{name}.weight") for name in "cab"]
    for name, p in params.items():
        assert bits(fresh.state[theirs[name]]) == bits(opt.state[p])
    if how != "flat":  # the same by hand
        by_hand = busy(front, [(names(name), p) for name, p in theirs.items()])
        by_hand.load_state_dict(state)
        for name, p in params.items():
            assert bits(by_hand.state[theirs[name]]) == bits(opt.state[p])


# ---- parameters taken out of a group


REMOVALS = {
    "the first": lambda ps: ps.pop(0),
    "the last": lambda ps: ps.pop(),
    "one between": lambda ps: ps.__delitem__(1),
    "all but one": lambda ps: ps.__setitem__(slice(0, None), ps[2:3]),
    "all": lambda ps: ps.clear(),
    "turned round": lambda ps: ps.reverse(),
}


@pytest.mark.parametrize("before", [False, True], ids=["before a step", "after one"])
@pytest.mark.parametrize("what", REMOVALS)
@fronts
def test_names_stay_with_their_parameters(front, what, before):
    params = parameters(1, SQUARES)
    options = {"blocks": {optional("c"): 3, optional("d"): 3}}
    opt = busy(front, params.items(), **options)
    if before:
        walk(opt, params, [0])
    group = opt.param_groups[0]
    REMOVALS[what](group["params"])
    left = {name: p for name, p in params.items() if any(p is one for one in group["params"])}
    walk(opt, params, [1])
    kept = len(opt.state)
    assert len(opt.state_dict()["param_groups"][0]["param_names"]) == len(left)
    assert {name for p, name in opt._stepper.members.named(0) if p is left[name]} == left.keys()
    measured = opt.stats()
    assert {name for name in left if measured[name]["trust_ratio"].__class__ is not float} == left.keys() & {"c", "d"}
    if left:
        fresh = busy(front, left.items(), **options)
        fresh.load_state_dict(opt.state_dict())
        assert states(fresh, left) == states(opt, left)
    assert len(opt.state) == kept  # what was taken out may come back


@pytest.mark.parametrize("removed", [False, True])
def test_a_parameter_without_a_name(removed):
    params = parameters(1, SQUARES)
    opt = busy(Lamb, params.items())
    group = opt.param_groups[0]
    if removed:
        del group["params"][0]
    group["params"].append(torch.nn.Parameter(torch.ones(3, 3)))
    set_grads(params, 1)
    before = bits(params)
    for attempt in (opt.step, opt.state_dict):
        group["params"][-1].grad = torch.ones(3, 3)
        with pytest.raises(ParameterError, match=r"parameter \d of group 0 has no name"):
            attempt()
    assert bits(params) == before
    if not removed:
        group["param_names"].append("new")
        opt.step()
        assert "new" in opt.stats()


def test_names_keep_nothing_alive():
    model = nn.Linear(3, 3)
    opt = Lamb(model.named_parameters())
    gone = weakref.ref(opt.param_groups[0]["params"].pop())
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("how", ["in the list", "another list"])
def test_a_parameter_that_is_renamed_has_its_new_name_from_the_next_step_on(how):
    """Its measurements go by it, and so do blocks and random bits."""
    start = {name: torch.randn(8, 4, generator=torch.Generator().manual_seed(0)) for name in ("a.blk", "b.x")}
    options = {"lr": 0.1, "blocks": {optional("*blk"): 2}, "state_dtype": "bfloat16"}

    def stepped(name, later):
        p = nn.Parameter(start["a.blk"].clone())
        opt = Lamb([(name, p)], **options)
        for step in range(4):
            p.grad = torch.arange(32.0).reshape(8, 4) - 7 * step
            opt.step()
            if step == 1 and later != name:
                names = opt.param_groups[0]["param_names"]
                if how == "in the list":
                    names[0] = later
                else:
                    opt.param_groups[0]["param_names"] = [later]
                opt.state_dict()  # which reads names
                assert list(opt.stats()) == [name]
        return opt, p

    renamed, p = stepped("a.blk", "b.x")
    assert list(renamed.stats()) == ["b.x"]
    assert isinstance(renamed.stats()["b.x"]["weight_norm"], float)
    back, q = stepped("b.x", "a.blk")
    assert back.stats()["a.blk"]["weight_norm"].shape == (2,)
    assert not torch.equal(p, q)


def test_names_that_stay_prepare_no_step_again(monkeypatch):
    params = {name: nn.Parameter(torch.randn(3, 3)) for name in "ab"}
    opt = Lamb(params.items(), lr=0.1)
    planned = []
    of = type(opt._stepper.planner).planned
    monkeypatch.setattr(type(opt._stepper.planner), "planned", lambda self, work: planned.append(1) or of(self, work))
    for step in range(6):
        for p in params.values():
            p.grad = torch.ones_like(p)
        opt.step()
        if step == 2:
            opt.param_groups[0]["param_names"] = ["a", "b"]
        if step == 3:
            opt.param_groups[0]["param_names"] = ["a", "c"]
    assert planned == [1, 1]


# ---- groups with names beside groups without


def grown(front, params, late, **options):
    """An optimizer of named parameters, to which a program adds plain ones later, as fine-tuning callbacks do."""
    opt = busy(front, list(params.items()), **options)
    opt.add_param_group({"params": list(late.values()), "lr": 1e-3})
    return opt


@fronts
def test_a_group_of_plain_parameters_is_named_by_places(front):
    params, late = parameters(1, SQUARES), parameters(2, {"x": (3, 3), "y": (3,)})
    opt = grown(front, params, late)
    places = ["parameter 0 of group 1", "parameter 1 of group 1"]
    assert [group["param_names"] for group in opt.param_groups] == [list(SQUARES), places]
    walk(opt, {**params, **late}, range(2))
    assert set(opt.stats()) == {*SQUARES, *places}
    again, later = parameters(3, SQUARES), parameters(4, {"x": (3, 3), "y": (3,)})
    fresh = grown(front, again, later)
    fresh.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert states(fresh, {**again, **later}) == states(opt, {**params, **late})
    assert fresh.param_groups[1]["lr"] == 1e-3


@fronts
def test_named_parameters_may_come_after_plain_ones(front):
    params, late = parameters(1, SQUARES), parameters(2, {"x": (3, 3)})
    opt = busy(front, list(params.values()))
    walk(opt, params, [0])
    saved = copy.deepcopy(opt.state_dict())
    opt.add_param_group({"params": late.items()})
    assert [group["param_names"][-1] for group in opt.param_groups] == ["parameter 3 of group 0", "x"]
    walk(opt, {**params, **late}, [1])
    groups = [{"params": list(late.items())}, {"params": list(parameters(1, SQUARES).values())}, {"params": []}]
    mixed = busy(front, groups)
    assert [len(group["param_names"]) for group in mixed.param_groups] == [1, 4, 0]
    plain = busy(front, parameters(5, SQUARES).items())
    plain.load_state_dict(saved)  # by places, because it has no names


@pytest.mark.parametrize("bad", ["a tensor that is no leaf", "known", "an option"])
def test_a_group_that_is_refused_names_nothing(bad):
    params = parameters(1, SQUARES)
    opt = Lamb(list(params.values()))
    group = {"params": [("x", torch.ones(2, requires_grad=True) * 2)]}
    group = {"known": {"params": [("x", params["a"])]}, "an option": {"params": [("x", torch.ones(2))], "lr": -1}}.get(
        bad, group
    )
    with pytest.raises(ValueError, match=r"leaf|more than one parameter group|lr"):
        opt.add_param_group(group)
    assert [list(group) for group in opt.param_groups] == [list(Lamb(list(parameters(1).values())).param_groups[0])]


def test_blocks_by_name_need_names():
    opt = Lamb(list(parameters(1, SQUARES).items()), blocks={"a": 3})
    with pytest.raises(ValueError, match="`blocks` must be None when parameters have no names"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(3, 3))]})
    opt.add_param_group({"params": []})
    assert [group["param_names"] for group in opt.param_groups] == [list(SQUARES), []]
