"""Groups with different rules in one prepared step of the GPU engine."""

from __future__ import annotations

import pytest
from cases import KERNELED
from gpu.front import SHAPES, alike, parameters, walk
from torch_front.front import close

from layerwise.torch import Mixed

pytestmark = pytest.mark.usefixtures("on_gpu")


def mixed(params, **options):
    groups = [{"params": params[i :: len(KERNELED)], "rule": case.name, **case.busy} for i, case in enumerate(KERNELED)]
    return Mixed(groups, **options)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"max_grad_norm": 0.5, "capturable": True},
        pytest.param({"max_grad_norm": 0.5, "skip_nonfinite": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_as_by_the_rule(options):
    ours, theirs = (parameters(shapes=[shape for shape in SHAPES for _ in KERNELED]) for _ in range(2))
    pairs = (ours, mixed(ours, fused=True, **options)), (theirs, mixed(theirs, fused=False, **options))
    walk(pairs, range(2))
    alike(ours, theirs)
    (_, opt), (_, other) = pairs
    stats, expected = opt.stats(), other.stats()
    assert stats.keys() == expected.keys()
    for name, measured in expected.items():
        close(stats[name], measured, 1e-5)
