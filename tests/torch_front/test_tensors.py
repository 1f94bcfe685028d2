"""Steps in groups, in slices, and on tensors of any layout and dtype, against the references."""

from __future__ import annotations

import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from contract.apis import close
from draws import seeds
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch_front.front import (
    FRONT_OF,
    Oracle,
    bits,
    busy,
    cases,
    everything,
    fronts,
    in_slices,
    numbers,
    parameters,
    set_grads,
    told_on_device,
    walk,
)

import layerwise.torch
from layerwise import Blocks
from layerwise.torch import Adafactor

MEMBERS = [("matrix", "scalar"), ("vector",), ("stack", "cube")]
WIDE = {"matrix": (9, 5), "vector": (40,), "scalar": (), "stack": (2, 13, 3), "cube": (4, 2, 2)}


def drawn_groups(case, seed):
    """Options for three groups; the bound of the common norm is the same for all."""
    drawn = [case.drawn(10 * seed + i) for i in range(3)]
    shared = {name: drawn[0][name] for name in ("max_grad_norm",) if name in case.options}
    return [{**options, **shared} for options in drawn]


def made(front, params, options, **others):
    return front([{"params": [(name, params[name]) for name in names], **o} for names, o in options], **others)


@pytest.mark.every
@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "sliced"])
@pytest.mark.parametrize("seed", seeds(2, 6))
@cases
def test_groups_follow_the_reference(case, seed, sliced, monkeypatch):
    if sliced:
        in_slices(monkeypatch)
    options = list(zip(MEMBERS, drawn_groups(case, seed), strict=True))
    params = parameters(seed, WIDE)
    opt = made(FRONT_OF[case.name], params, options)
    start = numbers(params)
    oracle = Oracle(case, [(o, {name: start[name] for name in names}) for names, o in options])
    for t in range(4):
        set_grads(params, 100 * seed + t, but=["vector"] if t == 1 else [])
        grads = {name: p.grad.numpy().copy() for name, p in params.items() if p.grad is not None}
        opt.step()
        expected = oracle.step(grads)
        close(numbers(params), {name: expected[name] for name in params}, hint=(t, options))
        assert all((params[name].grad.numpy() == g).all() for name, g in grads.items())


BLOCKS = {
    "matrix": Blocks(3),
    "vector": Blocks((20, 4, 16)),
    "stack": Blocks("each", axis=1),
    "cube": Blocks(2, axis=-1),
}


@pytest.mark.parametrize("size", [1, 7, 16])
@pytest.mark.parametrize("seed", seeds(1, 4))
@cases
def test_slices_of_blocks(case, seed, size, monkeypatch):
    front, options = FRONT_OF[case.name], case.drawn(seed)
    if front is Adafactor:
        options["min_dim_size_to_factor"] = 0
    ways = []
    for sliced in (False, True):
        if sliced:
            in_slices(monkeypatch, size)
        params = parameters(seed, WIDE)
        opt = front(params.items(), blocks=BLOCKS, **options)
        walk(opt, params, range(3))
        ways.append((params, opt))
    (whole, calm), (cut, opt) = ways
    close(numbers(cut), numbers(whole), 1e-11)
    for name, p in whole.items():
        close(numbers(opt.state[cut[name]]), numbers(calm.state[p]), 1e-11, name)
        close(opt.stats()[name], calm.stats()[name], 1e-11, name)


def strided(p):
    """The same numbers in every other place of something larger."""
    wide = torch.full((*p.shape[:-1], 2 * p.shape[-1]), 7.0, dtype=p.dtype)
    wide[..., ::2] = p
    return wide[..., ::2]


LAYOUTS = {
    "transposed": ((3, 6), lambda x: x.t().contiguous().t()),
    "permuted": ((2, 3, 4), lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0)),
    "strided": ((4, 6), strided),
    "channels last": ((2, 3, 4, 4), lambda x: x.contiguous(memory_format=torch.channels_last)),
    "a slice": ((4, 6), lambda x: torch.cat([x, x])[2:6].copy_(x)),
}


@pytest.mark.parametrize("blocks", [None, Blocks(2, axis=-1), Blocks("each"), Blocks((1, 1))], ids=str)
@pytest.mark.parametrize("what", LAYOUTS)
@fronts
@pytest.mark.thinned(1)
def test_layouts(front, what, blocks, monkeypatch):
    shape, laid = LAYOUTS[what]
    if blocks is not None and blocks.split == (1, 1):
        blocks = Blocks((1, shape[0] - 1))
    in_slices(monkeypatch)
    for of_gradient in (lambda x: x, laid):
        plain = parameters(1, {"w": shape})
        odd = {"w": torch.nn.Parameter(laid(plain["w"].detach()))}
        strides = odd["w"].stride()
        opt, calm = (busy(front, params.items(), blocks=blocks) for params in (odd, plain))
        for t in range(3):
            set_grads(plain, t)
            odd["w"].grad = of_gradient(plain["w"].grad)
            opt.step()
            calm.step()
        close(numbers(odd), numbers(plain))
        assert odd["w"].stride() == strides


@pytest.mark.parametrize("rate", [torch.tensor(0.1).double(), torch.tensor([0.1]).double(), torch.tensor(0.1)], ids=str)
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@cases
@pytest.mark.thinned(2)
def test_a_tensor_as_a_rate_is_the_number(case, name, rate):
    for options in [case.busy] if name == "lr" else map(case.drawn, range(3)):
        if name == "weight_decay" and not case.consistent({**options, name: 0.1})[name]:
            options = {**options, "keep_norm": False}
        a, b = parameters(1), parameters(1)
        walk(FRONT_OF[case.name](a.items(), **{**options, name: rate}), a, range(3))
        walk(FRONT_OF[case.name](b.items(), **{**options, name: float(rate)}), b, range(3))
        close(numbers(a), numbers(b), 1e-14, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@cases
def test_capturable_takes_the_same_step(case, dtype):
    """As in torch.optim, what is computed of a step count on the device is computed in float32."""
    for seed in range(3):
        options = case.drawn(seed)
        a, b = parameters(1, dtype=dtype), parameters(1, dtype=dtype)
        opt = FRONT_OF[case.name](a.items(), capturable=True, **options)
        calm = FRONT_OF[case.name](b.items(), **options)
        walk(opt, a, range(4))
        walk(calm, b, range(4))
        close(numbers(a), numbers(b), 1e-5 if dtype is torch.float32 else 1e-7, options)


@pytest.mark.parametrize("skip", [False, True])
@cases
def test_told_on_the_device_whether_to_skip(case, skip, monkeypatch):
    for seed in range(3):
        options = case.drawn(seed)
        a, b = parameters(1, dtype=torch.float32), parameters(1, dtype=torch.float32)
        opt, calm = (FRONT_OF[case.name](ps.items(), **options) for ps in (a, b))
        walk(opt, a, range(2))
        walk(calm, b, range(2))
        with monkeypatch.context() as patched:
            told_on_device(patched, skip)
            if skip:
                before = everything(opt, a)
                set_grads(a, 5)
                a["matrix"].grad.fill_(float("nan"))
                opt.step()
                after = everything(opt, a)
                assert (after[0], after[2]) == (before[0], before[2])
                assert opt.skipped == 1
            else:
                walk(opt, a, [2])
                walk(calm, b, [2])
                assert opt.skipped == 0
        walk(opt, a, [3])
        walk(calm, b, [3])
        close(numbers(a), numbers(b), 1e-6, options)


STORED = {
    "whole": {},
    "masters": {"master_weights": True},
    "few bytes": {"master_weights": "split", "state_dtype": "int8", "rounding": "stochastic"},
}


@pytest.mark.parametrize("stored", STORED)
@fronts
@pytest.mark.thinned(1)
def test_a_step_that_the_device_skips_leaves_what_is_stored(front, stored, monkeypatch):
    params = parameters(1, {"matrix": (70, 65), "stack": (2, 3, 4), "scalar": ()}, torch.bfloat16)
    opt = busy(front, params.items(), blocks={"stack": "each"}, fused=False, **STORED[stored])
    walk(opt, params, range(2))
    before = bits(params), bits(opt.state_dict())
    with monkeypatch.context() as patched:
        told_on_device(patched, True)
        set_grads(params, 2)
        params["matrix"].grad.fill_(float("nan"))
        opt.step()
    assert [step.on_device for step in opt._stepper.steps.values()] == [True]  # so that counts wait for no device
    assert (bits(params), bits(opt.state_dict()), opt.skipped) == (*before, 1)
    walk(opt, params, [3])
    assert all(p.isfinite().all() for p in params.values())
    assert bits(opt.state_dict()) != before[1]


@pytest.mark.parametrize("shape", [(3,), (70, 80)], ids=["stacked", "alone"])
@pytest.mark.parametrize("name", ["Lamb", "Lars", "Adafactor"])
def test_a_gradient_is_not_held_beyond_the_step(name, shape):
    params = [torch.nn.Parameter(torch.ones(shape)) for _ in range(2)]
    opt = getattr(layerwise.torch, name)(params, lr=0.1)
    for _ in range(2):  # the second step is the one that was prepared
        for p in params:
            p.grad = torch.ones(shape)
        held = [weakref.ref(p.grad) for p in params]
        opt.step()
        opt.zero_grad()
        assert [ref() for ref in held] == [None, None]


@pytest.mark.parametrize("options", [{}, {"fused": False}, {"master_weights": "split"}], ids=str)
def test_threads_step_one_optimizer_one_after_the_other(options):
    """Also a copy of it that was pickled, with a lock of its own."""

    def begun():
        dtype = torch.bfloat16 if "master_weights" in options else torch.float32
        p = torch.nn.Parameter(torch.ones(300, 200, dtype=dtype))
        p.grad = torch.full_like(p, 0.5)
        opt = layerwise.torch.Lamb([("p", p)], lr=0.001, weight_decay=0.1, **options)
        opt.step()
        return opt

    opt, alone = pickle.loads(pickle.dumps(begun())), begun()
    [p] = opt.parameters()
    p.grad = torch.full_like(p, 0.5)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: [opt.step() for _ in range(10)], range(8)))
    for _ in range(80):
        alone.step()
    [wanted] = alone.parameters()
    assert int(opt.state[p]["step"]) == 81
    assert torch.equal(p, wanted)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("fused", [None, False])
def test_autograd_knows_that_parameters_were_written(fused, sharded, process_group):
    def made():
        x = torch.ones(3)
        return distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(0)]) if sharded else x

    p = torch.nn.Parameter(made())
    kept, p.grad = (p * p).sum(), made()
    layerwise.torch.Lamb([p], lr=0.1, fused=fused).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_tensors_that_are_stepped_together_have_steps_of_their_own():
    older, p, alone = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    both, one = (layerwise.torch.Lamb(some, lr=0.1, adapt=False, fused=False) for some in ([older, p], [alone]))
    older.grad = torch.ones(3)
    both.step()
    p.grad = alone.grad = torch.ones(3)
    both.step(), one.step()
    torch.testing.assert_close(p, alone)
