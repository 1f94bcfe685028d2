"""What people wrap around an optimizer: each trains a few steps on tiny data, and goes down."""

import contextlib
import copy
import io
import pickle
import socket
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from layerwise.errors import ParameterError  # noqa: E402
from layerwise.torch import Adafactor, Lamb, Lars, param_groups  # noqa: E402

slow = pytest.mark.slow
FRONTS = {
    Lamb: {"lr": 0.05, "weight_decay": 0.01},
    Lars: {"lr": 20.0, "weight_decay": 1e-3},
    Adafactor: {"lr": 0.02, "beta1": 0.9, "weight_decay": 0.01},
}
fronts = pytest.mark.parametrize("cls", FRONTS)
STEPS = 12


def grouped(cls, model):
    """Return its groups; a rate of LARS is far too large for what has no ratio."""
    return param_groups(model, **({"no_adapt": []} if cls is Lars else {}))


def made(cls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))
    return model, cls(grouped(cls, model), **FRONTS[cls])


def data(n=32):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=draw)
    return x, (x @ torch.randn(6, 3, generator=draw)).argmax(1)


def train(model, optimizer, steps=STEPS, context=contextlib.nullcontext, after=lambda: None, run=None):
    x, y = data()
    losses = []
    for _ in range(steps):
        with context():
            loss = nn.functional.cross_entropy((run or model)(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
        losses.append(float(loss.detach()))
    return losses


def assert_falls(losses):
    assert losses[-1] < 0.9 * losses[0], losses


def assert_equal(a, b):
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@fronts
def test_a_plain_loop(cls):
    assert_falls(train(*made(cls)))


@fronts
def test_compiled_model(cls):
    model, optimizer = made(cls)
    plain, ordinary = made(cls)
    losses = train(model, optimizer, run=torch.compile(model, backend="eager"))
    assert_falls(losses)
    assert losses == pytest.approx(train(plain, ordinary))


@fronts
def test_compiled_step(cls):
    """Not promised to be one graph, but to be right."""
    (model, optimizer), (plain, ordinary) = made(cls), made(cls)
    compiled = torch.compile(optimizer.step, backend="eager")
    x, y = data()
    for each, opt, step in ((model, optimizer, compiled), (plain, ordinary, ordinary.step)):
        for _ in range(3):
            nn.functional.cross_entropy(each(x), y).backward()
            step()
            opt.zero_grad()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@fronts
def test_autocast(cls):
    losses = train(*made(cls), context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert_falls(losses)


@pytest.mark.parametrize("unscale", [False, True])
@fronts
def test_grad_scaler(cls, unscale):
    (model, optimizer), (plain, ordinary) = made(cls), made(cls)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    x, y = data()
    losses = []
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx(train(plain, ordinary), rel=1e-4)
    assert scaler.get_scale() > 2.0**10


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
@fronts
def test_copies_of_model_and_optimizer_go_on(cls, copied):
    model, optimizer = made(cls)
    train(model, optimizer, 3)
    again, copy_of_it = copied((model, optimizer))
    wanted, found = train(model, optimizer), train(again, copy_of_it)
    assert_falls(wanted)
    assert found == wanted
    assert_equal(again, model)


@fronts
def test_saved_and_loaded_with_weights_only(cls):
    model, optimizer = made(cls)
    train(model, optimizer, 3)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    again, resumed = made(cls)
    again.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    assert train(again, resumed) == train(model, optimizer)
    assert_equal(again, model)


@fronts
def test_schedulers(cls):
    lr_scheduler = torch.optim.lr_scheduler
    model, optimizer = made(cls)
    schedule = lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, STEPS)],
        milestones=[3],
    )
    assert_falls(train(model, optimizer, after=schedule.step))


@pytest.mark.parametrize("cls", [Lamb, Lars])
def test_one_cycle_moves_betas_or_momentum(cls):
    model, optimizer = made(cls)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=FRONTS[cls]["lr"], total_steps=STEPS + 1)
    seen = []

    def after():
        schedule.step()
        group = optimizer.param_groups[0]
        seen.append(group["betas"][0] if cls is Lamb else group["momentum"])

    assert_falls(train(model, optimizer, after=after))
    assert min(seen) < 0.9 < max(seen)


@fronts
def test_stochastic_weight_averaging(cls):
    swa = torch.optim.swa_utils
    model, optimizer = made(cls)
    averaged, schedule = swa.AveragedModel(model), swa.SWALR(optimizer, swa_lr=FRONTS[cls]["lr"] / 2, anneal_epochs=3)

    def after():
        averaged.update_parameters(model)
        schedule.step()

    losses = train(model, optimizer, after=after)
    x, y = data()
    assert_falls([losses[0], float(nn.functional.cross_entropy(averaged(x), y).detach())])
    assert optimizer.get_lr() == pytest.approx(FRONTS[cls]["lr"] / 2)


@fronts
def test_exponential_moving_average(cls):
    model, optimizer = made(cls)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    losses = train(model, optimizer, after=lambda: averaged.update_parameters(model))
    x, y = data()
    assert_falls([losses[0], float(nn.functional.cross_entropy(averaged(x), y).detach())])


@pytest.fixture
def process_group(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def zero(cls, model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.distributed.optim uses torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=cls, **FRONTS[cls])


@fronts
def test_zero_redundancy_in_one_process(cls, process_group):
    (model, _), (plain, _) = made(cls), made(cls)
    optimizer, ordinary = zero(cls, model), cls(plain.parameters(), **FRONTS[cls])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    losses = train(model, optimizer, after=schedule.step)
    assert_falls(losses)
    assert losses == train(plain, ordinary)
    optimizer.consolidate_state_dict()
    again = copy.deepcopy(model)
    resumed = zero(cls, again)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(again, resumed, 3) == train(model, optimizer, 3)


def one_of_two(rank, cls, port, wanted):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model, _ = made(cls)
    optimizer = zero(cls, model)
    losses, states = wanted
    assert train(model, optimizer, 4) == losses
    assert 0 < len(optimizer.optim.state) < len(list(model.parameters()))
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        torch.testing.assert_close(optimizer.state_dict()["state"], states, rtol=0, atol=0)
    torch.distributed.barrier()  # rank 0 holds the store that rank 1 still talks to
    torch.distributed.destroy_process_group()


@fronts
def test_parameters_that_became_sharded_by_hand(cls, process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    model, optimizer = made(cls)
    train(model, optimizer, 1)
    mesh = init_device_mesh("cpu", (1,))
    group = optimizer.param_groups[0]
    group["params"] = [nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])) for p in group["params"]]
    for p in group["params"]:
        p.grad = torch.ones_like(p)
    before = [p.full_tensor().clone() for p in group["params"]]
    with pytest.raises(ParameterError, match=r"0\.weight is a DTensor that was put in a group"):
        optimizer.step()
    assert all(torch.equal(p.full_tensor(), q) for p, q in zip(group["params"], before, strict=True))


@slow
@pytest.mark.parametrize("cls", [Adafactor])
def test_zero_redundancy_in_two_processes(cls):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    plain, _ = made(cls)
    ordinary = cls(plain.parameters(), **FRONTS[cls])
    wanted = train(plain, ordinary, 4), ordinary.state_dict()["state"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(one_of_two, (cls, port, wanted), nprocs=2)


RATES = {Lamb: 0.1, Lars: 5.0, Adafactor: 0.02}


@slow
@pytest.mark.parametrize("scheduled", [False, True])
@fronts
def test_transformers_trainer(cls, scheduled, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=17,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config)
    rows = [{"input_ids": torch.full((4,), 2 + i % 2), "labels": i % 2} for i in range(16)]
    optimizer = cls(param_groups(model, no_adapt=[] if cls is Adafactor else [1]), lr=RATES[cls])
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 1, 40) if scheduled else None
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=20,
        per_device_train_batch_size=8,
        logging_steps=1,
        save_strategy="steps",
        save_steps=6,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(model, options, train_dataset=rows, optimizers=(optimizer, schedule))
    trainer.train()
    assert_falls([row["loss"] for row in trainer.state.log_history if "loss" in row])
    state = torch.load(tmp_path / "checkpoint-6" / "optimizer.pt", weights_only=True)
    assert all(int(one["step"]) == 6 for one in state["state"].values())


@slow
@fronts
def test_lightning(cls, tmp_path):
    pytest.importorskip("lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, _ = made(cls)
            self.losses = []

        def training_step(self, batch, index):
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            optimizer = cls(grouped(cls, self.model), **FRONTS[cls])
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=32)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}

    def fit(module, epochs, checkpoint=None):
        trainer = lightning.Trainer(max_epochs=epochs, enable_checkpointing=False, default_root_dir=tmp_path, **quiet)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")  # its advice on the number of workers and devices
            trainer.fit(module, batches, ckpt_path=checkpoint)
            return trainer

    whole = Module()
    fit(whole, STEPS)
    assert_falls(whole.losses)
    first, second = Module(), Module()
    fit(first, 5).save_checkpoint(tmp_path / "half.ckpt")
    fit(second, STEPS, tmp_path / "half.ckpt")
    assert first.losses + second.losses == whole.losses


@slow
@pytest.mark.parametrize("fused", [None, False])
def test_lightning_clips_under_a_grad_scaler(fused, tmp_path):
    pytest.importorskip("lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning
        from lightning.pytorch.plugins import MixedPrecision

    torch.manual_seed(0)
    weight, batch = torch.randn(3, 4), torch.randn(6, 4)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(weight.clone())

        def training_step(self, batch, index):
            return (self.weight @ batch[0].T).float().square().sum()

        def configure_optimizers(self):
            return Lamb(self.named_parameters(), lr=0.1, eps=1.0, fused=fused)

    module, scaler = Module(), torch.amp.GradScaler("cpu", init_scale=4.0)
    trainer = lightning.Trainer(
        max_epochs=3,
        gradient_clip_val=0.5,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch), batch_size=6))
    plain = nn.Parameter(weight.clone())
    opt = Lamb([plain], lr=0.1, eps=1.0)
    for _ in range(3):
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            (plain @ batch.T).float().square().sum().backward()
        torch.nn.utils.clip_grad_norm_([plain], 0.5)
        opt.step()
    torch.testing.assert_close(module.weight, plain, rtol=1e-5, atol=1e-6)
    assert (plain - weight).abs().max() > 0.01


@slow
@pytest.mark.parametrize("clipped", [False, True])
@fronts
def test_accelerate(cls, clipped, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = made(cls)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
    losses = []
    for _ in range(STEPS):
        total = 0.0
        for x, y in batches:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if clipped and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                total += float(loss.detach())
        losses.append(total)
    assert_falls(losses)
    assert {int(one["step"]) for one in optimizer.optimizer.state.values()} == {STEPS}
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    accelerator.free_memory()
