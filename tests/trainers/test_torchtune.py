"""The optimizers in torchtune's recipes: by dotted path, and one for each parameter in the backward pass."""

import copy
import warnings

import pytest

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
omegaconf = pytest.importorskip("omegaconf")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tune = pytest.importorskip("torchtune")
    from torchtune import config, training
from torch import nn  # noqa: E402

from layerwise.torch import Lamb  # noqa: E402

RECIPE = """
optimizer:
  _component_: layerwise.torch.Lamb
  lr: 5e-2
  betas: [0.9, 0.99]
  weight_decay: 0.01
  fused: True
optimizer_in_bwd: {in_backward}
"""


def recipe(in_backward=False):
    return omegaconf.OmegaConf.create(RECIPE.format(in_backward=in_backward))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def backward(made):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(32, 4, generator=draw), torch.randint(3, (32,), generator=draw)
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


def in_backward(made, saved=None):
    """Set up as the recipe does, and return what its checkpoints hold."""
    optimizers = {p: config.instantiate(recipe(True).optimizer, [p]) for p in made.parameters()}
    training.register_optim_in_bwd_hooks(model=made, optim_dict=optimizers)
    wrapper = training.create_optim_in_bwd_wrapper(model=made, optim_dict=optimizers)
    if saved is not None:
        wrapper.load_state_dict(saved)
    return wrapper


def test_trains_and_its_state_comes_back():
    made = model()
    optimizer = config.instantiate(recipe().optimizer, made.parameters())
    assert type(optimizer) is Lamb
    assert optimizer.param_groups[0]["betas"] == [0.9, 0.99]
    losses = train(made, optimizer, 20)
    assert losses[-1] < 0.9 * losses[0]
    again = copy.deepcopy(made)
    resumed = config.instantiate(recipe().optimizer, again.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(again, resumed, 4) == train(made, optimizer, 4)


def test_one_for_each_parameter_in_the_backward_pass():
    plain, made = model(), model()
    ordinary = train(plain, config.instantiate(recipe().optimizer, plain.parameters()), 8)
    wrapper = in_backward(made)
    assert [backward(made) for _ in range(4)] == pytest.approx(ordinary[:4], rel=1e-5)
    again = model()
    again.load_state_dict(made.state_dict())
    in_backward(again, copy.deepcopy(wrapper.state_dict()))
    assert [backward(again) for _ in range(4)] == pytest.approx(ordinary[4:], rel=1e-4)
