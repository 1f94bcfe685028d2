"""`benchmarks/harness`: what is measured and how it is printed, never how fast anything is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripts import load

from harness import memory, report, shapes, tensors
from harness.measure import measure, tables_of
from harness.peers import PEERS, Peer
from harness.tensors import of_shapes
from harness.timing import Running

arrays = load("arrays")


class Made(Peer):
    """A peer that raises an error at its start, or of full size at a step or at its peak."""

    installed = True

    def start(self, work):
        if self.options.get("at") == "start":
            raise self.options["error"]
        return Stepped(self.label, work, **self.options)


class Stepped(Running):
    def __init__(self, label, work, at=None, error=None):
        self._whole, self._steps = shapes.parameters(work.shapes) == 256, 0
        self._at, self._error = at, error
        super().__init__(label, self._step, lambda: 0, self._peak)

    def _reaches(self, where):
        if self._whole and self._at == where:
            raise self._error

    def _step(self):
        self._steps += 1
        self._reaches(self._steps)

    def _peak(self):
        self._reaches("peak")
        return 100


def measured(*peers, rounds=3, room=1e9):
    work = of_shapes({"a": (16, 16)})
    tables = []

    def run():
        for table, together in tables_of("Lamb", "a", work, 1, peers, room):
            tables.append(table)
            measure(table, together, work, rounds)

    return tables, run


def rounds_of(table):
    return {label: (len(row.timing.rounds), len(row.ratio.rounds)) for label, row in table.rows.items()}


class TestMeasurement:
    def test_the_columns_are_below_their_headings(self):
        tables, run = measured(*(Made(peer.label, "") for peer in PEERS["Adafactor"]))
        run()
        title, headings, *rows = report.lines(tables[0])
        assert title.startswith("Lamb on a: 256 parameters")
        assert {len(row) for row in (headings, *rows[:-1])} == {len(headings)}
        assert len(headings) <= 110
        assert sum("pytorch_optimizer.AdaFactor," in row for row in rows) == 2

    @pytest.mark.parametrize("at", ["start", 1, 4, "peak"])
    def test_failures_are_left_out_and_reported(self, at):
        error = MemoryError("no\nmore")
        tables, run = measured(Made("ours", ""), Made("theirs", "", {"at": at, "error": error}), Made("last", ""))
        run()
        (table,) = tables
        assert rounds_of(table) == {"ours": (3, 3), "last": (3, 3)}
        assert table.left_out == {"theirs": "MemoryError: no more"}

    def test_ctrl_c_leaves_what_was_measured(self):
        interrupting = Made("theirs", "", {"at": 5, "error": KeyboardInterrupt()})
        tables, run = measured(Made("ours", ""), interrupting, rounds=9)
        with pytest.raises(KeyboardInterrupt):
            run()
        assert rounds_of(tables[0]) == {"ours": (3, 3), "theirs": (2, 2)}
        assert not tables[0].rows["ours"].host.rounds  # which are timed last, by themselves

    @pytest.mark.parametrize(
        ("room", "together", "left_out"),
        [
            (4, [{"ours", "a", "b"}], set()),
            (3, [{"ours", "a"}, {"ours", "b"}], set()),
            (2, [{"ours"}], {"a", "b"}),
            (1, [set()], {"ours", "a", "b"}),
        ],
    )
    def test_what_does_not_fit_side_by_side_is_timed_with_ours_one_by_one(self, room, together, left_out):
        """The room is for so many states of 8 bytes for each of 256 parameters, one of them for a step."""
        tables, run = measured(Made("ours", ""), Made("a", ""), Made("b", ""), room=room * 256 * 8)
        run()
        assert [rounds_of(table) for table in tables] == [dict.fromkeys(labels, (3, 3)) for labels in together]
        assert {label for table in tables for label in table.left_out} == left_out
        assert all("may be taken" in why for table in tables for why in table.left_out.values())

    def test_without_its_base_each_is_timed_alone(self):
        Gone = type("Gone", (Made,), {"installed": False})
        tables, run = measured(Gone("ours", "gone"), Made("a", ""), Made("b", ""), room=2 * 256 * 8)
        run()
        assert [rounds_of(table) for table in tables] == [{"a": (3, 0)}, {"b": (3, 0)}]

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


class TestShapesAndMemory:
    @pytest.mark.parametrize(
        ("name", "size", "tensors"),
        [("resnet50", 25_557_032, 161), ("bert-base", 108_891_648, 197), ("gpt2-medium", 354_823_168, 292)],
    )
    def test_models_have_their_published_sizes(self, name, size, tensors):
        found = shapes.SETS[name]()
        assert (shapes.parameters(found), len(found)) == (size, tensors)

    def test_available_memory_is_the_least_of_the_machines_and_the_control_groups(self, tmp_path):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
        assert memory.available(meminfo, tmp_path) == 3000 * 1024
        (tmp_path / "memory.current").write_text("1024000\n")
        for limit, found in (("2048000\n", 1024000), ("max\n", 3000 * 1024)):
            (tmp_path / "memory.max").write_text(limit)
            assert memory.available(meminfo, tmp_path) == found
        assert memory.available(tmp_path / "none", tmp_path) > 0

    def test_state_is_counted_once(self):
        a = np.zeros(10, np.float32)
        assert memory.bytes_in({"x": [a, (a, None)], "y": {"z": np.zeros(3), "step": 4, "name": "ab"}}) == 40 + 24

    def test_the_peak_of_a_step_is_what_it_holds_at_the_same_time(self):
        kept = []

        def step():
            kept[:] = [torch.empty(1000)]  # the old one goes when the new one is there
            torch.empty(3000)

        assert memory.peak_on_cpu(step) == 12000


class TestOtherApis:
    """What `benchmarks/fronts.py` times beside."""

    def test_numpy_steps_the_very_memory_of_the_tensors(self):
        work = of_shapes({"a": (2, 2)})
        before = work.params[0].detach().clone()
        running = arrays.NUMPY_PEERS["Lamb"][0].start(work)
        assert not torch.equal(work.params[0], before)
        assert running.state_bytes() == 2 * 16
