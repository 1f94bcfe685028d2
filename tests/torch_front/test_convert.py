"""Checkpoints of other optimizers: what goes on from one is what the other would have done."""

import io

import pytest

from layerwise import preset
from layerwise.errors import StateError

torch = pytest.importorskip("torch")
from layerwise.torch import Adafactor, AdamW, Lamb, Lars, Mixed, convert, convert_back, param_groups  # noqa: E402

SHAPES = [(5, 3), (2, 4, 3), (7,), ()]
STEPS = 4


def parameters(dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=draw, dtype=dtype)) for shape in SHAPES]


def groups(params, **second):
    return [{"params": params[:2]}, {"params": params[2:], **second}]


def go(optimizer, steps):
    """Step with gradients that depend on nothing but the number of the step; the scalar has none in the first."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in steps:
        draw = torch.Generator().manual_seed(100 + step)
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.dtype)
            if step == 0 and i == 3:
                p.grad = None
        optimizer.step()
    return params


def saved(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_goes_on(theirs, build, source, tolerance=1e-12, layout=lambda checkpoint: checkpoint, **options):
    """`build` makes our optimizer of the groups; what the checkpoint brings is not told to it."""
    params = go(theirs, range(STEPS))
    checkpoint = layout(saved(theirs))
    copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
    mine = build(copies)
    mine.load_state_dict(convert(checkpoint, source, **options))
    start = [p.detach().clone() for p in params]
    for step in range(STEPS, STEPS + 3):
        go(theirs, [step])
        go(mine, [step])
        for p, q, before in zip(params, copies, start, strict=True):
            assert (p - q).abs().max() <= tolerance * p.abs().max()
            assert (p - before).abs().max() > 1000 * tolerance * p.abs().max()


def transformers_adafactor():
    return pytest.importorskip("transformers.optimization").Adafactor


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "lr": 0.3}], ids=["defaults", "options"])
def test_torch_adafactor(options, foreach):
    theirs = torch.optim.Adafactor(groups(parameters(), weight_decay=0.2), foreach=foreach, **options)
    mine = {**preset("torch.Adafactor"), "lr_cap": options.get("lr", 1e-2)}
    assert_goes_on(theirs, lambda ps: Adafactor(groups(ps), **mine), "torch.Adafactor")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta1": 0.9},
        {"weight_decay": 0.1, "beta1": 0.5, "warmup_init": True},
        {"lr": 1e-2, "scale_parameter": False, "relative_step": False, "beta1": 0.9},
    ],
    ids=["defaults", "momentum", "warmup", "T5"],
)
def test_transformers_adafactor(options):
    theirs = transformers_adafactor()(groups(parameters(), weight_decay=0.2), **options)
    mine = {**preset("transformers.Adafactor"), **options}
    # The decay is what the checkpoint brings; lr is not, since theirs may be None.
    mine.pop("weight_decay", None)
    # With warm-up nothing moves far: 1e-6·t a step.
    assert_goes_on(theirs, lambda ps: Adafactor(groups(ps), **mine), "transformers.Adafactor", tolerance=1e-13)


ADAM = {"lr": 0.01, "betas": (0.5, 0.9), "weight_decay": 0.1}


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"capturable": False}], ids=str)
@pytest.mark.parametrize(("their_class", "decay"), [(torch.optim.Adam, "l2"), (torch.optim.AdamW, "decoupled")])
def test_torch_adam(their_class, decay, options):
    theirs = their_class(groups(parameters(), lr=0.03, weight_decay=0.0, betas=(0.8, 0.99)), **ADAM, **options)
    mine = {"eps": 1e-8, "adapt": False, "decay": decay}
    assert_goes_on(theirs, lambda ps: Lamb(groups(ps), **mine), "torch.Adam")


@pytest.mark.parametrize("lr_in_momentum", [True, False])
@pytest.mark.parametrize("rest", [{}, {"nesterov": True}, {"dampening": 0.3}], ids=str)
def test_torch_sgd(rest, lr_in_momentum):
    theirs = torch.optim.SGD(
        groups(parameters(), lr=0.03, momentum=0.5), lr=0.1, momentum=0.9, weight_decay=0.1, **rest
    )
    mine = {"adapt": False, "lr_in_momentum": lr_in_momentum, **rest}
    assert_goes_on(theirs, lambda ps: Lars(groups(ps), **mine), "torch.SGD", lr_in_momentum=lr_in_momentum)


def test_torch_sgd_after_a_change_of_lr():
    theirs = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    go(theirs, [0, 1])
    theirs.param_groups[0]["lr"] = 0.02
    mine = {"adapt": False, "lr_in_momentum": False}
    assert_goes_on(theirs, lambda ps: Lars(ps, **mine), "torch.SGD", lr_in_momentum=False)


@pytest.mark.parametrize(
    "saved_state", [lambda buffer: {}, lambda buffer: {"momentum_buffer": None}], ids=["no state", "no buffer"]
)
def test_torch_sgd_without_momentum_has_nothing_to_convert(saved_state):
    theirs = torch.optim.SGD(parameters(), lr=0.1)
    go(theirs, [1])
    checkpoint = theirs.state_dict()
    checkpoint["state"] = {i: saved_state(None) for i in range(4)}
    assert convert(checkpoint, "torch.SGD")["state"] == {}
    assert_goes_on(theirs, lambda ps: Lars(ps, momentum=0.5, adapt=False), "torch.SGD")


# timm 1.0.31 and apex keep the step in the group: timm as a float32 tensor, before 1.0.25 and in apex as an integer,
# and apex with capturable=True as a tensor of int32. timm's Lars has SGD's state.
def steps_in_group(step):
    def layout(checkpoint):
        state = {key: {k: one[k] for k in ("exp_avg", "exp_avg_sq")} for key, one in checkpoint["state"].items()}
        return {"state": state, "param_groups": [{**group, "step": step} for group in checkpoint["param_groups"]]}

    return layout


APEX = {"bias_correction": True, "grad_averaging": True, "max_grad_norm": 1.0}
THEIR_OWN = {"apex.FusedLAMB": APEX, "timm.Lamb": {**APEX, "trust_clip": False, "always_adapt": False}}


def other_options(layout, **options):
    """The layout, with the package's own options in the groups in place of ours."""
    kept = ("params", "lr", "betas", "eps", "weight_decay", "momentum", "step")

    def changed(checkpoint):
        made = layout(checkpoint)
        found = [{k: v for k, v in group.items() if k in kept} for group in made["param_groups"]]
        return {**made, "param_groups": [{**group, **options} for group in found]}

    return changed


@pytest.mark.parametrize("step", [STEPS, torch.tensor(float(STEPS)), torch.tensor([STEPS], dtype=torch.int32)], ids=str)
@pytest.mark.parametrize("source", ["timm.Lamb", "apex.FusedLAMB"])
def test_steps_counted_in_the_group(source, step):
    params = parameters()[:3]
    theirs = Lamb(params, **{**preset(source), **ADAM})
    layout = other_options(steps_in_group(step), **THEIR_OWN[source])
    assert_goes_on(theirs, lambda ps: Lamb(ps, **preset(source)), source, layout=layout)


TIMM_LARS = {"dampening": 0.0, "nesterov": False, "trust_coeff": 0.001, "trust_clip": False, "always_adapt": False}


def test_timm_lars():
    options = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.1}
    theirs = Lars(parameters(), **{**preset("timm.Lars"), **options})

    def without_step(checkpoint):
        return {
            **checkpoint,
            "state": {k: {"momentum_buffer": s["momentum_buffer"]} for k, s in checkpoint["state"].items()},
        }

    layout = other_options(without_step, **TIMM_LARS)
    # timm starts with momentum 0; that of the run comes from the checkpoint.
    build = lambda ps: Lars(ps, **{**preset("timm.Lars"), "momentum": 0.1})  # noqa: E731
    assert_goes_on(theirs, build, "timm.Lars", layout=layout, lr_in_momentum=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_state_keeps_its_dtype_and_is_not_shared(dtype):
    theirs = torch.optim.Adam(parameters(dtype))
    go(theirs, range(2))
    made = convert(theirs.state_dict(), "torch.Adam")
    before = {key: one["exp_avg"].clone() for key, one in theirs.state_dict()["state"].items()}
    mine = Lamb(parameters(dtype))
    mine.load_state_dict(made)
    params = go(mine, [2, 3])
    assert all(mine.state[p]["exp_avg"].dtype is dtype for p in params)
    assert all(torch.equal(theirs.state_dict()["state"][key]["exp_avg"], one) for key, one in before.items())


def test_names_and_the_start_of_a_schedule_are_kept():
    theirs = torch.optim.Adam([(f"p{i}", p) for i, p in enumerate(parameters())], lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(theirs, 1)
    go(theirs, [1])
    schedule.step()
    [group] = convert(saved(theirs), "torch.Adam")["param_groups"]
    assert (group["lr"], group["initial_lr"], group["param_names"]) == (0.05, 0.5, ["p0", "p1", "p2", "p3"])


def adam_checkpoint():
    theirs = torch.optim.Adam(parameters())
    go(theirs, [1])
    return theirs.state_dict()


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_has_two_names_there_and_back(name):
    theirs = getattr(torch.optim, name)(parameters(), **ADAM)
    params = go(theirs, range(2))
    mine = AdamW(parameters(), decay="l2" if name == "Adam" else "decoupled")
    mine.load_state_dict(convert(theirs.state_dict(), f"torch.{name}"))
    again = getattr(torch.optim, name)([torch.nn.Parameter(p.detach().clone()) for p in params])
    again.load_state_dict(convert_back(mine.state_dict(), again, f"torch.{name}"))
    for p, q in zip(go(theirs, [2]), go(again, [2]), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("name", "meant"), [("torch.adamw", "torch.AdamW"), ("timm.LAMB", "timm.Lamb"), ("torch.optim.SGD", "torch.SGD")]
)
def test_a_name_that_is_nearly_right(name, meant):
    with pytest.raises(StateError, match=f"can be converted. Is '{meant}'.* meant"):
        convert(adam_checkpoint(), name)
    with pytest.raises(StateError, match=f"can be converted. Is '{meant}'.* meant"):
        convert_back(Lamb(parameters()).state_dict(), torch.optim.Adam(parameters()), name)


def test_amsgrad_names_no_other_rule():
    theirs = torch.optim.AdamW(parameters(), amsgrad=True)
    go(theirs, [1])
    with pytest.raises(StateError, match="amsgrad, whose maximum no optimizer here keeps"):
        convert(theirs.state_dict(), "torch.AdamW")


# ---- the rule changes


def adapting(ps):
    return Lamb(ps, lr=0.02, weight_decay=0.2, betas=(0.7, 0.8))


OTHER_RULES = [
    (torch.optim.AdamW, "torch.AdamW", adapting),
    (torch.optim.AdamW, "torch.Adam", lambda ps: Mixed([{"params": ps, "rule": "lamb", "lr": 0.02}])),
    (torch.optim.AdamW, "torch.Adam", lambda ps: Lamb(ps, lr=0.02, adapt=False, keep_norm=True)),
    (torch.optim.SGD, "torch.SGD", lambda ps: Lars(ps, lr=0.02)),
]


@pytest.mark.parametrize(("their_class", "source", "build"), OTHER_RULES)
def test_rates_stay_where_another_rule_goes_on(their_class, source, build):
    """Those of AdamW are other steps in LAMB."""
    options = {"momentum": 0.3} if their_class is torch.optim.SGD else {}
    theirs = their_class(parameters()[:3], lr=0.001, weight_decay=0.01, **options)
    torch.optim.lr_scheduler.ConstantLR(theirs, factor=1.0)
    params = go(theirs, [1])
    mine = build([torch.nn.Parameter(p.detach().clone()) for p in params])
    before = [dict(group) for group in mine.param_groups]
    with pytest.warns(UserWarning, match=r"stay as given here: lr=0.02 \(0.001 in the checkpoint\)"):
        mine.load_state_dict(convert(theirs.state_dict(), source))
    assert mine.param_groups == before
    key = "exp_avg" if "Adam" in source else "momentum_buffer"
    scale = 1 if "Adam" in source else 0.001  # what has moved the weights was stepped with the lr of then
    for p, q in zip(params, [p for group in mine.param_groups for p in group["params"]], strict=True):
        torch.testing.assert_close(mine.state[q][key], theirs.state[p][key] * scale)


def rates(optimizer):
    return [(group["lr"], group["weight_decay"], group["betas"]) for group in optimizer.param_groups]


@pytest.mark.parametrize("grouped", [False, True])
def test_rates_stay_in_all_groups_or_in_none(grouped):
    """Biases have no ratio, and so AdamW's rule; but they belong to the new run, as the other groups do."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    given = param_groups(model) if grouped else model.named_parameters()
    theirs = torch.optim.AdamW([{**group, "lr": 0.001} for group in given] if grouped else given, weight_decay=0.01)
    go(theirs, [1])
    mine = Lamb(param_groups(model), lr=0.02, weight_decay=0.1)
    before = rates(mine)
    with pytest.warns(UserWarning, match=r"lr=0.02 \(0.001 in the checkpoint\)") as said:
        mine.load_state_dict(convert(theirs.state_dict(), "torch.AdamW"))
    assert rates(mine) == before == [(0.02, 0.1, (0.9, 0.999)), (0.02, 0.0, (0.9, 0.999))]
    assert len(said) == 1
    assert ("weight_decay=0.0 (0.01 in the checkpoint)" in str(said[0].message)) == (not grouped)
    back = torch.optim.AdamW(param_groups(model), lr=0.3)
    for group in back.param_groups:
        group["lr"] = 0.3
    before = rates(back)
    with pytest.warns(UserWarning, match=r"lr=0.3 \(0.02 in the checkpoint\).*To change them, set them"):
        back.load_state_dict(convert_back(mine.state_dict(), back, "torch.AdamW"))
    assert rates(back) == before


def test_rates_stay_on_the_way_back_too():
    mine = adapting(parameters())
    go(mine, [1])
    theirs = torch.optim.AdamW(parameters(), lr=0.001)
    with pytest.warns(UserWarning, match=r"torch.AdamW has another rule.*: lr=0.001 \(0.02 in the checkpoint\)"):
        theirs.load_state_dict(convert_back(mine.state_dict(), theirs, "torch.AdamW"))
    assert (theirs.param_groups[0]["lr"], theirs.param_groups[0]["betas"]) == (0.001, (0.9, 0.999))


# ---- whose checkpoint it is

ADAMS = dict.fromkeys(("lr", "betas", "eps", "weight_decay"))
TIMM_LAMB = {**ADAMS, **THEIR_OWN["timm.Lamb"], "step": 4}
GROUPS = {
    "torch.Adam": torch.optim.AdamW(parameters()).state_dict()["param_groups"][0],
    "torch.SGD": torch.optim.SGD(parameters()).state_dict()["param_groups"][0],
    "torch.Adafactor": torch.optim.Adafactor(parameters()).state_dict()["param_groups"][0],
    "torchao.AdamW8bit": {**ADAMS, "amsgrad": False},
    "apex.FusedLAMB": {**ADAMS, **APEX, "step": 4},
    "timm.Lamb": TIMM_LAMB,
    "timm.Lars": {**dict.fromkeys(("lr", "momentum", "weight_decay", "eps")), **TIMM_LARS},
    "one of pytorch_optimizer": {**ADAMS, "grad_averaging": True, "max_grad_norm": 1.0, "foreach": False, "step": 4},
    "an optimizer of layerwise": Lamb(parameters()).state_dict()["param_groups"][0],
}
OTHERS = [(group, source) for group in GROUPS for source in GROUPS if group != source and "." in source]


@pytest.mark.parametrize(("whose", "source"), OTHERS)
def test_groups_tell_whose_checkpoint_it_is(whose, source):
    """States alone do not: Adam's and LAMB's have the same names."""
    checkpoint = {**adam_checkpoint(), "param_groups": [{**GROUPS[whose], "params": [0, 1, 2, 3], "lr_scale": 1.0}]}
    with pytest.raises(
        StateError, match=f"group 0 of the checkpoint is not as {source} saves it.*like that of {whose}"
    ):
        convert(checkpoint, source)


@pytest.mark.parametrize("source", [source for source in GROUPS if "." in source])
def test_groups_with_keys_of_the_user_are_as_the_source_saves_them(source):
    group = {**GROUPS[source], "params": [0], "lr_scale": 1.0, "name": "head", "initial_lr": 0.1}
    assert convert({"state": {}, "param_groups": [group]}, source)["state"] == {}


OF_OLD = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")


def test_adam_of_old_had_fewer_keys_and_other_counts():
    now, old = adam_checkpoint(), adam_checkpoint()
    old["param_groups"] = [{key: group[key] for key in OF_OLD} for group in old["param_groups"]]
    for state in old["state"].values():
        state["step"] = int(state["step"])
    found, expected = convert(old, "torch.Adam"), convert(now, "torch.Adam")
    assert found["state"].keys() == expected["state"].keys()
    for key, state in found["state"].items():
        assert {name: torch.as_tensor(x).tolist() for name, x in state.items()} == {
            name: torch.as_tensor(x).tolist() for name, x in expected["state"][key].items()
        }
    with pytest.raises(StateError, match=r'convert\(state_dict, "torch.Adam"\)'):
        Lamb(parameters()).load_state_dict(old)


@pytest.mark.parametrize("key", ["alpha", "momentum", "quantize", "caution", "trust_clip", "step"])
def test_a_key_that_may_be_the_user_s_can_be_removed(key):
    checkpoint = adam_checkpoint()
    checkpoint["param_groups"][0][key] = 1
    with pytest.raises(StateError, match=f"If your program added '{key}', remove that from the group"):
        convert(checkpoint, "torch.Adam")
    with pytest.raises(StateError, match="If your program added keys, remove them"):
        Lamb(parameters()).load_state_dict(checkpoint)


@pytest.mark.parametrize("source", ["torch.RMSprop", "Adam", "", None, 3])
def test_unknown_source(source):
    with pytest.raises(StateError, match=r"Pass one of apex\.FusedLAMB, bitsandbytes\.Adam"):
        convert(adam_checkpoint(), source)


@pytest.mark.parametrize("source", ["torch.SGD", "torch.Adafactor"])
def test_a_checkpoint_of_another_kind_does_not_load(source):
    with pytest.raises(StateError):
        Lamb(parameters()).load_state_dict(convert(adam_checkpoint(), source))


@pytest.mark.parametrize("source", ["torch.Adam", "timm.Lamb", "transformers.Adafactor"])
def test_a_checkpoint_without_what_the_source_saves(source):
    params = parameters()
    theirs = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    go(theirs, [1])
    with pytest.raises(StateError):
        (Adafactor if "Adafactor" in source else Lamb)(params).load_state_dict(convert(theirs.state_dict(), source))


@pytest.mark.parametrize("key", ["state", "param_groups"])
def test_half_a_checkpoint(key):
    checkpoint = adam_checkpoint()
    del checkpoint[key]
    with pytest.raises(StateError):
        convert(checkpoint, "torch.Adam")


class Packed(torch.Tensor):
    """What torchao's states of few bits are: tensors of a class of their own that give numbers when asked for them."""

    def dequantize(self):
        return self.as_subclass(torch.Tensor) * 2


def test_torchao():
    saved = adam_checkpoint()
    saved["param_groups"] = [{key: group[key] for key in OF_OLD} for group in saved["param_groups"]]
    for state in saved["state"].values():
        state["exp_avg"] = (state["exp_avg"] / 2).as_subclass(Packed)
    assert_same_state(convert(saved, "torchao.AdamW8bit"), convert(adam_checkpoint(), "torch.Adam"))


def assert_same_state(found, expected):
    for key, state in expected["state"].items():
        for name, x in state.items():
            assert type(found["state"][key][name]) is torch.Tensor
            torch.testing.assert_close(found["state"][key][name], x, rtol=0, atol=0)
