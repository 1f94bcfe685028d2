"""The optimizers in transformers' Trainer: as a class with its options, and by name."""

import pickle
import warnings

import pytest

import layerwise
from layerwise.catalog.registry import ENTRIES

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from torch import nn  # noqa: E402

from layerwise.errors import HyperparameterError, UnknownOptionError  # noqa: E402
from layerwise.torch import Adafactor, Lamb, Mixed, param_groups  # noqa: E402


@pytest.fixture(autouse=True)
def registered():
    layerwise.register("transformers")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(32, 2))

    def forward(self, input_ids, labels):
        logits = self.net(input_ids)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


ROWS = [{"input_ids": torch.full((4,), 2 + i % 2), "labels": torch.tensor(i % 2)} for i in range(16)]


def arguments(folder, **options):
    usual = {
        "max_steps": 12,
        "logging_steps": 1,
        "save_strategy": "no",
        "weight_decay": 0.01,
        "lr_scheduler_type": "constant",
    }
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
    return transformers.TrainingArguments(str(folder), **{**usual, **quiet, **options})


def trained(args, **given):
    trainer = transformers.Trainer(Classifier(), args, train_dataset=ROWS, **given)
    trainer.train()
    return trainer, [row["loss"] for row in trainer.state.log_history if "loss" in row]


def weights(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


def test_a_class_gets_its_options_and_the_decay_of_the_arguments(tmp_path):
    trainer, losses = trained(arguments(tmp_path), optimizer_cls_and_kwargs=(Lamb, {"lr": 0.05}))
    assert type(trainer.optimizer.optimizer) is Lamb
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.01, 0.0]
    assert losses[-1] < 0.9 * losses[0]


def test_a_name_is_the_class_with_what_the_arguments_say(tmp_path):
    given = {"learning_rate": 0.05, "adam_beta1": 0.8, "adam_epsilon": 1e-7}
    args = arguments(
        tmp_path, optim="layerwise_lamb", optim_args="adapt=decayed, trust_eps=1e-3, caution=True", **given
    )
    trainer, losses = trained(args)
    options = {"lr": 0.05, "betas": (0.8, 0.999), "eps": 1e-7, "adapt": "decayed", "trust_eps": 1e-3, "caution": True}
    same, _ = trained(arguments(tmp_path), optimizer_cls_and_kwargs=(Lamb, options))
    assert losses[-1] < 0.9 * losses[0]
    assert all(map(torch.equal, weights(trainer), weights(same)))


class Normed(Classifier):
    def __init__(self):
        super().__init__()
        self.net.insert(2, nn.LayerNorm(32))


@pytest.mark.parametrize(
    ("name", "asked", "off"),
    [
        ("lamb", "", {"adapt": False}),
        ("lars", "skip_nonfinite=True", {"min_norm": 0.1}),
        ("lars", "min_norm=0.5", {"min_norm": 0.5}),
        ("lamb", "adapt=decayed", {"adapt": "decayed"}),
    ],
)
def test_biases_and_norms_are_those_of_param_groups_unless_told_otherwise(tmp_path, name, asked, off):
    args = arguments(tmp_path, optim=f"layerwise_{name}", max_steps=2, optim_args=asked or None)
    trainer = transformers.Trainer(model := Normed(), args, train_dataset=ROWS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.train()
    groups = [{id(p): group for p in group["params"]} for group in trainer.optimizer.param_groups]
    found = {name: of[id(p)] for name, p in model.named_parameters() for of in groups if id(p) in of}
    small = [name for name, group in found.items() if off.items() <= group.items()]
    vectors = [name for name, p in model.named_parameters() if p.ndim == 1]
    assert small == ([*found] if asked in ("min_norm=0.5", "adapt=decayed") else vectors)
    assert [str(one.message) for one in said if "began at zero" in str(one.message)] == []


@pytest.mark.parametrize(
    ("front", "options", "rate"),
    [(Lamb, {}, 0.25), (Lamb, {"lr": 0.5}, 0.5), (Adafactor, {}, None), (torch.optim.SGD, {}, 1e-3)],
)
def test_a_class_without_a_rate_has_the_trainer_s(tmp_path, front, options, rate):
    """Adafactor without one has a rate of its own."""
    given = arguments(tmp_path, learning_rate=0.25)
    trainer = transformers.Trainer(Classifier(), given, train_dataset=ROWS, optimizer_cls_and_kwargs=(front, options))
    assert trainer.create_optimizer().defaults["lr"] == rate


def test_every_name_makes_its_optimizer(tmp_path):
    for name in ENTRIES:
        args = arguments(tmp_path, optim=f"layerwise_{name.lower()}")
        made = over_text(args).create_optimizer()
        assert type(made).__name__ == ("Mixed" if name == "Muon" else name)


def test_names_are_found_again_in_saved_and_parsed_arguments(tmp_path):
    args = arguments(tmp_path, optim="layerwise_lamb")
    assert args.to_dict()["optim"] == "layerwise_lamb"
    assert pickle.loads(pickle.dumps(args)).optim is args.optim
    assert layerwise.register("transformers") == layerwise.register("transformers")
    assert transformers.TrainingArguments(str(tmp_path), optim="adafactor").optim.value == "adafactor"
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    [parsed] = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--optim", "layerwise_lars"])
    assert parsed.optim.value == "layerwise_lars"
    names = type(args.optim)
    assert len({*names}) == len(names)
    assert names["LAYERWISE_LAMB"] is args.optim
    with pytest.raises(ValueError, match="is not a valid OptimizerNames"):
        arguments(tmp_path, optim="layerwise_adam")


def test_wrong_options_are_named(tmp_path):
    for text, error, match in (
        ("trust_epsilon=1", UnknownOptionError, "trust_eps"),
        ("weight_decay=0.5", HyperparameterError, r"optim_args' weight_decay.*TrainingArguments\(weight_decay"),
        ("trust_clip=(0", HyperparameterError, "optim_args' trust_clip.*optimizer_cls_and_kwargs"),
    ):
        args = arguments(tmp_path, optim="layerwise_lamb", optim_args=text)
        with pytest.raises(error, match=match):
            transformers.Trainer(Classifier(), args, train_dataset=ROWS).create_optimizer()


# ---- rules for hidden matrices


def language_model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


TEXT = [{"input_ids": (x := torch.arange(8) + i), "labels": x} for i in range(16)]


def over_text(args, model=None):
    return transformers.Trainer(model or language_model(), args, train_dataset=TEXT)


def ran(args, model=None, **given):
    trainer = over_text(args, model)
    trainer.train(**given)
    return trainer


def test_muon_has_the_hidden_matrices_and_adamw_the_rest(tmp_path):
    args = arguments(tmp_path, optim="layerwise_muon", learning_rate=0.02, adam_beta2=0.95, optim_args="momentum=0.9")
    made = over_text(args).create_optimizer()
    found = {name: group for group in made.param_groups for name in group["param_names"]}
    for name, group in found.items():
        is_hidden = name.endswith("_proj.weight")
        assert (group["rule"], group["weight_decay"]) == (
            "Muon" if is_hidden else "AdamW",
            0.0 if "norm" in name else 0.01,
        )
        assert group["lr"] == pytest.approx(0.02 if is_hidden else 0.001)
        assert (group["momentum"] if is_hidden else group["betas"]) == (0.9 if is_hidden else (0.9, 0.95))
    assert {name for name in found if "_proj" not in name} >= {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_run_by_muon_is_the_one_by_mixed_and_resumes_bit_for_bit(tmp_path):
    given = {"optim": "layerwise_muon", "learning_rate": 0.02, "max_steps": 6, "lr_scheduler_type": "linear"}
    kept = {"save_strategy": "steps", "save_steps": 3}
    whole = ran(arguments(tmp_path / "run", **given, **kept))
    opt = Mixed(param_groups(model := language_model(), rule="muon", lr=0.02, weight_decay=0.01))
    args = arguments(tmp_path / "same", **given)
    mixed = transformers.Trainer(model, args, train_dataset=TEXT, optimizers=(opt, None))
    mixed.train()
    assert all(map(torch.equal, weights(whole), weights(mixed)))
    again = ran(arguments(tmp_path / "run", **given, **kept), resume_from_checkpoint=str(tmp_path / "run/checkpoint-3"))
    assert again.state.global_step == 6
    assert all(map(torch.equal, weights(whole), weights(again)))


def test_the_rest_of_muon_may_be_chosen(tmp_path):
    given = {"optim": "layerwise_muon", "learning_rate": 0.02}
    for text, rules, lr in (
        ("others=False", {"Muon"}, 0.02),
        ("others={'lr':1e-4}", {"Muon", "AdamW"}, 1e-4),
        ("others={'weight_decay':0.5}", {"Muon", "AdamW"}, 0.02 * 0.05),
        ("others=lion", {"Muon", "Lion"}, 1e-4),
    ):
        made = over_text(arguments(tmp_path, optim_args=text, **given)).create_optimizer()
        assert {group["rule"] for group in made.param_groups} == rules
        assert made.param_groups[-1]["lr"] == lr
        assert made.param_groups[-1]["weight_decay"] == 0.0
    args = arguments(tmp_path, optim="layerwise_muon", optim_args="momentun=0.9")
    with pytest.raises(UnknownOptionError, match="Did you mean `momentum`"):
        over_text(args).create_optimizer()


def test_a_trainer_without_the_model_gives_vectors_to_adamw_and_says_what_it_cannot_tell(tmp_path):
    args = arguments(tmp_path, optim="layerwise_muon", learning_rate=0.02)
    front, options = transformers.Trainer.get_optimizer_cls_and_kwargs(args)
    with pytest.warns(UserWarning, match="cannot tell embeddings and the head from hidden matrices"):
        made = front(language_model().parameters(), **options)
    vectors = {p.ndim == 1: group["rule"] for group in made.param_groups for p in group["params"]}
    assert vectors == {True: "AdamW", False: "Muon"}
