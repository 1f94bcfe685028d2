"""What other implementations did, recorded in traces/, done again by the NumPy front."""

import json
from inspect import signature
from pathlib import Path

import ml_dtypes  # noqa: F401  # with which NumPy knows bfloat16
import numpy as np
import pytest
from parity.live import largest

from layerwise import Blocks, numpy, preset

TRACES = {file.stem: json.loads(file.read_text()) for file in sorted(Path(__file__).parent.glob("traces/*.json"))}
RUNS = [pytest.param(trace, run, id=f"{trace}-{i}") for trace in TRACES for i, run in enumerate(TRACES[trace]["runs"])]
TOLERANCE = {"float64": 1e-12, "float32": 3e-6}

KINDS = {
    "stableadamw": numpy.StableAdamW,
    "lamb": numpy.Lamb,
    "lars": numpy.Lars,
    "larc": numpy.Lars,
    "adafactor": numpy.Adafactor,
    "came": numpy.Came,
    "sinkgd": numpy.SinkGD,
    "scale": numpy.ScaleSGD,
}
KINDS |= {"lion": numpy.Lion, "novograd": numpy.NovoGrad, "adam_mini": numpy.AdamMini, "adamh": numpy.Lamb}

# The first step at which a tensor differs in the runs that say they differ; from then on it stays apart.
DIFFERS = {
    "apex.LARC": {"matrix": 3},
    "levanter.AdamH": {"zeros": 1},
    "simclr.LARSOptimizer": {"matrix": 2, "vector": 2, "cube": 2, "zeros": 2},
    "simclr.LARSOptimizer2": {"matrix": 2, "vector": 2, "cube": 2, "zeros": 2},
    "timm.Lars": {"zeros": 1, "matrix": 3},
    "big_vision.scale_by_adafactor": {"matrix": 2, "vector": 2, "cube": 2, "zeros": 2},
    "mem_eff_pt.SCALE": {"vector": 1, "zeros": 1},
    "axolotl.SinkGD": {"vector": 1, "zeros": 1},
    "timm.AdafactorBigVision": {"matrix": 1, "vector": 1, "cube": 1, "zeros": 1},
}

# Traces of a package that has a preset.
PRESETS = {
    "timm.Lamb": "timm.Lamb",
    "timm.Lars": "timm.Lars",
    "tensorflow_addons.LAMB": "tfa.LAMB",
    "mlcommons.LARSOptimizer": "mlperf.LARS",
    "simclr.LARSOptimizer": "simclr.LARS",
    "simclr.LARSOptimizer2": "simclr.LARS",
    "apex.LARC": "apex.LARC",
    "apex.RefLAMB": "apex.FusedLAMB-nvlamb",
    "t5x.Adafactor": "t5x.Adafactor",
    "timm.NvNovoGrad": "timm.NvNovoGrad",
    "timm.Lion": "timm.Lion",
    "lion_pytorch.Lion": "lion_pytorch.Lion",
    "timm.AdafactorBigVision": "timm.AdafactorBigVision",
    "big_vision.scale_by_adafactor": "big_vision.scale_by_adafactor",
    "mem_eff_pt.SCALE": "mem_eff_pt.SCALE",
    "axolotl.SinkGD": "axolotl.SinkGD",
    "came_pytorch.CAME": "came_pytorch.CAME",
    "optimi.StableAdamW": "optimi.StableAdamW",
}
# Which of our options an argument of theirs decides; any other argument decides the option of its own name.
DECIDES = {
    "always_adapt": ["adapt"],
    "decoupled_decay": ["decay"],
    "decoupled_weight_decay": ["weight_decay"],
    "corrected_weight_decay": ["peak_lr"],
    "betas": ["betas", "beta3"],
    "beta_1": ["betas"],
    "beta_2": ["betas"],
    "epsilon": ["eps"],
    "global_clipnorm": ["max_grad_norm"],
    "clipnorm": ["max_grad_norm_per_tensor"],
    "clipvalue": ["max_grad_value"],
    "trust_coeff": ["trust_coefficient"],
    "eeta": ["trust_coefficient"],
    "use_nesterov": ["nesterov"],
    "classic_momentum": ["lr_in_momentum"],
    "clip": ["trust_clip"],
    "momentum": ["momentum", "beta1", "momentum_dtype"],
    "dtype_momentum": ["momentum_dtype"],
    "last_layer": ["momentum"],
    "embedding": ["over"],
    "wd": ["weight_decay"],
    "sinkhorn_iters": ["iterations"],
    "sinkgd_lr_scale": ["scale"],
    "unscaled_wd": ["decay_scale"],
    "decouple_lr": ["weight_decay"],
    "max_lr": [],
    "cube": [],
    "weight_decay_rate": ["weight_decay"],
    "weight_decay_rate_lr_exponent": ["decay_scale"],
    "multiply_by_parameter_scale": ["scale_parameter"],
    "clipping_threshold": ["clip_threshold"],
    "decay_rate": ["beta2_decay"],
    "epsilon1": ["eps"],
    "epsilon2": ["eps"],
    "global_norm_clip_threshold": ["max_grad_norm"],
}


def with_tuples(value):
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def our_class(trace):
    return next(cls for kind, cls in KINDS.items() if kind in trace.split(".")[1].lower())


def _blocks(given):
    """Return blocks, given as a split and an axis or as an axis alone."""
    return Blocks(*given) if isinstance(given, list) else Blocks("each", given)


def differences(trace, run, options):
    """By tensor and step (from 1): how far we end up from the recording, in units of what is allowed."""
    recorded = TRACES[trace]
    shapes = {name: p["shape"] for name, p in recorded["params"].items()}

    def arrays(flat):
        return {name: np.array(x, dtype=run["dtype"]).reshape(shapes[name]) for name, x in flat.items()}

    if run["lrs"][0] is not None:
        options = {**options, "lr": run["lrs"][0]}
    if "blocks" in run:
        options = {**options, "blocks": {name: _blocks(given) for name, given in run["blocks"].items()}}
    optimizer = our_class(trace)(**options)
    weights = arrays({name: p["data"] for name, p in recorded["params"].items()})
    found = {}
    for step, (lr, grads, after) in enumerate(zip(run["lrs"], recorded["grads"], run["trajectory"], strict=True), 1):
        if lr is not None:
            optimizer.lr = lr
        optimizer.step_all(weights, arrays(grads))
        for name, p in arrays(after).items():
            assert weights[name].dtype == p.dtype
            found[name, step] = largest(weights[name] - p) / (TOLERANCE[run["dtype"]] * (largest(p) or 1e-300))
    assert len(found) == 16
    return found


def overridden(trace, run):
    """The preset, with what the run's arguments decide as the run says it, or else at our default."""
    theirs = {**run["theirs"], **run["theirs"].get("SGD", {})}
    decided = {option for argument in theirs.keys() - {"SGD"} for option in DECIDES.get(argument, [argument])}
    if theirs.get("cube") == ["ROW", "COLUMN", "COLUMN"]:  # the other rules are what the preset does by itself
        decided |= {"factored", "min_dim_size_to_factor"}
    defaults = {p.name: p.default for p in signature(our_class(trace)).parameters.values()}
    return {
        **preset(PRESETS[trace]),
        **{name: with_tuples(run["ours"].get(name, defaults[name])) for name in decided & {*defaults}},
    }


def assert_agree_but_for_differences(trace, run, options):
    since = DIFFERS[trace] if run["differs"] else {}
    for (name, step), off in differences(trace, run, options).items():
        if step < since.get(name, 5):
            assert off <= 1, (name, step)
        else:
            assert off > 100, (name, step)


@pytest.mark.parametrize(("trace", "run"), RUNS)
def test_run(trace, run):
    assert_agree_but_for_differences(trace, run, {name: with_tuples(value) for name, value in run["ours"].items()})


@pytest.mark.parametrize(("trace", "run"), [run for run in RUNS if run.values[0] in PRESETS])
def test_preset_and_what_the_run_overrides(trace, run):
    assert_agree_but_for_differences(trace, run, overridden(trace, run))


def test_every_preset_has_a_run_that_overrides_nothing():
    defaults = {"SGD": {"momentum": 0.9}}, {"cube": ["NONE"] * 3}, {}
    assert {trace for trace in PRESETS if any(run["theirs"] in defaults for run in TRACES[trace]["runs"])} == {*PRESETS}


def test_every_difference_of_the_table_is_said():
    assert {trace for trace in TRACES if any(run["differs"] for run in TRACES[trace]["runs"])} == DIFFERS.keys()
