"""Products of matrices in 16 bits: rounded where they should be, and within the dtype's error of exact arithmetic."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from layerwise.engines.processor import fast_product_dtype_of_cpu
from layerwise.numpy import Muon
from layerwise.rules import muon
from layerwise.rules.newton_schulz import in_stretches
from layerwise.rules.products import HALVES, operand, symmetric, worth_halving
from layerwise.torch.arrays._library import fast_product_dtype, multiplies

ERROR = {"float32": 1e-5, "float16": 6e-3, "bfloat16": 3e-2}


@pytest.mark.parametrize("n", [4, 5, 11])
@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
def test_a_symmetric_product_in_blocks_is_the_product(n, xp):
    x = xp.asarray(np.random.default_rng(0).standard_normal((2, n, 7)))
    halving = SimpleNamespace(concat=xp.concat, moveaxis=xp.moveaxis, halves=lambda x: True)
    y = xp.moveaxis(x, -1, -2)
    found = symmetric(halving, x, y)
    np.testing.assert_allclose(found, x @ y, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(found, xp.moveaxis(found, -1, -2))


def test_blocks_are_for_large_matrices_and_few_threads():
    assert worth_halving(512, 1)
    assert not worth_halving(511, 1)
    assert not worth_halving(1000, 4)
    assert worth_halving(1024, 4)


@pytest.mark.parametrize("dtype", HALVES)
def test_operands_have_the_digits_of_their_dtype(dtype):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    wanted = x.to(getattr(torch, dtype)).float()
    for own in (torch.float32, torch.float64):
        assert torch.equal(operand(torch, x.to(own), dtype).float(), wanted)


def step_of(g, dtype):
    weights = {"p": np.zeros(g.shape, np.float32)}
    Muon(1.0, momentum=0.0, ns_dtype=dtype, scale=max(g.shape) ** -0.5).step_all(weights, {"p": g})
    return -weights["p"].astype(np.float64)


def exact(g):
    left, s, right = np.linalg.svd(g / np.linalg.norm(g), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (left * s) @ right


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e20, 8e37])
@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (32, 32), (1, 40), (2, 3)], ids=str)
def test_every_gradient_is_stepped_within_the_error_of_the_dtype(shape, size, dtype):
    g = np.random.default_rng(1).standard_normal(shape)
    wanted = exact(g)
    off = np.linalg.norm(step_of((g * size).astype(np.float32), dtype) - wanted) / np.linalg.norm(wanted)
    assert off < ERROR[dtype]
    assert dtype == "float32" or off > ERROR["float32"]  # else nothing was rounded


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_far_below_the_largest_are_not_lost(dtype):
    """Float16 has few digits of such small numbers, if a matrix is only divided by its norm."""
    g = np.random.default_rng(2).standard_normal((48, 96))
    g[:, 0] *= 1e4
    wanted = exact(g)
    assert np.linalg.norm(step_of(g.astype(np.float32), dtype) - wanted) < ERROR[dtype] * np.linalg.norm(wanted)


def test_fewer_digits_share_a_gram_matrix_among_fewer_iterations():
    five = muon.JORDAN * 5
    lengths = {dtype: [*map(len, in_stretches(five, dtype))] for dtype in (None, *ERROR)}
    assert lengths == {None: [3, 2], "float32": [3, 2], "float16": [2, 2, 1], "bfloat16": [2, 2, 1]}


def test_the_device_decides_where_nobody_has():
    fitted = [h.with_fast_dtype("float16").ns_dtype for h in (muon.Muon(), muon.Muon(ns_dtype="float32"))]
    assert fitted == ["float16", "float32"]
    assert muon.Muon().with_fast_dtype(None).ns_dtype is None
    cpu = torch.device("cpu")
    assert fast_product_dtype(cpu, torch.float64) is None
    assert fast_product_dtype(cpu, torch.float32) == fast_product_dtype_of_cpu()
    assert fast_product_dtype(torch.device("mps"), torch.float32) == "float16"
    assert multiplies(torch.device("mps"), "bfloat16") is torch.bfloat16
    assert fast_product_dtype(torch.device("meta"), torch.float32) is None
    assert (multiplies(cpu, "bfloat16") is None) == (fast_product_dtype_of_cpu() is None)


@pytest.mark.parametrize(
    ("flags", "found"),
    [("fpu avx2", None), ("avx512f avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), (None, None)],
)
def test_units_of_the_processor_are_those_that_the_system_names(flags, found, tmp_path):
    said = tmp_path / "cpuinfo"
    if flags is not None:
        said.write_text(f"processor : 0\nflags : {flags}\n", "utf-8")
    assert fast_product_dtype_of_cpu(str(said)) == found


def test_errors_on_the_page_are_those_measured():
    root = Path(__file__).parents[1]
    with (root / "benchmarks" / "results" / "muon_quality.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] != "exact"]
    measured = [tuple(row["error"] for row in rows[i : i + 3]) for i in range(0, len(rows), 3)]
    page = (root / "docs" / "optimizers" / "muon.md").read_text("utf-8")
    said = re.findall(r"^\| .+ \| (\d\.\de-\d\d) \| (\S+) \| (\S+) \|$", page, re.MULTILINE)
    assert len(said) == 9
    assert set(said) <= set(measured)
