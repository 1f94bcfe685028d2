"""What `layerwise bench` is made of: groups, turns, shapes, memory, tables."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import layerwise
from layerwise.cli import files
from layerwise.cli.bench import memory, report, shapes, tensors, timing
from layerwise.cli.bench.arrays import JAX_PEERS, NUMPY_PEERS, held
from layerwise.cli.bench.groups import Cost, grouped
from layerwise.cli.bench.measure import Measurement, Table
from layerwise.cli.bench.peers import PEERS, Peer, load
from layerwise.cli.bench.shapes import parameters
from layerwise.threads import available_processors


class Failing(Peer):
    def start(self, work):
        raise RuntimeError("does\nnot work here")


class Sleeping(Peer):
    """Keeps a state of so many bytes, and interrupts its fifth step if told to."""

    def start(self, work):
        return Slept(self.label, work, **self.options)


class Slept:
    copied = 0

    def __init__(self, label, work, state=0, interrupts=False):
        self.label, self._times, self._left = label, parameters(work.shapes) / 256, 5 if interrupts else None
        self.state_bytes = int(state * self._times)

    def step(self):
        if self._left is not None and self._times == 1:
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt

    def peak(self):
        return int(100 * self._times)


class Breaking(Peer):
    def start(self, work):
        return Broken(self.label, work, **self.options)


class Broken(Slept):
    """Works while it is small, and fails at full size."""

    def __init__(self, label, work, at):
        super().__init__(label, work)
        self._at, self._steps = at, 0

    def step(self):
        self._steps += 1
        if self._times == 1 and self._at == self._steps:
            raise MemoryError("no more")

    def peak(self):
        if self._times == 1 and self._at == "peak":
            raise MemoryError("no more")
        return 0


class Told(list):
    def begin(self, what, steps):
        self.append((what, steps))

    def advance(self, what, steps):
        self.append((what, steps))


def measured(*peers, room=1e9, enough=bool):
    work = held({"a": (16, 16)})
    table = Table("Lamb", "a", work.shapes, "float32", "cpu", 1, peers[0].label)
    measurement = Measurement(table, peers, work, room, Told(), enough)
    return table, measurement


class TestMeasurement:
    @pytest.mark.parametrize(("columns", "peaks"), [(60, False), (80, True), (200, True)])
    def test_on_a_terminal_it_is_as_wide_as_that(self, columns, peaks):
        table, measurement = measured(*(Sleeping(peer.label, "") for peer in PEERS["Adafactor"]))
        measurement.run(3)
        console = Console(file=StringIO(), width=columns, force_terminal=True, color_system=None)
        report.show(console, table)
        rows = console.file.getvalue().splitlines()
        assert max(map(len, rows)) <= columns
        assert ("MiB" in "".join(rows)) is peaks
        assert "…" not in "".join(rows)
        assert sum("pytorch_optimizer.AdaFactor," in row for row in rows) == 2

    def test_what_fails_is_left_out(self):
        table, measurement = measured(Sleeping("ours", ""), Failing("theirs", ""))
        measurement.run(3)
        assert list(table.rows) == ["ours"]
        assert table.left_out == {"theirs": "RuntimeError: does not work here"}

    def test_turns_end_when_it_is_enough(self):
        steps = iter(range(100))
        # Two rounds of warming up, two more, and one step of ours.
        table, measurement = measured(Sleeping("ours", ""), Sleeping("theirs", ""), enough=lambda: next(steps) == 8)
        measurement.run(11)
        assert [len(row.timing.rounds) for row in table.rows.values()] == [3, 2]
        assert [len(row.ratio.rounds) for row in table.rows.values()] == [3, 2]

    def test_one_may_be_tried_out_as_another(self):
        class Slow(Sleeping):
            def try_out(self, work):
                return Sleeping("fast", "").start(work)

            def start(self, work):
                started.append(work.shapes)
                return super().start(work)

        started: list = []
        _, measurement = measured(Slow("slow", ""))
        measurement.run(3)
        assert started[0] == {"a": (16, 16)}  # and not what is much smaller

    def test_more_columns(self):
        table, measurement = measured(Sleeping("ours", ""))
        measurement.run(3)
        console = Console(file=StringIO(), width=80)
        report.show(console, table, lambda row: {"rounds\nthat count": str(len(row.timing.rounds))})
        heading, row = console.file.getvalue().splitlines()[1:3]
        assert heading.rstrip().endswith("rounds that count")
        assert row.rstrip().endswith(" 3")

    @pytest.mark.parametrize("at", [1, 4, "peak"])
    def test_what_fails_at_full_size_is_left_out(self, at):
        table, measurement = measured(Sleeping("ours", ""), Breaking("theirs", "", {"at": at}), Sleeping("last", ""))
        measurement.run(3)
        assert {label: len(row.ratio.rounds) for label, row in table.rows.items()} == {"ours": 3, "last": 3}
        assert table.left_out == {"theirs": "MemoryError: no more"}

    def test_what_does_not_fit_side_by_side_is_timed_with_ours_one_by_one(self):
        peers = [
            Sleeping(name, "", {"state": state}) for name, state in [("ours", 500), ("a", 300), ("b", 9e9), ("c", 300)]
        ]
        table, measurement = measured(*peers, room=1000)
        measurement.run(3)
        assert table.apart
        assert {label: (len(row.timing.rounds), len(row.ratio.rounds)) for label, row in table.rows.items()} == {
            "ours": (6, 6),
            "a": (3, 3),
            "c": (3, 3),
        }
        assert table.left_out.keys() == {"b"}
        assert "may be taken" in table.left_out["b"]

    def test_ctrl_c_leaves_what_was_measured(self):
        table, measurement = measured(Sleeping("ours", ""), Sleeping("theirs", "", {"interrupts": True}))
        with pytest.raises(KeyboardInterrupt):
            measurement.run(9)
        assert [len(row.timing.rounds) for row in table.rows.values()] == [3, 2]
        assert [len(row.ratio.rounds) for row in table.rows.values()] == [3, 2]


class TestFiles:
    @pytest.mark.parametrize("name", ["link", "old", "new"])
    def test_what_is_replaced_needs_its_folder(self, name, tmp_path, monkeypatch):
        folder = tmp_path / "kept"
        folder.mkdir()
        (folder / "old").touch()
        (tmp_path / "link").symlink_to(folder / "old")
        path = tmp_path / "link" if name == "link" else folder / name
        files.check_writable(path)
        monkeypatch.setattr(files.os, "access", lambda where, mode: where != folder)
        with pytest.raises(files.CannotWrite, match="no permission to write in"):
            files.check_writable(path)

    def test_what_is_written_to_does_not(self, monkeypatch):
        monkeypatch.setattr(files.os, "access", lambda where, mode: str(where) == "/dev/null")
        files.check_writable(Path("/dev/null"))


class TestArrays:
    def test_threads_reach_pytorch(self):
        ours, theirs = layerwise.get_num_threads(), torch.get_num_threads()
        try:
            torch.set_num_threads(theirs + 1)
            layerwise.set_num_threads(theirs + 2)
            assert len(held({"a": (2, 2)}).params) == 1
            assert torch.get_num_threads() == theirs + 2
        finally:
            layerwise.set_num_threads(ours)
            torch.set_num_threads(theirs)

    @pytest.mark.parametrize(
        ("dtype", "more", "why"),
        [("float32", 0, None), ("float32", 1, "--threads does not reach JAX"), ("float64", 0, "JAX makes float64")],
    )
    def test_optax_beside_numpy_does_the_same_or_is_left_out(self, dtype, more, why):
        pytest.importorskip("optax")
        work = held({"a": (2, 2)}, dtype)
        (peer,) = (peer for peer in NUMPY_PEERS["Lamb"] if peer.package == "optax")
        found = peer.why_not(work, available_processors() + more)
        assert found is None if why is None else found.startswith(why)

    @pytest.mark.parametrize("name", PEERS)
    def test_all_of_jax_decay(self, name, monkeypatch):
        pytest.importorskip("optax")
        given = []
        for peer in JAX_PEERS[name]:
            module, make = import_module(peer.target.partition(":")[0]), load(peer.target)
            monkeypatch.setattr(
                module, make.__name__, lambda lr, make=make, **more: given.append(more) or make(lr, **more)
            )
            peer.start(held({"a": (2, 2)}))
        assert [list(more.values()) for more in given] == [[0.01]] * len(JAX_PEERS[name])


class TestParts:
    @pytest.mark.parametrize(
        ("room", "expected"),
        [
            (100, [["ours", "a", "b", "c"]]),
            (50, [["ours", "a"], ["ours", "b"], ["ours", "c"]]),
            (45, [["ours", "a"], ["b"], ["ours", "c"]]),
            (25, [["a"], ["c"], ["ours"]]),
        ],
    )
    def test_groups(self, room, expected):
        costs = {"ours": Cost(20, 5), "a": Cost(20, 5), "b": Cost(20, 10), "c": Cost(10, 15)}
        found = list(grouped(costs, "ours", room))
        assert sorted(found) == sorted(expected)

    def test_ratios_are_of_the_same_round(self):
        ours, theirs = timing.Timing([1.0, 10.0, 2.0]), timing.Timing([3.0, 20.0])
        assert theirs.over(ours).rounds == [3.0, 2.0]

    def test_turns(self):
        order = []
        steps = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
        found = timing.alternately(steps, rounds=3, warmup=1, together=lambda: order.append("-"))
        assert "".join(order) == "-a-b" * 4
        assert {name: len(timed.rounds) for name, timed in found.items()} == {"a": 3, "b": 3}

    @pytest.mark.parametrize(
        ("name", "size", "tensors"),
        [("resnet50", 25_557_032, 161), ("bert-base", 108_891_648, 197), ("gpt2-medium", 354_823_168, 292)],
    )
    def test_published_sizes(self, name, size, tensors):
        found = shapes.SETS[name]()
        assert (shapes.parameters(found), len(found)) == (size, tensors)

    def test_a_billion_parameters(self):
        found = shapes.gpt_1b()
        assert 1.0e9 < shapes.parameters(found) < 1.1e9
        assert found["head"] == found["wte"]

    @pytest.mark.parametrize("name", shapes.SETS)
    def test_shrunk_shapes_keep_their_proportions(self, name):
        found = shapes.SETS[name]()
        for shape, small in zip(found.values(), shapes.shrunk(found).values(), strict=True):
            assert len(small) == len(shape)
            assert prod(shape) / 256 < prod(small) <= max(1, prod(shape) // 64)

    def test_available_memory(self, tmp_path):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
        assert memory.available(meminfo, tmp_path) == 3000 * 1024
        (tmp_path / "memory.max").write_text("2048000\n")
        (tmp_path / "memory.current").write_text("1024000\n")
        assert memory.available(meminfo, tmp_path) == 1024000
        (tmp_path / "memory.max").write_text("max\n")
        assert memory.available(meminfo, tmp_path) == 3000 * 1024
        assert memory.available(tmp_path / "none", tmp_path) > 0

    def test_the_clock_of_a_gpu(self, monkeypatch):
        """The host's time is of the first step, the GPU's of the second, which follows on what holds the GPU up."""
        told = []

        class Event:
            def __init__(self, enable_timing):
                told.append("event")

            def record(self):
                told.append("record")

            def elapsed_time(self, other):
                return 7.0  # milliseconds

        for name, call in {"synchronize": "wait", "_sleep": "sleep"}.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, call=call: told.append(call))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        host, device = tensors.on_cuda(lambda: told.append("step"))
        assert " ".join(told) == "wait step event event wait sleep record step record wait"
        assert 0 < host < 1
        assert device == 7e-3

    def test_state_is_counted_once(self):
        a = np.zeros(10, np.float32)
        assert memory.bytes_in({"x": [a, (a, None)], "y": {"z": np.zeros(3), "step": 4, "name": "ab"}}) == 40 + 24

    def test_peak_of_a_step(self):
        kept = []

        def step():
            kept[:] = [torch.empty(1000)]  # the old one goes when the new one is there
            torch.empty(3000)

        assert memory.peak_on_cpu(step) == 12000
