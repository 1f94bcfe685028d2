"""A block is exactly what it would be as a parameter of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy_front.test_blocks import CUTS, apart, sizes
from torch_front.front import FRONT_OF, arrays, busy, cases, close, fronts, in_slices, numbers, parameters, walk

from layerwise import Blocks, optional
from layerwise.errors import ContradictionError, HyperparameterError, ParameterError
from layerwise.torch import SGD, Adafactor

cuts = pytest.mark.parametrize(("blocks", "shape"), CUTS, ids=str)


@pytest.mark.parametrize("size", [None, 5])
@cuts
@cases
@pytest.mark.thinned(2)
def test_a_block_is_a_parameter_of_its_own(case, blocks, shape, size, monkeypatch):
    if size:
        in_slices(monkeypatch, size)
    front = FRONT_OF[case.name]
    for seed in range(3):
        options = case.drawn(seed)
        if "factored" in options and isinstance(blocks.split, tuple):
            options = {**options, "min_dim_size_to_factor": 0, "factored": "last"}
        w = parameters(1, {"w": shape})
        pieces = {i: torch.nn.Parameter(torch.tensor(a)) for i, a in apart(blocks, w["w"].detach().numpy()).items()}
        opt, alone = front(w.items(), blocks={"w": blocks}, **options), front(pieces.items(), **options)
        for t in range(3):
            g = arrays(10 + t, {"w": shape})["w"]
            first = next(iter(np.split(g, np.cumsum(sizes(blocks, shape))[:-1], axis=blocks.axis)))
            first *= 0 if t == 2 else 30
            w["w"].grad = torch.tensor(g)
            for i, own in apart(blocks, g).items():
                pieces[i].grad = torch.tensor(own)
            opt.step()
            alone.step()
            close(apart(blocks, numbers(w)["w"]), numbers(pieces), 1e-11, options)
        ours, theirs = opt.stats()["w"], list(alone.stats().values())
        close(ours, {key: [one[key] for one in theirs] for key in theirs[0]}, 1e-11, options)


@fronts
def test_by_name_pattern_or_callable(front):
    shapes = {"a.qkv": (6, 2), "b.qkv": (6, 2), "b.out": (6, 2)}
    expected = {"a.qkv": (2,), "b.qkv": (3,), "b.out": None}
    by_name = {"*.qkv": 3, "a.qkv": Blocks(2, axis=-1)}
    for blocks in (by_name, lambda name: by_name.get(name, 3 if name.endswith("qkv") else None)):
        params = parameters(1, shapes)
        opt = busy(front, params.items(), blocks=blocks)
        walk(opt, params, [1])
        found = {name: getattr(one["trust_ratio"], "shape", None) for name, one in opt.stats().items()}
        assert found == expected


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        ({"w": 0}, HyperparameterError),
        ({"w": "all"}, HyperparameterError),
        ({3: 2}, HyperparameterError),
        ("w", HyperparameterError),
        ({"w": 4}, ParameterError),
        ({"w": (1, 1)}, ParameterError),
        ({"w": Blocks(2, axis=2)}, ParameterError),
        (lambda name: "no", HyperparameterError),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
@fronts
def test_blocks_that_do_not_fit(front, blocks, error):
    params = parameters(1, {"w": (6, 2)})
    with pytest.raises(error):
        walk(busy(front, params.items(), blocks=blocks), params, [1])
    assert (params["w"] == parameters(1, {"w": (6, 2)})["w"]).all()


@fronts
def test_names_of_blocks_need_named_parameters(front):
    """Patterns for names that are not there would be accepted and ignored."""
    with pytest.raises(HyperparameterError, match="named_parameters"):
        busy(front, parameters(1).values(), blocks={"matrix": 2})


@fronts
def test_blocks_for_all(front):
    params = parameters(1, {"a": (4, 3), "b": (2, 5)})
    opt = busy(front, params.values(), blocks=2)
    walk(opt, params, [1])
    assert [one["trust_ratio"].shape for one in opt.stats().values()] == [(2,), (2,)]


def test_blocks_that_would_be_factored_differently():
    params = parameters(1, {"w": (6, 4)})
    opt = Adafactor(params.items(), blocks={"w": (1, 5)}, min_dim_size_to_factor=2)
    with pytest.raises(ContradictionError, match=r"'w'.*factored"):
        walk(opt, params, [1])
    assert opt.state_dict()["state"] == {}


@fronts
def test_a_group_added_later_has_its_blocks(front):
    params = parameters(1, {"a": (4, 3), "b": (2, 5)})
    opt = busy(front, [("a", params["a"])], blocks={optional("b"): "each"})
    opt.add_param_group({"params": [("b", params["b"])]})
    walk(opt, params, [1])
    assert opt.stats()["b"]["trust_ratio"].shape == (2,)


@pytest.mark.parametrize(("shape", "blocks"), [((7,), "each"), ((7, 1), Blocks("each", 1)), ((7, 3), 7)], ids=str)
def test_random_bits_are_those_of_the_element_whatever_the_blocks(shape, blocks):
    """Also where a block is one element; SGD knows no blocks otherwise."""
    found = []
    for own in (None, {"w": blocks}):
        p = torch.nn.Parameter(torch.linspace(1, 2, 21)[: np.prod(shape)].reshape(shape).bfloat16())
        p.grad = torch.ones_like(p)
        opt = SGD([("w", p)], lr=1e-3, rounding="stochastic", blocks=own, fused=False)
        for _ in range(5):
            opt.step()
        found.append(p.detach())
    assert torch.equal(*found)
