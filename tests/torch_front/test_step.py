"""Steps in groups, in slices, and on tensors of any layout and dtype, against the references."""

from __future__ import annotations

import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from draws import seeds
from torch_front.front import (
    FRONT_OF,
    Oracle,
    bits,
    busy,
    cases,
    close,
    everything,
    fronts,
    in_slices,
    lows,
    numbers,
    parameters,
    set_grads,
    told_on_device,
    twins,
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


@fronts
@pytest.mark.needs("max_grad_norm")
def test_bounds_of_the_common_norm_may_differ(front):
    params, apart = parameters(1), parameters(1)
    groups = [{"params": [p], "max_grad_norm": 0.5 / (1 + i)} for i, p in enumerate(params.values())]
    opt, free = busy(front, groups), busy(front, apart.items())
    for t in range(3):
        set_grads(params, t)
        norm = torch.cat([p.grad.reshape(-1) for p in params.values()]).norm()
        for i, (p, q) in enumerate(zip(params.values(), apart.values(), strict=True)):
            q.grad = p.grad / max(1, norm * (1 + i) / 0.5)
        opt.step()
        free.step()
    close(numbers(params), numbers(apart))


@lows
@fronts
def test_low_precision_is_computed_in_float32_and_rounded_once(front, low):
    params = parameters(3, dtype=low)
    opt = busy(front, params.items())
    wide = {name: torch.nn.Parameter(p.detach().float()) for name, p in params.items()}
    calm = busy(front, wide.items())
    for t in range(3):
        for name, p in params.items():
            wide[name].data.copy_(p.data)
        set_grads(params, t)
        for name, p in params.items():
            wide[name].grad = p.grad.float()
        opt.step()
        calm.step()
        assert bits(params) == bits({name: p.to(low) for name, p in wide.items()})
        for ours, theirs in zip(opt.state.values(), calm.state.values(), strict=True):
            for key, x in ours.items():  # sums may be added up in another order
                assert torch.equal(x, theirs[key]) or (
                    x.numel() == 1 and torch.allclose(x, theirs[key], rtol=1e-6, atol=0)
                )
    floating = [x.dtype for one in opt.state.values() for x in one.values() if x.is_floating_point()]
    assert set(floating) == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@cases
def test_every_dtype_follows_the_reference(case, dtype):
    tolerance = {torch.bfloat16: 8e-2, torch.float16: 1e-2, torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
    params = parameters(2, dtype=dtype)
    opt, oracle, expected = FRONT_OF[case.name](params.items(), lr=0.1), case.reference(lr=0.1), numbers(params)
    for t in range(3):
        set_grads(params, 20 + t)
        expected = oracle.step(expected, {name: p.grad.double().numpy() for name, p in params.items()})
        opt.step()
    close(numbers(params), expected, tolerance)


@fronts
@pytest.mark.needs("max_grad_norm")
def test_dtypes_share_a_global_norm(front):
    dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    params = {str(dtype): parameters(2, {"w": (3, 2)}, dtype)["w"] for dtype in dtypes}
    params["0-d"] = parameters(3, {"w": ()}, torch.float32)["w"]
    opt = busy(front, params.items(), max_grad_norm=0.5)
    wide = {name: torch.nn.Parameter(p.detach().double()) for name, p in params.items()}
    calm = busy(front, wide.items(), max_grad_norm=0.5)
    set_grads(params, 1)
    for name, p in params.items():
        wide[name].grad = p.grad.double()
    opt.step()
    calm.step()
    for name, p in params.items():
        close(numbers({"": p}), numbers({"": wide[name]}), 1e-2 if p.dtype in dtypes[:2] else 2e-6)


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


@fronts
def test_expanded_gradients(front):
    params = parameters(1)
    calm = twins(params)
    for p, q in zip(params.values(), calm.values(), strict=True):
        p.grad, q.grad = torch.full((), 0.5, dtype=p.dtype).expand(p.shape), torch.full_like(p, 0.5)
    busy(front, params.items()).step()
    busy(front, calm.items()).step()
    assert bits(params) == bits(calm)


EMPTY = {
    "empty vector": (0,),
    "empty matrix": (0, 3),
    "empty columns": (3, 0),
    "empty stack": (2, 0, 3),
    "full": (2, 3),
}


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1, "max_grad_norm_per_tensor": 0.1}], ids=str)
@pytest.mark.parametrize("blocks", [None, "each"])
@fronts
def test_tensors_without_elements(front, options, blocks):
    params, alone = parameters(1, EMPTY), parameters(1, {"full": (2, 3)})
    alone["full"].data.copy_(params["full"].data)
    opt, calm = (busy(front, ps.items(), blocks=blocks, **options) for ps in (params, alone))
    for t in range(3):
        set_grads(params, t)
        alone["full"].grad = params["full"].grad
        opt.step()
        calm.step()
    assert bits(params["full"]) == bits(alone["full"])
    assert {name: tuple(p.shape) for name, p in params.items()} == EMPTY
    assert opt.stats().keys() == EMPTY.keys()
    assert all(int(one["step"]) == 3 for one in opt.state.values())


@pytest.mark.parametrize(
    "lr",
    [torch.tensor(0.1, dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64), torch.tensor(0.1)],
    ids=["0-d", "one element", "float32"],
)
@cases
def test_a_tensor_as_lr_is_the_number(case, lr):
    front = FRONT_OF[case.name]
    a, b = parameters(1), parameters(1)
    opt, calm = busy(front, a.items(), lr=lr), busy(front, b.items(), lr=float(lr))
    walk(opt, a, range(3))
    walk(calm, b, range(3))
    close(numbers(a), numbers(b), 1e-14)
    lr.fill_(0.0)
    before = bits(a)
    opt.param_groups[0]["weight_decay"] = 0.0
    if front is not FRONT_OF["Lars"]:  # with lr inside the momentum, what is under way goes on
        walk(opt, a, [3], but=["none"])
        momentum = front is Adafactor
        assert momentum or bits(a) == before


@cases
def test_a_tensor_as_weight_decay_is_the_number(case):
    for seed in range(6):
        options = case.drawn(seed)
        a, b = parameters(1), parameters(1)
        opt = FRONT_OF[case.name](a.items(), **{**options, "weight_decay": torch.tensor(0.0625, dtype=torch.float64)})
        calm = FRONT_OF[case.name](b.items(), **{**options, "weight_decay": 0.0625})
        walk(opt, a, range(3))
        walk(calm, b, range(3))
        close(numbers(a), numbers(b), 1e-14, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@cases
def test_capturable_takes_the_same_step(case, dtype):
    """As in torch.optim, what is computed of a step count on the device is computed in float32."""
    for seed in range(8):
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
    for seed in range(6):
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


@fronts
@pytest.mark.needs("max_grad_norm")
def test_a_first_step_that_is_skipped_on_the_device_leaves_the_start(front, monkeypatch):
    a, b = parameters(1), parameters(1)
    opt, calm = busy(front, a.items(), max_grad_norm=0.5), busy(front, b.items(), max_grad_norm=0.5)
    told_on_device(monkeypatch, True)
    set_grads(a, 1)
    a["vector"].grad.fill_(float("inf"))
    opt.step()
    assert bits(a) == bits(b)
    monkeypatch.undo()
    walk(opt, a, range(2))
    walk(calm, b, range(2))
    close(numbers(a), numbers(b), 1e-12)


@fronts
def test_order_of_groups_does_not_matter(front):
    a, b = parameters(1), parameters(1)
    opt = busy(front, a.items())
    other = busy(front, [{"params": [(name, b[name])]} for name in reversed(b)])
    walk(opt, a, range(3))
    walk(other, b, range(3))
    assert bits(a) == bits(b)


@fronts
@pytest.mark.needs("max_grad_norm")
def test_a_group_that_is_not_clipped_counts_towards_the_common_norm(front):
    """The norm is that of all gradients of the optimizer, whatever group they are in."""
    a, b = parameters(1), parameters(1)
    opt = busy(front, [{"params": [p], "max_grad_norm": 0.5 * i or None} for i, p in enumerate(a.values())])
    free = busy(front, b.items())
    for t in range(2):
        set_grads(a, t)
        norm = torch.cat([p.grad.reshape(-1) for p in a.values()]).norm()
        for i, (p, q) in enumerate(zip(a.values(), b.values(), strict=True)):
            q.grad = p.grad / max(1, norm / (0.5 * i)) if i else p.grad.clone()
        opt.step()
        free.step()
    close(numbers(a), numbers(b))


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
