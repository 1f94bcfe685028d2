"""What other implementations did, recorded in traces/, done again by the NumPy front."""

import json
from pathlib import Path

import numpy as np
import pytest
from parity.live import largest

from layerwise import Blocks, numpy, preset

TRACES = {file.stem: json.loads(file.read_text()) for file in sorted(Path(__file__).parent.glob("traces/*.json"))}
RUNS = [pytest.param(trace, run, id=f"{trace}-{i}") for trace in TRACES for i, run in enumerate(TRACES[trace]["runs"])]
TOLERANCE = {"float64": 1e-12, "float32": 3e-6}

KINDS = {"lamb": numpy.Lamb, "lars": numpy.Lars, "larc": numpy.Lars, "adafactor": numpy.Adafactor}

# The first step at which a tensor differs in the runs that say they differ; from then on it stays apart.
DIFFERS = {
    "apex.LARC": {"matrix": 3},
    "simclr.LARSOptimizer": {"matrix": 2, "vector": 2, "cube": 2, "zeros": 2},
    "simclr.LARSOptimizer2": {"matrix": 2, "vector": 2, "cube": 2, "zeros": 2},
    "timm.Lars": {"zeros": 1, "matrix": 3},
}

# Traces of a package that has a preset: its name, what it leaves to the caller, and which arguments are the defaults.
PRESETS = {
    "timm.Lamb": ("timm.Lamb", {}, {}),
    "timm.Lars": ("timm.Lars", {}, {}),
    "tensorflow_addons.LAMB": ("tfa.LAMB", {}, {}),
    "mlcommons.LARSOptimizer": ("mlperf.LARS", {}, {}),
    "simclr.LARSOptimizer": ("simclr.LARS", {}, {}),
    "simclr.LARSOptimizer2": ("simclr.LARS", {}, {}),
    "apex.LARC": ("apex.LARC", {"momentum": 0.9}, {"SGD": {"momentum": 0.9}}),
    "apex.RefLAMB": ("apex.FusedLAMB-nvlamb", {}, {}),
    "t5x.Adafactor": ("t5x.Adafactor", {}, {"cube": ["NONE", "NONE", "NONE"]}),
    "tensor2tensor.AdafactorOptimizer": ("paper.Adafactor", {}, {}),
}
DEFAULT_RUNS = [
    pytest.param(trace, run, id=f"{trace}-{i}")
    for trace, (_, _, defaults) in PRESETS.items()
    for i, run in enumerate(TRACES[trace]["runs"])
    if run["theirs"] == defaults
]


def with_tuples(value):
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def our_class(trace):
    return next(cls for kind, cls in KINDS.items() if kind in trace.split(".")[1].lower())


def differences(trace, run, options):
    """By tensor and step (from 1): how far we end up from the recording, in units of what is allowed."""
    recorded = TRACES[trace]
    shapes = {name: p["shape"] for name, p in recorded["params"].items()}

    def arrays(flat):
        return {name: np.array(x, dtype=run["dtype"]).reshape(shapes[name]) for name, x in flat.items()}

    if run["lrs"][0] is not None:
        options = {**options, "lr": run["lrs"][0]}
    if "blocks" in run:
        options = {**options, "blocks": {name: Blocks("each", axis) for name, axis in run["blocks"].items()}}
    optimizer = our_class(trace)(**options)
    weights = arrays({name: p["data"] for name, p in recorded["params"].items()})
    found = {}
    for step, (lr, grads, after) in enumerate(zip(run["lrs"], recorded["grads"], run["trajectory"], strict=True), 1):
        if lr is not None:
            optimizer.lr = lr
        optimizer.step_all(weights, arrays(grads))
        for name, p in arrays(after).items():
            assert weights[name].dtype == p.dtype
            found[name, step] = largest(weights[name] - p) / (TOLERANCE[run["dtype"]] * largest(p))
    assert len(found) == 16
    return found


@pytest.mark.parametrize(("trace", "run"), RUNS)
def test_run_agrees_except_where_it_says_otherwise(trace, run):
    since = DIFFERS[trace] if run["differs"] else {}
    options = {name: with_tuples(value) for name, value in run["ours"].items()}
    for (name, step), off in differences(trace, run, options).items():
        if step < since.get(name, 5):
            assert off <= 1, (name, step)
        else:
            assert off > 100, (name, step)


@pytest.mark.parametrize(("trace", "run"), DEFAULT_RUNS)
def test_preset_is_the_run_with_default_arguments(trace, run):
    name, left_open, _ = PRESETS[trace]
    assert not run["differs"]
    assert max(differences(trace, run, {**preset(name), **left_open}).values()) <= 1


def test_every_preset_of_the_table_has_a_run():
    assert {case.values[0] for case in DEFAULT_RUNS} == PRESETS.keys()


def test_every_difference_of_the_table_is_said():
    assert {trace for trace in TRACES if any(run["differs"] for run in TRACES[trace]["runs"])} == DIFFERS.keys()
