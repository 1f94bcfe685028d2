"""The optimizers by name in torchtitan's container, and how they are implemented there."""

import copy
import warnings

import pytest

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    titan = pytest.importorskip("torchtitan.components.optimizer")
from trainers.test_training import model  # noqa: E402

from layerwise.trainers.torchtitan import OptimizersContainer  # noqa: E402


def config(name="layerwise_lamb"):
    others = titan.ParamGroupConfig(pattern=r"bias$|^1\.", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})
    own = titan.ParamGroupConfig(pattern=".*", optimizer_name=name, optimizer_kwargs={"lr": 0.05})
    return OptimizersContainer.Config(param_groups=[others, own], implementation="foreach")


def test_missing_state_is_created_without_moving_weights():
    made = model()
    optimizers = config().build(model_parts=[made])
    before = copy.deepcopy(made.state_dict())
    saved = optimizers.state_dict()
    assert "state.0.weight.exp_avg" in saved
    assert saved["param_groups.0.weight.lr"] == 0.05
    assert all(torch.equal(x, before[name]) for name, x in made.state_dict().items())


@pytest.mark.parametrize(
    ("implementation", "options", "engine"),
    [
        ("fused", {}, None),
        ("foreach", {}, None),
        ("for-loop", {}, "rule"),
        ("fused", {"fused": False}, "without kernels"),
    ],
)
def test_the_implementation_is_the_engine_unless_options_say_one(implementation, options, engine):
    groups = [titan.ParamGroupConfig(pattern=".*", optimizer_name="layerwise_lamb", optimizer_kwargs={"lr": 0.05})]
    given = {"optimizer_factory_kwargs_by_name": {"layerwise_lamb": options}} if options else {}
    optimizers = OptimizersContainer.Config(param_groups=groups, implementation=implementation, **given)
    [optimizer] = optimizers.build(model_parts=[model()])
    assert optimizer._stepper.setup.engine == engine


def test_other_names_are_torchtitan_s():
    with pytest.raises(NotImplementedError, match="layerwise_adam not added"):
        config("layerwise_adam").build(model_parts=[model()])


def test_muon_has_the_hidden_matrices_and_adamw_the_rest():
    made = torch.nn.ModuleDict({"tok_embeddings": torch.nn.Embedding(5, 4), "up": torch.nn.Linear(4, 4)})
    made["output"] = torch.nn.Linear(4, 5)
    kwargs = {"lr": 0.02, "weight_decay": 0.1}
    group = titan.ParamGroupConfig(pattern=".*", optimizer_name="layerwise_muon", optimizer_kwargs=kwargs)
    container = OptimizersContainer.Config(param_groups=[group], implementation="foreach").build(model_parts=[made])
    [optimizer] = container
    found = {name: (one["rule"], one["lr"]) for one in optimizer.param_groups for name in one["param_names"]}
    assert {name for name, (rule, _) in found.items() if rule == "Muon"} == {"up.weight"}
    assert {lr for rule, lr in found.values() if rule == "AdamW"} == {0.02 * 0.05}
    saved = container.state_dict()
    container.load_state_dict(saved)
    assert saved["param_groups.up.weight.lr"] == 0.02
