"""Runs that were begun with another optimizer or on another schedule, and go on here."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, StepLR  # noqa: E402

from layerwise import preset  # noqa: E402
from layerwise.errors import ContradictionError, StateError  # noqa: E402
from layerwise.schedules import Polynomial  # noqa: E402
from layerwise.torch import Adafactor, Lamb, Lars, convert, scheduler  # noqa: E402

slow = pytest.mark.slow
SHAPES = {"matrix": (5, 3), "vector": (7,)}


def marks_of(source):
    """The marks of a test that needs the package of this optimizer."""
    return () if source.startswith(("torch.", "apex.", "timm.")) else slow


def sources(names):
    return pytest.mark.parametrize("source", [pytest.param(name, marks=marks_of(name)) for name in names])


def parameters():
    draw = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in SHAPES.items()}
    return {name: torch.nn.Parameter(value) for name, value in made.items()}


def copies(params):
    return {name: torch.nn.Parameter(p.detach().clone()) for name, p in params.items()}


def go(optimizer, schedules, params, steps):
    """Step the optimizer and its schedules; return the rates and the parameters after each step."""
    seen = []
    for step in steps:
        draw = torch.Generator().manual_seed(100 + step)
        for p in params.values():
            p.grad = torch.randn(p.shape, generator=draw, dtype=p.dtype)
        optimizer.step()
        seen.append([p.detach().clone() for p in params.values()])
        for schedule in schedules:
            schedule.step()
    return seen


def apart(a, b):
    return max(float((x - y).abs().max()) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True))


# ---- an lr that is a rate there and here

SCHEDULES = {
    "steps": lambda opt: StepLR(opt, 1, gamma=0.5),
    "warm-up": lambda opt: LambdaLR(opt, lambda t: min(1, t / 3) * 0.9**t),
    "decay": lambda opt: ExponentialLR(opt, 0.8),
}
T5 = {"lr": 1e-2, "scale_parameter": False, "relative_step": False}


def transformers_adafactor(params):
    return pytest.importorskip("transformers.optimization").Adafactor(params.values(), **T5)


# What began, what goes on with options as they were at the start, and what the converter is called.
PAIRS = {
    "transformers.Adafactor": (
        transformers_adafactor,
        lambda ps: Adafactor(ps.values(), **{**preset("transformers.Adafactor"), **T5}),
    ),
    "torch.Adam": (
        lambda ps: torch.optim.Adam(ps.values(), lr=0.01),
        lambda ps: Lamb(ps.values(), lr=0.01, eps=1e-8, adapt=False, decay="l2"),
    ),
    "torch.SGD": (
        lambda ps: torch.optim.SGD(ps.values(), lr=0.01, momentum=0.9),
        lambda ps: Lars(ps.values(), lr=0.01, adapt=False, lr_in_momentum=False),
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@sources(PAIRS)
def test_a_converted_run_goes_on_with_its_rate(source, schedule):
    params = parameters()
    theirs, ours = PAIRS[source]
    before, after = theirs(params), None
    theirs_schedule = SCHEDULES[schedule](before)
    go(before, [theirs_schedule], params, range(2))
    again = copies(params)
    after = ours(again)
    our_schedule = SCHEDULES[schedule](after)
    after.load_state_dict(convert(before.state_dict(), source))
    our_schedule.load_state_dict(theirs_schedule.state_dict())
    start = [[p.detach().clone() for p in params.values()]]
    a, b = go(before, [theirs_schedule], params, range(2, 6)), go(after, [our_schedule], again, range(2, 6))
    assert after.param_groups[0]["lr"] == pytest.approx(before.param_groups[0]["lr"], rel=1e-12)
    assert apart(a, b) < 1e-9 * apart(start, a[-1:])


@slow
def test_a_relative_step_stays_one():
    """AdafactorSchedule writes numbers into groups whose step is relative, where they mean nothing."""
    optimization = pytest.importorskip("transformers.optimization")
    params = parameters()
    theirs = optimization.Adafactor(params.values())
    schedule = optimization.AdafactorSchedule(theirs)
    go(theirs, [schedule], params, range(2))
    assert theirs.param_groups[0]["lr"] > 0
    again = copies(params)
    ours = Adafactor(again.values(), **preset("transformers.Adafactor"))
    ours.load_state_dict(convert(theirs.state_dict(), "transformers.Adafactor"))
    assert apart(go(theirs, [], params, [2]), go(ours, [], again, [2])) < 1e-12
    with pytest.raises(StateError, match="written with lr=None, relative_step='factor'"):
        Adafactor(again.values(), lr=0.1).load_state_dict(convert(theirs.state_dict(), "transformers.Adafactor"))


@slow
def test_the_trainer_goes_on_with_ours(tmp_path):
    """T5 under the Trainer with its own Adafactor; resumed with it, and with ours from the converted checkpoint."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 17}
    config = transformers.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
    ids = torch.randint(2, 17, (32, 5), generator=torch.Generator().manual_seed(3))
    rows = [{"input_ids": row, "labels": row.flip(0)} for row in ids]

    def trained(resume=None, **made):
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration(config)
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path / ("go on" if resume else "begin")),
            optim="adafactor",
            learning_rate=0.01,
            lr_scheduler_type="linear",
            max_steps=5,
            save_steps=2,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(model, options, train_dataset=rows, **made)
        trainer.train(resume_from_checkpoint=resume)
        return [p.detach().clone() for p in model.parameters()], trainer.optimizer.param_groups[0]["lr"]

    straight, _ = trained()
    checkpoint = tmp_path / "begin" / "checkpoint-2"
    theirs, _ = trained(str(checkpoint))
    path = checkpoint / "optimizer.pt"
    torch.save(convert(torch.load(path, weights_only=True), "transformers.Adafactor"), path)
    options = {**preset("transformers.Adafactor"), "lr": 0.01, "scale_parameter": False, "relative_step": False}
    ours, _ = trained(str(checkpoint), optimizer_cls_and_kwargs=(Adafactor, options))
    assert apart([straight], [theirs]) == 0
    assert apart([theirs], [ours]) < 1e-4


# ---- schedules that ended with the run that was saved


def scheduled(**options):
    """The checkpoint of a run under a schedule, and its parameters."""
    params = parameters()
    opt = Lamb(params.items(), lr=0.2, **options)
    go(opt, [StepLR(opt, 1, gamma=0.5)], params, range(2))
    return opt.state_dict(), params


def test_set_lr_where_only_the_saved_run_had_a_schedule():
    state, params = scheduled()
    opt = Lamb(copies(params).items(), lr=0.3)
    opt.load_state_dict(state)
    assert (opt.get_lr(), opt.param_groups[0]["initial_lr"]) == (0.05, 0.2)
    opt.set_lr(0.7)
    assert opt.get_lr() == 0.7
    # A schedule made after that begins with the lr that was set.
    schedule = LambdaLR(opt, lambda t: 0.5**t)
    assert schedule.base_lrs == [0.7]
    with pytest.raises(ContradictionError, match="follows a scheduler"):
        opt.set_lr(0.1)


def test_set_lr_is_refused_where_a_schedule_is_here():
    state, params = scheduled()
    opt = Lamb(copies(params).items(), lr=0.2)
    schedule = StepLR(opt, 1)
    opt.load_state_dict(state)
    with pytest.raises(ContradictionError, match="follows a scheduler"):
        opt.set_lr(0.1)
    del state["param_groups"][0]["initial_lr"]
    opt.load_state_dict(state)  # of a run without one, which ends nothing here
    with pytest.raises(ContradictionError, match="follows a scheduler"):
        opt.set_lr(0.1)
    assert schedule.base_lrs == [0.2]


@pytest.mark.parametrize("kind", [StepLR, LambdaLR])
def test_a_schedule_made_after_loading_goes_on(kind):
    """With last_epoch it needs the initial_lr that came along."""
    state, params = scheduled()
    opt = Lamb(copies(params).items(), lr=0.3)
    opt.load_state_dict(state)
    rest = {StepLR: (1, 0.5), LambdaLR: (lambda t: 0.5**t,)}[kind]
    schedule = kind(opt, *rest, last_epoch=1)
    assert schedule.base_lrs == [0.2]
    with pytest.raises(ContradictionError, match="follows a scheduler"):
        opt.set_lr(0.1)


def test_our_scheduler_made_after_loading_goes_on():
    state, params = scheduled()
    opt = Lamb(copies(params).items(), lr=0.3)
    opt.load_state_dict(state)
    schedule = scheduler(opt, Polynomial(peak=0.2, total=4), last_epoch=1)
    assert schedule.get_last_lr() == [0.2 * 0.5]


def test_copies_know_whose_schedule_it_was():
    state, params = scheduled()
    opt = Lamb(copies(params).items(), lr=0.3)
    opt.load_state_dict(state)
    for again in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        again.set_lr(0.7)
        assert again.get_lr() == 0.7


# ---- checkpoints of others that nobody converted

FOREIGN = {
    "torch.Adam": (lambda ps: torch.optim.Adam(ps), Lamb),
    "torch.Adam ": (lambda ps: torch.optim.AdamW(ps), Lamb),
    "torch.SGD": (lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9), Lars),
    "torch.Adafactor": (lambda ps: torch.optim.Adafactor(ps), Adafactor),
    "transformers.Adafactor": (lambda ps: pytest.importorskip("transformers.optimization").Adafactor(ps), Adafactor),
}
# What the groups of packages that may not be installed hold.
FOREIGN_GROUPS = {
    "apex.FusedLAMB": ({"bias_correction", "betas", "eps", "grad_averaging", "max_grad_norm"}, Lamb),
    "timm.Lamb": (
        {"bias_correction", "betas", "eps", "grad_averaging", "max_grad_norm", "always_adapt", "trust_clip"},
        Lamb,
    ),
    "timm.Lars": ({"momentum", "dampening", "nesterov", "trust_coeff", "eps", "trust_clip", "always_adapt"}, Lars),
}
VALUES = {"betas": (0.5, 0.6), "momentum": 0.5}


@pytest.mark.parametrize("stepped", [True, False])
@sources(FOREIGN)
def test_a_foreign_checkpoint_is_named(source, stepped):
    build, front = FOREIGN[source]
    params = parameters()
    theirs = build(params.values())
    if stepped:
        go(theirs, [], params, [0])
    for one in (Lamb, Lars, Adafactor):
        ours = one(params.values(), lr=0.7)
        with pytest.raises(StateError, match=source.strip()) as found:
            ours.load_state_dict(theirs.state_dict())
        assert ("convert(" in str(found.value)) == (one is front)
        assert (ours.get_lr(), len(ours.state)) == (0.7, 0)
    if stepped:
        ours = front(params.values(), **({"lr": None} if front is Adafactor else {"lr": 0.7, "adapt": False}))
        ours.load_state_dict(convert(theirs.state_dict(), source.strip()))


@pytest.mark.parametrize("source", FOREIGN_GROUPS)
def test_the_groups_of_what_is_not_installed(source):
    keys, front = FOREIGN_GROUPS[source]
    group = {"params": [0, 1], "lr": 0.1, "weight_decay": 0.0, **{key: VALUES.get(key, 1.0) for key in keys}}
    with pytest.raises(StateError, match=source):
        front(parameters().values()).load_state_dict({"state": {}, "param_groups": [group]})


def test_a_checkpoint_that_no_converter_reads():
    params = parameters()
    theirs = torch.optim.RAdam(params.values())
    go(theirs, [], params, [0])
    with pytest.raises(StateError, match="No converter"):
        Lamb(params.values()).load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("written", [Lamb, Lars, Adafactor])
@pytest.mark.parametrize("read", [Lamb, Lars, Adafactor])
def test_our_own_are_told_apart(written, read, stepped):
    params = parameters()
    one, other = written(params.values(), lr=0.1), read(params.values(), lr=0.7)
    if stepped:
        go(one, [], params, [0])
    if read is written:
        other.load_state_dict(one.state_dict())
        return
    with pytest.raises(StateError, match=f"written by {written.__name__}, and this is {read.__name__}"):
        other.load_state_dict(one.state_dict())
    assert other.get_lr() == 0.7


def test_groups_of_the_callers_own_keep_what_they_say():
    params = parameters()
    one = Lamb([{"params": list(params.values()), "team": "blue", "floor": 3}])
    other = Lamb([{"params": list(params.values()), "team": "red", "ceiling": 4}])
    other.load_state_dict(one.state_dict())
    assert {key: other.param_groups[0][key] for key in ("team", "floor", "ceiling")} == {
        "team": "blue",
        "floor": 3,
        "ceiling": 4,
    }


# ---- what a state means


@pytest.mark.parametrize("asked", [{}, {"lr_in_momentum": True}, {"lr_in_momentum": False}], ids=str)
@pytest.mark.parametrize("kept", [True, False], ids=["lr in ours", "lr outside ours"])
@pytest.mark.parametrize("source", ["torch.SGD", "timm.Lars"])
def test_momentum_goes_on_in_the_form_of_the_optimizer_that_loads_it(source, kept, asked):
    params = parameters()
    theirs = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)
    go(theirs, [], params, range(3))
    again = copies(params)
    ours = Lars(again.values(), adapt=False, lr_in_momentum=kept)
    saved = theirs.state_dict()
    if source == "timm.Lars":
        saved["param_groups"][0] |= {"trust_coeff": 0.001, "trust_clip": False, "always_adapt": False, "eps": 1e-8}
        for key in ("maximize", "differentiable", "fused"):
            del saved["param_groups"][0][key]
    ours.load_state_dict(convert(saved, source, **asked))
    start = [[p.detach().clone() for p in params.values()]]
    a, b = go(theirs, [], params, range(3, 6)), go(ours, [], again, range(3, 6))
    assert apart(a, b) < 1e-12 * apart(start, a[-1:])


@pytest.mark.parametrize("saved", [True, False])
def test_so_does_momentum_of_our_own(saved):
    params = parameters()
    one = Lars(params.values(), lr=0.1, adapt=False, lr_in_momentum=saved)
    go(one, [], params, range(3))
    again = copies(params)
    other = Lars(again.values(), lr=0.1, adapt=False, lr_in_momentum=not saved)
    other.load_state_dict(one.state_dict())
    assert apart(go(one, [], params, [3, 4]), go(other, [], again, [3, 4])) < 1e-14


@pytest.mark.parametrize("saved", [True, False])
def test_momentum_saved_at_an_lr_of_0_has_one_form(saved):
    params = parameters()
    one = Lars(params.values(), lr=0.1, lr_in_momentum=saved)
    go(one, [], params, range(2))
    one.set_lr(0.0)
    other = Lars(params.values(), lr=0.1, lr_in_momentum=not saved)
    with pytest.raises(StateError, match=f"Make the optimizer with lr_in_momentum={saved}"):
        other.load_state_dict(one.state_dict())
    assert not other.state


def test_lr_in_momentum_is_for_lars():
    with pytest.raises(StateError, match="lr_in_momentum"):
        convert(torch.optim.Adam(parameters().values()).state_dict(), "torch.Adam", lr_in_momentum=True)


MEANINGS = {
    "the other way": ("torch.Adam", {"maximize": True}, Lamb, {}, "maximize"),
    "sums": ("torch.Adam", {}, Lamb, {"grad_averaging": False}, "grad_averaging"),
    "apex's sums": ("apex.FusedLAMB", {"grad_averaging": False}, Lamb, {}, "grad_averaging"),
    "no lr": (
        "transformers.Adafactor",
        {},
        Adafactor,
        {"lr": 0.1, "beta1": 0.9, "lr_in_momentum": False},
        "lr_in",
    ),
    "another cap": ("torch.Adafactor", {}, Adafactor, {"lr_cap": 0.5}, "lr_cap"),
}


def as_apex(saved):
    """Return a checkpoint of Adam as one of apex's LAMB."""
    kept = ("params", "lr", "betas", "eps", "weight_decay", "grad_averaging")
    groups = [{key: group[key] for key in kept} for group in saved["param_groups"]]
    return {**saved, "param_groups": [{**group, "bias_correction": True, "max_grad_norm": 1.0} for group in groups]}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=marks_of(source)) for what, (source, *_) in MEANINGS.items()]
)
def test_options_that_change_what_a_state_means_are_said(what):
    source, theirs, front, ours, said = MEANINGS[what]
    build = {
        "torch.Adam": torch.optim.Adam,
        "apex.FusedLAMB": torch.optim.Adam,
        "torch.Adafactor": torch.optim.Adafactor,
        "transformers.Adafactor": lambda ps: pytest.importorskip("transformers.optimization").Adafactor(
            ps, lr=0.1, relative_step=False, beta1=0.9
        ),
    }[source]
    params = parameters()
    opt = build(params.values())
    for name, value in theirs.items():
        opt.param_groups[0][name] = value
    go(opt, [], params, [0])
    saved = as_apex(opt.state_dict()) if source == "apex.FusedLAMB" else opt.state_dict()
    with pytest.warns(UserWarning, match=said):
        front(params.values(), **ours).load_state_dict(convert(saved, source))


def test_state_of_nobody_is_not_dropped():
    params = parameters()
    theirs = torch.optim.Adam(params.values())
    go(theirs, [], params, [0])
    state = theirs.state_dict()
    state["state"][7] = state["state"][0]
    with pytest.raises(StateError, match="7"):
        convert(state, "torch.Adam")
