"""Training by each of these packages goes well, and goes on from what it saved as if it had not been interrupted."""

import copy
import warnings

import pytest

import layerwise

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from layerwise.torch import Adafactor, Lamb, Lars, param_groups  # noqa: E402

OPTIONS = {
    Lamb: {"lr": 0.05, "weight_decay": 0.01},
    Lars: {"lr": 5.0, "weight_decay": 1e-3},
    Adafactor: {"lr": 0.02, "beta1": 0.9, "weight_decay": 0.01},
}


def imported(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def data():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(32, 4, generator=draw)
    return x, (x @ torch.randn(4, 3, generator=draw)).argmax(1)


def backward(made):
    x, y = data()
    loss = nn.functional.cross_entropy(made(x), y)
    loss.backward()
    return float(loss.detach())


def train(made, optimizer, steps):
    losses = []
    for _ in range(steps):
        losses.append(backward(made))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def goes_on(make):
    """Return the losses before a checkpoint, and those after it with the optimizer and with one that loaded it."""
    made = model()
    optimizer = make(made)
    begun = train(made, optimizer, 12)
    again = copy.deepcopy(made)
    resumed = make(again)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return begun, train(made, optimizer, 3), train(again, resumed, 3)


def by_timm(cls, folder, prefix=""):
    optim = imported("timm.optim")
    layerwise.register("timm")
    options = {key: OPTIONS[cls][key] for key in ("lr", "weight_decay")}
    return goes_on(lambda made: optim.create_optimizer_v2(made, opt=f"{prefix}layerwise_{cls.__name__}", **options))


def by_timm_s_lookahead(cls, folder):
    return by_timm(cls, folder, "lookahead_")


RECIPE = """
_component_: layerwise.torch.Lamb
lr: 5e-2
betas: [0.9, 0.99]
weight_decay: 0.01
fused: True
"""


def by_torchtune(cls, folder):
    omegaconf, config = imported("omegaconf"), imported("torchtune.config")
    recipe = omegaconf.OmegaConf.create(RECIPE)
    return goes_on(lambda made: config.instantiate(recipe, made.parameters()))


def by_torchtune_in_the_backward_pass(cls, folder):
    """One optimizer for each parameter, as its recipe sets them up."""
    omegaconf, config, training = map(imported, ("omegaconf", "torchtune.config", "torchtune.training"))
    recipe = omegaconf.OmegaConf.create(RECIPE)

    def set_up(made):
        optimizers = {p: config.instantiate(recipe, [p]) for p in made.parameters()}
        training.register_optim_in_bwd_hooks(model=made, optim_dict=optimizers)
        return training.create_optim_in_bwd_wrapper(model=made, optim_dict=optimizers)

    made = model()
    wrapper = set_up(made)
    begun = [backward(made) for _ in range(12)]
    again = model()
    again.load_state_dict(made.state_dict())
    set_up(again).load_state_dict(copy.deepcopy(wrapper.state_dict()))
    plain = model()
    assert begun == pytest.approx(train(plain, Lamb(plain.parameters(), betas=(0.9, 0.99), **OPTIONS[Lamb]), 12), 1e-5)
    return begun, [backward(made) for _ in range(3)], [backward(again) for _ in range(3)]


def by_torchtitan(cls, folder):
    titan = imported("torchtitan.components.optimizer")
    from torch.distributed import checkpoint as dcp

    from layerwise.trainers.torchtitan import OptimizersContainer

    others = titan.ParamGroupConfig(pattern=r"bias$|^1\.", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})
    name = f"layerwise_{cls.__name__.lower()}"
    own = titan.ParamGroupConfig(pattern=".*", optimizer_name=name, optimizer_kwargs=OPTIONS[cls])
    config = OptimizersContainer.Config(param_groups=[others, own], implementation="foreach")
    made = model()
    optimizers = config.build(model_parts=[made])
    assert {type(one) for one in optimizers} == {cls, torch.optim.AdamW}
    begun = train(made, optimizers, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process saves
        dcp.save({"optimizer": optimizers}, checkpoint_id=folder / "saved", no_dist=True)
        again = copy.deepcopy(made)
        resumed = config.build(model_parts=[again])
        dcp.load({"optimizer": resumed}, checkpoint_id=folder / "saved", no_dist=True)
    return begun, train(made, optimizers, 3), train(again, resumed, 3)


def grouped(cls, made):
    return param_groups(made, **({"no_adapt": []} if cls is Lars else {}))


def by_lightning(cls, folder):
    lightning = imported("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = model(), []

        def training_step(self, batch, index):
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            optimizer = cls(grouped(cls, self.model), **OPTIONS[cls])
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=32)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}

    def fit(module, epochs, checkpoint=None):
        trainer = lightning.Trainer(max_epochs=epochs, enable_checkpointing=False, default_root_dir=folder, **quiet)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")  # its advice on the number of workers and devices
            trainer.fit(module, batches, ckpt_path=checkpoint)
        return trainer

    whole, first, second = Module(), Module(), Module()
    fit(whole, 15)
    fit(first, 12).save_checkpoint(folder / "half.ckpt")
    fit(second, 15, folder / "half.ckpt")
    return first.losses, whole.losses[12:], second.losses


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def by_transformers(cls, folder, named=False):
    transformers = imported("transformers")
    imported("accelerate")
    options, given = OPTIONS[cls], {}
    if named:
        layerwise.register("transformers")
        given = {"optim": f"layerwise_{cls.__name__.lower()}", "learning_rate": options["lr"]}
    args = transformers.TrainingArguments(
        str(folder),
        **given,
        max_steps=15,
        per_device_train_batch_size=32,
        logging_steps=1,
        save_strategy="steps",
        save_steps=12,
        weight_decay=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    rows = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]

    def run(checkpoint=None):
        made = Classifier()
        own = {}
        if not named:
            optimizer = cls(grouped(cls, made), **options)
            own = {"optimizers": (optimizer, transformers.get_linear_schedule_with_warmup(optimizer, 1, 40))}
        trainer = transformers.Trainer(made, args, train_dataset=rows, **own)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert type(trainer.optimizer.optimizer) is cls
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    whole = run()
    state = torch.load(folder / "checkpoint-12" / "optimizer.pt", weights_only=True)
    assert {int(one["step"]) for one in state["state"].values()} == {12}
    return whole[:12], whole[12:], run(str(folder / "checkpoint-12"))[12:]


def by_transformers_and_name(cls, folder):
    return by_transformers(cls, folder, named=True)


def by_accelerate(cls, folder):
    accelerator = imported("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2)
    made = model()
    optimizer = cls(grouped(cls, made), **OPTIONS[cls])
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    made, optimizer, batches, schedule = accelerator.prepare(made, optimizer, batches, schedule)

    def epochs(number):
        losses = []
        for _ in range(number):
            losses.append(0.0)
            for x, y in batches:
                with accelerator.accumulate(made):
                    loss = nn.functional.cross_entropy(made(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(made.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    losses[-1] += float(loss.detach())
        return losses

    begun = epochs(12)
    assert {int(one["step"]) for one in optimizer.optimizer.state.values()} == {12}
    accelerator.save_state(str(folder))
    on = epochs(3)
    accelerator.load_state(str(folder))
    again = epochs(3)
    accelerator.free_memory()
    return begun, on, again


@pytest.mark.parametrize(
    ("cls", "way"),
    [
        *((cls, way) for way in (by_lightning, by_transformers, by_accelerate, by_torchtitan) for cls in OPTIONS),
        (Adafactor, by_transformers_and_name),
        *((Lamb, way) for way in (by_timm, by_timm_s_lookahead, by_torchtune, by_torchtune_in_the_backward_pass)),
    ],
)
def test_training_goes_well_and_goes_on(cls, way, tmp_path):
    begun, on, again = way(cls, tmp_path)
    assert begun[-1] < 0.9 * begun[0]
    assert again == pytest.approx(on, rel=1e-6)
    assert len(on) == 3


def test_lightning_s_fine_tuning_adds_the_backbone_to_named_groups(tmp_path):
    lightning = imported("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            made = model()
            self.backbone, self.head = made[:3], made[3]

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

        def configure_optimizers(self):
            return Lamb(param_groups(self), **OPTIONS[Lamb])

    module = Module()
    before = [p.detach().clone() for p in module.parameters()]
    added = lightning.pytorch.callbacks.BackboneFinetuning(2, backbone_initial_lr=0.01)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        max_epochs=4, enable_checkpointing=False, default_root_dir=tmp_path, callbacks=[added], **quiet
    )
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module, batches)
    assert not any(torch.equal(p, old) for p, old in zip(module.parameters(), before, strict=True))
    assert "parameter 0 of group 2" in trainer.optimizers[0].stats()


@pytest.mark.parametrize("fused", [None, False])
def test_lightning_clips_under_a_grad_scaler(fused, tmp_path):
    lightning = imported("lightning")
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
