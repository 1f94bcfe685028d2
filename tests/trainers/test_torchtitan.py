"""The optimizers in torchtitan's container, and their state as its checkpoints have it."""

import copy
import warnings

import pytest

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    titan = pytest.importorskip("torchtitan.components.optimizer")
from torch import nn  # noqa: E402
from torch.distributed import checkpoint as dcp  # noqa: E402

from layerwise.torch import Adafactor, Lamb  # noqa: E402
from layerwise.trainers.torchtitan import OptimizersContainer  # noqa: E402


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def config(name="layerwise_lamb", kwargs=None, **rest):
    others = titan.ParamGroupConfig(pattern=r"bias$|^1\.", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})
    own = titan.ParamGroupConfig(pattern=".*", optimizer_name=name, optimizer_kwargs=kwargs or {"lr": 0.05})
    return OptimizersContainer.Config(param_groups=[others, own], **{"implementation": "foreach", **rest})


def train(made, optimizers, steps):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(32, 4, generator=draw), torch.randint(3, (32,), generator=draw)
    losses = []
    for _ in range(steps):
        optimizers.zero_grad()
        loss = nn.functional.cross_entropy(made(x), y)
        loss.backward()
        optimizers.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(
    ("name", "front", "kwargs"),
    [
        ("layerwise_lamb", Lamb, {"lr": 0.05, "weight_decay": 0.01}),
        ("layerwise_adafactor", Adafactor, {"lr": 0.02, "beta1": 0.9}),
    ],
)
def test_trains_and_its_state_comes_back(name, front, kwargs, tmp_path):
    made = model()
    optimizers = config(name, kwargs).build(model_parts=[made])
    assert {type(one) for one in optimizers} == {front, torch.optim.AdamW}
    losses = train(made, optimizers, 10)
    assert losses[-1] < 0.9 * losses[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process saves
        dcp.save({"optimizer": optimizers}, checkpoint_id=tmp_path / "saved", no_dist=True)
        again = copy.deepcopy(made)
        resumed = config(name, kwargs).build(model_parts=[again])
        dcp.load({"optimizer": resumed}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert train(again, resumed, 4) == train(made, optimizers, 4)


def test_state_that_there_is_not_yet_is_made_without_a_move():
    made = model()
    optimizers = config().build(model_parts=[made])
    before = copy.deepcopy(made.state_dict())
    saved = optimizers.state_dict()
    assert "state.0.weight.exp_avg" in saved
    assert saved["param_groups.0.weight.lr"] == 0.05
    assert all(torch.equal(x, before[name]) for name, x in made.state_dict().items())


@pytest.mark.parametrize(("implementation", "engine"), [("fused", None), ("foreach", None), ("for-loop", "rule")])
def test_implementations(implementation, engine):
    made = model()
    groups = [titan.ParamGroupConfig(pattern=".*", optimizer_name="layerwise_lamb", optimizer_kwargs={"lr": 0.05})]
    optimizers = OptimizersContainer.Config(param_groups=groups, implementation=implementation)
    [optimizer] = optimizers.build(model_parts=[made])
    assert optimizer._engine == engine
    optimizers = OptimizersContainer.Config(
        param_groups=groups,
        implementation="fused",
        optimizer_factory_kwargs_by_name={"layerwise_lamb": {"fused": False}},
    )
    [optimizer] = optimizers.build(model_parts=[made])
    assert optimizer._engine == "rule"


def test_other_names_are_torchtitan_s():
    with pytest.raises(NotImplementedError, match="layerwise_adam not added"):
        config("layerwise_adam").build(model_parts=[model()])
