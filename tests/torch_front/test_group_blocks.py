"""Blocks of parameter groups: their own, those that `param_groups` makes for Adam-mini, and a warning of none."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import layerwise.numpy as lwn
from layerwise import Blocks
from layerwise.errors import HyperparameterError
from layerwise.torch import AdamMini, AdamW, Lamb, Mixed, param_groups


class Small(nn.Module):
    """A layer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.q_proj = nn.Linear(4, 4, bias=False)
        self.attention = nn.MultiheadAttention(4, 2)
        self.conv = nn.Conv1d(4, 4, 3)
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 6)


ROWS = {
    "embed.weight": (5, 1),
    "q_proj.weight": (4, 1),
    "attention.in_proj_weight": (12, 1),
    "attention.in_proj_bias": (12,),
    "attention.out_proj.weight": (4, 1),
    "attention.out_proj.bias": (4,),
    "up.weight": (6, 1),
    "up.bias": (6,),
}
WHOLE = {"conv.weight": (1, 1, 1), "conv.bias": (1,), "norm.weight": (1,), "norm.bias": (1,)}


def moments(model, opt):
    return {name: tuple(opt.state[p]["exp_avg_sq"].shape) for name, p in model.named_parameters()}


def step(model, opt, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    opt.step()


def test_groups_for_adam_mini_have_a_block_for_each_row_of_linear_layers_and_embeddings():
    model = Small()
    groups = param_groups(model, rule="adammini")
    opt = AdamMini(groups, weight_decay=0.1)
    step(model, opt)
    assert moments(model, opt) == {**ROWS, **WHOLE}
    assert exempt(groups) == {name for name in {**ROWS, **WHOLE} if "bias" in name or "norm" in name}
    table = dict(line.split(maxsplit=1) for line in str(groups).splitlines()[1:])
    assert str(groups).splitlines()[0].endswith("blocks")
    assert {name for name, line in table.items() if line.endswith("each")} == ROWS.keys()
    assert {name for name, line in table.items() if line.endswith("one")} == WHOLE.keys()


def exempt(groups):
    return {name for group in groups if group.get("weight_decay") == 0 for name, _ in group["params"]}


def test_blocks_by_name_come_before_those_of_groups():
    """Heads are told where blocks always are."""
    model = Small()
    opt = AdamMini(param_groups(model, rule="adammini"), blocks={"q_proj.weight": 2, "up.weight": Blocks(2, axis=1)})
    step(model, opt)
    assert moments(model, opt) == {**ROWS, **WHOLE, "q_proj.weight": (2, 1), "up.weight": (1, 2)}


def test_rows_go_with_the_rule_of_a_group():
    model = Small()
    opt = Mixed(param_groups(model, rule="lamb", others="adammini"))
    step(model, opt)
    found = moments(model, opt)
    assert (found["embed.weight"], found["up.weight"], found["norm.weight"]) == ((5, 1), (6, 4), (1,))
    assert all("blocks" not in group for group in param_groups(model, rule="lamb"))
    for said in ({"blocks": 1}, {"blocks": None}):
        assert all(group["blocks"] == said["blocks"] for group in param_groups(model, rule="adammini", **said))


@pytest.mark.parametrize("own", [2, "each", (1, 3), Blocks(2), [1, 3], np.int64(2)])
@pytest.mark.parametrize("made", [AdamMini, Lamb])
def test_blocks_of_a_group_step_as_blocks_by_name_do(own, made):
    """Parameters need no names for it."""
    ours, theirs = (nn.Linear(3, 4, bias=False) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    opt = made([{"params": [ours.weight], "blocks": own}])
    expected = made(theirs.named_parameters(), blocks={"weight": own})
    for seed in range(3):
        step(ours, opt, seed)
        step(theirs, expected, seed)
    assert torch.equal(ours.weight, theirs.weight)
    assert type(opt.param_groups[0]["blocks"]) in (int, str, tuple)


def test_rows_follow_the_formula_in_numpy():
    model = nn.Linear(3, 4)
    weights = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    opt, reference = AdamMini(param_groups(model, rule="adammini"), lr=0.1), lwn.AdamMini(lr=0.1, blocks="each")
    for seed in range(3):
        step(model, opt, seed)
        reference.step_all(weights, {name: p.grad.double().numpy() for name, p in model.named_parameters()})
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.detach().numpy(), weights[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (0, "`blocks`"),
        ("rows", "`blocks`"),
        (True, "`blocks`"),
        (Blocks(2, axis=1), "axis 0"),
        ({"weight": 2}, "`blocks`"),
        (lambda name: 2, "`blocks`"),
    ],
)
def test_wrong_blocks_of_a_group_are_errors_at_once(own, message):
    with pytest.raises(HyperparameterError, match=message):
        AdamMini([{"params": [torch.nn.Parameter(torch.ones(4, 2))], "blocks": own}])


def test_what_a_wrapper_repeats_in_each_group_is_by_name():
    blocks = {"weight": 2}
    model = nn.Linear(3, 4, bias=False)
    opt = AdamMini([{"params": list(model.named_parameters()), "blocks": blocks}], blocks=blocks)
    opt.param_groups[0]["blocks"] = blocks  # as some do before each step
    step(model, opt)
    assert moments(model, opt) == {"weight": (2, 1)}


def test_checkpoints_and_copies_keep_the_blocks_of_groups():
    model = Small()
    opt = AdamMini(param_groups(model, rule="adammini"))
    step(model, opt)
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    loaded = AdamMini(param_groups(model, rule="adammini"))
    loaded.load_state_dict(saved)
    for other in (loaded, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert [group["blocks"] for group in other.param_groups] == [group["blocks"] for group in opt.param_groups]
        assert sorted(tuple(one["exp_avg_sq"].shape) for one in other.state.values()) == sorted(
            {**ROWS, **WHOLE}.values()
        )
    mixed = Mixed(param_groups(model, rule="adammini"))
    mixed.load_state_dict(saved)
    step(model, mixed)
    assert moments(model, mixed) == {**ROWS, **WHOLE}


def test_blocks_of_a_group_that_change_after_a_step_do_not_fit_its_state():
    p = nn.Parameter(torch.ones(4, 2))
    opt = AdamMini([{"params": [p], "blocks": 2}])
    p.grad = torch.ones_like(p)
    opt.step()
    before = p.detach().clone()
    opt.param_groups[0]["blocks"] = "each"
    with pytest.raises(Exception, match="exp_avg_sq"):
        opt.step()
    assert torch.equal(p, before)
    opt.clear_state()
    opt.step()
    assert opt.state[p]["exp_avg_sq"].shape == (4, 1)


def said(*steps):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for one in 2 * steps:
            one()
    return [str(one.message) for one in caught]


def test_a_first_step_without_blocks_says_so_once():
    model = Small()
    opt = AdamMini(model.named_parameters())
    (message,) = said(lambda: step(model, opt))
    assert "embed.weight" in message
    assert 'param_groups(model, rule="adammini")' in message
    assert "bias" not in message


@pytest.mark.parametrize(
    "made",
    [
        lambda model: AdamMini(param_groups(model, rule="adammini")),
        lambda model: AdamMini(model.named_parameters(), blocks={"up.weight": "each"}),
        lambda model: AdamMini(model.named_parameters(), blocks={}),
        lambda model: AdamMini([p for p in model.parameters() if p.ndim < 2]),
        lambda model: AdamW(model.named_parameters()),
    ],
)
def test_a_first_step_with_blocks_or_without_matrices_says_nothing(made):
    model = Small()
    opt = made(model)
    assert said(lambda: step(model, opt)) == []


def test_arrays_of_numpy_without_blocks_say_so_once():
    """Whether they step one by one or together."""
    arrays = {"w": np.ones((3, 2)), "row": np.ones((1, 2)), "bias": np.ones(3), "w2": np.ones((3, 2))}

    def of(**given):
        opt = lwn.AdamMini(**given)
        return lambda: opt.step_all(arrays, arrays), [
            lambda name=name: opt.step(name, arrays[name], 1 * arrays[name]) for name in arrays
        ]

    together, each = of()
    (message,) = said(together)
    assert ": w, w2." in message
    together, each = of()
    (message,) = said(*each)
    assert ": w." in message
    for given in ({"blocks": "each"}, {"blocks": {}}):
        together, each = of(**given)
        assert said(together, *each) == []


def test_lists_step_on_after_measurements_of_blocks_were_read():
    stepped = []
    for foreach in (False, True):
        p = nn.Parameter(torch.arange(1.0, 36.0).reshape(7, 5))
        opt = Lamb([("w", p)], blocks={"w": "each"}, fused=False, foreach=foreach)
        for _ in range(4):
            p.grad = p.detach() ** 2
            opt.step()
            assert opt.stats()["w"]["trust_ratio"].shape == (7,)
        stepped.append(p.detach().numpy())
    np.testing.assert_allclose(*stepped, rtol=1e-6)
