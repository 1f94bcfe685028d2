"""Arguments in places that are not theirs: the message says what was given, what is expected, and the way out."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

import layerwise.torch as torch_front
from layerwise import numpy as numpy_front
from layerwise import preset
from layerwise.errors import ArgumentError, LayerwiseError, ParameterError, PresetError, StateError

MODEL = torch.nn.Linear(2, 2)
WEIGHTS = {"a": np.ones(3, np.float32)}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (lambda: [dict(MODEL.named_parameters())], r"but is dict from names to tensors\. Pass its items\(\)"),
        (lambda: [MODEL.state_dict()], r"state_dict\. Pass model\.named_parameters\(\)"),
        (lambda: [{"params": [MODEL.weight]}], r"but is one group\. Put it in a list"),
        (lambda: [MODEL.weight], r"an iterable of Tensors or dicts, but is a single tensor\. Put it in a list"),
        (lambda: [0.1], r"but is 0\.1\. The parameters come first: opt = Lamb\("),
        (lambda: [None], r"but is NoneType\. The parameters come first"),
        (lambda: ["abc"], r"but is 'abc'\. The parameters come first"),
        (lambda: [torch_front.Lamb(MODEL.parameters())], r"but is Lamb\. The parameters come first"),
        (list, r"Lamb is missing `params`\. The parameters come first"),
        (lambda: [[MODEL.weight], 0.1], r"Lamb got `lr` twice: by name, and a float by position"),
    ],
)
def test_what_is_no_parameters_in_pytorch(args, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        torch_front.Lamb(*args(), lr=0.1)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_a_mapping_of_parameters_in_an_added_group():
    opt = torch_front.Lamb([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(ArgumentError, match=r"Pass its items\(\)"):
        opt.add_param_group({"params": dict(MODEL.named_parameters())})
    opt.add_param_group({"params": MODEL.weight})
    assert len(opt.param_groups) == 2


@pytest.mark.parametrize("cls", [numpy_front.Lamb, numpy_front.Adafactor])
@pytest.mark.parametrize("weights", [WEIGHTS, [np.ones(3)]], ids=["mapping", "list"])
def test_weights_in_place_of_the_rate_in_numpy(cls, weights):
    with pytest.raises(ArgumentError, match=r"`lr` must be a number .*but is \w+\. Weights are passed to each step"):
        cls(weights)
    with pytest.raises(
        ArgumentError, match=r"`lr` twice: by name, and a \w+ by position\. Weights are passed to each step"
    ):
        cls(weights, lr=0.1)


def test_arrays_without_names_in_numpy():
    opt = numpy_front.Lamb(0.1)
    for args, words in (
        ((WEIGHTS, WEIGHTS), r"step\(\) is missing `grad`\. step\(\) takes one array; opt\.step_all"),
        ((WEIGHTS,), r"step\(\) is missing `weights` and `grad`"),
    ):
        with pytest.raises(ArgumentError, match=words):
            opt.step(*args)
    with pytest.raises(ArgumentError, match=r"step_all\(\) is missing `grads`"):
        opt.step_all(WEIGHTS)
    with pytest.raises(ArgumentError, match=r"step_all\(\) is missing `weights`"):
        opt.step_all(grads=WEIGHTS)
    assert (opt.steps, opt.parameters) == (0, {})


def walked(name, opt=None):
    opt = opt or numpy_front.Lamb(0.1)
    weights = {name: np.ones(3, np.float32)}
    opt.step_all(weights, {name: np.full(3, 0.5, np.float32)})
    return opt


def test_a_state_of_another_model_warns_in_numpy():
    saved = walked("a").state_dict()
    opt = walked("b")
    opt.load_state_dict(saved)
    with pytest.warns(UserWarning, match="loaded state is of 'a', but .* have one of these names; the weights are 'b'"):
        walked("b", opt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        walked("b", opt)
        for again in (walked("a"), copy.deepcopy(walked("a"))):
            again.load_state_dict(saved)
            both = {"a": np.ones(3, np.float32), "new": np.ones(2, np.float32)}
            again.step_all(both, both | {"a": None})
            again.step("new", both["new"], both["new"])
            walked("other", again)


@pytest.mark.parametrize("key", ["optimizer", "optim"])
def test_a_nested_checkpoint_is_an_error_that_names_its_key(key):
    opt = torch_front.Lamb(MODEL.parameters())
    with pytest.raises(StateError, match=f"has the optimizer's under '{key}'. Pass checkpoint"):
        opt.load_state_dict({"model": MODEL.state_dict(), key: opt.state_dict()})
    own = numpy_front.Lamb(0.1)
    with pytest.raises(StateError, match=f"has one under '{key}'. Pass state"):
        own.load_state_dict({key: own.state_dict()})


@pytest.mark.parametrize("name", ["", "zzz", None])
def test_an_unknown_preset_gets_a_short_answer(name):
    with pytest.raises(PresetError, match=r"Pass one such as 'paper\.Lamb'\. presets\(\) lists them all\.$") as caught:
        preset(name)
    assert len(str(caught.value)) < 100


def test_all_of_these_are_errors_of_parameters():
    assert issubclass(ArgumentError, (ParameterError, LayerwiseError))


def test_a_group_or_closure_that_is_none_changes_nothing_in_pytorch():
    model = torch.nn.Linear(2, 2)
    opt = torch_front.Lamb(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    before = model.weight.detach().clone()
    with pytest.raises(
        LayerwiseError, match=r"`closure` must be a function that returns the loss, but is tensor\(1\.\)"
    ):
        opt.step(torch.ones(()))
    rate = opt.param_groups[0].pop("lr")
    with pytest.raises(LayerwiseError, match=r"the group has no 'lr', which Lamb needs\. Set it, or"):
        opt.step()
    assert torch.equal(model.weight, before)
    assert not opt.state
    opt.param_groups[0]["lr"] = rate
    opt.step()
    assert not torch.equal(model.weight, before)
    with pytest.raises(ParameterError, match=r"must have 'params', but has 'param'\. Did you mean `params`\?"):
        torch_front.Lamb([{"param": [model.weight]}])


def test_an_optimizer_that_trains_nothing_is_named():
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.warns(UserWarning, match=r"no parameter of the model requires grad"):
        torch_front.param_groups(frozen)
    opt = torch_front.Lamb(frozen.state_dict().values())
    with pytest.warns(UserWarning, match=r"no parameter of the optimizer requires grad or has a gradient"):
        opt.step()
    opt = torch_front.Lamb(frozen.parameters())
    for p in opt.parameters():
        p.grad = torch.ones_like(p)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_front.Lamb(MODEL.parameters()).step()  # whose gradients may have been stepped elsewhere
        opt.step()
    with pytest.warns(UserWarning, match=r"no parameter is left for Muon: AdamW steps all of them\. Pass others=False"):
        torch_front.param_groups(MODEL, rule="muon", lr=0.02)


def test_presets_are_called_with_what_the_class_needs():
    with pytest.raises(ArgumentError, match=r"Call Lamb\.like\('timm\.Lamb', model\.parameters\(\), lr=1e-3\)"):
        torch_front.Lamb.like("timm.Lamb")
    with pytest.raises(
        PresetError, match=r"'bitsandbytes\.LAMB' has no preset: its LAMB and LARS are other algorithms"
    ):
        torch_front.Lamb.like("bitsandbytes.LAMB")


@pytest.mark.parametrize(
    ("params", "way_out"),
    [
        (
            torch.ones(1).expand(3),
            r"Make torch\.nn\.Parameter\(p\.detach\(\)\.contiguous\(\)\) the parameter, and use it",
        ),
        (torch.ones(3, dtype=torch.int), "Leave it out: integers have no gradient"),
    ],
)
def test_a_parameter_that_cannot_be_stepped_has_a_way_out(params, way_out):
    with pytest.raises(ParameterError, match=way_out):
        torch_front.Lamb([params])
