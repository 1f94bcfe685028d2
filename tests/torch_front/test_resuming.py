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

heavy = pytest.mark.heavy
SHAPES = {"matrix": (5, 3), "vector": (7,)}


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


@heavy
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("source", PAIRS)
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


@heavy
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
    with pytest.raises(StateError, match="lr="):
        Adafactor(again.values(), lr=0.1).load_state_dict(convert(theirs.state_dict(), "transformers.Adafactor"))


@heavy
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
