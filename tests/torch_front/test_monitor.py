"""What a monitor writes is what stats() says, at the steps it is asked for, and nothing else is different."""

from __future__ import annotations

import csv
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch_front.front import bits, busy, fronts, parameters, set_grads, walk

from layerwise.contrib.records import COLUMNS, QUANTITIES, scalars, writing_to
from layerwise.errors import HyperparameterError
from layerwise.torch import Adafactor, Lamb, Lars, Mixed, heatmap, monitor

BLOCKS = {"stack": "each", "matrix": 2}


class Board:
    """What TensorBoard's writer is called with."""

    def __init__(self):
        self.seen = {}

    def add_scalar(self, tag, value, step):
        assert type(value) is float
        assert self.seen.setdefault(step, {}).setdefault(tag, value) is value


class Run:
    """What a Weights & Biases run is called with."""

    def __init__(self):
        self.seen = []

    def log(self, numbers):
        self.seen.append(numbers)


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def steps_of(path):
    return sorted({int(row["step"]) for row in table(path)})


def made(front, **options):
    params = parameters(0)
    return busy(front, params.items(), **options), params


@fronts
def test_dashboards_get_the_numbers_of_stats(front):
    opt, params = made(front)
    board, run = Board(), Run()
    monitor(opt, board, every=2)
    monitor(opt, run, every=2)
    for t in range(4):
        walk(opt, params, [t])
        if t % 2:
            wanted = {f"{key}/{name}": x[key] for name, x in opt.stats().items() for key in QUANTITIES if key in x}
            share = board.seen[t + 1].pop("clipped/share")
            assert board.seen[t + 1] == wanted
            assert run.seen[-1] == {"optimizer_step": t + 1, **wanted, "clipped/share": share}
    assert list(board.seen) == [2, 4]
    assert len(run.seen) == 2


@fronts
def test_a_table_has_a_row_for_each_layer_and_block_and_training_is_the_same_bit_for_bit(front, tmp_path):
    (opt, params), (other, others) = made(front, blocks=BLOCKS), made(front, blocks=BLOCKS)
    monitor(opt, tmp_path / "run.csv", every=2)
    wanted = []
    for t in range(4):
        walk(opt, params, [t])
        walk(other, others, [t])
        for name, x in opt.stats().items() if t % 2 else ():
            for i in range(np.size(x["trust_ratio"])):
                numbers = [np.ravel(x[key])[i] if key in x else None for key in QUANTITIES]
                wanted.append([t + 1, name, i if np.ndim(x["trust_ratio"]) else "", *numbers])
    rows = table(tmp_path / "run.csv")
    assert tuple(rows[0]) == COLUMNS
    for row, (step, name, block, *numbers) in zip(rows, wanted, strict=True):
        assert (row["step"], row["name"], row["block"]) == (str(step), name, str(block))
        assert [float(row[key]) if row[key] else None for key in QUANTITIES] == numbers
        assert row["clipped"] in ("0.0", "1.0")
    assert bits(params) == bits(others)
    assert bits(opt.state_dict()) == bits(other.state_dict())


def test_a_monitor_counts_the_matrices_that_were_multiplied_in_each_dtype():
    params = {name: torch.nn.Parameter(torch.ones(3, 2)) for name in "abc"}
    kinds = ({"rule": "muon", "ns_dtype": "float32"}, {"rule": "muon", "ns_dtype": "float16"}, {"rule": "adamw"})
    opt = Mixed([{"params": [one], **kind} for one, kind in zip(params.items(), kinds, strict=True)])
    watching = monitor(opt, Run())
    assert watching.products == {}
    set_grads(params, 0)
    opt.step()
    assert watching.products == {"float32": 1, "float16": 1}
    assert sum(watching.engines.values()) == 3


def test_blocks_are_summarised():
    record = {"a": {"trust_ratio": np.array([4.0, np.nan, 1.0, 2.0]), "clipped": np.array([1.0, np.nan, 0.0, 0.0])}}
    found = scalars({**record, "b": {"trust_ratio": np.full(2, np.nan), "clipped": np.full(2, np.nan)}})
    ratios = {"trust_ratio/a/min": 1.0, "trust_ratio/a/median": 2.0, "trust_ratio/a/max": 4.0}
    assert found == {**ratios, "clipped/share": 1 / 3}


def test_blocks_elsewhere_have_no_rows(tmp_path):
    measured = {"trust_ratio": np.array([np.nan, 3.0]), "clipped": np.array([np.nan, 0.0])}
    writing_to(tmp_path / "run.csv")(1, {"a": measured, "b": {"trust_ratio": np.nan, "clipped": np.nan}})
    rows = [(row["name"], row["block"], row["trust_ratio"]) for row in table(tmp_path / "run.csv")]
    assert rows == [("a", "1", "3.0"), ("b", "", "nan")]  # that a layer has lost its numbers is to be seen


def test_a_resumed_run_goes_on_in_its_table(tmp_path):
    """Rows of steps that are taken again are replaced, and others kept."""
    opt, params = made(Lamb)
    handle = monitor(opt, tmp_path / "run.csv", every=2)
    walk(opt, params, range(5))
    saved, weights = deepcopy(opt.state_dict()), {name: p.detach().clone() for name, p in params.items()}
    walk(opt, params, range(5, 9))
    whole = table(tmp_path / "run.csv")
    assert steps_of(tmp_path / "run.csv") == [2, 4, 6, 8]
    handle.remove()

    again = {name: torch.nn.Parameter(x) for name, x in weights.items()}
    second = busy(Lamb, again.items())
    monitor(second, tmp_path / "run.csv", every=2)
    second.load_state_dict(saved)
    walk(second, again, [5])
    assert steps_of(tmp_path / "run.csv") == [2, 4, 6]
    walk(second, again, range(6, 9))
    assert table(tmp_path / "run.csv") == whole


def test_a_run_that_goes_back_replaces_its_rows_and_a_new_run_all_of_them(tmp_path):
    path = tmp_path / "run.csv"
    opt, params = made(Lamb)
    handle = monitor(opt, path)
    walk(opt, params, [0])
    saved = deepcopy(opt.state_dict())
    walk(opt, params, [1, 2])
    assert steps_of(path) == [1, 2, 3]
    opt.load_state_dict(saved)
    walk(opt, params, [3])
    assert steps_of(path) == [1, 2]
    handle.remove()
    with path.open("a") as file:
        file.write("3,matr")  # a row that was cut off
    handle = monitor(opt, path)
    walk(opt, params, [4])
    assert steps_of(path) == [1, 2, 3]
    opt, params = made(Lamb)
    monitor(opt, path)
    walk(opt, params, range(2))
    assert steps_of(path) == [1, 2]


@pytest.mark.parametrize(("every", "written"), [(1, [1, 2, 3, 4]), (2, [2, 4])])
def test_skipped_steps_are_not_counted(every, written):
    """Nor is the one before written again."""
    opt, params = made(Lamb, skip_nonfinite=True)
    board = Board()
    monitor(opt, board, every=every)
    for t in range(6):
        set_grads(params, t)
        if t in (1, 3):
            params["vector"].grad[0] = torch.nan
        opt.step()
    assert list(board.seen) == written


def test_a_step_that_only_makes_state_is_not_written(tmp_path):
    """torch.distributed.checkpoint takes one before it loads."""
    opt, params = made(Lamb)
    monitor(opt, tmp_path / "run.csv")
    opt.param_groups[0]["lr"] = 0.0
    walk(opt, params, [0])
    assert not (tmp_path / "run.csv").exists()


def share(front, weight, grad, dtype=torch.float32, **options):
    """Of the two layers that have this weight and gradient, and twice of both, how many were clipped."""
    params = {str(k): torch.nn.Parameter(k * torch.tensor(weight, dtype=dtype)) for k in (1, 2)}
    opt, board = front(params.items(), **options), Board()
    monitor(opt, board)
    for k, p in params.items():
        p.grad = int(k) * torch.tensor(grad, dtype=dtype)
    opt.step()
    return board.seen[1]["clipped/share"]


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    ("front", "options", "wanted"),
    [
        (Lamb, {}, 0.0),
        (Lamb, {"trust_clip": (0.1, 2.0)}, 0.0),  # the ratios are ‖p‖/‖r‖ = 0.5 and 1, as r is of ones
        (Lamb, {"trust_clip": (None, 0.7)}, 0.5),
        (Lamb, {"trust_clip": (0.7, None)}, 0.5),
        (Lamb, {"trust_clip": (0.6, 0.7)}, 1.0),
        (Lamb, {"trust_clip": (0.6, 0.7), "adapt": False}, 0.0),
        (Lamb, {"trust_clip": (0.6, 1.0), "adapt": "decayed"}, 0.0),
        (Lamb, {"trust_clip": (0.6, 0.7), "adapt": "decayed", "weight_decay": 1e-6}, 1.0),
        (Lamb, {"max_weight_norm": 1.5}, 0.5),
        (Lars, {}, 0.0),
        (Lars, {"trust_clip": (0.0, 1e-4)}, 1.0),
        (Adafactor, {"lr": 0.1, "clip_threshold": 0.5}, 1.0),
        (Adafactor, {"lr": 0.1, "clip_threshold": 2.0}, 0.0),
        (Adafactor, {"lr": 0.1, "clip_threshold": None}, 0.0),
    ],
)
def test_the_share_of_clipped_layers(front, options, wanted, fused):
    assert share(front, [0.5] * 4, [1.0] * 4, fused=fused, **options) == wanted
    for norms in ([0.0] * 4, [1.0] * 4), ([1.0] * 4, [0.0] * 4):  # nor is a norm of 0 clipped
        assert share(Lamb, *norms, fused=fused, trust_clip=(0.1, 1.0)) == 0.0


def test_a_heatmap_shows_the_ratios_of_all_layers(tmp_path):
    """Layers from the first to the last, blocks by their median."""
    opt, params = made(Lamb, blocks=BLOCKS)
    handle, wanted = monitor(opt, tmp_path / "run.csv", every=2), []
    for t in range(6):
        walk(opt, params, [t], but=["vector"] if t == 3 else ())
        if t % 2:
            wanted.append([np.median(opt.stats()[name]["trust_ratio"]) for name in params])
    figure = heatmap(handle, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(params)
    assert axes.yaxis_inverted()
    [mesh] = axes.collections
    np.testing.assert_allclose(mesh.get_array(), np.transpose(wanted), rtol=1e-12)
    again = heatmap(str(tmp_path / "run.csv")).axes[0].collections[0]
    assert (again.get_array() == mesh.get_array()).all()


def test_a_heatmap_needs_a_table_with_rows(tmp_path):
    opt, _ = made(Lamb)
    (tmp_path / "other.csv").write_text("epoch,loss\n1,2\n")
    for source, words in (
        (monitor(opt, Board()), "`source` must be a CSV file or a monitor that writes one"),
        (3, "`source` must be"),
        (
            tmp_path / "missing.csv",
            r"there is no file '.*missing.csv'\. Pass a table that monitor\(optimizer, path\) wrote",
        ),
        (monitor(opt, tmp_path / "none.csv"), "there is no file"),
        (
            tmp_path / "other.csv",
            r"other.csv' is a file, but not a table that monitor wrote\. Pass the path of one, or the",
        ),
    ):
        with pytest.raises(HyperparameterError, match=words):
            heatmap(source)
    writing_to(tmp_path / "empty.csv")(1, {})
    with pytest.raises(HyperparameterError, match="a table with rows"):
        heatmap(tmp_path / "empty.csv")


def test_unsuitable_optimizers_and_writers_are_refused(tmp_path):
    opt, params = made(Lamb)
    (tmp_path / "other.csv").write_text("epoch,loss\n1,2\n")
    (tmp_path / "circle.csv").symlink_to("circle.csv")
    for optimizer, writer, every, argument in (
        (
            torch.optim.SGD(params.values(), lr=0.1),
            Board(),
            1,
            "`optimizer`.*, but is an SGD of torch. If it wraps one,",
        ),
        (torch.nn.Sequential(), opt, 1, r"`optimizer` .*, but is .*Sequential.*\. The order is monitor\(optimizer"),
        (opt, 3, 1, "`writer`"),
        (opt, print, 1, "`writer`"),
        (opt, Board(), 0, "`every`"),
        (
            opt,
            tmp_path / "other.csv",
            1,
            "other.csv' is a file, but not a table that monitor wrote. Pass another path.",
        ),
        (opt, tmp_path / "no" / "run.csv", 1, "no/run.csv', but the folder '.*no' does not exist. Create it first"),
        (opt, tmp_path / "run.json", 1, "`writer`"),
        (opt, tmp_path / "run\0.csv", 1, "`writer`"),
        (opt, tmp_path / f"{'x' * 300}.csv", 1, "`writer`"),
        (opt, tmp_path / "circle.csv", 1, "`writer`"),
    ):
        with pytest.raises(HyperparameterError, match=argument):
            monitor(optimizer, writer, every)
    assert (tmp_path / "other.csv").read_text() == "epoch,loss\n1,2\n"
    assert not opt._optimizer_step_post_hooks
