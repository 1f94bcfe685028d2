"""Sums in digits: exact, the same in any order and however their terms are cut, by the extension and by PyTorch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from layerwise.drive.digits import MOST_PARTS, PLAIN, UNIT, WIDE, Exact, added, sum_of_rows
from layerwise.engines import compiled
from layerwise.errors import ContradictionError
from layerwise.torch import Adafactor, AdamW, Lamb, Mixed
from layerwise.torch.step import _exact
from layerwise.torch.step._engines import REPRODUCIBLE

WAYS = ["extension", "PyTorch", "PyTorch on a device"]
DTYPES = {torch.float32: 32, torch.float64: 64}
ways = pytest.mark.parametrize("way", WAYS)
of_squares = pytest.mark.parametrize("squares", [False, True], ids=["terms", "squares"])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
numbers = {
    dtype: st.lists(st.floats(width=width, allow_nan=False, allow_infinity=False), max_size=40)
    for dtype, width in DTYPES.items()
}


@contextmanager
def by(way: str) -> Iterator[None]:
    with ExitStack() as stack:
        if way != "extension":
            stack.enter_context(patch.object(compiled, "_native", None))
        if way == "PyTorch on a device":  # which is never looked at
            whole = partial(_of_blocks, looks=False)
            stack.enter_context(patch.object(_exact, "_of_blocks", lambda x, window, looks: whole(x, window)))
        yield


_of_blocks = _exact._of_blocks


def total(digits: torch.Tensor, exact: Exact) -> float:
    return _exact.total(digits, exact._replace(dtype=torch.float64)).item()


def terms_of(x: torch.Tensor, squares: bool) -> list[float]:
    wide = x.double()
    return (wide * wide if squares else wide).tolist()


def fits(x: torch.Tensor, squares: bool) -> bool:
    """Squares of float64 may be infinite, and sums of the largest numbers too."""
    return all(abs(one) < 1e300 for one in terms_of(x, squares))


@ways
@of_squares
@dtypes
@given(data=st.data())
@draws(50)
def test_it_is_the_sum(way, squares, dtype, data):
    """As math.fsum has it, to the last place."""
    x = torch.tensor(data.draw(numbers[dtype]), dtype=dtype)
    if not fits(x, squares):
        return
    with by(way):
        found = total(*_exact.digits(x, (0,), squares, False))
    wanted = math.fsum(terms_of(x, squares))
    assert abs(found - wanted) <= math.ulp(wanted)


@of_squares
@dtypes
@given(data=st.data(), seed=st.integers(0, 2**32))
@draws(50)
def test_no_order_and_no_cut_changes_a_bit(squares, dtype, data, seed):
    x = torch.tensor(data.draw(numbers[dtype]), dtype=dtype)
    if not fits(x, squares):
        return
    draw = random.Random(seed)
    wanted = total(*_exact.digits(x, (0,), squares, False))
    mixed = x[torch.tensor(draw.sample(range(len(x)), len(x)), dtype=torch.long)]
    ends = sorted(draw.randint(0, len(x)) for _ in range(3))
    parts = []
    for start, end in zip([0, *ends], [*ends, len(x)], strict=True):
        with by(draw.choice(WAYS)):
            parts.append(_exact.digits(mixed[start:end], (0,), squares, False))
    draw.shuffle(parts)
    found = total(added(_exact.ReproducibleTensors.xp, [one for one, _ in parts]), parts[0][1])
    assert np.float64(found).tobytes() == np.float64(wanted).tobytes()


@ways
@of_squares
@dtypes
@pytest.mark.parametrize("spread", [0.0, 3.0, 12.0])
def test_long_sums(way, squares, dtype, spread):
    """Longer than blocks, of numbers that differ by little and by much; in another order, an ordinary sum differs."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40_001, generator=draw, dtype=dtype) * torch.exp(
        spread * torch.randn(40_001, generator=draw, dtype=dtype)
    )
    with by(way):
        found = [total(*_exact.digits(one, (0,), squares, False)) for one in (x, x.flip(0), x.sort().values)]
    assert found[0] == found[1] == found[2]
    wanted = math.fsum(terms_of(x, squares))
    assert abs(found[0] - wanted) <= math.ulp(wanted)
    terms = torch.tensor(terms_of(x, squares), dtype=torch.float64)
    if spread:
        assert terms.cumsum(0)[-1] != terms.flip(0).cumsum(0)[-1]


@ways
@of_squares
@dtypes
@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        ([1.0, math.inf], math.inf),
        ([-math.inf, 1.0, -1.0], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([0.0, math.nan, 2.0], math.nan),
        ([], 0.0),
        ([0.0, -0.0], 0.0),
    ],
)
def test_what_is_no_number(way, squares, dtype, terms, wanted):
    wanted = {-math.inf: math.inf}.get(wanted, wanted) if squares else wanted
    wanted = math.inf if squares and math.inf in terms else wanted
    x = torch.tensor(terms, dtype=dtype)
    with by(way):
        whole, exact = _exact.digits(x, (0,), squares, False)
        parts = [_exact.digits(one, (0,), squares, False)[0] for one in x.split(1)] if len(x) else [whole]
        for digits in (whole, sum(parts[1:], parts[0])):
            np.testing.assert_equal(total(digits, exact), wanted)


@ways
@dtypes
def test_the_smallest_and_the_largest(way, dtype):
    info, window = torch.finfo(dtype), PLAIN if dtype == torch.float32 else WIDE
    with by(way):
        for one in (info.smallest_normal, info.smallest_normal * info.eps, -info.smallest_normal * info.eps * 3):
            x = torch.full((1000,), one, dtype=dtype)
            digits, exact = _exact.digits(x, (0,), False, False)
            assert exact.window == window
            assert total(digits, exact) == 1000 * x[0].item()
        for one in (1.0, info.smallest_normal):
            x = torch.tensor([info.max / 2**14, one, -info.max / 2**14], dtype=dtype)
            assert total(*_exact.digits(x, (0,), False, False)) == one
        small = torch.tensor([info.smallest_normal * info.eps], dtype=torch.float32)
        assert total(*_exact.digits(small, (0,), True, False)) == small.double().square().item()


def test_digits_of_the_model_are_alike_for_all_dtypes():
    xp = _exact.ReproducibleTensors.xp
    parts = [_exact.digits(torch.full((3,), 2.0**-100, dtype=dtype), (0,), True, True) for dtype in DTYPES]
    assert {exact.window for _, exact in parts} == {WIDE}
    assert total(added(xp, [one for one, _ in parts]), parts[0][1]) == 6 * 2.0**-200


def test_many_rows():
    """Each as large as a carry leaves it, so that only another carry keeps their sum exact."""
    n = 5 * MOST_PARTS + 1
    rows = torch.tensor([[UNIT / 2 - 1, UNIT / 2 - 1, 1.0]] * n, dtype=torch.float64)
    found = sum(int(digit) << 40 * k for k, digit in enumerate(sum_of_rows(torch, rows).tolist()))
    assert found == n * sum(int(digit) << 40 * k for k, digit in enumerate(rows[0].tolist()))


@dtypes
@pytest.mark.parametrize("name", ["add_scaled", "mix", "move", "sqrt"])
@pytest.mark.parametrize("pure", [False, True])
def test_an_element_has_the_same_bits_wherever_it_lies(dtype, name, pure):
    tensors = _exact.ReproducibleTensors
    xp = tensors.pure if pure else tensors.xp
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.rand(203, generator=draw, dtype=dtype) for _ in range(2))
    arguments = {"add_scaled": lambda x, y: (x, -0.1237, y), "mix": lambda x, y: (0.9, x, y), "sqrt": lambda x, y: (x,)}
    arguments["move"] = arguments["add_scaled"]
    function = getattr(xp, name, xp.add_scaled)

    def at(place: slice) -> torch.Tensor:
        return function(*arguments[name](x[place].clone(), y[place].clone()))

    whole = at(slice(None))
    assert all(torch.equal(at(slice(i, j)), whole[i:j]) for i in range(40) for j in (i + 1, i + 6, i + 19, 203 - i))
    assert torch.equal(at(slice(None, None, 3)), whole[::3])
    assert torch.equal(function(*arguments[name](*(torch.stack([one, one], 1)[:, 0] for one in (x, y)))), whole)


def test_roots_are_rounded_to_nearest():
    x = torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(_exact.sqrt(x), x.double().sqrt().float())


@pytest.mark.parametrize("option", ["fused", "differentiable"])
@pytest.mark.parametrize("front", [Lamb, Mixed])
def test_what_does_not_go_with_it(front, option):
    group = {"params": [torch.nn.Parameter(torch.ones(2))], **({"rule": "lamb"} if front is Mixed else {})}
    with pytest.raises(ContradictionError, match=f"`{option}` must be .*when reproducible=True"):
        front([group], reproducible=True, **{option: True})


@pytest.mark.parametrize("front", [Lamb, Adafactor, AdamW])
def test_slices_and_stacks_change_no_bit(front):
    """What the rule engine takes at once of a tensor, or beside it, is as good as a rank."""
    found = []
    for slices, stack in ((1 << 19, 1 << 12), (700, 0), (64, 0)):
        params = [torch.nn.Parameter(torch.randn(33, 40, generator=torch.Generator().manual_seed(i))) for i in range(3)]
        with patch.multiple(REPRODUCIBLE, slice_size=slices, stack_size=stack):
            opt = front(params, lr=0.1, max_grad_norm=0.5, reproducible=True, fused=False)
            for step in range(3):
                for p in params:
                    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 + step))
                opt.step()
        found.append([p.detach().numpy().tobytes() for p in params])
    assert found[0] == found[1] == found[2]


@pytest.mark.skipif(compiled._native is None, reason="there is one engine alone")
def test_one_engine_steps_all_tensors():
    """One that has kernels is stepped by the rule beside one that has none, as it is where processes share them."""

    def stepped(*rules: str, **options: bool) -> bytes:
        draw = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(33, 40, generator=draw)) for _ in rules]
        groups = [{"params": [p], "rule": rule, "lr": 0.1} for p, rule in zip(params, rules, strict=True)]
        opt = Mixed(groups, reproducible=True, **options)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
            opt.step()
        return params[0].detach().numpy().tobytes()

    by_rule = stepped("Lamb", fused=False)
    assert stepped("Lamb") != by_rule
    assert stepped("Lamb", "Came") == by_rule
