"""Muon's products: the singular values of its step, and its time, by dtype.

python benchmarks/muon.py quality    # of one step without momentum, beside exact arithmetic
python benchmarks/muon.py time       # one thread, in turns with PyTorch's and pytorch_optimizer's, and optax's in JAX

On a processor without units for 16 bits, ours rounds operands to them and multiplies in float32; PyTorch multiplies in
bfloat16 there, at a small part of float32's speed. So the iterations of the others are timed in float32, too.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import torch

from harness.timing import Timing
from layerwise.engines.rule import MATRICES
from layerwise.rules.muon import JORDAN
from layerwise.rules.newton_schulz import WholeIterations, gram_dims, least_work, multiplications
from layerwise.torch import Muon
from layerwise.torch.arrays._library import LIBRARY
from rows import RESULTS, alternately, figures, parser_of, provenance, show, supersede

DTYPES = ("float32", "float16", "bfloat16")
Matrix = torch.Tensor
SHAPES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "768×768": ((768, 768),),
    "768×3072": ((768, 3072),),
    "512×2816": ((512, 2816),),
    "a layer of GPT-2": (*(((768, 768),) * 4), (3072, 768), (768, 3072)),
    "200 of 64×96": ((64, 96),) * 200,
}


def matrices() -> Iterator[tuple[str, Matrix]]:
    """Gradients by what they are."""
    torch.manual_seed(0)
    m, n = 256, 1408
    left, right = (torch.linalg.qr(torch.randn(k, m, dtype=torch.float64))[0] for k in (m, n))
    normal, column, row = (torch.randn(m, n) for _ in range(3))
    column[:, 0] *= 1000
    row[0] *= 1e4
    yield "normal, 256×1408", normal
    yield "tall, 1408×256", normal.T.contiguous()
    yield "square, 384×384", torch.randn(384, 384)
    yield "tiny, 2×3", torch.randn(2, 3)
    yield "large, 768×3072", torch.randn(768, 3072)
    yield "condition 1e4", ((left * torch.logspace(0, -4, m, dtype=torch.float64)) @ right.T).float()
    yield "rank 3", torch.randn(m, 3) @ torch.randn(3, n)
    yield "mean of 10", torch.randn(m, n) + 10
    yield "a column 1000 times as long", column
    yield "a row 10000 times as long", row
    yield "times 1e30", normal * 1e30


def exact(g: Matrix) -> Matrix:
    """The iterations on singular values alone, in float64."""
    g = g.double()
    left, s, right = torch.linalg.svd(g / g.norm(), full_matrices=False)
    [(a, b, c)] = JORDAN
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    return (left * s) @ right


def stepped(g: Matrix, dtype: str) -> Matrix:
    p = torch.nn.Parameter(torch.zeros_like(g))
    p.grad = g
    Muon([p], lr=1.0, momentum=0.0, scale=1 / math.sqrt(max(g.shape)), ns_dtype=dtype).step()
    return -p.detach().double()


def quality() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, g in matrices():
        wanted = exact(g)
        for dtype in ("exact", *DTYPES):
            x = wanted if dtype == "exact" else stepped(g, dtype)
            s = torch.linalg.svdvals(x)
            off = ((x - wanted).norm() / wanted.norm()).item()
            rows.append(
                {
                    "matrix": name,
                    "dtype": dtype,
                    "largest": f"{s[0].item():.3f}",
                    "median": f"{s.median().item():.3f}",
                    "smallest": f"{s[-1].item():.2g}",
                    "error": f"{off:.1e}",
                }
            )
    return rows


def optimizer(make: Callable[..., Any], shapes: Sequence[tuple[int, int]], **options: Any) -> Any:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(*shape)) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    return make(params, lr=0.02, **options)


def in_float32(step: Callable[[], Any]) -> Callable[[], None]:
    """PyTorch's step, with its iterations in float32."""

    def apart() -> None:
        own = torch.Tensor.bfloat16
        torch.Tensor.bfloat16 = torch.Tensor.clone
        try:
            step()
        finally:
            torch.Tensor.bfloat16 = own

    return apart


def of_pytorch_optimizer(shapes: Sequence[tuple[int, int]]) -> dict[str, Callable[[], None]]:
    """The steps of pytorch_optimizer's Muon, with iterations in float32, where it is installed."""
    try:
        import pytorch_optimizer
        from pytorch_optimizer.optimizer.muon import base
    except ImportError:
        return {}

    def of(method: str, function: str) -> Callable[[], None]:
        def made(params: Sequence[Any], lr: float) -> Any:
            return pytorch_optimizer.Muon([{"params": params, "use_muon": True}], lr, ns_method=method)

        step = optimizer(made, shapes).step

        def in_float32() -> None:
            with patch.object(base, function, partial(getattr(base, function), dtype=torch.float32)):
                step()

        return in_float32

    return {
        "pytorch_optimizer.Muon in float32": of("newton_schulz", "zero_power_via_newton_schulz_5"),
        "pytorch_optimizer.Muon by Gram in float32": of("gram_newton_schulz", "zero_power_via_gram_newton_schulz"),
    }


def counted(shapes: Sequence[tuple[int, int]], dtype: str) -> tuple[float, float]:
    """Multiplications of ours, and of the usual iteration; a symmetric product counts whole."""
    ours = usual = 0.0
    for shape in shapes:
        sides, (k, n) = gram_dims(shape, (0,), (1,)), (min(shape), max(shape))
        ours += multiplications(k, n, least_work(JORDAN * 5, sides, shape, dtype))
        usual += multiplications(k, n, tuple((one,) for one in JORDAN * 5))
    return ours, usual


def products_alone(shapes: Sequence[tuple[int, int]]) -> Callable[[], None]:
    """The products of a step, of as many matrices at once, and nothing else."""
    works = []
    for shape in sorted({*shapes}):
        sides = gram_dims(shape, (0,), (1,))
        work = WholeIterations(LIBRARY.xp, sides, least_work(JORDAN * 5, sides, shape))
        x = torch.randn(shapes.count(shape), *shape) / math.sqrt(math.prod(shape))
        works += [(work, some.movedim(0, -1)) for some in x.split(max(1, MATRICES // math.prod(shape)))]

    def multiply() -> None:
        for work, x in works:
            work(x)

    return multiply


def in_jax(shapes: Sequence[tuple[int, int]]) -> dict[str, Callable[[], Any]]:
    import jax
    import optax

    import layerwise.jax as lj

    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]

    def of(made: Any) -> Callable[[], Any]:
        state, update = made.init(params), jax.jit(made.update)
        return lambda: jax.block_until_ready(update(params, state, params))

    return {"ours in JAX": of(lj.muon(0.02)), "optax.contrib.muon": of(optax.contrib.muon(0.02))}


def processor(step: Callable[[], object]) -> tuple[float, float]:
    """The clock of one thread, which counts no time of other programs."""
    start = time.process_time()
    step()
    return (time.process_time() - start,) * 2


def timed(name: str, rounds: int, slow: bool) -> list[dict[str, object]]:
    shapes = SHAPES[name]
    ours: dict[str, Callable[[], Any]] = {
        f"ours, {dtype}": optimizer(Muon, shapes, ns_dtype=dtype).step for dtype in DTYPES
    }
    ours["ours, products alone"] = products_alone(shapes)
    theirs = optimizer(torch.optim.Muon, shapes).step
    others = {"torch.optim.Muon in float32": in_float32(theirs), **of_pytorch_optimizer(shapes)}
    found = alternately({**ours, **others}, rounds, 1, clock=processor)
    if slow:
        found |= alternately({"torch.optim.Muon": theirs}, 1, 0, clock=processor)
    found |= alternately(in_jax(shapes), rounds, 1, clock=processor)
    base = {"J": found["ours in JAX"]}
    rows = []
    for label, timing in found.items():
        ratio_to: Timing = base["J"] if "JAX" in label or "optax" in label else found["ours, float32"]
        dtype = label.removeprefix("ours, ") if label.startswith("ours, ") else "float32"
        work, usual = counted(shapes, dtype)
        share = f"{work / usual:.2f}" if label.startswith("ours") else "1.00"
        rows.append({"shapes": name, "who": label, "multiplications": share, **figures(timing, ratio_to)})
    return rows


def main() -> None:
    parser = parser_of(__doc__, "muon_*.csv")
    parser.add_argument("what", choices=("quality", "time"))
    parser.add_argument("--shapes", choices=tuple(SHAPES), nargs="*", default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slow", action="store_true", help="also PyTorch's in bfloat16, as it is")
    given = parser.parse_args()
    torch.set_num_threads(1)
    key = ("matrix", "dtype") if given.what == "quality" else ("shapes", "who")
    for rows in (
        [quality()] if given.what == "quality" else (timed(name, given.rounds, given.slow) for name in given.shapes)
    ):
        show(given.what, rows)
        if not given.no_write:
            supersede(RESULTS / f"muon_{given.what}.csv", [{**row, **provenance()} for row in rows], *key)


if __name__ == "__main__":
    main()
